#!/usr/bin/env python3
"""A scrape under load on the services: every metric of the reference [12.2], moving; labels bounded with 100,000 users; alert rules and Grafana board name nothing else.

The text is read by the OpenMetrics parser of Prometheus' Python client (Debian's python3-prometheus-client), the rules by promtool.
"""

import json
import re
import subprocess
import sys
import threading
import time
import urllib.request

sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/it")
from world import ROOT, Click, World, drive, wait_for  # noqa: E402

UNITS, BUYERS, USERS = 1_500, 3_000, 100_000
READER = """
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read
families = {}
for family in read(sys.stdin.read()):
    families[family.name] = [family.type, [[s.name, s.labels, s.value] for s in family.samples]]
print(json.dumps(families))
"""
# [12.2], name by name: type, labels, and whether it moves in a healthy sale. Runtime rows of Go are those of process, shard and
# allocator here.
MOVES, STAYS = True, False
TABLE = {
    "seckill_http_requests_total": ("counter", {"route", "status"}, MOVES),
    "seckill_http_request_duration_seconds": ("histogram", {"route"}, MOVES),
    "seckill_admission_rejected_total": ("counter", {"reason"}, STAYS),
    "seckill_http_inflight_requests": ("gauge", set(), MOVES),
    "seckill_client_canceled_total": ("counter", set(), STAYS),
    "seckill_redis_operation_duration_seconds": ("histogram", {"operation", "result"}, MOVES),
    "seckill_redis_lua_result_total": ("counter", {"code"}, MOVES),
    "seckill_redis_pool_wait_seconds": ("histogram", set(), MOVES),
    "seckill_redis_pool_timeouts_total": ("counter", set(), STAYS),
    "seckill_redis_active_connections": ("gauge", set(), STAYS),
    "seckill_reservation_pending_total": ("counter", set(), STAYS),
    "seckill_mq_receive_batch_size": ("histogram", set(), MOVES),
    "seckill_mq_receive_failures_total": ("counter", set(), STAYS),
    "seckill_mq_inflight_messages": ("gauge", set(), STAYS),
    "seckill_mq_jobs_queue_size": ("gauge", set(), STAYS),
    "seckill_mq_process_duration_seconds": ("histogram", {"outcome"}, MOVES),
    "seckill_mq_ack_failures_total": ("counter", set(), STAYS),
    "seckill_mq_delivery_attempt": ("gauge", {"bucket"}, MOVES),
    "seckill_mq_dlq_messages_total": ("counter", set(), STAYS),
    "seckill_mq_consumer_lag": ("gauge", set(), STAYS),
    "seckill_pg_tx_duration_seconds": ("histogram", {"outcome"}, MOVES),
    "seckill_pg_tx_retries_total": ("counter", {"sqlstate"}, STAYS),
    "seckill_pg_acquired_connections": ("gauge", set(), STAYS),
    "seckill_pg_idle_connections": ("gauge", set(), STAYS),
    "seckill_pg_empty_acquire_count": ("gauge", set(), STAYS),
    "seckill_pg_acquire_wait_seconds": ("histogram", set(), MOVES),
    "seckill_pg_commit_unknown_total": ("counter", set(), STAYS),
    "seckill_pg_rows_affected_anomaly_total": ("counter", {"operation"}, STAYS),
    "seckill_reservation_created_total": ("counter", set(), MOVES),
    "seckill_duplicate_request_total": ("counter", set(), MOVES),
    "seckill_duplicate_user_total": ("counter", set(), MOVES),
    "seckill_sold_out_total": ("counter", set(), MOVES),
    "seckill_order_created_total": ("counter", set(), MOVES),
    "seckill_order_rejected_total": ("counter", {"reason"}, STAYS),
    "seckill_order_creation_delay_seconds": ("histogram", set(), MOVES),
    "seckill_inventory_discrepancy": ("gauge", set(), STAYS),
    "process_resident_memory_bytes": ("gauge", set(), STAYS),
    "process_cpu_seconds_total": ("counter", set(), MOVES),
    "process_threads": ("gauge", set(), STAYS),
    "process_open_fds": ("gauge", set(), STAYS),
    "process_start_time_seconds": ("gauge", set(), STAYS),
    "seckill_allocator_committed_bytes": ("gauge", set(), STAYS),
    "seckill_shard_tasks": ("gauge", {"shard"}, STAYS),
    "seckill_shard_cpu_seconds_total": ("counter", {"shard"}, MOVES),
    "seckill_shard_ring_submissions_total": ("counter", {"shard"}, MOVES),
    "seckill_shard_allocations_total": ("counter", {"shard"}, MOVES),
    "seckill_shard_allocated_bytes_total": ("counter", {"shard"}, MOVES),
    "seckill_shard_admission_in_use": ("gauge", {"shard", "route"}, STAYS),
    "seckill_shard_jobs_queue_size": ("gauge", {"shard"}, STAYS),
    "seckill_shard_loop_lag_seconds": ("histogram", set(), MOVES),
}


def scrape(process):
    """family -> (type, samples)"""
    with urllib.request.urlopen(f"http://{process.admin}/metrics", timeout=5) as reply:
        text = reply.read().decode()
    done = subprocess.run(["/usr/bin/python3", "-c", READER], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"not OpenMetrics: {done.stderr[-500:]}"
    return json.loads(done.stdout)


def samples(families, name):
    """Type, and {labels: value} of a metric; a histogram's count."""
    family = name.removesuffix("_total")
    kind, rows = families.get(family) or (None, [])
    wanted = name + "_count" if kind == "histogram" else name
    return kind, {tuple(sorted(labels.items())): value for row, labels, value in rows if row == wanted}


def main():
    with World("metrics") as world:
        process = world.start("all", shards__count=2, recovery__reconcile_ms=500)
        sale = world.sale(UNITS)
        before = scrape(process)
        clicks = [Click(user) for user in range(1, BUYERS + 1)]
        # Somebody clicks twice with one key, somebody else with two.
        twice = [Click(click.user, click.key) for click in clicks[:50]] + [Click(click.user) for click in clicks[50:100]]
        load = threading.Thread(target=drive, args=([process], sale, clicks[:1_000] + twice + clicks[1_000:]), kwargs={"rate": 700}, daemon=True)
        load.start()
        seen = {}
        while load.is_alive():
            now = scrape(process)
            for name in TABLE:
                for labels, value in samples(now, name)[1].items():
                    seen.setdefault(name, {}).setdefault(labels, set()).add(value)
            time.sleep(0.2)
        load.join()
        wait_for("all orders", lambda: world.orders(sale) == UNITS, 30)
        after = scrape(process)
        for name, (kind, labels, moves) in TABLE.items():
            shown, values = samples(after, name)
            assert shown == kind, f"{name} is a {shown}, not a {kind}"
            assert values, f"{name} has no sample"
            assert all({label for label, _ in row} == labels for row in values), f"{name}: labels of {list(values)[0]}, not {labels}"
            assert all(value >= 0 for value in values.values()), f"{name}: {values}"
            if kind != "gauge":
                earlier = samples(before, name)[1]
                assert all(values[row] >= value for row, value in earlier.items()), f"{name} fell"
            if moves:
                assert any(len(some) > 1 for some in seen[name].values()), f"{name} did not move: {seen[name]}"
        total = {name: sum(samples(after, name)[1].values()) - sum(samples(before, name)[1].values()) for name in TABLE}
        assert total["seckill_order_created_total"] == UNITS == total["seckill_order_creation_delay_seconds"]
        assert total["seckill_redis_lua_result_total"] >= BUYERS and total["seckill_sold_out_total"] >= BUYERS - UNITS - 100
        assert samples(after, "process_resident_memory_bytes")[1][()] > 1 << 20
        assert abs(samples(after, "process_start_time_seconds")[1][()] - time.time()) < 300

        # 100,000 users with a key each: not one series more, and no id in any label.
        done = subprocess.run([process.binary, "bench", "submit", "--target", f"{process.host}:{process.port}", "--activity-id", str(sale[0]),
                               "--sku-id", str(sale[1]), "--rate", "10000", "--duration-s", str(USERS // 10_000),
                               "--first-user", "1000000", "--json",
                               "--set", "identity.mode=gateway_header"], capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1) and done.stdout, done.stderr
        crowd = scrape(process)
        answered = sum(samples(crowd, "seckill_http_requests_total")[1].values()) - sum(samples(after, "seckill_http_requests_total")[1].values())
        assert answered >= 0.9 * USERS, f"{answered} answers of {USERS}"
        count = lambda families: sum(len(rows) for _, rows in families.values())  # noqa: E731
        # A status or an outcome that had not come before may have come now; users and keys are in neither.
        assert count(crowd) <= count(after) + 200 and count(crowd) < 3_000, (count(after), count(crowd))
        words = {value for _, rows in crowd.values() for _, labels, _ in rows for name, value in labels.items() if name != "le"}
        assert len(words) < 150 and all(len(word) < 40 for word in words), sorted(words)
        assert process.stop() == 0, process.tail()

        names = {row for _, rows in crowd.values() for row, _, _ in rows} | set(crowd)
        rules, board = (ROOT / "tuning" / "alerts.yml").read_text(), json.loads((ROOT / "tuning" / "grafana.json").read_text())
        asked = re.findall(r"\b(?:seckill|process)_[a-z0-9_]+", re.sub(r"^# .*$", "", rules, flags=re.M))
        asked += [name for panel in board["panels"] for target in panel["targets"]
                  for name in re.findall(r"\b(?:seckill|process)_[a-z0-9_]+", target["expr"])]
        unknown = {name for name in asked if name not in names}
        assert not unknown, f"alerts or board ask for {sorted(unknown)}"
        subprocess.run(["promtool", "check", "rules", ROOT / "tuning" / "alerts.yml"], check=True, stdout=subprocess.DEVNULL)
    print(f"{len(TABLE)} metrics of the reference, {count(crowd)} samples after {USERS} users, {len(set(asked))} names in alerts and board")


if __name__ == "__main__":
    main()
