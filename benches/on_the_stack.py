"""What the benches on the real services share. They need `eval "$(tests/stack env)"` and SECKILL_BIN."""

import json
import os
import random
import signal
import subprocess
import sys

BINARY = os.environ.get("SECKILL_BIN") or sys.exit("SECKILL_BIN is not set: cargo build --release, then name the binary")
IDENTITY = ["--set", "identity.mode=gateway_header"]


def seckill(*arguments):
    """Runs a command of the program; its standard output."""
    done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def new_sale(total, warm=True):
    """A sale of its own, open for an hour; the arguments that name it."""
    seckill("migrate")
    ids = ["--activity-id", random.randrange(1 << 30, 1 << 40), "--sku-id", 1]
    seckill("activity", "create", *ids, "--total", total, "--starts-at", "now", "--ends-at", "+1h")
    if warm:
        seckill("activity", "warm", *ids)
    return ids


class Server:
    """`seckill serve` on free ports, stopped at the end of the `with`."""

    def __init__(self, *options):
        self.options = options

    def __enter__(self):
        command = [BINARY, "serve", *IDENTITY, "--set", "server.listen=127.0.0.1:0", "--set", "admin.listen=127.0.0.1:0",
                   *map(str, self.options)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        first = self.process.stdout.readline()
        if not first:
            sys.exit("the server did not start")
        self.address = json.loads(first)["public"]
        self.pid = self.process.pid
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
