#!/usr/bin/env python3
"""Traces on the services: one order's spans from click to ack, across three processes, as a collector receives them."""

import asyncio
import collections
import secrets
import sys
import time
import uuid

sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/it")
from collector import Collector  # noqa: E402
from world import PATIENT, Connection, World, query_bytes, submit_bytes, wait_for  # noqa: E402

TOPIC, GROUP = "seckill-order-events", "seckill-order-create-v1"
SUBMIT = {"HTTP Submit": None, "Admission": "HTTP Submit", "Redis Lua Reserve": "HTTP Submit", "RocketMQ Send": "HTTP Submit"}
ORDER = {
    "MQ Consume": "RocketMQ Send", "Decode/Validate": "MQ Consume", "PostgreSQL Transaction": "MQ Consume",
    "Inbox Insert": "PostgreSQL Transaction", "Inventory Update": "PostgreSQL Transaction",
    "Order Insert": "PostgreSQL Transaction", "Commit": "PostgreSQL Transaction", "RocketMQ ACK": "MQ Consume"}
KINDS = collections.defaultdict(lambda: "client", {
    "HTTP Submit": "server", "Admission": "internal", "RocketMQ Send": "producer", "MQ Consume": "consumer",
    "Decode/Validate": "internal"})


def call(process, raw, headers=()):
    """One request with headers of its own."""
    head, body = raw.split(b"\r\n\r\n", 1)
    raw = b"\r\n".join([head, *(f"{name}: {value}".encode() for name, value in headers)]) + b"\r\n\r\n" + body

    async def one():
        connection = Connection(process.host, process.port)
        try:
            return await connection.call(raw)
        finally:
            connection.close()

    return asyncio.run(one())


class Shop:
    def __init__(self, world, api, query):
        self.world, self.api, self.query = world, api, query
        self.sale = world.sale(1_000)
        self.user = int(time.time()) * 1_000

    def buy(self, headers=(), user=None):
        """A click until its result is visible."""
        self.user += 1
        user, key = user or self.user, str(uuid.uuid4())
        accepted = call(self.api, submit_bytes(self.sale, user, key), headers)
        assert accepted.status == 202, accepted.json
        shown = call(self.query, query_bytes(self.sale, user, key, 5_000))
        return key, accepted.json, shown.json


def caller(sampled=True):
    trace, span = secrets.token_hex(16), secrets.token_hex(8)
    return trace, span, [("traceparent", f"00-{trace}-{span}-0{int(sampled)}"), ("tracestate", "vendor=yes")]


def check_tree(spans, tree, root_parent):
    by_name = {span.name: span for span in spans}
    assert sorted(by_name) == sorted(tree) and len(spans) == len(tree), sorted(span.name for span in spans)
    for name, above in tree.items():
        span = by_name[name]
        assert span.parent == (root_parent if above is None else by_name[above].id), (name, span)
        assert span.kind == KINDS[name], (name, span.kind)
        assert 0 <= span.end - span.start < 30e9, (name, span.end - span.start)
        assert span.flags & 1 and span.status[0] == 0, span
        if above and above != "RocketMQ Send":
            # Clocks are read to the microsecond, one after the other.
            assert by_name[above].start - 2_000 <= span.start and span.end <= by_name[above].end + 2_000, (name, above)
    return by_name


def whole(shop, collector):
    """All spans of the reference [12.4], with the right parents, in the caller's trace; the consumer's is linked to the send's."""
    trace, span, headers = caller()
    key, accepted, shown = shop.buy(headers)
    assert shown["state"] == "CREATED", shown
    tree = {**SUBMIT, **ORDER}
    by_name = check_tree(collector.trace(trace, tree), tree, span)
    consume, send = by_name["MQ Consume"], by_name["RocketMQ Send"]
    assert consume.links == [(trace, send.id)], consume.links
    assert [name for name in tree if by_name[name].links] == ["MQ Consume"]
    for name in ("RocketMQ Send", "MQ Consume"):
        attributes = by_name[name].attributes
        assert attributes["seckill.request_id"] == key and attributes["seckill.order_id"] == accepted["order_id"], attributes
        assert attributes["seckill.reservation_id"] == accepted["reservation_id"], attributes
        assert (attributes["seckill.activity_id"], attributes["seckill.sku_id"]) == shop.sale
    assert by_name["HTTP Submit"].attributes["http.response.status_code"] == 202
    assert by_name["Redis Lua Reserve"].attributes["seckill.outcome"] == "CREATED"
    assert consume.attributes["seckill.outcome"] == "CREATED" and consume.attributes["seckill.delivery_attempt"] == 1
    roles = {name: span.resource["seckill.role"] for name, span in by_name.items()}
    assert all(roles[name] == "api" for name in SUBMIT) and all(roles[name] == "worker" for name in ORDER), roles
    assert {span.resource["service.name"] for span in by_name.values()} == {"seckill"}
    assert len({span.resource["service.instance.id"] for span in by_name.values()}) == 2
    steps = sum(by_name[name].end - by_name[name].start for name in ("Inbox Insert", "Inventory Update", "Order Insert"))
    assert steps > 0, "PostgreSQL measured its steps"


def message_by_message(shop, collector, worker):
    """A buyer who has an order of old: the batch is refused, and the message's own transaction shows its steps."""
    user, (activity, sku) = shop.user + 500_000, shop.sale
    other = [str(uuid.uuid4()) for _ in range(2)]
    shop.world.sql(f"INSERT INTO orders (order_id, request_id, reservation_id, activity_id, sku_id, user_id, status, created_at, updated_at)"
                   f" VALUES ({user}, '{other[0]}', '{other[1]}', {activity}, {sku}, {user}, 'CREATED', now(), now())")
    trace, span, headers = caller()
    before = worker.metric("seckill_pg_tx_fallback_total")
    _, _, shown = shop.buy(headers, user)
    assert shown["state"] == "REJECTED", shown
    tree = {**SUBMIT, **ORDER}
    by_name = check_tree(collector.trace(trace, tree), tree, span)
    assert by_name["MQ Consume"].attributes["seckill.outcome"] == "REJECTED", by_name["MQ Consume"].attributes
    assert worker.metric("seckill_pg_tx_fallback_total") == before + 1
    # The books of later tests are checked over all sales, and an order without its inbox row is a fault there.
    shop.world.sql(f"DELETE FROM orders WHERE order_id = {user}")


def refused_click(shop, collector):
    """The same buyer again: no message, so the trace ends with the reservation."""
    user = shop.user
    trace, span, headers = caller()
    reply = call(shop.api, submit_bytes(shop.sale, user, str(uuid.uuid4())), headers)
    assert reply.code == "DUPLICATE_ORDER" and reply.json["trace_id"] == trace, reply.json
    tree = {name: above for name, above in SUBMIT.items() if name != "RocketMQ Send"}
    by_name = check_tree(collector.trace(trace, tree), tree, span)
    assert by_name["Redis Lua Reserve"].attributes["seckill.outcome"] == "SAME_USER"
    assert by_name["HTTP Submit"].attributes["http.response.status_code"] == 409


def not_sampled(shop, collector):
    """A caller that does not record is left alone, and so is one without a trace."""
    trace, _, headers = caller(sampled=False)
    before = len(collector.spans)
    for headers in (headers, [], [("traceparent", "nonsense")]):
        assert shop.buy(headers)[2]["state"] == "CREATED"
    time.sleep(2)
    assert len(collector.spans) == before, collector.spans[before:]


def own_traces(world, collector, worker, query):
    """trace.sample = 1: traces begin at the api, and go on in the worker."""
    api = world.start("api", trace__otlp=collector.url, trace__sample=1.0, **PATIENT)
    shop = Shop(world, api, query)
    key, accepted, shown = shop.buy()
    assert shown["state"] == "CREATED", shown
    of_key = wait_for("its spans", lambda: [span for span in collector.spans if span.attributes.get("seckill.request_id") == key])
    tree = {**SUBMIT, **ORDER}
    check_tree(collector.trace(of_key[0].trace, tree), tree, "")
    many = 300
    before = sum(span.name == "HTTP Submit" for span in collector.spans)
    for _ in range(many):
        shop.user += 1
        assert call(api, submit_bytes(shop.sale, shop.user, str(uuid.uuid4()))).status == 202
    assert api.stop() == 0, api.tail()
    # A stop sends what is still in hand.
    recorded = sum(span.name == "HTTP Submit" for span in collector.spans) - before
    assert recorded == many, (recorded, many)
    wait_for("the last orders", lambda: world.orders(shop.sale) == many + 1)


def bounded(world, collector, query):
    """More than trace.limit_per_s, and a collector that is away: spans are dropped and counted, no order is."""
    api = world.start("api", trace__otlp=collector.url, trace__sample=1.0, trace__limit_per_s=10, **PATIENT)
    shop = Shop(world, api, query)
    for _ in range(50):
        shop.buy()
    assert api.metric("seckill_trace_spans_dropped_total") > 0 and api.metric("seckill_trace_spans_total") > 0
    collector.refusing = True
    seen = len(collector.spans)
    wait_for("lost spans", lambda: shop.buy() and api.metric("seckill_trace_spans_lost_total") > 0, 30)
    assert "the collector does not take spans" in api.tail(100)
    collector.refusing = False
    wait_for("spans again", lambda: shop.buy() and len(collector.spans) > seen, 30)
    assert "the collector takes spans again" in api.tail(100) or wait_for(
        "the log", lambda: "the collector takes spans again" in api.tail(100))
    assert api.stop() == 0, api.tail()


def main():
    with World("trace") as world, Collector() as collector:
        api, worker, query = (world.start(role, trace__otlp=collector.url + "/", **PATIENT) for role in ("api", "worker", "query"))
        shop = Shop(world, api, query)
        whole(shop, collector)
        refused_click(shop, collector)
        message_by_message(shop, collector, worker)
        not_sampled(shop, collector)
        own_traces(world, collector, worker, query)
        bounded(world, collector, query)
        steps = {step: worker.metric("seckill_pg_tx_step_seconds_count", step=step) for step in ("inbox", "orders", "stock", "commit")}
        assert len(set(steps.values())) == 1 and steps["inbox"] > 0, steps
        assert api.metric("seckill_trace_spans_lost_total") == 0, "it recorded nothing while the collector was away"
        for process in (api, worker, query):
            assert process.stop() == 0, process.tail()
        print(f"{len(collector.spans)} spans in {collector.requests} requests; whole traces by batch, by message and by own sampling")


if __name__ == "__main__":
    main()
