#!/usr/bin/env python3
"""Reservations whose api died before their message was sent become orders all the same, once each, by two api processes."""

import sys
import time

sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/it")
from world import ROOT, World, wait_for  # noqa: E402

sys.path.insert(0, str(ROOT / "tests" / "lua"))
from test_scripts import request  # noqa: E402

LOST = 400


def main():
    with World("recovery") as world:
        sale = world.sale(LOST + 10)
        prefix = world.redis_key(sale, "").rstrip(":")
        # Two processes scan; how they share is a matter of who looks first.
        # What an api leaves behind that is killed between the script and the send.
        lost = [request(user) for user in range(1, LOST + 1)]
        for at in range(0, LOST, 100):
            world.redis.script("reserve", prefix, *(value for one in lost[at:at + 100] for value in one))
        assert world.redis.call("ZCARD", prefix + ":pending") == LOST
        settings = {"recovery__scan_ms": 50, "recovery__pending_age_ms": 500, "recovery__batch_max": 20}
        apis = [world.start("api", **settings) for _ in range(2)]
        worker = world.start("worker")
        wait_for("orders of what was left behind", lambda: world.orders(sale) == LOST, seconds=60)
        wait_for("an empty index", lambda: world.redis.call("ZCARD", prefix + ":pending") == 0)
        resent = [api.metric("seckill_recovery_resends_total", result="sent") for api in apis]
        assert sum(resent) == LOST, f"each once: {resent}"
        ids = world.sql(f"SELECT request_id, reservation_id, order_id FROM orders WHERE sku_id = {sale[1]}")
        assert sorted(map(tuple, ids)) == sorted((one[1], one[2], str(one[4])) for one in lost), "under other ids"
        one = lost[0]
        assert world.redis.call("HGET", f"{prefix}:reservation:{one[2]}", "retry_count") == "1"
        # Nothing is sent a second time.
        time.sleep(1)
        assert sum(api.metric("seckill_recovery_resends_total", result="sent") for api in apis) == LOST
        for process in (*apis, worker):
            assert process.stop() == 0, process.tail()
        world.assert_books()
    print(f"{LOST} reservations left behind, {int(resent[0])} and {int(resent[1])} sent again, {LOST} orders")


if __name__ == "__main__":
    main()
