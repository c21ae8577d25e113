#!/usr/bin/env python3
"""A whole sale on real services: three processes, then two api and two workers side by side."""

import sys
import time

sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/it")
from world import Click, World, by_status, drive, standings, wait_for

BUYERS, UNITS, RATE = 50_000, 10_000, 5_000


def run_sale(world, apis, workers, queries):
    sale = world.sale(UNITS)
    clicks = [Click(user) for user in range(1, BUYERS + 1)]
    started = time.monotonic()
    drive(apis, sale, clicks, connections=96, rate=RATE)
    answers = by_status(clicks)
    print(f"  {BUYERS} clicks in {time.monotonic() - started:.1f} s: {answers}")
    winners = [click for click in clicks if click.reply and click.reply.status == 202]
    losers = [click for click in clicks if click.reply and click.reply.code == "SOLD_OUT"]
    assert len(winners) == UNITS, answers
    assert len(losers) == BUYERS - UNITS, answers
    assert len({click.reply.json["order_id"] for click in winners}) == UNITS, "order ids are not unique"
    assert len({click.reply.json["reservation_id"] for click in winners}) == UNITS

    wait_for("all orders", lambda: world.orders(sale) == UNITS, 60)
    finals = standings(queries, sale, winners)
    states = {}
    for click, reply in finals:
        state = reply.json.get("state") if reply.status == 200 else reply.status
        states[state] = states.get(state, 0) + 1
        assert state != "CREATED" or reply.json["order_id"] == click.reply.json["order_id"]
    assert states == {"CREATED": UNITS}, states

    # Nobody else sees a result.
    stranger = Click(BUYERS + 7, winners[0].key)
    assert standings(queries, sale, [stranger])[0][1].status == 404

    wait_for("marks", lambda: world.redis.call("ZCARD", world.redis_key(sale, "pending")) == 0)
    world.assert_sold(sale, UNITS, UNITS)
    drained = lambda: sum(worker.metric("seckill_mq_consumer_lag") for worker in workers) == 0
    wait_for("the topic is drained", drained, 30)
    idle = lambda: all(worker.metric("seckill_mq_inflight_messages") == 0 for worker in workers)
    wait_for("nothing in hand", idle, 30)
    for worker in workers:
        peak = worker.metric("seckill_mq_inflight_messages_peak")
        assert peak <= 96, peak


def main():
    with World("sale") as world:
        print("three processes")
        api, worker, query = world.start("api"), world.start("worker"), world.start("query")
        for process in (api, worker, query):
            assert process.admin_status("/healthz") == 200 and process.admin_status("/readyz") == 200
        run_sale(world, [api], [worker], [query])
        for process in (api, worker, query):
            assert process.stop() == 0, process.tail()

        print("two api and two workers side by side")
        apis = [world.start("api"), world.start("api")]
        workers = [world.start("worker"), world.start("worker")]
        queries = [world.start("query")]
        run_sale(world, apis, workers, queries)
        for process in apis + workers + queries:
            assert process.stop() == 0, process.tail()


if __name__ == "__main__":
    main()
