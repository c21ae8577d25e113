#!/usr/bin/env python3
"""A backlog that piled up while the worker was down, drained while new orders arrive: nothing lost, nothing twice, memory bounded.

  it_9_backlog.py [--messages N] [--rate R]      20,000 and 2,000/s by default
"""

import argparse
import json
import subprocess
import sys
import time

sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/it")
from world import World, need, wait_for  # noqa: E402

FILL_RATE = 5_000


def submitting(sale, api, rate, seconds, first_user):
    """`seckill bench submit` as a process of its own."""
    return subprocess.Popen(
        [need("SECKILL_BIN"), "bench", "submit", "--target", f"{api.host}:{api.port}", "--activity-id", str(sale[0]), "--sku-id",
         str(sale[1]), "--rate", str(rate), "--duration-s", str(seconds), "--first-user", str(first_user), "--json",
         "--set", "identity.mode=gateway_header"], stdout=subprocess.PIPE)


def resident_mib(process):
    with open(f"/proc/{process.child.pid}/status", encoding="ascii") as status:
        return int(next(line for line in status if line.startswith("VmRSS")).split()[1]) / 1024


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--messages", type=int, default=20_000)
    arguments.add_argument("--rate", type=int, default=2_000)
    options = arguments.parse_args()
    with World("backlog") as world:
        api = world.start("api", recovery__scan_ms=200)
        fill_seconds = max(1, options.messages // FILL_RATE)
        sale = world.sale(10 * options.messages)
        buyers = lambda: world.redis.call("HLEN", world.redis_key(sale, "buyers"))  # noqa: E731
        pending = lambda: world.redis.call("ZCARD", world.redis_key(sale, "pending"))  # noqa: E731
        filled = submitting(sale, api, FILL_RATE, fill_seconds, 1)
        print("  filling:", summary(filled), flush=True)
        wait_for("every message in the topic", lambda: pending() == 0, 60)
        backlog = buyers()
        assert backlog > 0.5 * options.messages and world.orders(sale) == 0, backlog

        # As long as draining takes by the goal of 15,000 orders a second, and as long again.
        seconds = max(3, 2 * backlog // 15_000)
        worker = world.start("worker", worker__attempt_log="false")
        started = time.monotonic()
        fresh = submitting(sale, api, options.rate, seconds, 10_000_000)
        peak, backlog_done = 0.0, None
        def progress():
            nonlocal peak, backlog_done
            peak = max(peak, resident_mib(worker))
            done = world.count(f"SELECT count(*) FROM orders WHERE activity_id = {sale[0]} AND user_id < 10000000")
            if backlog_done is None and done == backlog:
                backlog_done = time.monotonic() - started
            return backlog_done is not None and fresh.poll() is not None
        wait_for("the backlog", progress, 300, 0.2)
        print("  meanwhile:", summary(fresh), flush=True)
        wait_for("every order", lambda: pending() == 0 and world.orders(sale) == buyers(), 120, 0.2)
        orders = world.orders(sale)
        total = 10 * options.messages
        assert world.stock(sale) == total - orders, (world.stock(sale), total, orders)
        distinct = world.count(f"SELECT count(DISTINCT user_id) FROM orders WHERE activity_id = {sale[0]}")
        assert distinct == orders
        assert worker.metric("seckill_mq_inflight_messages_peak") <= 96
        world.assert_books()
        for process in (api, worker):
            assert process.stop() == 0, process.tail()
        print(f"{backlog} messages of backlog drained in {backlog_done:.1f} s, {backlog / backlog_done:.0f} a second, while {orders - backlog} "
              f"new orders came at {options.rate}/s; 0 lost, 0 doubled; worker at most {peak:.0f} MiB resident")


def summary(process):
    out, _ = process.communicate()
    said = json.loads(out)
    return {name: said[name] for name in ("sent", "answered", "answers", "statuses", "codes") if name in said} or said


if __name__ == "__main__":
    main()
