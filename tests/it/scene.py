"""Processes behind fault proxies, and what is asked of every sale afterwards."""

import json
import time
import urllib.parse

from proxy import Proxy, proxied_rocketmq
from world import Topic, need, order_event, wait_for


class Scene:
    """Processes behind proxies, and a sale."""

    def __init__(self, world, redis_port=None, **settings):
        self.world = world
        redis, postgres = urllib.parse.urlsplit(need("SECKILL_REDIS")), urllib.parse.urlsplit(world.pg_url)
        broker = Topic().broker[1]
        self.redis = Proxy("redis", redis_port or redis.port)
        self.postgres = Proxy("postgres", postgres.port)
        self.names, self.broker = proxied_rocketmq(int(need("SECKILL_NAMESRV").rsplit(":", 1)[1]), broker)
        self.settings = {
            "redis__addr": f"127.0.0.1:{self.redis.port}", "redis__password": "" if redis_port else redis.password,
            "postgres__url": world.pg_url.replace(f":{postgres.port}/", f":{self.postgres.port}/"),
            "rocketmq__name_servers": f"127.0.0.1:{self.names.port}",
            "rocketmq__invisible_ms": 10_000, "recovery__scan_ms": 100, "recovery__pending_age_ms": 500,
            "recovery__lease_ms": 1_000, "postgres__transaction_timeout_ms": 3_000, **settings,
        }
        self.apis, self.workers = [], []

    def start(self, role, **settings):
        process = self.world.start(role, **{**self.settings, **settings})
        {"api": self.apis, "worker": self.workers}.get(role, []).append(process)
        return process

    def kill(self, process):
        process.kill()
        for group in (self.apis, self.workers):
            if process in group:
                group.remove(process)

    def proxies(self):
        return (self.redis, self.postgres, self.names, self.broker)

    def close(self):
        for process in (*self.apis, *self.workers):
            assert process.stop() == 0, process.tail()
        for proxy in self.proxies():
            proxy.__exit__()


def replay(scene, checker, times=100):
    """The event of one order again and again: nothing changes."""
    sale, sql = checker.sale, checker.sql
    user, request_id, reservation_id, order_id, message_id = sql(
        "SELECT o.user_id, o.request_id, o.reservation_id, o.order_id, i.message_id FROM orders o JOIN consumer_inbox i "
        f"USING (order_id, reservation_id) WHERE activity_id = {sale[0]} AND sku_id = {sale[1]} LIMIT 1")[0]
    event = order_event(sale, int(user), request_id, reservation_id, message_id, int(order_id), retry_count=1)
    tables = [f"SELECT * FROM {table} WHERE {checker.where} ORDER BY 1, 2"
              for table in ("orders", "release_outbox", "seckill_inventory")]
    tables += ["SELECT count(*) FROM consumer_inbox", f"SELECT * FROM consumer_inbox WHERE message_id = '{message_id}'"]

    def acked():
        return sum(worker.metric("seckill_mq_acks_total") for worker in scene.workers)

    before, acked_before = [sql(table) for table in tables], acked()
    Topic().publish(json.dumps(event).encode(), key=event["message_key"], times=times)
    wait_for("100 replays", lambda: acked() >= acked_before + times, 60)
    assert [sql(table) for table in tables] == before, "a replay changed something"


def wait_for_check(checker, clicks, seconds=30):
    end = time.monotonic() + seconds
    while True:
        try:
            return checker.check(clicks)
        except AssertionError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)
