"""A private redis-server and a small RESP2 client, for the script tests and benches. Standard library only."""

import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

LUA = pathlib.Path(__file__).resolve().parents[2] / "lua"


class ReplyError(Exception):
    """An error reply of the server."""


def encode(args):
    """One command as a RESP array of bulk strings."""
    out = [b"*%d\r\n" % len(args)]
    for arg in args:
        data = arg if isinstance(arg, bytes) else str(arg).encode()
        out.append(b"$%d\r\n%s\r\n" % (len(data), data))
    return b"".join(out)


class Client:
    """One connection. Bulk replies come back as str, error replies are raised."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb", 1 << 20)
        self.hashes = {}

    def close(self):
        self.file.close()
        self.socket.close()

    def read(self):
        line = self.file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            return ReplyError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2].decode()
        if kind == b"*":
            return [self.read() for _ in range(int(rest))]
        raise ConnectionError(f"not RESP: {line!r}")

    def call(self, *args):
        self.socket.sendall(encode(args))
        reply = self.read()
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def script(self, name, prefix, *args):
        """Runs lua/<name>.lua on the SKU with this key prefix."""
        if name not in self.hashes:
            self.hashes[name] = self.call("SCRIPT", "LOAD", (LUA / f"{name}.lua").read_bytes())
        return self.call("EVALSHA", self.hashes[name], 1, prefix, *args)

    def cpu_seconds(self):
        """User and system CPU of the server's main thread so far."""
        info = dict(line.split(":", 1) for line in self.call("INFO", "cpu").split("\r\n") if ":" in line)
        return float(info["used_cpu_user_main_thread"]) + float(info["used_cpu_sys_main_thread"])


class PrivateRedis:
    """A redis-server on a free loopback port with its own folder, gone at the end of the `with`."""

    def __init__(self, *options):
        self.options = options

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="seckill-redis-")
        for _ in range(20):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port = probe.getsockname()[1]
            self.process = subprocess.Popen(
                ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.folder, "--save", "",
                 "--appendonly", "no", *self.options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if self._answers():
                return self
        raise RuntimeError("redis-server did not start")

    def _answers(self):
        for _ in range(100):
            if self.process.poll() is not None:
                return False
            try:
                client = Client(self.port)
                try:
                    return client.call("PING") == "PONG"
                finally:
                    client.close()
            except OSError:
                time.sleep(0.05)
        return False

    def client(self):
        return Client(self.port)

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
