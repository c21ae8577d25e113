#!/usr/bin/env python3
"""The disk fills up under load (embedded): no promise without room for it, and the sale goes on when there is room again.

It ends in the invariant checker, here on the SQLite file that the orders are in, and one click 100 times more.
"""

import asyncio
import pathlib
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid

sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/it")
from embedded import Connection, Server  # noqa: E402

SKU, UNITS = 7, 1_000_000
ASSERTIONS = pathlib.Path(__file__).resolve().parents[1] / "sql" / "assertions"
# An order that found no room in the store is tried again when its message comes back.
SETTINGS = {"embedded__segment_mib": 1, "rocketmq__invisible_ms": 10_000, "postgres__transaction_timeout_ms": 3_000}


async def buy(address, users, until=None):
    """Everybody once; {user: (key, status, body)}. Stops early when `until` says so of an answer."""
    answers, waiting, stop = {}, list(users), []

    async def one():
        connection = Connection(address)
        while waiting and not stop:
            user, key = waiting.pop(), str(uuid.uuid4())
            status, body = await connection.submit(SKU, user, key)
            answers[user] = (key, status, body)
            if until and until(status):
                stop.append(user)
        connection.close()

    await asyncio.gather(*(one() for _ in range(32)))
    return answers


async def states(address, answers):
    """The final state of each promise."""
    connection, found = Connection(address), {}
    for user, (key, status, _) in answers.items():
        if status == 202:
            _, said = await connection.call("GET", f"/v1/seckill/activities/1/skus/{SKU}/requests/{key}?wait=10000", user)
            found[user] = said
    connection.close()
    return found


def run(folder):
    server = Server(folder, **SETTINGS)
    server.open_sale(SKU, UNITS)
    filled = asyncio.run(buy(server.public, range(1, 400_000), until=lambda status: status == 503))
    kept = {user: answer for user, answer in filled.items() if answer[1] == 202}
    refused = {user: answer for user, answer in filled.items() if answer[1] != 202}
    assert refused and {answer[1] for answer in refused.values()} <= {503, 504}, {answer[1] for answer in refused.values()}
    assert len(kept) > 1_000, len(kept)
    # Full is full: whoever clicks now is refused, nobody is promised anything, and the process lives.
    time.sleep(0.5)
    more = asyncio.run(buy(server.public, range(500_001, 500_051)))
    assert {answer[1] for answer in more.values()} <= {202, 503, 504}
    kept.update({user: answer for user, answer in more.items() if answer[1] == 202})

    subprocess.run(["mount", "-o", "remount,size=256m", folder], check=True)
    end = time.monotonic() + 20
    while True:
        after = asyncio.run(buy(server.public, [600_001 + int(10 * (end - time.monotonic()))]))
        if all(answer[1] == 202 for answer in after.values()):
            kept.update(after)
            break
        assert time.monotonic() < end, f"still refused: {after}"
        time.sleep(0.2)
    kept.update(asyncio.run(buy(server.public, range(700_001, 700_201))))
    assert all(answer[1] == 202 for answer in kept.values())
    # The first who is not served yet waits for all of them: what comes back comes back together.
    for _ in range(4):
        said = asyncio.run(states(server.public, kept))
        wrong = {user: one for user, one in said.items() if one.get("state") != "CREATED"}
        if not wrong:
            break
    assert not wrong, list(wrong.items())[:3]
    server.kill()
    # And all of it is still there after a kill, with the ids that were promised.
    server = Server(folder, **SETTINGS)
    again = asyncio.run(states(server.public, kept))
    for user, (_, _, promise) in kept.items():
        assert again[user]["state"] == "CREATED" and again[user]["order_id"] == promise["order_id"], (user, again[user])
    server.stop()
    clicked = {key: user for answers in (filled, more, kept) for user, (key, _, _) in answers.items()}
    counted = check_store(folder, kept, clicked)
    server = Server(folder, **SETTINGS)
    asyncio.run(replay(server.public, *next(iter(kept.items()))))
    server.stop()
    assert check_store(folder, kept, clicked) == counted, "a replay changed something"
    return len(kept), len(refused), counted


def check_store(folder, kept, clicked):
    """What must hold whatever went wrong, read from the file; what it counted."""
    with sqlite3.connect(folder / "data" / "orders.sqlite") as store:
        for path in sorted(ASSERTIONS.glob("*.sql")):
            rows = store.execute(path.read_text()).fetchall()
            assert not rows, f"{path.name}: {rows[:5]}"
        orders = {row[0]: row[1:] for row in store.execute("SELECT request_id, user_id, reservation_id, order_id FROM orders")}
        released = {row[0] for row in store.execute("SELECT request_id FROM release_outbox")}
        (total, sold), = store.execute(f"SELECT total_stock, sold_stock FROM seckill_inventory WHERE sku_id = {SKU}")
        inbox = store.execute("SELECT count(*) FROM consumer_inbox").fetchone()[0]
    for user, (key, _, promise) in kept.items():
        assert orders.get(key) == (user, promise["reservation_id"], int(promise["order_id"])), f"{promise}: {orders.get(key)}"
    for key, (user, *_) in orders.items():
        assert clicked.get(key) == user, f"an order nobody asked for: {key} of {user}"
    assert not released & set(orders), "a unit is sold and given back"
    users = [user for user, *_ in orders.values()]
    assert len(users) == len(set(users)), "a user has two orders"
    assert sold == len(orders) and total == UNITS, f"{sold} sold, {len(orders)} orders"
    return {"orders": len(orders), "released": len(released), "inbox": inbox}


async def replay(address, user, answer):
    """One click 100 times more: always the same answer."""
    connection, (key, _, promise) = Connection(address), answer
    for _ in range(100):
        status, said = await connection.submit(SKU, user, key)
        same = all(said[name] == promise[name] for name in ("reservation_id", "order_id"))
        assert status == 202 and same, f"{status} {said}, promised {promise}"
    connection.close()


def main():
    with tempfile.TemporaryDirectory(prefix="seckill-disk-") as name:
        folder = pathlib.Path(name)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "none", folder], capture_output=True, text=True)
        if mounted.returncode != 0:
            print(f"NOT RUN: a small disk needs the right to mount one: {mounted.stderr.strip()}")
            return
        try:
            kept, refused, counted = run(folder)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)
    print(f"{kept} promises around a full disk kept, {refused} clicks refused while it was full; {counted}; one click 100 times: no change")


if __name__ == "__main__":
    main()
