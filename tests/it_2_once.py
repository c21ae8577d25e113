#!/usr/bin/env python3
"""Whatever comes more than once happens once: keys, users, messages. And the worker's bound on messages in hand."""

import json
import sys

sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/it")
from world import Click, Topic, World, by_status, drive, order_event, standings, wait_for


def one_key(world, api, query):
    sale = world.sale(100)
    first = Click(7)
    clicks = [Click(7, first.key) for _ in range(1000)]
    drive([api], sale, clicks, connections=64)
    assert by_status(clicks) == {(202, None): 1000}, by_status(clicks)
    assert len({click.reply.json["reservation_id"] for click in clicks}) == 1
    assert len({click.reply.json["order_id"] for click in clicks}) == 1
    wait_for("the order", lambda: world.orders(sale) == 1)
    assert standings([query], sale, clicks[:1])[0][1].json["state"] == "CREATED"
    world.assert_sold(sale, 100, 1)

    # The same key from somebody else, and for something else: 422 and no foreign id.
    stranger = Click(8, first.key)
    drive([api], sale, [stranger], connections=1)
    assert (stranger.reply.status, stranger.reply.code) == (422, "IDEMPOTENCY_KEY_REUSED"), stranger.reply.json
    assert clicks[0].reply.json["reservation_id"] not in json.dumps(stranger.reply.json)
    other = Click(7, first.key)
    drive([api], world.sale(5, activity=sale[0]), [other], connections=1)
    assert other.reply.code == "IDEMPOTENCY_KEY_REUSED", other.reply.json


def one_user(world, api):
    sale = world.sale(100)
    clicks = [Click(7) for _ in range(1000)]
    drive([api], sale, clicks, connections=64)
    won = [click for click in clicks if click.reply.status == 202]
    turned_down = [click for click in clicks if click.reply.code == "DUPLICATE_ORDER"]
    assert (len(won), len(turned_down)) == (1, 999), by_status(clicks)
    assert {click.reply.json["reservation_id"] for click in turned_down} == {won[0].reply.json["reservation_id"]}
    wait_for("the order", lambda: world.orders(sale) == 1)
    world.assert_sold(sale, 100, 1)


def one_message(world, api, worker):
    """The event of an order, published 100 times more: nothing changes."""
    sale = world.sale(100)
    click = Click(7)
    drive([api], sale, [click], connections=1)
    wait_for("the order", lambda: world.orders(sale) == 1)
    tables = ("orders", "consumer_inbox", "release_outbox", "quarantine", "seckill_inventory")
    before = {table: world.sql(f"SELECT * FROM {table} ORDER BY 1, 2") for table in tables}
    message_id = world.redis.call(
        "HGET", world.redis_key(sale, f"reservation:{click.reply.json['reservation_id']}"), "message_id")
    won = click.reply.json
    event = order_event(sale, 7, click.key, won["reservation_id"], message_id, won["order_id"])
    handled = worker.metric("seckill_mq_acks_total")
    topic, body = Topic(), json.dumps(event).encode()
    for _ in range(100):
        topic.publish(body, key=event["message_key"])
    wait_for("100 acks", lambda: worker.metric("seckill_mq_acks_total") >= handled + 100)
    for table in tables:
        assert world.sql(f"SELECT * FROM {table} ORDER BY 1, 2") == before[table], table
    world.assert_sold(sale, 100, 1)


def bad_messages(world, worker):
    """Messages that cannot be ordered are put aside byte for byte, acked, and give their unit back."""
    quarantined = world.count("SELECT count(*) FROM quarantine")
    for event in ("not json", "{}", '{"schema_version":2}'):
        Topic().publish(event.encode())
    wait_for("quarantine", lambda: world.count("SELECT count(*) FROM quarantine") == quarantined + 3)
    bodies = {row[0] for row in world.sql("SELECT convert_from(body, 'UTF8') FROM quarantine")}
    assert {"not json", "{}", '{"schema_version":2}'} <= bodies, bodies
    wait_for("acks", lambda: worker.metric("seckill_mq_inflight_messages") == 0)


def bounded(world, api):
    """8 workers and a queue of 16: never more than 24 in hand, however many wait."""
    sale = world.sale(2000)
    clicks = [Click(user) for user in range(1, 2001)]
    drive([api], sale, clicks, connections=64)
    assert by_status(clicks) == {(202, None): 2000}, by_status(clicks)
    worker = world.start("worker", worker__workers=8, worker__queue_capacity=16)
    wait_for("all orders", lambda: world.orders(sale) == 2000, 60)
    peak = worker.metric("seckill_mq_inflight_messages_peak")
    assert 0 < peak <= 24, peak
    wait_for("marks", lambda: world.redis.call("ZCARD", world.redis_key(sale, "pending")) == 0)
    world.assert_sold(sale, 2000, 2000)
    assert worker.stop() == 0, worker.tail()


def main():
    with World("once") as world:
        api, query = world.start("api"), world.start("query")
        bounded(world, api)
        worker = world.start("worker")
        one_key(world, api, query)
        one_user(world, api)
        one_message(world, api, worker)
        bad_messages(world, worker)
        for process in (api, worker, query):
            assert process.stop() == 0, process.tail()


if __name__ == "__main__":
    main()
