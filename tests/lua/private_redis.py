"""A private redis-server and a small RESP2 client, for the script tests and benches. Standard library only."""

import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

LUA = pathlib.Path(__file__).resolve().parents[2] / "lua"


def _crc64_table():
    """CRC-64 (Jones), reflected, as Redis has it."""
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x95AC9329AC4BC9B5 if crc & 1 else 0)
        table.append(crc)
    return table


CRC64 = _crc64_table()


def dump(fields):
    """A hash of short texts as DUMP of Redis 7.0 gives it: what `reserve.lua` takes as a record."""
    listpack = bytearray()
    for text in (part for field in fields for part in field):
        data = str(text).encode()
        assert len(data) < 64
        listpack += bytes([0x80 | len(data)]) + data + bytes([len(data) + 1])
    total = 6 + len(listpack) + 1
    out = bytearray(b"\x10")
    out += bytes([total]) if total < 64 else (0x4000 | total).to_bytes(2, "big")
    out += total.to_bytes(4, "little") + (2 * len(fields)).to_bytes(2, "little") + listpack + b"\xff\x0a\x00"
    crc = 0
    for byte in out:
        crc = CRC64[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return bytes(out) + crc.to_bytes(8, "little")


def record(user, request_id, message_id, order_id, created_at_ms, trace=""):
    """A fresh reservation's record."""
    fields = [("request_id", request_id), ("user_id", user), ("message_id", message_id), ("order_id", order_id),
              ("status", "RESERVED"), ("version", 1), ("created_at_ms", created_at_ms)]
    return dump(fields + ([("traceparent", trace)] if trace else []))


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
