#!/usr/bin/env python3
"""The admin listener: health, readiness, the shards one by one, heap and CPU profile, and a token for everything that shows more."""

import collections
import http.client
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid

sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/it")
from embedded import BINARY, Server  # noqa: E402

TOKEN = "a-token-of-thirty-two-characters"


def ask_bytes(server, path, token=None):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://{server.admin}{path}", headers=headers), timeout=60) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def ask(server, path, token=None):
    code, body = ask_bytes(server, path, token)
    return code, body.decode()


def status(folder, *more):
    command = [BINARY, "activity", "status", "--activity-id", "1", "--sku-id", "7", "--json",
               "--set", f"embedded.data={folder / 'data'}", *more]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SECKILL_")}
    return subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment)


def heap(server):
    code, text = ask(server, "/debug/heap", TOKEN)
    seen = json.loads(text)
    assert code == 200 and 1 << 20 < seen["heap"]["resident_peak_bytes"] < 4 << 30, text
    assert seen["heap"]["committed_bytes"] <= seen["heap"]["committed_peak_bytes"], text
    assert all(shard["allocations"] > 0 and shard["allocated_bytes"] > shard["allocations"] for shard in seen["shards"]), text


def profile(server):
    """Both forms under load: the flame graph names our own functions and threads; no answer is lost while it is taken."""
    for query, word in (("seconds=0", "1 to 60"), ("format=png", "neither svg nor pprof"), ("seconds=1&seconds", "1 to 60")):
        code, text = ask(server, f"/debug/profile?{query}", TOKEN)
        assert code == 400 and word in text, text
    assert ask(server, "/debug/profile")[0] == 401
    server.open_sale(77, 10, token=TOKEN)
    stop, answers = threading.Event(), collections.Counter()
    clients = [threading.Thread(target=click, args=(server, user * 1_000_000, stop, answers)) for user in (1, 2)]
    for client in clients:
        client.start()
    taken = {}
    first = threading.Thread(target=lambda: taken.update(svg=ask(server, "/debug/profile?seconds=3&hz=499", TOKEN)))
    first.start()
    time.sleep(1)
    assert ask(server, "/debug/profile?seconds=1", TOKEN)[0] == 409, "one at a time"
    first.join()
    code, raw = ask_bytes(server, "/debug/profile?seconds=2&hz=499&format=pprof", TOKEN)
    stop.set()
    for client in clients:
        client.join()
    svg = taken["svg"]
    assert svg[0] == 200 and svg[1].lstrip().startswith("<?xml") and "</svg>" in svg[1], svg[1][:500]
    for word in ("shard-0", "seckill::http", "seckill::group_commit"):
        assert word in svg[1], word
    # profile.proto: sample_type (field 1) first, and the names among the strings (field 6).
    assert code == 200 and raw[0] == 0x0A and b"seckill::http" in raw, raw[:100]
    assert set(answers) == {202, 409} and answers[202] == 10, answers


def click(server, first_user, stop, answers):
    """Buys with one connection as fast as it can: ten win, the others are told SOLD_OUT."""
    host, port = server.public.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    for user in itertools.count(first_user):
        if stop.is_set():
            break
        headers = {"Content-Type": "application/json", "Idempotency-Key": str(uuid.uuid4()), "X-User-Id": str(user)}
        connection.request("POST", "/v1/seckill/orders", '{"activity_id":1,"sku_id":77}', headers)
        reply = connection.getresponse()
        reply.read()
        answers[reply.status] += 1


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
        heap(server)
        profile(server)
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
