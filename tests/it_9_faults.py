#!/usr/bin/env python3
"""Every fault of the list, on the real services, under load; after each the invariant checker, and one message 100 times more.

  it_9_faults.py [ROW..]    only the rows whose names contain one of these words
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/it")
from checker import Checker  # noqa: E402
from scene import Scene, replay, wait_for_check  # noqa: E402
from world import ROOT, Click, World, by_status, drive, need, wait_for  # noqa: E402

sys.path.insert(0, str(ROOT / "tests" / "lua"))
from private_redis import PrivateRedis  # noqa: E402

UNITS, BUYERS, RATE = 300, 420, 300
SEND, SEND_BATCH, ACK, BATCH_ACK = 310, 320, 200054, 200151
STACK = str(ROOT / "tests" / "stack")
ROWS = []


def row(title, **options):
    """A fault of the list. The function is called while buyers click, and leaves everything healthy."""
    def add(function):
        ROWS.append((title, function, options))
        return function
    return add


def run_row(world, title, fault, options):
    """One fault; what the checker counted and how long it took."""
    options = dict(options)
    all_sold = options.pop("all_sold", True)
    postgres_total, apis, workers = options.pop("postgres_total", None), options.pop("apis", 1), options.pop("workers", 1)
    binary = options.pop("worker_binary", None)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        redis, redis_options, scene_world = world.redis, {}, world
        if options.pop("own_redis", False):
            primary, spare = stack.enter_context(PrivateRedis()), stack.enter_context(PrivateRedis())
            redis, redis_options = primary.client(), {"redis_port": primary.port}
            scene_world.pair = (primary, spare)
        scene = Scene(world, **redis_options, **options)
        scene.api = [scene.start("api") for _ in range(apis)][0]
        scene.worker = [scene.start("worker", binary=binary and need(binary)) for _ in range(workers)][0]
        with as_redis(redis_options.get("redis_port")):
            sale = world.sale(UNITS)
        if postgres_total is not None:
            world.sql(f"UPDATE seckill_inventory SET total_stock = {postgres_total} WHERE sku_id = {sale[1]}")
        scene.sale, scene.sql = sale, world.sql
        clicks = [Click(user) for user in range(1, BUYERS + 1)]
        load = threading.Thread(target=drive, args=(list(scene.apis), sale, clicks), kwargs={"rate": RATE, "connections": 32},
                                daemon=True)
        load.start()
        time.sleep(0.4)
        redis = fault(scene) or redis
        load.join()
        for proxy in scene.proxies():
            proxy.healthy()
        checker = Checker(sale, UNITS, redis, world.sql)
        try:
            wait_for("rest", lambda: not checker.unsettled(), 90, 0.3)
        except AssertionError:
            raise AssertionError(f"{title}: {checker.unsettled()}") from None
        answers = by_status(clicks)
        unclear = {answer: count for answer, count in answers.items() if answer[0] not in (202, 409)}
        assert not unclear, f"{title}: {answers}"
        # The projector trails; then the results of all orders are there.
        counted = wait_for_check(checker, clicks)
        if postgres_total is None and all_sold:
            assert counted["orders"] == UNITS, f"{title}: {counted}, {answers}"
        replay(scene, checker)
        counted = checker.check(clicks)
        scene.close()
    return counted, time.monotonic() - began


@contextlib.contextmanager
def as_redis(port):
    """`seckill activity` talks to this Redis meanwhile."""
    before = os.environ["SECKILL_REDIS"]
    if port is not None:
        os.environ["SECKILL_REDIS"] = f"redis://127.0.0.1:{port}/0"
    try:
        yield
    finally:
        os.environ["SECKILL_REDIS"] = before


@row("Redis 200 ms slower")
def redis_slow(scene):
    scene.redis.delay = 0.2
    time.sleep(2)
    scene.redis.healthy()


@row("reply lost after the script ran")
def script_reply_lost(scene):
    rule = scene.redis.when(b"EVALSHA", "lose_reply", every=12)
    time.sleep(2)
    scene.redis.healthy()
    assert rule.hits > 3, rule.hits


@row("reply held after the script ran")
def script_reply_held(scene):
    rule = scene.redis.when(b"EVALSHA", "hold_reply", every=25)
    time.sleep(2)
    scene.redis.healthy()
    scene.redis.cut_all()
    assert rule.hits > 1, rule.hits


@row("script cache flushed")
def script_flush(scene):
    for _ in range(40):
        scene.world.redis.call("SCRIPT", "FLUSH")
        time.sleep(0.05)


@row("Redis fail-over, READONLY", own_redis=True)
def redis_failover(scene):
    primary, spare = scene.world.pair
    old, new = primary.client(), spare.client()
    new.call("REPLICAOF", "127.0.0.1", primary.port)
    wait_for("a replica", lambda: "master_link_status:up" in new.call("INFO", "replication"))
    # The address moves to the new primary; connections to the old one, now a replica, have to notice by themselves. Writes of
    # the moment in between are lost with the old primary in general; here the switch waits until none is under way.
    scene.redis.delay = 0.0
    old.call("CLIENT", "PAUSE", 3000, "WRITE")
    wait_for("all replicated", lambda: offset(old) == offset(new))
    new.call("REPLICAOF", "NO", "ONE")
    scene.redis.target = spare.port
    old.call("REPLICAOF", "127.0.0.1", spare.port)
    old.call("CLIENT", "UNPAUSE")
    time.sleep(1)
    return new


def offset(client):
    info = dict(line.split(":", 1) for line in client.call("INFO", "replication").split("\r\n") if ":" in line)
    return int(info["master_repl_offset" if info["role"] == "master" else "slave_repl_offset"])


@row("send reply lost after the broker stored")
def send_reply_lost(scene):
    rules = [scene.broker.when(code, "lose_reply", every=4) for code in (SEND, SEND_BATCH)]
    time.sleep(1.5)
    scene.broker.healthy()
    assert sum(rule.hits for rule in rules) > 1


@row("broker restart")
def broker_restart(scene):
    subprocess.run([STACK, "restart", "rocketmq"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@row("POP redelivery while the first worker still holds the message", workers=2)
def pop_redelivery(scene):
    scene.worker.child.send_signal(signal.SIGSTOP)
    time.sleep(11)
    scene.worker.child.send_signal(signal.SIGCONT)


@row("ack lost")
def ack_lost(scene):
    rules = [scene.broker.when(code, action, every=2) for code in (ACK, BATCH_ACK) for action in ("cut", "lose_reply")]
    time.sleep(1.5)
    scene.broker.healthy()
    assert sum(rule.hits for rule in rules) > 0


@row("kill -9 of the worker after commit, before ack")
def killed_before_ack(scene):
    rules = [scene.broker.when(code, "cut") for code in (ACK, BATCH_ACK)]
    wait_for("commits", lambda: scene.world.orders(scene.sale) > 20)
    scene.kill(scene.worker)
    scene.broker.healthy()
    assert sum(rule.hits for rule in rules) > 0
    scene.start("worker")


@row("kill -9 of the api between reserve and send", apis=2)
def killed_before_send(scene):
    rules = [scene.broker.when(code, "cut") for code in (SEND, SEND_BATCH)]
    time.sleep(0.4)
    scene.kill(scene.api)
    scene.broker.healthy()
    assert sum(rule.hits for rule in rules) > 0


@row("PostgreSQL 1 s slower")
def postgres_slow(scene):
    scene.postgres.delay = 1.0
    time.sleep(4)
    scene.postgres.healthy()


@row("40P01 and 40001 injected")
def transactions_refused(scene):
    with scene.world.refused_inserts(("n % 40 = 7", "40P01"), ("n % 40 = 23", "40001")):
        time.sleep(1.5)
    hits = sum(scene.worker.metric("seckill_pg_tx_retries_total", sqlstate=state) for state in ("40P01", "40001"))
    assert hits > 0


@row("connection cut during COMMIT", postgres_total=250)
def commit_cut(scene):
    # Sync is what commits a batch, the word what commits a single message.
    sync = b"S\x00\x00\x00\x04"
    rules = [scene.postgres.when(b"COMMIT", "lose_reply", every=3), scene.postgres.when(b"COMMIT", "cut_after", every=4),
             scene.postgres.when(sync, "lose_reply", every=9), scene.postgres.when(sync, "cut", every=11)]
    time.sleep(2)
    scene.postgres.healthy()
    assert sum(rule.hits for rule in rules) > 2, [rule.hits for rule in rules]


@row("3 % of inserts refused with a check violation", all_sold=False)
def rows_refused(scene):
    with scene.world.refused_inserts(("NEW.user_id % 33 = 0", "23514")):
        time.sleep(1.5)
        wait_for("rejections", lambda: scene.worker.metric("seckill_releases_total", result="applied") > 0)
    refused = scene.sql("SELECT reservation_id FROM release_outbox WHERE reason = 'INTERNAL_ERROR' "
                        f"AND sku_id = {scene.sale[1]}")
    for (reservation_id,) in refused:
        rows = scene.sql(f"SELECT count(*) FROM quarantine WHERE reservation_id = '{reservation_id}'")
        assert rows == [["1"]], f"{reservation_id}: {rows} quarantine rows"


@row("strict mode, broker down", all_sold=False, submit__on_send_failure="strict")
def strict(scene):
    scene.broker.down()
    time.sleep(1.5)
    scene.broker.up()


@row("PostgreSQL restart")
def postgres_restart(scene):
    subprocess.run([STACK, "restart", "postgres"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@row("connection pool exhausted", postgres__order_connections_max=1, postgres__acquire_wait_ms=100, worker__sku_batches_max=4)
def pool_exhausted(scene):
    hold = f"BEGIN; SELECT * FROM seckill_inventory WHERE sku_id = {scene.sale[1]} FOR UPDATE; SELECT pg_sleep(2.5); COMMIT"
    scene.sql(hold)


@row("worker panics, before its transaction and after its commit", worker_binary="SECKILL_FAULTY", worker__receive_max=8)
def worker_panics(scene):
    wait_for("panics", lambda: scene.worker.metric("seckill_task_panics_total") >= 8, 30)
    assert scene.worker.metric("seckill_mq_process_duration_seconds_count", outcome="panicked") >= 8


@row("rolling restart under load", apis=2, workers=2)
def rolling_restart(scene):
    for process in (scene.api, scene.worker):
        assert process.stop() == 0, process.tail()
        group = scene.apis if process is scene.api else scene.workers
        group.remove(process)
        scene.start(process.role)
    # The new api has another port, so its buyers have gone to the old one.
    time.sleep(0.5)


@row("memory limit lowered, of Redis and of a worker", workers=2)
def less_memory(scene):
    redis = scene.world.redis
    before = redis.call("CONFIG", "GET", "maxmemory")[1]
    redis.call("CONFIG", "SET", "maxmemory", 1)
    # The worker may not have one page more than it has; what it does about it is its affair.
    subprocess.run(["prlimit", "--pid", str(scene.worker.child.pid), "--as=1:"], check=True)
    time.sleep(1.5)
    redis.call("CONFIG", "SET", "maxmemory", before)
    if scene.worker.child.poll() is not None:
        scene.workers.remove(scene.worker)
        scene.start("worker")
    else:
        subprocess.run(["prlimit", "--pid", str(scene.worker.child.pid), "--as=unlimited:"], check=True)


def main():
    words = sys.argv[1:]
    table = []
    with World("faults") as world:
        for title, fault, options in ROWS:
            if words and not any(word in title for word in words):
                continue
            try:
                counted, took = run_row(world, title, fault, options)
            except BaseException:
                print(f"FAILED: {title}", file=sys.stderr)
                raise
            table.append((title, counted, took))
            print(f"  {title}: {counted} {took:.1f} s", flush=True)
    print("\n(a full disk under the journal, in embedded mode: tests/em_4_disk_full.py)")
    width = max(len(title) for title, *_ in table)
    print(f"\n{'fault':{width}}  202s  orders  back  left  seconds")
    for title, counted, took in table:
        print(f"{title:{width}}  {counted['promised']:4}  {counted['orders']:6}  {counted['released']:4}  {counted['stock']:4}  "
              f"{took:7.1f}")


if __name__ == "__main__":
    main()
