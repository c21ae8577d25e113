#!/usr/bin/env python3
"""Redis lost, Redis behind, books that do not agree, results never shown: rebuilt, reconciled and projected, and then sold out."""

import json
import subprocess
import sys
import uuid

sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/it")
from checker import Checker  # noqa: E402
from scene import Scene, wait_for_check  # noqa: E402
from world import ROOT, Click, World, by_status, drive, need, wait_for  # noqa: E402

sys.path.insert(0, str(ROOT / "tests" / "lua"))
from test_scripts import request  # noqa: E402


def ids(sale):
    return ["--activity-id", sale[0], "--sku-id", sale[1]]


def reconcile(world, sale, *options):
    """(exit status, {kind: (count, repaired)})"""
    done = subprocess.run([need("SECKILL_BIN"), "reconcile", *map(str, ids(sale)), "--json", *map(str, options)],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    assert "report" in report, report
    for finding in report["report"]["findings"].values():
        assert finding["explanation"]
    return done.returncode, {kind: (one["count"], one["repaired"]) for kind, one in report["report"]["findings"].items()}


def sell(api, sale, users):
    clicks = [Click(user) for user in users]
    drive([api], sale, clicks)
    return clicks


def settled(world, sale, orders):
    wait_for("orders", lambda: world.orders(sale) == orders, 30)
    checker = Checker(sale, 0, world.redis, world.sql)
    wait_for("rest", lambda: not checker.unsettled(), 30)


def lost(world, api):
    """Redis comes back without the sale."""
    sale, total = world.sale(300), 300
    clicks = sell(api, sale, range(1, 151))
    settled(world, sale, 150)
    for key in world.redis.call("KEYS", world.redis_key(sale, "*")):
        world.redis.call("DEL", key)
    shut = sell_impatient(api, sale, [9001])
    assert by_status(shut) == {(503, "ACTIVITY_UNAVAILABLE"): 1}, by_status(shut)
    refused = subprocess.run([need("SECKILL_BIN"), "activity", "warm", *map(str, ids(sale))], capture_output=True, text=True)
    assert refused.returncode == 1 and "--rebuild" in refused.stderr, refused
    code, found = reconcile(world, sale)
    assert (code, found) == (1, {"gate_lost": (1, 0)}), (code, found)
    said = json.loads(world.seckill("activity", "warm", *ids(sale), "--rebuild", "--json"))
    assert {name: said["rebuilt"][name] for name in ("orders", "restored", "buyers", "stock", "contradicted")} == {
        "orders": 150, "restored": 150, "buyers": 150, "stock": 150, "contradicted": 0}, said
    assert reconcile(world, sale) == (0, {})
    # Who has an order is told so, with the same key and with another one.
    again = [Click(clicks[0].user, clicks[0].key), Click(clicks[1].user)]
    drive([api], sale, again)
    assert by_status(again) == {(202, None): 1, (409, "DUPLICATE_ORDER"): 1}, by_status(again)
    assert again[0].reply.json["order_id"] == clicks[0].reply.json["order_id"]
    rest = sell(api, sale, range(1001, 1201))
    assert by_status(rest) == {(202, None): 150, (409, "SOLD_OUT"): 50}, by_status(rest)
    settled(world, sale, total)
    wait_for_check(Checker(sale, total, world.redis, world.sql), clicks + rest)


def sell_impatient(api, sale, users):
    clicks = [Click(user) for user in users]
    drive([api], sale, clicks, patient=False)
    return clicks


def behind(world, api):
    """Redis comes back as it was 60 orders ago."""
    sale, total = world.sale(200), 200
    clicks = sell(api, sale, range(1, 61))
    settled(world, sale, 60)
    keys = world.redis.call("KEYS", world.redis_key(sale, "*"))
    # Copies beside them; a rename back later is a restore of an old snapshot.
    world.redis.call("EVAL", "for _, key in ipairs(KEYS) do redis.call('COPY', key, 'old:' .. key, 'REPLACE') end return 0",
                     len(keys), *keys)
    clicks += sell(api, sale, range(61, 121))
    settled(world, sale, 120)
    for key in world.redis.call("KEYS", world.redis_key(sale, "*")):
        world.redis.call("DEL", key)
    world.redis.call("EVAL", "for _, key in ipairs(KEYS) do redis.call('RENAME', 'old:' .. key, key) end return 0", len(keys), *keys)
    assert world.stock(sale) == 140
    # One whose order Redis has forgotten is sold a second unit before anybody notices; PostgreSQL will turn it down.
    doubled = Click(100)
    drive([api], sale, [doubled])
    assert doubled.reply.status == 202, doubled.reply.json
    code, found = reconcile(world, sale)
    assert code == 1 and found["buyer_missing"][0] + found.get("buyer_of_another", (0,))[0] == 60, found
    code, found = reconcile(world, sale, "--repair")
    assert code == 0, found
    wait_for("agreement", lambda: reconcile(world, sale) == (0, {}), 30, 0.5)
    rest = sell(api, sale, range(1001, 1101))
    assert by_status(rest) == {(202, None): 80, (409, "SOLD_OUT"): 20}, by_status(rest)
    settled(world, sale, total)
    wait_for_check(Checker(sale, total, world.redis, world.sql), clicks + [doubled] + rest)


def disagreeing(world, api):
    """One of each kind, made by hand."""
    sale, total = world.sale(100), 100
    prefix, call = world.redis_key(sale, "").rstrip(":"), world.redis.call
    clicks = sell(api, sale, range(1, 21))
    settled(world, sale, 20)
    assert reconcile(world, sale) == (0, {})
    reservation = {click.user: click.reply.json["reservation_id"] for click in clicks}
    key = {user: f"{prefix}:reservation:{reservation[user]}" for user in reservation}

    # Other sales of this stack may have a number of their own.
    discrepancy = lambda: api.metric("seckill_inventory_discrepancy")  # noqa: E731
    before = discrepancy()
    call("INCR", prefix + ":stock")
    wait_for("an alarm", lambda: discrepancy() == before + 1)
    assert reconcile(world, sale) == (1, {"stock_off": (1, 0)})
    call("HDEL", prefix + ":buyers", 1)
    call("HSET", prefix + ":buyers", 2, str(uuid.uuid4()))
    call("DEL", prefix + ":result:" + clicks[2].key)
    call("HSET", key[4], "status", "MQ_SENT")
    call("HSET", prefix + ":buyers", 777, str(uuid.uuid4()))
    released, unsent, unheard = request(801), request(802), request(803)
    world.redis.script("reserve", prefix, *released, *unsent, *unheard)
    call("ZREM", prefix + ":pending", released[2], unsent[2], unheard[2])
    world.redis.script("mark_sent", prefix, unheard[2], "")
    call("HSET", f"{prefix}:reservation:{released[2]}", "status", "RELEASED")
    code, found = reconcile(world, sale, "--patience", 0)
    expected = {"buyer_missing": 1, "buyer_of_another": 1, "not_shown": 2, "buyer_without_reservation": 2,
                "buyer_of_nothing": 1, "unsent_and_lost": 1, "message_lost": 1}
    assert {kind: count for kind, (count, _) in found.items() if kind != "stock_off"} == expected, found
    code, found = reconcile(world, sale, "--repair", "--patience", 0)
    assert code == 0 and all(count == repaired for count, repaired in found.values()), found
    wait_for("orders of what was stuck", lambda: world.orders(sale) == 22, 30)
    wait_for("agreement", lambda: reconcile(world, sale) == (0, {}), 30, 0.5)
    assert world.stock(sale) == total - 22
    wait_for("no alarm", lambda: discrepancy() == before)

    # What no machine may decide is explained and left alone.
    call("HSET", key[5], "status", "RELEASED")
    invented = request(901)
    world.redis.script("reserve", prefix, *invented)
    world.redis.script("mark_sent", prefix, invented[2], "")
    call("HSET", f"{prefix}:reservation:{invented[2]}", "status", "CREATED")
    code, found = reconcile(world, sale, "--repair")
    assert (code, found) == (1, {"order_contradicted": (1, 0), "order_missing": (1, 0)}), found
    call("HSET", key[5], "status", "CREATED")
    call("HDEL", prefix + ":buyers", 901)
    call("DEL", f"{prefix}:reservation:{invented[2]}", f"{prefix}:request:{invented[1]}")
    code, found = reconcile(world, sale, "--repair")
    assert code == 0, found
    assert reconcile(world, sale) == (0, {})


def never_shown(world):
    """The worker settles while Redis is away; the projector shows the results when it is back."""
    scene = Scene(world, postgres__transaction_timeout_ms=1_000)
    api = scene.start("api")
    sale = world.sale(200)
    clicks = sell(api, sale, range(1, 201))
    scene.redis.down()
    worker = scene.start("worker")
    wait_for("orders", lambda: world.orders(sale) == 200, 30)
    wait_for("results given up", lambda: worker.metric("seckill_result_projection_failures_total") > 0)
    shown = "result:*"
    assert not world.redis.call("KEYS", world.redis_key(sale, shown))
    scene.redis.up()
    wait_for("results", lambda: len(world.redis.call("KEYS", world.redis_key(sale, shown))) == 200, 20)
    wait_for_check(Checker(sale, 200, world.redis, world.sql), clicks)
    scene.close()


def main():
    with World("books") as world:
        api = world.start("all", recovery__scan_ms=100, recovery__reconcile_ms=100)
        lost(world, api)
        behind(world, api)
        disagreeing(world, api)
        assert api.stop() == 0, api.tail()
        never_shown(world)
    print("Redis lost and behind: rebuilt and repaired; ten kinds of disagreement found and put right; 200 results shown late")


if __name__ == "__main__":
    main()
