#!/usr/bin/env python3
"""Dead letters and quarantine: listed, replayed under control, and settled once by the inbox."""

import json
import subprocess
import sys

sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/it")
from checker import Checker  # noqa: E402
from scene import wait_for_check  # noqa: E402
from world import ROOT, Click, Topic, World, drive, need, order_event, wait_for  # noqa: E402

sys.path.insert(0, str(ROOT / "tests" / "lua"))
from test_scripts import request  # noqa: E402


def seckill(world, *arguments):
    return json.loads(world.seckill(*arguments, "--json"))


def fails(*arguments):
    done = subprocess.run([need("SECKILL_BIN"), *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0, done.stdout
    return done.stderr


def dead_letters(world, api):
    """A message that fails until it has come too often, and is ordered after all when the cause is gone."""
    sale = world.sale(10)
    of_sale = ["--activity-id", sale[0], "--sku-id", sale[1]]
    with world.refused_inserts((f"NEW.sku_id = {sale[1]} AND NEW.user_id = 1", "40001")):
        clicks = [Click(user) for user in (1, 2, 3)]
        drive([api], sale, clicks)
        wait_for("the dead letter", lambda: api.metric("seckill_mq_dlq_messages_total") == 1, 60)
    letters = seckill(world, "dlq", "list", *of_sale)["dead_letters"]
    assert [(one["user_id"], one["settled"]) for one in letters] == [(1, None)], letters
    assert letters[0]["delivery_attempt"] == 3 and letters[0]["origin_message_id"], letters
    message_id = letters[0]["message_id"]
    assert seckill(world, "dlq", "list", "--sku-id", 1)["dead_letters"] == []
    assert "user 1" in world.seckill("dlq", "list", *of_sale)

    said = seckill(world, "dlq", "replay", "--message-id", message_id, "--dry-run")
    assert said["sent"] == 0 and len(said["messages"]) == 1, said
    assert seckill(world, "dlq", "replay", "--message-id", message_id, "--rate", 5)["sent"] == 1
    wait_for("its order", lambda: world.orders(sale) == 3)
    assert seckill(world, "dlq", "list", *of_sale)["dead_letters"] == []
    assert seckill(world, "dlq", "list", *of_sale, "--settled")["dead_letters"][0]["settled"] == "COMPLETED"
    before = api.metric("seckill_mq_process_duration_seconds_count", outcome="duplicate")
    assert seckill(world, "dlq", "replay", *of_sale, "--settled")["sent"] == 1
    wait_for("the duplicate", lambda: api.metric("seckill_mq_process_duration_seconds_count", outcome="duplicate") == before + 1)
    assert world.orders(sale) == 3
    wait_for_check(Checker(sale, 10, world.redis, world.sql), clicks)
    assert "no UUID" in fails("dlq", "replay", "--message-id", "x")


def quarantine(world, api):
    """What cannot be read stays in quarantine; what an older version could not read is ordered."""
    sale = world.sale(10)
    prefix = world.redis_key(sale, "").rstrip(":")
    Topic().publish(b"{not json", key="it")
    wait_for("quarantine", lambda: api.metric("seckill_mq_quarantined_messages_total") == 1)
    rows = seckill(world, "quarantine", "list", "--reason", "MALFORMED")["quarantine"]
    bad = rows[-1]["id"]
    assert seckill(world, "quarantine", "show", bad)["body"] == {"text": "{not json"}
    assert "{not json" in world.seckill("quarantine", "show", bad)

    user, request_id, reservation_id, message_id, order_id, *_ = one = request(7)
    world.redis.script("reserve", prefix, *one)
    world.redis.script("mark_sent", prefix, reservation_id, "")
    event = order_event(sale, user, request_id, reservation_id, message_id, order_id)
    good = int(world.sql(f"""
        INSERT INTO quarantine (consumer_group, broker_message_id, topic, delivery_attempt, reason, tag, message_key, message_id,
                                reservation_id, body)
        VALUES ('seckill-order-create-v1', 'it-{message_id}', '{Topic.NAME}', 1, 'IT_OLD_VERSION', '{Topic.TAG}',
                '{event["message_key"]}', '{message_id}', '{reservation_id}', '{json.dumps(event)}') RETURNING id""")[0][0])
    assert "which" in fails("quarantine", "replay") or "required" in fails("quarantine", "replay")
    assert "nothing was sent" in fails("quarantine", "replay", good, 999999999)
    assert seckill(world, "quarantine", "replay", "--reason", "IT_OLD_VERSION", "--dry-run")["sent"] == 0
    assert world.orders(sale) == 0
    assert seckill(world, "quarantine", "replay", "--reason", "IT_OLD_VERSION")["sent"] == 1
    wait_for("its order", lambda: world.orders(sale) == 1)
    assert "REPLAYED already" in fails("quarantine", "replay", good)
    click = Click(user, request_id)
    wait_for_check(Checker(sale, 10, world.redis, world.sql), [click])

    # The bytes are as bad as before: they come back under another id, and somebody gives them up.
    assert seckill(world, "quarantine", "replay", bad)["sent"] == 1
    wait_for("quarantine again", lambda: api.metric("seckill_mq_quarantined_messages_total") == 2)
    again = seckill(world, "quarantine", "list", "--reason", "MALFORMED")["quarantine"][-1]["id"]
    assert again != bad
    assert seckill(world, "quarantine", "discard", again, again)["discarded"] == 1
    states = {row["id"]: row["state"] for row in seckill(world, "quarantine", "list", "--state", "all")["quarantine"]}
    assert (states[bad], states[again], states[good]) == ("REPLAYED", "DISCARDED", "REPLAYED")


def main():
    with World("set_aside") as world:
        api = world.start("all", rocketmq__deliveries_max=2, rocketmq__invisible_ms=10_000, recovery__scan_ms=100,
                          postgres__transaction_timeout_ms=3_000)
        quarantine(world, api)
        dead_letters(world, api)
        assert api.stop() == 0, api.tail()
        world.assert_books()
    print("a dead letter and a quarantined message were listed, replayed and ordered once")


if __name__ == "__main__":
    main()
