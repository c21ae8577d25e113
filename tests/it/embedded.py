"""A server in embedded mode and a client, as the tests of embedded mode see them. Standard library only; needs SECKILL_BIN."""

import asyncio
import atexit
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

BINARY = os.environ.get("SECKILL_BIN") or sys.exit("SECKILL_BIN is not set: name the program under test")


class Server:
    """`seckill serve` without services, on a data folder."""

    def __init__(self, folder, **more):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SECKILL_")}
        settings = {"identity.mode": "gateway_header", "server.listen": "127.0.0.1:0", "admin.listen": "127.0.0.1:0",
                    "embedded.data": folder / "data", "embedded.segment_mib": 1, "shards.count": 2, "shards.pin": "false",
                    # Two cores and everything on them: a slow disk is not what is tested here.
                    "submit.deadline_ms": 2000, **{name.replace("__", "."): value for name, value in more.items()}}
        command = [BINARY, "serve", *(part for name, value in settings.items() for part in ("--set", f"{name}={value}"))]
        folder.mkdir(parents=True, exist_ok=True)
        self.log = (folder / "log").open("ab")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, env=environment)
        # A test that fails must not leave it behind.
        atexit.register(self.process.kill)
        first = self.process.stdout.readline()
        if not first:
            raise AssertionError(f"the server did not start:\n{(folder / 'log').read_text()[-4000:]}")
        where = json.loads(first)
        self.admin, self.public = where["admin"], where["public"]

    def open_sale(self, sku, total, activity=1, start_ms=None, end_ms=None, token=""):
        now = int(time.time() * 1000)
        end_ms = end_ms or now + 3_600_000
        body = json.dumps({"activity_id": activity, "sku_id": sku, "start_ms": start_ms or now - 1000, "end_ms": end_ms,
                           "expire_at_ms": end_ms + 3_600_000, "total": total}).encode()
        request = urllib.request.Request(f"http://{self.admin}/activities", data=body, method="POST",
                                         headers={"Content-Type": "application/json", "Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert json.load(answer)["changed"]

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.log.close()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self.log.close()
        assert code == 0, f"the orderly stop ended with {code}"


class Connection:
    """A keep-alive connection; requests one at a time."""

    def __init__(self, address):
        self.host, self.port = address.split(":")
        self.reader = self.writer = None

    async def call(self, method, path, user, headers="", body=b""):
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(self.host, int(self.port))
        self.writer.write(f"{method} {path} HTTP/1.1\r\nHost: t\r\nX-User-Id: {user}\r\n{headers}Content-Length: {len(body)}"
                          "\r\n\r\n".encode() + body)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-length:"))
        return int(head.split(" ")[1]), json.loads(await self.reader.readexactly(length))

    async def submit(self, sku, user, key, fields=""):
        """A click; `fields` are more header lines."""
        headers = f"{fields}Idempotency-Key: {key}\r\nContent-Type: application/json\r\n"
        body = json.dumps({"activity_id": 1, "sku_id": sku}).encode()
        return await self.call("POST", "/v1/seckill/orders", user, headers, body)

    def close(self):
        if self.writer:
            self.writer.close()
