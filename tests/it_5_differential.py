#!/usr/bin/env python3
"""The same random requests on the services and embedded: the same answers, the same final states.

Usage: it_5_differential.py [sequences] [seed]
"""

import asyncio
import pathlib
import random
import sys
import tempfile
import uuid

sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/it")
from embedded import Connection, Server  # noqa: E402
from world import World  # noqa: E402

UNITS, USERS, KEYS, STEPS = 4, 7, 12, 60


class Side:
    """One of the two, with the names it gave to things."""

    def __init__(self, address, activity, skus):
        self.address, self.activity, self.skus = address, activity, skus
        self.names = {}

    def named(self, value):
        """An id as the number of its first appearance, so that both sides can be compared."""
        return None if value is None else self.names.setdefault(value, len(self.names))

    def shape(self, status, answer):
        ids = tuple(self.named(answer.get(field)) for field in ("reservation_id", "order_id"))
        # A replay tells how far the order is, which is a matter of time.
        state = answer.get("state")
        return status, answer.get("code"), "ACCEPTED" if status == 202 else state, *ids

    async def connect(self):
        self.connection = Connection(self.address)

    async def submit(self, sku, user, key):
        body = f'{{"activity_id":{self.activity},"sku_id":{self.skus[sku]}}}'.encode()
        headers = f"Idempotency-Key: {key}\r\nContent-Type: application/json\r\n"
        return self.shape(*await self.connection.call("POST", "/v1/seckill/orders", user, headers, body))

    async def query(self, sku, user, key):
        path = f"/v1/seckill/activities/{self.activity}/skus/{self.skus[sku]}/requests/{key}?wait=5000"
        return self.shape(*await self.connection.call("GET", path, user))


async def run(sides, seed):
    chance = random.Random(seed)
    keys = [str(uuid.UUID(int=chance.getrandbits(128), version=4)) for _ in range(KEYS)]
    for side in sides:
        await side.connect()
    history, seen = [], {}
    for _ in range(STEPS):
        step = (chance.choice(("submit", "submit", "submit", "query")), chance.randrange(2), chance.randint(1, USERS),
                chance.choice(keys))
        what, *arguments = step
        answers = [await getattr(side, what)(*arguments) for side in sides]
        history.append((step, answers[0]))
        assert answers[0] == answers[1], f"seed {seed}: {step}\nservices {answers[0]}\nembedded {answers[1]}\nafter {history}"
        seen[answers[0][:3]] = seen.get(answers[0][:3], 0) + 1
    for sku in range(2):
        for user in range(1, USERS + 1):
            for key in keys:
                finals = [await side.query(sku, user, key) for side in sides]
                assert finals[0] == finals[1], f"seed {seed}: {sku} {user} {key}\n{finals}"
    for side in sides:
        side.connection.close()
    return seen


def main():
    sequences = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 32)
    seen = {}
    with World("differential") as world, tempfile.TemporaryDirectory(prefix="seckill-differential-") as name:
        # The budgets are for a machine with cores for everybody, and for fewer questions about requests that never were.
        services = world.start("all", query__fallback_per_s=100_000, submit__deadline_ms=2000, submit__reserve_ms=900,
                               submit__publish_ms=900)
        embedded = Server(pathlib.Path(name), shards__count=1, query__fallback_per_s=100_000)
        for sequence in range(sequences):
            activity, first = world.sale(UNITS)
            skus = [first, first + 1]
            world.sale(UNITS, activity=activity, sku=skus[1])
            for sku in skus:
                embedded.open_sale(sku, UNITS, activity=activity)
            sides = (Side(f"{services.host}:{services.port}", activity, skus), Side(embedded.public, activity, skus))
            for shape, count in asyncio.run(run(sides, seed + sequence)).items():
                seen[shape] = seen.get(shape, 0) + count
        assert services.stop() == 0
        embedded.stop()
    print(f"{sequences} sequences of {STEPS} requests from seed {seed}, every answer the same on both sides:")
    for (status, code, state), count in sorted(seen.items(), key=str):
        print(f"  {count:5} {status} {code or ''} {state or ''}")


if __name__ == "__main__":
    main()
