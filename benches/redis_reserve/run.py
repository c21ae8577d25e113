#!/usr/bin/env python3
"""Redis CPU per reservation: lua/reserve.lua in batches against a five-key script called once a request.

Usage: run.py [requests] [--aof]     (default 20000; a private redis-server on a free port, its append-only file off or on)
The peer is called once a request in two ways: by 64 connections with one call each under way, as the connection pool of
the reference does it (redis-benchmark sends them), and down one connection with 512 calls in flight. The batches keep
512 requests in flight, and bring records while there are units, as the api does. The figure is the CPU of Redis' main thread, the least of 9 alternating rounds.
Prints one line a case and, last, the ratios for created reservations (goal: at most 0.35).
"""

import pathlib
import random
import subprocess
import sys
import time
import uuid

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "lua"))
from private_redis import Client, PrivateRedis, ReplyError, encode, record  # noqa: E402

IN_FLIGHT = 512
POOL = 64
ROUNDS = 9
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


def batch_commands(sha, prefix, rows, size, records):
    for at in range(0, len(rows), size):
        args = []
        for user, request_id, reservation_id, message_id, order_id, now in rows[at:at + size]:
            args += [user, request_id, reservation_id, message_id, order_id, now,
                     record(user, request_id, message_id, order_id, now) if records else ""]
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


def pooled(client, port, sha, prefix, count):
    """The one-call-per-request script from POOL connections; answers the server CPU used. redis-benchmark fills in random
    numbers of 12 digits for the user and the ids."""
    number = "__rand_int__"
    made = f"00000000-0000-4000-8000-{number}"
    keys = [f"{prefix}:stock", f"{prefix}:buyers", f"{prefix}:request:{made}", f"{prefix}:reservation:{made}", f"{prefix}:pending"]
    script = ["EVALSHA", sha, "5", *keys, number, made, made, str(int(time.time() * 1000)), str(DAY_MS), made, number]
    load = ["redis-benchmark", "-p", str(port), "-c", str(POOL), "-n", str(count), "-r", "2000000000", "-q", *script]
    before = client.cpu_seconds()
    subprocess.run(load, stdout=subprocess.DEVNULL, check=True)
    return client.cpu_seconds() - before


def measure(port, count, size, stock):
    """Microseconds of Redis CPU a request; size 0 is the one-call-per-request script, -1 the same from a pool."""
    client = Client(port)
    client.call("FLUSHALL")
    prefix = "sec:{1001:2001}"
    now = int(time.time() * 1000)
    assert client.script("warm", prefix, stock, stock, now - 1000, now + DAY_MS, now + 2 * DAY_MS, "open", 1)[0] == 0
    rows = requests(count)
    if size <= 0:
        sha = client.call("SCRIPT", "LOAD", (HERE / "single.lua").read_bytes())
        if size == 0:
            used = drive(client, single_commands(sha, prefix, rows), IN_FLIGHT)
        else:
            used = pooled(client, port, sha, prefix, count)
    else:
        client.script("status", prefix)
        sha = client.call("SCRIPT", "LOAD", (HERE.parents[1] / "lua" / "reserve.lua").read_bytes())
        used = drive(client, batch_commands(sha, prefix, rows, size, stock > 0), IN_FLIGHT // size)
    # A handful of the pool's random numbers may meet.
    assert 0 <= min(stock, count) - client.call("HLEN", f"{prefix}:buyers") <= (count // 1000 if size < 0 else 0)
    client.close()
    return used / count * 1e6


def main():
    counts = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    count = counts[0] if counts else 20_000
    sizes = (1, 8, 32, 64, 128, 256)
    created = {}
    with PrivateRedis(*(("--appendonly", "yes") if "--aof" in sys.argv else ())) as server:
        for name, stock in (("created", count), ("sold out", 0)):
            best = {}
            for _ in range(ROUNDS):
                for size in (-1, 0, *sizes):
                    best[size] = min(best.get(size, 1e9), measure(server.port, count, size, stock))
            print(f"{name:9} one a call, {POOL} connections   {best[-1]:6.2f} us")
            print(f"{name:9} one a call, pipelined        {best[0]:6.2f} us")
            for size in sizes:
                ratios = f"{best[size] / best[-1]:5.2f}x of the pool, {best[size] / best[0]:5.2f}x of the pipeline"
                print(f"{name:9} {size:4} a call              {best[size]:6.2f} us   {ratios}")
            created = created or best
    for name, peer in (("pool", -1), ("pipeline", 0)):
        ratios = [created[size] / created[peer] for size in sizes if size >= 64]
        print(f"created, 64 to 256 a call, of the {name}: {min(ratios):.2f} to {max(ratios):.2f} (goal <= 0.35)")


if __name__ == "__main__":
    main()
