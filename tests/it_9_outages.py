#!/usr/bin/env python3
"""An outage of each dependency: breakers open and close, retries stay below 5 %, nothing promised is lost.

  it_9_outages.py [--seconds N]      how long each outage lasts, 6 by default
"""

import argparse
import sys
import threading
import time

sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/it")
from checker import Checker  # noqa: E402
from scene import Scene, wait_for_check  # noqa: E402
from world import Click, World, by_status, drive, wait_for  # noqa: E402

RATE = 300
DEPENDENCIES = ("redis", "rocketmq", "postgres")


def calls(process, dependency):
    total = process.metric("seckill_dependency_calls_total", dependency=dependency)
    return total, process.metric("seckill_dependency_retries_total", dependency=dependency)


def outage(world, dependency, seconds):
    """One dependency is gone for so long while buyers click who do not ask twice."""
    scene = Scene(world, server__connections_max=2000)
    scene.start("api")
    scene.start("worker")
    units = int(RATE * (seconds + 6))
    sale = world.sale(units)
    clicks = [Click(user) for user in range(1, units + 1)]
    load = threading.Thread(target=drive, args=(list(scene.apis), sale, clicks), daemon=True,
                            kwargs={"rate": RATE, "connections": 64, "patient": False})
    load.start()
    time.sleep(2)
    ill = {"redis": [scene.redis], "postgres": [scene.postgres], "rocketmq": [scene.names, scene.broker]}[dependency]
    who = scene.workers[0] if dependency == "postgres" else scene.apis[0]
    before = {(process.role, name): calls(process, name) for process in (*scene.apis, *scene.workers) for name in DEPENDENCIES}
    for proxy in ill:
        proxy.down()
    time.sleep(seconds / 2)
    opened = who.metric("seckill_breaker_transitions_total", dependency=dependency, to="open")
    assert opened > 0, f"the breaker of {dependency} did not open"
    # Without RocketMQ an api still takes orders.
    ready = 200 if dependency == "rocketmq" else 503
    wait_for(f"/readyz {ready}", lambda: who.admin_status("/readyz") == ready, 2)
    time.sleep(seconds / 2)
    shares = []
    for process in (*scene.apis, *scene.workers):
        for name in DEPENDENCIES:
            (made, retried), (made_before, retried_before) = calls(process, name), before[process.role, name]
            made, retried = made - made_before, retried - retried_before
            # The budget is of a minute, and the process is younger than that.
            first = made_before - retried_before + made - retried
            assert retried + retried_before <= 0.05 * first, f"{process.role}: {retried} retries of {first} calls of {name}"
            shares.append((retried / max(first, 1), retried, first, f"{process.role} {name}"))
    refused = who.metric("seckill_breaker_refused_total", dependency=dependency)
    for proxy in ill:
        proxy.up()
    back = time.monotonic()
    wait_for("a closed breaker", lambda: who.metric("seckill_breakers", dependency=dependency, state="closed") == 1, 5, 0.02)
    back = time.monotonic() - back
    assert who.admin_status("/readyz") == 200
    load.join()
    checker = Checker(sale, units, world.redis, world.sql)
    wait_for("rest", lambda: not checker.unsettled(), 90, 0.3)
    counted = wait_for_check(checker, clicks)
    answers = by_status(clicks)
    scene.close()
    share, retried, first, whose = max(shares)
    print(f"  {dependency}: {seconds} s down, {counted['promised']} promises of {len(clicks)} clicks, {counted['orders']} orders; "
          f"breaker opened {opened:.0f} times, refused {refused:.0f} calls, closed {back:.2f} s after the end; most retries: "
          f"{100 * share:.1f} % ({retried:.0f} of {first:.0f}, {whose}); {answers}", flush=True)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seconds", type=float, default=6)
    seconds = arguments.parse_args().seconds
    with World("outages") as world:
        for dependency in DEPENDENCIES:
            outage(world, dependency, seconds)


if __name__ == "__main__":
    main()
