#!/usr/bin/env python3
"""kill -9 of workers and api under load, then a restart: nothing that reached the topic is lost or doubled."""

import sys
import threading
import time

sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/it")
from world import Click, World, by_status, drive, standings, wait_for

BUYERS, UNITS = 12_000, 4_000


def main():
    with World("kill") as world:
        sale = world.sale(UNITS)
        steady, victim = world.start("api"), world.start("api")
        # Short invisible time: what a killed worker held comes back soon.
        settings = {"rocketmq__invisible_ms": 12_000}
        workers = [world.start("worker", **settings), world.start("worker", **settings)]
        query = world.start("query")
        clicks = [Click(user) for user in range(1, BUYERS + 1)]
        load = threading.Thread(target=drive, args=([steady, victim], sale, clicks), kwargs={"rate": 2500})
        load.start()
        time.sleep(1.2)
        workers[0].kill()
        time.sleep(0.3)
        victim.kill()
        workers.append(world.start("worker", **settings))
        load.join()
        answers = by_status(clicks)
        print(f"  {answers}")
        accepted = [click for click in clicks if click.reply and click.reply.status == 202]
        unclear = [click for click in clicks if not click.reply or click.reply.status in (429, 500, 503, 504)]
        assert not unclear, answers

        # Reservations whose api died between the reservation and its answer belong to buyers who asked again and got
        # theirs; so every unit has an owner who knows it, and each 202 becomes an order.
        assert len(accepted) == UNITS, answers
        wait_for("every 202 is an order", lambda: world.orders(sale) == UNITS, 90, 0.5)
        finals = standings([query], sale, accepted)
        states = {reply.json.get("state") if reply.status == 200 else reply.status for _, reply in finals}
        assert states == {"CREATED"}, states
        wait_for("nothing in hand", lambda: workers[-1].metric("seckill_mq_inflight_messages") == 0, 60)
        assert world.orders(sale) == UNITS and world.stock(sale) == 0
        world.assert_books()
        for process in [steady, query, *workers[1:]]:
            assert process.stop() == 0, process.tail()


if __name__ == "__main__":
    main()
