#!/usr/bin/env python3
"""Embedded: the demo as it stands, and the lines of the README for a sale in one process.

Usage: em_0_demo.py      (SECKILL_BIN names the program)
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import ports

ROOT = pathlib.Path(__file__).resolve().parents[1]
BINARY = os.environ.get("SECKILL_BIN") or sys.exit("SECKILL_BIN is not set: name the program under test")
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith("SECKILL_")}


def demo(folder, *options):
    command = [BINARY, "demo", "--json", *options]
    done = subprocess.run(command, cwd=folder, env=PLAIN, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    report = json.loads(done.stdout)
    assert report["wrong"] == [], report["wrong"]
    return report


def blocks(heading):
    """The shell blocks under a heading of the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    part = text.split(f"### {heading}\n")[1].split("\n### ")[0].split("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", part, re.S)


def readme(folder):
    public, admin = ports.unused((0, 1))
    script = blocks("In one process")[0] + "SERVER=$!\nsleep 0\n" + blocks("Either way")[0]
    script = script.replace("cargo build --release\n", "").replace("target/release/seckill", BINARY)
    script = script.replace("localhost:8080", f"127.0.0.1:{public}").replace("localhost:9090", f"127.0.0.1:{admin}")
    settings = f"--set server.listen=127.0.0.1:{public} --set admin.listen=127.0.0.1:{admin} --set identity.mode=gateway_header"
    script = script.replace("--set identity.mode=gateway_header &", f"{settings} &\nSERVER=$!\nwait_for_it")
    # The reader takes longer to type the next line than the server to come up.
    wait = "wait_for_it() { for i in $(seq 100); do [ -s seckill-data/server.json ] && return; sleep 0.1; done; exit 1; }\n"
    script = "set -e\n" + wait + script.replace("SERVER=$!\nsleep 0\n", "") + "kill $SERVER; wait $SERVER\n"
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=PLAIN, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    for expected in ("created", "202 Accepted", '"state":"CREATED"', "# EOF"):
        assert expected in done.stdout, f"{expected} is missing in\n{done.stdout}\n{done.stderr}"


def keep(folder):
    """--keep leaves a server that ends with the demo: on Ctrl-C, which reaches both, and on a signal to the demo alone."""
    for end in (lambda pid: os.killpg(pid, signal.SIGINT), lambda pid: os.kill(pid, signal.SIGTERM)):
        keep_until(folder, end)


def keep_until(folder, end):
    command = [BINARY, "demo", "--keep", "--units", "10", "--rate", "200", "--seconds", "1"]
    process = subprocess.Popen(command, cwd=folder, env=PLAIN, stdout=subprocess.PIPE, text=True, start_new_session=True)
    seen = ""
    while "curl" not in seen:
        line = process.stdout.readline()
        assert line, f"the demo ended:\n{seen}"
        seen += line
    time.sleep(0.2)
    assert process.poll() is None, "the server did not stay"
    end(process.pid)
    assert process.wait(30) == 0
    try:
        os.killpg(process.pid, 0)
        raise AssertionError("the server outlived the demo")
    except ProcessLookupError:
        pass


def main():
    with tempfile.TemporaryDirectory(prefix="seckill-demo-") as name:
        folder = pathlib.Path(name)
        report = demo(folder)
        sale = report["sale"]
        print(f"demo: {report['orders']} orders of {sale['total']} units, {report['buyers']['submit']['answered']} clicks")
        assert report["orders"] == sale["total"] == 5000 and sale["stock"] == 0
        time.sleep(1.1)
        again = demo(folder, "--units", "100", "--rate", "500", "--seconds", "1")
        assert again["orders"] == 100, "a second demo on the same folder"
        unsold = demo(folder, "--units", "5000", "--rate", "500", "--seconds", "1", "--data", "other")
        assert 400 < unsold["orders"] < 500 and unsold["sale"]["stock"] == 5000 - unsold["orders"]
        readme(folder)
        keep(folder)
    print("the lines of the README work; a demo can be shown again; --keep stays and ends with Ctrl-C")


if __name__ == "__main__":
    main()
