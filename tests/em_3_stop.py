#!/usr/bin/env python3
"""Embedded: the orderly stop under load keeps every promise and answers what it has taken; bearer tokens over real sockets.

Usage: em_3_stop.py [rounds]      (default 4; SECKILL_BIN names the program)
"""

import asyncio
import base64
import hashlib
import hmac
import json
import pathlib
import random
import sys
import tempfile
import time
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "it"))
from embedded import Connection, Server  # noqa: E402  (the path is set just above)

CONNECTIONS, SECRET, AUDIENCE = 24, "0123456789abcdef0123456789abcdef", "seckill"


async def buyer(address, sku, users, promised, cut):
    connection = Connection(address)
    try:
        while True:
            user, key = next(users), str(uuid.uuid4())
            status, answer = await connection.submit(sku, user, key)
            if status == 202:
                promised[key] = (user, answer["reservation_id"], answer["order_id"])
            assert status in (202, 409, 429, 503, 504), f"{status} {answer}"
    except asyncio.IncompleteReadError as error:
        # Closed between two requests is how a stop ends a connection; half an answer is not.
        cut.append(len(error.partial))
    except ConnectionError:
        cut.append(0)


async def load_and_stop(server, sku):
    promised, cut = {}, []
    users = iter(range(1, 1_000_000))
    tasks = [asyncio.create_task(buyer(server.public, sku, users, promised, cut)) for _ in range(CONNECTIONS)]
    await asyncio.sleep(0.2 + 0.3 * random.random())
    began = time.monotonic()
    await asyncio.to_thread(server.stop)
    took = time.monotonic() - began
    await asyncio.gather(*tasks)
    assert sum(cut) == 0, f"answers cut off: {cut}"
    return promised, took


async def check(server, sku, promised):
    connection = Connection(server.public)
    for key, (user, reservation_id, order_id) in promised.items():
        status, answer = await connection.call("GET", f"/v1/seckill/activities/1/skus/{sku}/requests/{key}?wait=5000", user)
        told = (status, answer.get("state"), answer.get("reservation_id"), answer.get("order_id"))
        assert told == (200, "CREATED", reservation_id, order_id), f"{key}: {told}"
    connection.close()


def stops(folder, rounds):
    kept, slowest = 0, 0
    for sku in range(1, rounds + 1):
        server = Server(folder)
        server.open_sale(sku, 100_000)
        promised, took = asyncio.run(load_and_stop(server, sku))
        server = Server(folder)
        asyncio.run(check(server, sku, promised))
        server.stop()
        kept, slowest = kept + len(promised), max(slowest, took)
    assert kept > 100 * rounds, f"too few promises for a test: {kept}"
    print(f"{rounds} stops under load: {kept} promises kept, the slowest took {slowest:.1f} s")


def token(header=None, key=SECRET, **claims):
    def part(value):
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    claims = {"sub": "42", "aud": AUDIENCE, "exp": int(time.time()) + 600, **claims}
    signed = part(header or {"alg": "HS256", "typ": "JWT"}) + b"." + part(claims)
    signature = hmac.new(key.encode(), signed, hashlib.sha256).digest()
    return (signed + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


async def tokens(server):
    good = token()
    cases = [
        ("a good token", f"Authorization: Bearer {good}\r\n", 202),
        ("none", "", 401),
        ("another key", f"Authorization: Bearer {token(key='x' * 32)}\r\n", 401),
        ("expired", f"Authorization: Bearer {token(exp=int(time.time()) - 600)}\r\n", 401),
        ("another audience", f"Authorization: Bearer {token(aud='shop')}\r\n", 401),
        ("no algorithm", f"Authorization: Bearer {token(header={'alg': 'none'})}\r\n", 401),
        ("a user that is none", f"Authorization: Bearer {token(sub='0')}\r\n", 401),
        ("the user changed after signing", f"Authorization: Bearer {good[:-4]}AAAA\r\n", 401),
        ("no scheme", f"Authorization: {good}\r\n", 401),
    ]
    for what, fields, expected in cases:
        # The client always says X-User-Id: 7, which means nothing here.
        connection = Connection(server.public)
        status, answer = await connection.submit(1, 7, str(uuid.uuid4()), fields)
        assert status == expected, f"{what}: {status} {answer}"
        connection.close()
    key = str(uuid.uuid4())
    connection = Connection(server.public)
    status, _ = await connection.submit(1, 7, key, f"Authorization: Bearer {token(sub='43')}\r\n")
    assert status == 202
    path = f"/v1/seckill/activities/1/skus/1/requests/{key}?wait=5000"
    mine = await connection.call("GET", path, 7, f"Authorization: Bearer {token(sub='43')}\r\n")
    other = await connection.call("GET", path, 7, f"Authorization: Bearer {token(sub='7')}\r\n")
    assert (mine[0], mine[1]["state"], other[0]) == (200, "CREATED", 404), (mine, other)
    connection.close()
    print(f"{len(cases)} tokens judged, a result shown to its owner only")


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    with tempfile.TemporaryDirectory(prefix="seckill-stop-") as name:
        stops(pathlib.Path(name) / "a", rounds)
        server = Server(pathlib.Path(name) / "b", identity__mode="jwt", identity__jwt_key=SECRET)
        server.open_sale(1, 100)
        asyncio.run(tokens(server))
        server.stop()


if __name__ == "__main__":
    main()
