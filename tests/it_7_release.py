#!/usr/bin/env python3
"""Units whose order was turned down go back, once each, whoever does it; their buyers are told why."""

import json
import sys

sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/it")
from world import ROOT, Click, Topic, World, by_status, drive, order_event, standings, wait_for  # noqa: E402

sys.path.insert(0, str(ROOT / "tests" / "lua"))
from test_scripts import request  # noqa: E402


def short_stock(world, api, workers):
    """PostgreSQL has fewer units than Redis believed: it has the last word, and the rest goes back."""
    sale = world.sale(200)
    world.sql(f"UPDATE seckill_inventory SET total_stock = 60 WHERE activity_id = {sale[0]} AND sku_id = {sale[1]}")
    clicks = [Click(user) for user in range(1, 201)]
    drive([api], sale, clicks)
    assert by_status(clicks) == {(202, None): 200}, by_status(clicks)
    wait_for("releases", lambda: world.stock(sale) == 140, 60)
    wait_for("an empty outbox", lambda: world.count("SELECT count(*) FROM release_outbox WHERE applied_at IS NULL") == 0)
    assert world.orders(sale) == 60
    assert world.redis.call("HLEN", world.redis_key(sale, "buyers")) == 60
    told = standings([api], sale, clicks)
    states = {}
    for _, reply in told:
        answer = reply.json
        what = (answer["state"], answer.get("code"))
        states[what] = states.get(what, 0) + 1
    assert states == {("CREATED", None): 60, ("REJECTED", "PG_STOCK_EXHAUSTED"): 140}, states
    # Whoever was turned down may try again.
    again = [Click(click.user) for click, reply in told if reply.json["state"] == "REJECTED"][:5]
    drive([api], sale, again)
    assert by_status(again) == {(202, None): 5}, by_status(again)
    wait_for("releases of the second tries", lambda: world.stock(sale) == 140 and world.count(
        f"SELECT count(*) FROM release_outbox WHERE sku_id = {sale[1]} AND applied_at IS NOT NULL") == 145)
    assert sum(worker.metric("seckill_releases_total", result="refused") for worker in workers) == 0


def quarantined(world):
    """A message that cannot be ordered but names its unit gives it back."""
    sale = world.sale(5)
    prefix = world.redis_key(sale, "").rstrip(":")
    user, request_id, reservation_id, message_id, order_id, *_ = one = request(7)
    world.redis.script("reserve", prefix, *one)
    world.redis.script("mark_sent", prefix, reservation_id, "")
    event = order_event(sale, user, request_id, reservation_id, message_id, order_id, schema_version=99)
    assert world.stock(sale) == 4
    Topic().publish(json.dumps(event).encode(), key=event["message_key"])
    wait_for("the unit", lambda: world.stock(sale) == 5, 60)
    assert world.redis.call("HGET", f"{prefix}:reservation:{reservation_id}", "status") == "RELEASED"
    assert world.redis.call("HLEN", f"{prefix}:buyers") == 0
    assert world.orders(sale) == 0


def main():
    with World("release") as world:
        api = world.start("all", recovery__scan_ms=50)
        workers = [world.start("worker", recovery__scan_ms=50) for _ in range(2)]
        short_stock(world, api, [api, *workers])
        quarantined(world)
        for process in (api, *workers):
            assert process.stop() == 0, process.tail()
        world.assert_books()
    print("145 rejected units and one of a quarantined message went back, once each")


if __name__ == "__main__":
    main()
