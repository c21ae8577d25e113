#!/usr/bin/env python3
"""The admin listener: health, readiness, the shards one by one, and a token for everything that shows more."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/it")
from embedded import BINARY, Server  # noqa: E402

TOKEN = "a-token-of-thirty-two-characters"


def ask(server, path, token=None):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://{server.admin}{path}", headers=headers), timeout=5) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def status(folder, *more):
    command = [BINARY, "activity", "status", "--activity-id", "1", "--sku-id", "7", "--json",
               "--set", f"embedded.data={folder / 'data'}", *more]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SECKILL_")}
    return subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment)


def main():
    with tempfile.TemporaryDirectory(prefix="seckill-admin-") as name:
        folder = pathlib.Path(name)
        server = Server(folder, admin__token=TOKEN)
        assert ask(server, "/healthz") == (200, "ok\n")
        assert ask(server, "/readyz") == (200, "ready\n")
        for path in ("/metrics", "/debug/shards", "/activities/1/7", "/nothing"):
            assert ask(server, path)[0] == 401, path
            assert ask(server, path, TOKEN[:-1] + "x")[0] == 401, path
        assert ask(server, "/nothing", TOKEN)[0] == 404
        code, text = ask(server, "/debug/shards", TOKEN)
        shards = json.loads(text)["shards"]
        assert code == 200 and sorted(shard["shard"] for shard in shards) == [0, 1], text
        time.sleep(0.5)
        code, text = ask(server, "/metrics", TOKEN)
        rows = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert code == 200 and text.endswith("# EOF\n")
        for shard in "01":
            assert float(rows[f'seckill_shard_cpu_seconds_total{{shard="{shard}"}}']) > 0
            assert f'seckill_shard_http_connections{{shard="{shard}"}}' in rows
        assert float(rows["seckill_shard_loop_lag_seconds_count"]) >= 6, "two shards, ten looks a second"
        refused, done = status(folder), status(folder, "--set", f"admin.token={TOKEN}")
        assert refused.returncode == 1 and "401" in refused.stdout, refused
        assert "there is no sale" in done.stdout or "no sale" in done.stdout, done
        server.stop()
    print("nobody without the token saw more than health and readiness")


if __name__ == "__main__":
    main()
