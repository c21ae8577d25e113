#!/usr/bin/env python3
"""Redis CPU per reservation: lua/reserve.lua in batches against a five-key script called once a request.

Usage: run.py [requests]        (default 20000; a private redis-server on a free port)
Both sides keep 512 requests in flight, so that neither pays for round trips. The figure is the CPU of Redis' main
thread, the least of 5 alternating rounds.
Prints one line a case and, last, the ratio for created reservations (goal: at most 0.35).
"""

import pathlib
import random
import sys
import time
import uuid

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "lua"))
from private_redis import Client, PrivateRedis, ReplyError, encode  # noqa: E402

IN_FLIGHT = 512
ROUNDS = 5
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
DAY_MS = 86_400_000


def id_at(millis):
    """A UUIDv7, as the api makes them."""
    return uuid.UUID(int=millis << 80 | 7 << 76 | random.getrandbits(12) << 64 | 2 << 62 | random.getrandbits(62))


def requests(count):
    """Distinct buyers, 100 a millisecond; request ids are the clients' own and random."""
    now = int(time.time() * 1000)
    return [(3_000_000 + i, uuid.uuid4(), id_at(now + i // 100), id_at(now + i // 100), 900_000_000_000_000 + i,
             now + i // 100) for i in range(count)]


def single_commands(sha, prefix, rows):
    for user, request_id, reservation_id, message_id, order_id, now in rows:
        yield encode(["EVALSHA", sha, 5, f"{prefix}:stock", f"{prefix}:buyers", f"{prefix}:request:{request_id}",
                      f"{prefix}:reservation:{reservation_id}", f"{prefix}:pending", user, request_id, reservation_id, now,
                      DAY_MS, message_id, order_id])


def batch_commands(sha, prefix, rows, size, trace=""):
    for at in range(0, len(rows), size):
        args = []
        for user, request_id, reservation_id, message_id, order_id, now in rows[at:at + size]:
            args += [user, request_id, reservation_id, message_id, order_id, now, trace]
        yield encode(["EVALSHA", sha, 1, prefix, *args])


def drive(client, commands, pipeline):
    """Sends `pipeline` commands a write, reads their replies; answers the server CPU used."""
    commands = list(commands)
    before = client.cpu_seconds()
    for at in range(0, len(commands), pipeline):
        part = commands[at:at + pipeline]
        client.socket.sendall(b"".join(part))
        for _ in part:
            reply = client.read()
            if isinstance(reply, ReplyError):
                raise reply
    return client.cpu_seconds() - before


def measure(port, count, size, stock):
    """Microseconds of Redis CPU a request; size 0 is the one-call-per-request script."""
    client = Client(port)
    client.call("FLUSHALL")
    prefix = "sec:{1001:2001}"
    now = int(time.time() * 1000)
    assert client.script("warm", prefix, stock, stock, now - 1000, now + DAY_MS, now + 2 * DAY_MS, "open", 1)[0] == 0
    rows = requests(count)
    if size == 0:
        sha = client.call("SCRIPT", "LOAD", (HERE / "single.lua").read_bytes())
        used = drive(client, single_commands(sha, prefix, rows), IN_FLIGHT)
    else:
        client.script("status", prefix)
        sha = client.call("SCRIPT", "LOAD", (HERE.parents[1] / "lua" / "reserve.lua").read_bytes())
        used = drive(client, batch_commands(sha, prefix, rows, size), IN_FLIGHT // size)
    assert client.call("HLEN", f"{prefix}:buyers") == min(stock, count)
    client.close()
    return used / count * 1e6


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    sizes = (1, 8, 32, 64, 128, 256)
    created = {}
    with PrivateRedis() as server:
        for name, stock in (("created", count), ("sold out", 0)):
            best = {}
            for _ in range(ROUNDS):
                for size in (0, *sizes):
                    best[size] = min(best.get(size, 1e9), measure(server.port, count, size, stock))
            print(f"{name:9} one a call   {best[0]:6.2f} us")
            for size in sizes:
                print(f"{name:9} {size:4} a call  {best[size]:6.2f} us   {best[size] / best[0]:5.2f}x")
            created = created or best
    ratios = [created[size] / created[0] for size in sizes if size >= 64]
    print(f"ratio for created reservations at 64 to 256 a call: {min(ratios):.2f} to {max(ratios):.2f} (goal <= 0.35)")


if __name__ == "__main__":
    main()
