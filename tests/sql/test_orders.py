#!/usr/bin/env python3
"""Tests of sql/ on a private PostgreSQL. Usage: test_orders.py [seed] [rounds]"""

import random
import sys
import threading
import unittest
import uuid
from dataclasses import dataclass, replace

from private_postgres import SQL, PrivatePostgres, SqlError

SERVER = None
SEED = random.randrange(1 << 32)
ROUNDS = 120
GROUP = "seckill-order-create-v1"
ACTIVITY = 1001


def new_id():
    return str(uuid.uuid4())


@dataclass(frozen=True)
class Message:
    """The parts of an event that the transaction sees."""
    message_id: str
    request_id: str
    reservation_id: str
    order_id: int
    user_id: int
    sku_id: int = 2001


def message(user_id, sku_id=2001):
    return Message(new_id(), new_id(), new_id(), random.randrange(1 << 53), user_id, sku_id)


def release(db, m, reason, order_id):
    return db.run("order/insert_release_outbox", m.reservation_id, m.request_id, m.message_id, ACTIVITY, m.sku_id, m.user_id,
                  order_id, reason)[1]


def quarantine(db, m, reason, broker_id=None):
    return db.run("order/quarantine_message", GROUP, broker_id or "B" + m.message_id, "topic", 1, reason, None, b"raw \0 bytes",
                  m.message_id, m.reservation_id, m.request_id, ACTIVITY, m.sku_id, m.user_id, m.order_id, "TAG", "key")[0][0]


def mark(db, m, status, code="", order_id=None):
    assert db.run("order/mark_inbox", status, code, order_id, GROUP, m.message_id)[1] == 1


def process(db, m):
    """sql/order/README.md, one message; answers (outcome, inbox_status, order_id, error_code)."""
    db.query("BEGIN")
    outcome = steps(db, m)
    _, tag = db.query("ROLLBACK" if outcome[0] in ("DUPLICATE-READ", "REUSED") else "COMMIT")
    assert tag in ("COMMIT", "ROLLBACK") and (tag == "COMMIT") == (outcome[0] not in ("DUPLICATE-READ", "REUSED"))
    if outcome[0] == "REUSED":
        quarantine(db, m, "MESSAGE_ID_REUSED")
        return "INTERNAL", None, None, "MESSAGE_ID_REUSED"
    return (outcome[0].removesuffix("-READ"), *outcome[1:])


def steps(db, m):
    if db.run("order/insert_inbox", GROUP, m.message_id, m.request_id, m.reservation_id, m.order_id)[1] == 0:
        ((status, order_id, code, request_id, reservation_id),) = db.run("order/load_inbox", GROUP, m.message_id)[0]
        assert status in ("COMPLETED", "REJECTED")
        if (request_id, reservation_id) != (m.request_id, m.reservation_id):
            return ("REUSED",)
        return "DUPLICATE-READ", status, order_id and int(order_id), code
    if db.run("order/find_release", m.reservation_id)[0]:
        mark(db, m, "REJECTED", "RESERVATION_RELEASED")
        return "REJECTED", "REJECTED", m.order_id, "RESERVATION_RELEASED"
    if db.run("order/deduct_stock", ACTIVITY, m.sku_id)[1] == 0:
        mark(db, m, "REJECTED", "PG_STOCK_EXHAUSTED")
        release(db, m, "PG_STOCK_EXHAUSTED", None)
        return "REJECTED", "REJECTED", m.order_id, "PG_STOCK_EXHAUSTED"
    ids = (m.order_id, m.request_id, m.reservation_id, ACTIVITY, m.sku_id, m.user_id)
    if db.run("order/insert_order", *ids)[1] == 1:
        mark(db, m, "COMPLETED", "", m.order_id)
        return "CREATED", "COMPLETED", m.order_id, None
    assert db.run("order/revert_stock", ACTIVITY, m.sku_id)[1] == 1
    ((relation, order_id, *_),) = db.run("order/find_conflict", *ids)[0]
    order_id = int(order_id)
    if relation == "SAME":
        mark(db, m, "COMPLETED", "", order_id)
        return "DUPLICATE", "COMPLETED", order_id, None
    if relation == "USER":
        mark(db, m, "REJECTED", "ONE_USER_ONE_ORDER", order_id)
        release(db, m, "ONE_USER_ONE_ORDER", order_id)
        return "REJECTED", "REJECTED", order_id, "ONE_USER_ONE_ORDER"
    mark(db, m, "REJECTED", "IDENTIFIER_COLLISION")
    quarantine(db, m, "IDENTIFIER_COLLISION")
    return "INTERNAL", "REJECTED", m.order_id, "IDENTIFIER_COLLISION"


def process_batch(db, messages):
    """The batch path with its fallback, for messages of one SKU; says whether the fast path took them."""
    columns = [[getattr(m, name) for m in messages]
               for name in ("message_id", "request_id", "reservation_id", "order_id", "user_id")]
    try:
        rows, count = db.run("order/order_batch", GROUP, ACTIVITY, messages[0].sku_id, *columns)
    except SqlError as error:
        if error.code not in ("SK001", "23505"):
            raise
        return [process(db, m) for m in messages], False
    steps = [int(step) for step in rows[0][5].strip("{}").split(",")]
    assert len(steps) == 3 and all(0 <= step < 10_000_000 for step in steps) and steps[0] > 0, steps
    assert all(row[5] is None for row in rows[1:])
    assert count == len(messages) and [int(row[0]) for row in rows] == list(range(1, count + 1))
    return [(row[1], row[2], int(row[3]), row[4]) for row in rows], True


class Case(unittest.TestCase):
    def setUp(self):
        self.db = SERVER.connect()
        self.addCleanup(self.db.close)
        self.reset(self.db)

    @staticmethod
    def reset(db, stock=10):
        db.query("TRUNCATE seckill_inventory, orders, consumer_inbox, release_outbox, consumer_attempt_log, quarantine,"
                 f" seckill_activity; INSERT INTO seckill_inventory VALUES ({ACTIVITY}, 2001, {stock})")

    def stock(self, db=None):
        return [(int(a), int(b)) for a, b in (db or self.db).rows(
            "SELECT sold_stock, version FROM seckill_inventory ORDER BY sku_id")]

    def count(self, table):
        return int(self.db.rows(f"SELECT count(*) FROM {table}")[0][0])

    def check(self, db=None):
        for path in sorted((SQL / "assertions").glob("*.sql")):
            self.assertEqual((db or self.db).rows(path.read_text()), [], path.name)


class OneMessage(Case):
    def test_created_then_replayed_100_times(self):
        m = message(1)
        self.assertEqual(process(self.db, m), ("CREATED", "COMPLETED", m.order_id, None))
        for _ in range(50):
            self.assertEqual(process(self.db, m), ("DUPLICATE", "COMPLETED", m.order_id, None))
            self.assertEqual(process_batch(self.db, [m]), ([("DUPLICATE", "COMPLETED", m.order_id, None)], True))
        self.assertEqual((self.stock(), self.count("orders"), self.count("release_outbox")), ([(1, 1)], 1, 0))
        self.check()

    def test_stock_exhausted_and_replayed(self):
        self.reset(self.db, stock=1)
        process(self.db, message(1))
        m = message(2)
        for outcome in ["REJECTED"] + ["DUPLICATE"] * 20:
            self.assertEqual(process(self.db, m), (outcome, "REJECTED", m.order_id, "PG_STOCK_EXHAUSTED"))
        self.assertEqual(process_batch(self.db, [m]), ([("DUPLICATE", "REJECTED", m.order_id, "PG_STOCK_EXHAUSTED")], True))
        self.assertEqual((self.stock(), self.count("release_outbox")), ([(1, 1)], 1))
        self.check()

    def test_no_inventory_row(self):
        m = message(1, sku_id=9)
        self.assertEqual(process_batch(self.db, [m]), ([("REJECTED", "REJECTED", m.order_id, "PG_STOCK_EXHAUSTED")], False))
        self.check()

    def test_same_order_by_another_message(self):
        m = message(1)
        process(self.db, m)
        again = replace(m, message_id=new_id())
        self.assertEqual(process(self.db, again), ("DUPLICATE", "COMPLETED", m.order_id, None))
        self.assertEqual((self.stock(), self.count("release_outbox")), ([(1, 3)], 0))
        self.check()

    def test_one_user_one_order(self):
        first, second = message(1), message(1)
        process(self.db, first)
        self.assertEqual(process(self.db, second), ("REJECTED", "REJECTED", first.order_id, "ONE_USER_ONE_ORDER"))
        self.assertEqual(self.db.rows("SELECT reservation_id, order_id, reason FROM release_outbox"),
                         [[second.reservation_id, str(first.order_id), "ONE_USER_ONE_ORDER"]])
        self.check()

    def test_user_conflict_under_the_same_reservation_keeps_the_unit(self):
        first = message(1)
        process(self.db, first)
        other = replace(message(1), reservation_id=first.reservation_id)
        self.assertEqual(process(self.db, other)[3], "ONE_USER_ONE_ORDER")
        self.assertEqual(self.count("release_outbox"), 0)
        self.check()

    def test_identifier_collision_is_kept_for_people_and_releases(self):
        first = message(1)
        process(self.db, first)
        for field, released in [("order_id", 1), ("request_id", 1), ("reservation_id", 0)]:
            m = replace(message(2), **{field: getattr(first, field)})
            before = self.count("release_outbox")
            self.assertEqual(process(self.db, m)[0], "INTERNAL")
            self.assertEqual(process(self.db, m)[:2], ("DUPLICATE", "REJECTED"))
            self.assertEqual(self.count("release_outbox") - before, released, field)
        self.assertEqual((self.count("quarantine"), self.stock()), (3, [(1, 7)]))
        self.check()

    def test_message_id_reused(self):
        first = message(1)
        process(self.db, first)
        other = replace(message(2), message_id=first.message_id)
        self.assertEqual(process(self.db, other)[0], "INTERNAL")
        self.assertEqual(process_batch(self.db, [other, message(3)])[0][0][0], "INTERNAL")
        self.assertEqual((self.count("quarantine"), self.count("release_outbox"), self.count("orders")), (1, 1, 2))
        self.check()

    def test_released_reservation_gets_no_order(self):
        m = message(1)
        self.assertEqual(quarantine(self.db, m, "UNSUPPORTED_SCHEMA")[1], "t")
        self.assertEqual(quarantine(self.db, m, "UNSUPPORTED_SCHEMA")[1], "f")
        self.assertEqual(process_batch(self.db, [m, message(2)])[0][0][3], "RESERVATION_RELEASED")
        self.assertEqual((self.count("quarantine"), self.count("release_outbox"), self.count("orders")), (1, 1, 1))
        self.check()

    def test_fault_of_the_data_is_settled(self):
        self.db.query("ALTER TABLE orders ADD CONSTRAINT ck_test CHECK (user_id <> 13)")
        try:
            m = message(13)
            with self.assertRaises(SqlError) as caught:
                process(self.db, m)
            self.assertEqual(caught.exception.code, "23514")
            self.assertEqual(self.db.query("COMMIT")[1], "ROLLBACK")
            self.db.query("BEGIN")
            self.db.run("order/insert_inbox", GROUP, m.message_id, m.request_id, m.reservation_id, m.order_id)
            mark(self.db, m, "REJECTED", "INTERNAL_ERROR")
            quarantine(self.db, m, "INTERNAL_ERROR")
            self.db.query("COMMIT")
        finally:
            self.db.query("ALTER TABLE orders DROP CONSTRAINT ck_test")
        self.assertEqual((self.count("quarantine"), self.count("release_outbox")), (1, 1))
        self.check()


class Batch(Case):
    def test_created_in_one_commit(self):
        messages = [message(user) for user in range(10)]
        self.assertEqual(process_batch(self.db, messages),
                         ([("CREATED", "COMPLETED", m.order_id, None) for m in messages], True))
        self.assertEqual((self.stock(), self.count("orders")), ([(10, 10)], 10))
        self.check()

    def test_known_messages_are_answered_in_the_fast_path(self):
        self.reset(self.db, stock=3)
        known = [message(user) for user in range(3)]
        lost = message(9)
        for m in (*known, lost):
            process(self.db, m)
        self.db.query("UPDATE seckill_inventory SET total_stock = 6")
        fresh = [message(user) for user in (20, 21, 22)]
        mixed = [fresh[0], known[2], lost, fresh[1], known[0], known[0], fresh[2]]
        outcomes, fast = process_batch(self.db, mixed)
        self.assertTrue(fast)
        self.assertEqual([o[0] for o in outcomes], ["CREATED", *["DUPLICATE"] * 2, "CREATED", *["DUPLICATE"] * 2, "CREATED"])
        self.assertEqual(outcomes[2][1:], ("REJECTED", lost.order_id, "PG_STOCK_EXHAUSTED"))
        self.check()

    def test_anything_unusual_changes_nothing(self):
        first = message(1)
        process(self.db, first)
        twice = message(5)
        unusual = {
            "message twice": [twice, twice], "same user twice": [message(6), message(6)],
            "user has an order": [message(7), message(1)],
            "order id taken": [replace(message(8), order_id=first.order_id)],
            "message id reused": [replace(message(8), message_id=first.message_id)],
            "not enough for all": [message(100 + user) for user in range(10)],
            "no inventory": [message(8, sku_id=77)]}
        for name, messages in unusual.items():
            columns = [[getattr(m, f) for m in messages]
                       for f in ("message_id", "request_id", "reservation_id", "order_id", "user_id")]
            with self.subTest(name), self.assertRaises(SqlError) as caught:
                self.db.run("order/order_batch", GROUP, ACTIVITY, messages[0].sku_id, *columns)
            self.assertIn(caught.exception.code, ("SK001", "23505"))
            self.assertEqual((self.stock(), self.count("orders"), self.count("consumer_inbox")), ([(1, 1)], 1, 1))

    def test_bad_arrays(self):
        for columns in ([[], [], [], [], []], [[new_id()], [new_id()], [new_id()], [1], [1, 2]]):
            text = ",".join("'{" + ",".join(map(str, column)) + "}'" for column in columns)
            with self.assertRaises(SqlError) as caught:
                self.db.query(f"SELECT * FROM seckill_order_batch('g', 1, 1, {text})")
            self.assertEqual(caught.exception.code, "22023")

    def test_batches_side_by_side(self):
        """Shuffled overlapping batches from several sessions: no deadlock, one order each."""
        self.reset(self.db, stock=1000)
        messages = [message(user) for user in range(200)]
        errors = []

        def work(seed):
            rng, db = random.Random(seed), SERVER.connect()
            try:
                for _ in range(15):
                    process_batch(db, rng.sample(messages, 32))
            except (SqlError, AssertionError) as error:
                errors.append(error)
            db.close()

        threads = [threading.Thread(target=work, args=(SEED + i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])
        self.assertEqual(self.stock()[0][0], self.count("orders"))
        self.check()


class Differential(unittest.TestCase):
    """The same random messages through both paths, on two databases: the same outcomes and the same rows."""

    ROWS = {
        "orders": "order_id, request_id, reservation_id, activity_id, sku_id, user_id, status",
        "consumer_inbox": "message_id, consumer_group, request_id, reservation_id, order_id, status, last_error_code,"
                          " processed_at IS NOT NULL",
        "release_outbox": "reservation_id, request_id, message_id, activity_id, sku_id, user_id, order_id, reason",
        "quarantine": "broker_message_id, reason, message_id, reservation_id, body",
        "seckill_inventory": "activity_id, sku_id, total_stock, sold_stock, version"}

    @classmethod
    def setUpClass(cls):
        cls.single, cls.batched = SERVER.connect(), SERVER.connect("batched")

    @classmethod
    def tearDownClass(cls):
        cls.single.close()
        cls.batched.close()

    def test_both_paths_agree(self):
        rng = random.Random(SEED)
        fast = 0
        for index in range(ROUNDS):
            with self.subTest(seed=SEED, round=index):
                fast += self.one_round(rng)
        self.assertGreater(fast, 0)

    def one_round(self, rng):
        stock, fast = rng.choice([0, 1, 3, 20, 200]), 0
        Case.reset(self.single, stock)
        Case.reset(self.batched, stock)
        seen = []
        for _ in range(rng.randint(1, 5)):
            batch = [self.next_message(rng, seen) for _ in range(rng.choice([1, 2, 5, 16]))]
            expected = [process(self.single, m) for m in batch]
            outcomes, took = process_batch(self.batched, batch)
            fast += took
            self.assertEqual(outcomes, expected)
            for table, columns in self.ROWS.items():
                query = f"SELECT {columns} FROM {table} ORDER BY 1, 2"
                self.assertEqual(self.batched.rows(query), self.single.rows(query), table)
        Case.check(self, self.batched)
        return fast

    @staticmethod
    def next_message(rng, seen):
        """Mostly fresh; else a redelivery, or one with an id or the user of an earlier one."""
        fresh = Message(*(str(uuid.UUID(int=rng.getrandbits(128))) for _ in range(3)), rng.getrandbits(53), rng.getrandbits(40))
        kind = rng.random()
        if seen and kind < 0.12:
            return rng.choice(seen)
        if seen and kind < 0.2:
            field = rng.choice(["message_id", "request_id", "reservation_id", "order_id", "user_id", "user_id"])
            fresh = replace(fresh, **{field: getattr(rng.choice(seen), field)})
        elif seen and kind < 0.23:
            fresh = replace(rng.choice(seen), message_id=fresh.message_id)
        seen.append(fresh)
        return fresh


class Around(Case):
    def test_query_by_request(self):
        self.reset(self.db, stock=1)
        won, lost = message(1), message(2)
        process(self.db, won)
        process(self.db, lost)

        def ask(m, user=None):
            return self.db.run("query/order_by_request", ACTIVITY, m.sku_id, m.request_id, user or m.user_id)[0]

        self.assertEqual(ask(won)[0][:5], ["CREATED", str(won.order_id), won.reservation_id, None, "CREATED"])
        self.assertEqual(ask(lost)[0][:5], ["REJECTED", None, lost.reservation_id, "PG_STOCK_EXHAUSTED", None])
        self.assertEqual((ask(won, 2), ask(lost, 1), ask(message(3))), ([], [], []))

    def test_attempt_log(self):
        size = 100
        self.assertEqual(self.db.run(
            "order/insert_attempts", GROUP, "host/1/0", [new_id()] * size, ["b"] * size, [1] * size, ["CREATED"] * size,
            [""] * size, [250] * size, ["2026-06-25T12:00:00Z"] * size)[1], size)
        self.assertEqual(self.db.rows("SELECT count(*) FROM consumer_attempt_log WHERE error_code IS NULL"), [["100"]])

    def test_quarantine_without_a_reservation(self):
        args = [GROUP, "B1", "topic", 3, "INVALID_JSON", "x" * 900, b"\xff\0{", *[None] * 9]
        self.assertEqual(self.db.run("order/quarantine_message", *args)[0][0][1], "f")
        self.db.run("order/quarantine_message", *args[:3], 5, *args[4:])
        self.assertEqual(self.db.rows("SELECT delivery_attempt, body, length(detail) FROM quarantine"),
                         [["5", "\\xff007b", "512"]])

    def test_assertions_see_what_they_are_for(self):
        """Each broken in its own way; each caught by the file of that name."""
        m = message(1)
        process(self.db, m)
        lost = message(1)
        process(self.db, lost)
        breaks = {
            "sold_equals_orders": "UPDATE seckill_inventory SET sold_stock = 5",
            "no_oversell": "ALTER TABLE seckill_inventory DROP CONSTRAINT ck_inventory_sold_range;"
                           " UPDATE seckill_inventory SET sold_stock = 11",
            "one_user_one_order": "ALTER TABLE orders DROP CONSTRAINT uq_orders_activity_sku_user; INSERT INTO orders"
                                  f" VALUES (1, '{new_id()}', '{new_id()}', {ACTIVITY}, 2001, 1, 'PAID')",
            "inbox_settled": "UPDATE consumer_inbox SET status = 'PROCESSING'",
            "completed_has_order": "DELETE FROM orders",
            "order_has_inbox": "DELETE FROM consumer_inbox",
            "rejected_is_released": "DELETE FROM release_outbox",
            "rejected_has_reason": "UPDATE consumer_inbox SET last_error_code = NULL",
            "no_order_released": f"UPDATE release_outbox SET reservation_id = '{m.reservation_id}'"}
        self.assertEqual(set(breaks), {path.stem for path in (SQL / "assertions").glob("*.sql")})
        for name, text in breaks.items():
            self.check()
            self.db.query("BEGIN")
            self.db.query(text)
            self.assertNotEqual(self.db.rows((SQL / "assertions" / f"{name}.sql").read_text()), [], name)
            self.db.query("ROLLBACK")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        SEED = int(sys.argv[1])
    if len(sys.argv) > 2:
        ROUNDS = int(sys.argv[2])
    print(f"seed {SEED}, {ROUNDS} rounds")
    with PrivatePostgres(fsync="off") as SERVER:
        SERVER.migrate()
        SERVER.connect().query("CREATE DATABASE batched")
        SERVER.migrate("batched")
        result = unittest.main(argv=sys.argv[:1], exit=False, warnings="ignore").result
    sys.exit(not result.wasSuccessful())
