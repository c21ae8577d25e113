#!/usr/bin/env python3
"""Embedded: killed with SIGKILL at random moments under load; whatever was answered 202 is there afterwards.

Usage: em_1_kill.py [rounds] [seed]      (default 25 rounds; SECKILL_BIN names the program)

Each round is a sale of its own on the same data folder: buyers who click once, buyers who repeat their click, buyers who try
again under another key, until the process is killed. The next one must answer every promise of the round with the very same
ids. At the end the order store is read with SQL: one order for each promise, none beyond what was asked for, no user twice, no
more than the units on sale, every assertion of sql/assertions empty. Then the order store is removed, and the next start makes
it again from the journal.
"""

import asyncio
import pathlib
import random
import shutil
import sqlite3
import sys
import tempfile
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "it"))
from embedded import Connection, Server  # noqa: E402  (the path is set just above)

UNITS, CONNECTIONS = 300, 24


class Ledger:
    """What was asked for, and what was promised."""

    def __init__(self):
        self.asked, self.promised, self.counts = {}, {}, {}

    def note(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1


async def submit(connection, ledger, sku, user, key):
    ledger.asked[key] = (sku, user)
    status, answer = await connection.submit(sku, user, key)
    ledger.note(f"{status} {answer.get('code') or answer.get('state')}")
    if status == 202:
        promise = (sku, user, answer["reservation_id"], answer["order_id"])
        known = ledger.promised.setdefault(key, promise)
        assert known == promise, f"{key} was promised {known} and then {promise}"
    return status


async def buyer(address, ledger, sku, users):
    connection = Connection(address)
    mine = []
    try:
        while True:
            chance = random.random()
            if mine and chance < 0.2:
                user, key = random.choice(mine)
                await submit(connection, ledger, sku, user, key)
            elif mine and chance < 0.3:
                user, _ = random.choice(mine)
                await submit(connection, ledger, sku, user, str(uuid.uuid4()))
            else:
                user, key = next(users), str(uuid.uuid4())
                mine.append((user, key))
                await submit(connection, ledger, sku, user, key)
    except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
        pass
    finally:
        connection.close()


async def load(server, ledger, sku, seconds):
    users = iter(range(sku * 1_000_000, (sku + 1) * 1_000_000))
    tasks = [asyncio.create_task(buyer(server.public, ledger, sku, users)) for _ in range(CONNECTIONS)]
    await asyncio.sleep(seconds)
    server.kill()
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


async def check(server, promised):
    """Every promise is kept, with the ids that were told."""
    waiting = list(promised.items())

    async def look():
        connection = Connection(server.public)
        while waiting:
            key, (sku, user, reservation_id, order_id) = waiting.pop()
            path = f"/v1/seckill/activities/1/skus/{sku}/requests/{key}?wait=10000"
            status, answer = await connection.call("GET", path, user)
            told = (status, answer.get("state"), answer.get("reservation_id"), answer.get("order_id"))
            assert told == (200, "CREATED", reservation_id, order_id), f"{key} of user {user}: {told}, promised {order_id}"
        connection.close()

    await asyncio.gather(*(look() for _ in range(8)))


def check_store(folder, ledger):
    with sqlite3.connect(folder / "data" / "orders.sqlite") as store:
        for path in sorted((ROOT / "sql" / "assertions").glob("*.sql")):
            rows = store.execute(path.read_text()).fetchall()
            assert not rows, f"{path.name}: {rows[:5]}"
        orders = {row[0]: row[1:] for row in
                  store.execute("SELECT request_id, sku_id, user_id, reservation_id, order_id FROM orders")}
        for sku, sold in store.execute("SELECT sku_id, sold_stock FROM seckill_inventory"):
            assert sold <= UNITS, f"SKU {sku} sold {sold} of {UNITS}"
    for key, (sku, user, reservation_id, order_id) in ledger.promised.items():
        assert orders.get(key) == (sku, user, reservation_id, order_id), f"{key}: {orders.get(key)}"
    for key, order in orders.items():
        assert ledger.asked.get(key) == order[:2], f"nobody asked for {key}: {order}"
    return len(orders)


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 25
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 32)
    random.seed(seed)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="seckill-embedded-"))
    ledger = Ledger()
    checked = set()
    try:
        for sku in range(1, rounds + 1):
            server = Server(folder)
            fresh = {key: promise for key, promise in ledger.promised.items() if key not in checked}
            # Sometimes the promises are looked at, sometimes the next kill comes before their orders are made.
            if fresh and random.random() < 0.5:
                asyncio.run(check(server, fresh))
                checked.update(fresh)
            server.open_sale(sku, UNITS)
            asyncio.run(load(server, ledger, sku, random.choice((0.02, 0.05, 0.1, 0.2, 0.4)) * random.random() + 0.01))
        server = Server(folder)
        asyncio.run(check(server, ledger.promised))
        server.stop()
        orders = check_store(folder, ledger)
        # The journal alone makes the orders again.
        for path in (folder / "data").glob("orders.sqlite*"):
            path.unlink()
        server = Server(folder)
        asyncio.run(check(server, ledger.promised))
        server.stop()
        assert check_store(folder, ledger) == orders
        assert len(ledger.promised) > 20 * rounds, f"too few promises for a test: {len(ledger.promised)}"
    except BaseException:
        print(f"seed {seed}; data and log are in {folder}")
        raise
    shutil.rmtree(folder)
    print(f"{rounds} kills, seed {seed}: {len(ledger.asked)} requests, {len(ledger.promised)} promises, {orders} orders")
    print(" ".join(f"{what}: {count}" for what, count in sorted(ledger.counts.items())))


if __name__ == "__main__":
    main()
