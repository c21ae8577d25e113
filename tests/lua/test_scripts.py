#!/usr/bin/env python3
"""Tests of lua/*.lua on a private redis-server. Usage: test_scripts.py [seed] [rounds]"""

import itertools
import pathlib
import random
import sys
import time
import unittest
import uuid

from private_redis import PrivateRedis, ReplyError, record

CASES = pathlib.Path(__file__).resolve().parents[1] / "cases" / "book"


def table_rows(name):
    """The rows of a table under tests/cases/book, without comments and without the line of names."""
    lines = (CASES / name).read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines if not line.startswith("#")]


def transitions():
    """state -> event -> (code, state after), from transitions.tsv."""
    names, *rows = table_rows("transitions.tsv")
    return {row[0]: dict(zip(names[1:], (tuple(cell.split()) for cell in row[1:]))) for row in rows}


SERVER = None
SEED = random.randrange(1 << 32)
ROUNDS = 300


def now_ms():
    return int(time.time() * 1000)


def new_id():
    return str(uuid.uuid4())


class Sku:
    """One SKU of its own, with the scripts as methods."""

    serial = 0

    def __init__(self, client, total=10, start=-60_000, end=60_000, expire=600_000, state="open", warm=True):
        Sku.serial += 1
        self.client, self.total = client, total
        self.prefix = f"sec:{{1001:{Sku.serial}}}"
        now = now_ms()
        self.window = (now + start, now + end, now + expire)
        if warm:
            assert self.warm(state=state)[0] == 0

    def run(self, name, *args):
        return self.client.script(name, self.prefix, *args)

    def warm(self, total=None, stock=None, window=None, state="open", generation=1):
        total = self.total if total is None else total
        stock = total if stock is None else stock
        return self.run("warm", total, stock, *(window or self.window), state, generation)

    def reserve(self, *requests):
        """Requests as made by `request`; answers [(code, details)], stock."""
        args = [value for request in requests for value in request]
        return split_reply(self.run("reserve", *args))

    def key(self, name):
        return f"{self.prefix}:{name}"

    def fields(self, name):
        flat = self.client.call("HGETALL", self.key(name))
        return dict(zip(flat[::2], flat[1::2]))

    def stock(self):
        return int(self.client.call("GET", self.key("stock")))

    def pending(self):
        return set(self.client.call("ZRANGE", self.key("pending"), 0, -1))

    def buyers(self):
        return self.fields("buyers")


def request(user, request_id=None, reservation_id=None, trace=""):
    request_id, message_id, order_id, now = request_id or new_id(), new_id(), random.randrange(1 << 53), now_ms()
    made = record(user, request_id, message_id, order_id, now, trace)
    return (user, request_id, reservation_id or new_id(), message_id, order_id, now, made)


def split_reply(reply):
    codes, stock, clock, details = reply[0], reply[1], reply[2], reply[3:]
    assert abs(clock - now_ms()) < 5_000
    answers = []
    for code in codes:
        size = {"1": 6, "2": 1}.get(code, 0)
        answers.append((int(code), details[:size]))
        details = details[size:]
    assert not details
    return answers, stock


class Case(unittest.TestCase):
    def setUp(self):
        self.client = SERVER.client()
        self.addCleanup(self.client.close)


class Reserve(Case):
    def test_created_writes_every_record(self):
        sku = Sku(self.client)
        trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
        one = request(7, trace=trace)
        self.assertEqual(sku.reserve(one), ([(0, [])], 9))
        self.assertEqual(sku.fields("reservation:" + one[2]), {
            "request_id": one[1], "user_id": "7", "message_id": one[3], "order_id": str(one[4]), "status": "RESERVED",
            "version": "1", "created_at_ms": str(one[5]), "traceparent": trace})
        self.assertEqual(self.client.call("GET", sku.key("request:" + one[1])), "7:" + one[2])
        self.assertEqual(sku.buyers(), {"7": one[2]})
        self.assertEqual(self.client.call("ZRANGE", sku.key("pending"), 0, -1, "WITHSCORES"), [one[2], str(one[5])])

    def test_every_key_expires_at_the_same_instant(self):
        sku = Sku(self.client)
        ones = [request(user) for user in range(3)]
        sku.reserve(*ones)
        sku.run("mark_sent", *sum(([one[2], ""] for one in ones), []))
        again = request(9)
        sku.reserve(again)
        sku.run("project_result", again[1], again[2], 9, "CREATED", again[4], "")
        sku.reserve(request(10))
        keys = [key for key in self.client.call("KEYS", sku.prefix.replace("{", "[{]") + ":*")]
        self.assertEqual(len(keys), 4 + 2 * 5 + 1)
        self.assertEqual({self.client.call("PEXPIRETIME", key) for key in keys}, {sku.window[2]})

    def test_replay_gets_its_original(self):
        sku = Sku(self.client)
        one = request(7)
        sku.reserve(one)
        original = [one[2], one[3], str(one[4]), "RESERVED", "1", str(one[5])]
        self.assertEqual(sku.reserve(request(7, one[1])), ([(1, original)], 9))
        self.assertEqual(sku.reserve(request(8, one[1])), ([(7, [])], 9))
        self.assertEqual(sku.reserve(request(7)), ([(2, [one[2]])], 9))

    def test_duplicates_inside_one_batch(self):
        sku = Sku(self.client, total=2)
        a, b = request(7), request(8)
        answers, stock = sku.reserve(a, request(7, a[1]), request(8, a[1]), request(7), b, request(9), request(8, b[1]))
        self.assertEqual([code for code, _ in answers], [0, 1, 7, 2, 0, 3, 1])
        self.assertEqual(answers[1][1][:2], [a[2], a[3]])
        self.assertEqual(answers[3][1], [a[2]])
        self.assertEqual(stock, 0)

    def test_window_gate_and_stock(self):
        for code, sku in [
                (4, Sku(self.client, warm=False)),
                (5, Sku(self.client, start=30_000)),
                (6, Sku(self.client, end=-1)),
                (8, Sku(self.client, state="closed")),
                (8, Sku(self.client, start=30_000, state="closed")),
                (6, Sku(self.client, end=-1, state="closed")),
                (3, Sku(self.client, total=0))]:
            before = self.client.call("DBSIZE")
            self.assertEqual([a[0] for a in sku.reserve(request(1), request(2))[0]], [code, code])
            self.assertEqual(self.client.call("DBSIZE"), before)

    def test_replay_and_holder_are_answered_after_the_end(self):
        for closing in ("closed", "ended", "sold out", "stock lost"):
            sku = Sku(self.client, total=1 if closing == "sold out" else 5, end=300 if closing == "ended" else 60_000)
            one = request(7)
            sku.reserve(one)
            if closing == "closed":
                sku.run("set_state", "closed")
            elif closing == "ended":
                time.sleep(0.35)
            elif closing == "stock lost":
                self.client.call("DEL", sku.key("stock"))
            codes = [code for code, _ in sku.reserve(request(7, one[1]), request(7), request(8))[0]]
            self.assertEqual(codes, [1, 2, {"closed": 8, "ended": 6, "sold out": 3, "stock lost": 4}[closing]])

    def test_released_user_may_buy_again_and_the_old_request_keeps_its_state(self):
        sku = Sku(self.client, total=1)
        one = request(7)
        sku.reserve(one)
        self.assertEqual(sku.run("release", "unsent", one[2], 7, "1"), ["0", 0, 1])
        answers, stock = sku.reserve(request(7, one[1]), request(7), request(8))
        self.assertEqual([code for code, _ in answers], [1, 0, 3])
        self.assertEqual(answers[0][1][3:5], ["RELEASED", "2"])
        self.assertEqual(stock, 0)

    def test_batch_of_512(self):
        sku = Sku(self.client, total=500)
        answers, stock = sku.reserve(*(request(user) for user in range(512)))
        self.assertEqual([code for code, _ in answers], [0] * 500 + [3] * 12)
        self.assertEqual((stock, len(sku.buyers()), len(sku.pending())), (0, 500, 500))
        self.assertEqual([c for c, _ in sku.reserve(*(request(user) for user in range(512)))[0]], [2] * 500 + [3] * 12)

    def test_bad_argument_count(self):
        with self.assertRaises(ReplyError):
            Sku(self.client).run("reserve", 1, 2, 3)
        with self.assertRaises(ReplyError):
            Sku(self.client).run("reserve")

    def test_full_memory_writes_nothing(self):
        sku = Sku(self.client)
        self.client.call("CONFIG", "SET", "maxmemory", "1")
        try:
            with self.assertRaises(ReplyError):
                sku.reserve(request(1), request(2))
        finally:
            self.client.call("CONFIG", "SET", "maxmemory", "0")
        self.assertEqual((sku.stock(), sku.buyers(), sku.pending()), (10, {}, set()))


    def test_without_a_record_the_script_writes_the_same_hash(self):
        sku = Sku(self.client)
        given, left_out = request(1), request(2)
        sku.reserve(given, (*left_out[:6], ""))
        for one in (given, left_out):
            self.assertEqual(sku.fields("reservation:" + one[2]), {
                "request_id": one[1], "user_id": str(one[0]), "message_id": one[3], "order_id": str(one[4]),
                "status": "RESERVED", "version": "1", "created_at_ms": str(one[5])})
        times = {self.client.call("PEXPIRETIME", sku.key("reservation:" + one[2])) for one in (given, left_out)}
        self.assertEqual(times, {sku.window[2]})

    def test_a_record_that_is_refused_takes_no_unit(self):
        sku = Sku(self.client)
        good, bad = request(1), request(2)
        for broken in (b"?", b"not a dump", bad[6][:-1], bad[6][:-1] + bytes([bad[6][-1] ^ 1])):
            with self.assertRaises(ReplyError):
                sku.reserve(good, (*bad[:6], broken))
            self.assertEqual((sku.stock(), sku.buyers(), sku.pending()), (10, {}, set()))
            self.client.call("DEL", sku.key("reservation:" + good[2]))
        self.assertEqual([code for code, _ in sku.reserve(good, bad)[0]], [0, 0])


class ClaimPending(Case):
    def claim(self, sku, age=0, lease=60_000, limit=100):
        reply = sku.run("claim_pending", age, lease, limit)
        return [reply[at:at + 8] for at in range(0, len(reply), 8)]

    def test_each_goes_to_one_at_a_time_with_its_original_ids(self):
        sku = Sku(self.client)
        trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
        one, two = request(1, trace=trace), request(2)
        sku.reserve(one, two)
        time.sleep(0.002)
        rows = {row[0]: row for row in self.claim(sku)}
        self.assertEqual(rows[one[2]], [one[2], one[1], "1", one[3], str(one[4]), str(one[5]), "1", trace])
        self.assertEqual(rows[two[2]][-2:], ["1", ""])
        self.assertEqual(sku.fields("reservation:" + one[2])["status"], "MQ_PENDING")
        self.assertEqual(self.claim(sku), [], "under a lease")
        sku.run("mark_sent", one[2], "")
        self.assertEqual(self.claim(sku), [])

    def test_those_under_a_lease_do_not_hide_the_others(self):
        sku = Sku(self.client, total=20)
        sku.reserve(*(request(user) for user in range(1, 11)))
        time.sleep(0.002)
        claimed = [row[0] for _ in range(5) for row in self.claim(sku, limit=2)]
        self.assertEqual((len(set(claimed)), set(claimed)), (10, sku.pending()))
        self.assertEqual(self.claim(sku, limit=2), [])

    def test_a_lease_ends_and_the_count_rises(self):
        sku = Sku(self.client)
        one = request(1)
        sku.reserve(one)
        time.sleep(0.002)
        counts = []
        for _ in range(3):
            counts.append(self.claim(sku, lease=1)[0][6])
            time.sleep(0.003)
        self.assertEqual(counts, ["1", "2", "3"])
        self.assertEqual(sku.fields("reservation:" + one[2])["version"], "4")

    def test_young_ones_are_left_alone_and_the_limit_holds(self):
        sku = Sku(self.client, total=20)
        sku.reserve(*(request(user) for user in range(1, 11)))
        self.assertEqual(self.claim(sku, age=60_000), [])
        time.sleep(0.002)
        self.assertEqual(len(self.claim(sku, limit=4)), 4)

    def test_what_has_moved_on_leaves_the_index(self):
        sku = Sku(self.client)
        released, gone, ordered = request(1), request(2), request(3)
        sku.reserve(released, gone, ordered)
        self.client.call("DEL", sku.key("reservation:" + gone[2]))
        self.client.call("HSET", sku.key("reservation:" + released[2]), "status", "RELEASED")
        self.client.call("HSET", sku.key("reservation:" + ordered[2]), "status", "CREATED")
        time.sleep(0.002)
        self.assertEqual(self.claim(sku), [])
        self.assertEqual(sku.pending(), set())

    def test_bad_arguments(self):
        sku = Sku(self.client)
        for args in ((), (1, 2), (1, 2, 0), (1, 2, 513), ("x", 2, 3)):
            with self.assertRaises(ReplyError):
                sku.run("claim_pending", *args)


class Table(Case):
    """tests/cases/book/reserve.tsv, which the embedded book is run against too."""

    WINDOWS = {"early": (30_000, 60_000), "over": (-60_000, -30_000)}

    def test_every_row(self):
        rows = table_rows("reserve.tsv")[1:]
        self.assertGreater(len(rows), 20)
        for name, gate, units, calls, codes in rows:
            start, end = self.WINDOWS.get(gate, (-60_000, 60_000))
            sku = Sku(self.client, total=int(units), start=start, end=end, state="closed" if gate == "closed" else "open",
                      warm=gate != "absent")
            keys = {}
            for call, expected in zip(calls.split("|"), codes.split("|")):
                if call.strip() == "!close":
                    sku.run("set_state", "closed")
                    continue
                pairs = [one.split(":") for one in call.split()]
                answers, _ = sku.reserve(*(request(int(user), keys.setdefault(key, new_id())) for user, key in pairs))
                self.assertEqual("".join(str(code) for code, _ in answers), expected, f"{name}: {call}")


class Model:
    """The reserve rules, one request at a time."""

    def __init__(self, stock):
        self.stock, self.requests, self.users, self.rows = stock, {}, {}, {}

    def reserve(self, one):
        user, request_id, reservation_id = str(one[0]), one[1], one[2]
        if request_id in self.requests:
            owner, original = self.requests[request_id]
            return (1, self.rows[original]) if owner == user else (7, [])
        if user in self.users:
            return 2, [self.users[user]]
        if self.stock == 0:
            return 3, []
        self.stock -= 1
        self.requests[request_id], self.users[user] = (user, reservation_id), reservation_id
        self.rows[reservation_id] = [reservation_id, one[3], str(one[4]), "RESERVED", "1", str(one[5])]
        return 0, []

    def release(self, reservation_id, user):
        row = self.rows[reservation_id]
        if row[3] == "RELEASED":
            return "1"
        row[3], row[4] = "RELEASED", str(int(row[4]) + 1)
        self.stock += 1
        if self.users.get(user) == reservation_id:
            del self.users[user]
        return "0"


class Differential(Case):
    def test_batches_equal_one_by_one(self):
        rng = random.Random(SEED)
        for round_index in range(ROUNDS):
            with self.subTest(seed=SEED, round=round_index):
                self.one_round(rng)

    def one_round(self, rng):
        stock = rng.choice([0, 1, 2, 5, 40])
        sku, model = Sku(self.client, total=stock), Model(stock)
        users, ids = rng.randint(1, 30), [new_id() for _ in range(rng.randint(1, 30))]
        for _ in range(rng.randint(1, 6)):
            batch = [request(rng.randrange(users), rng.choice(ids) if rng.random() < 0.6 else None)
                     for _ in range(rng.choice([1, 2, 3, 8, 64]))]
            answers, left = sku.reserve(*batch)
            self.assertEqual(answers, [model.reserve(one) for one in batch])
            self.assertEqual(left, model.stock)
            self.assertEqual(sku.buyers(), model.users)
            if model.rows and rng.random() < 0.5:
                reservation_id = rng.choice(list(model.rows))
                user = sku.fields("reservation:" + reservation_id)["user_id"]
                codes = sku.run("release", "unsent", reservation_id, user, "")[0]
                self.assertEqual(codes, model.release(reservation_id, user))
            self.assertEqual(sku.stock(), model.stock)
        self.assertEqual(sku.pending(), {key for key, row in model.rows.items() if row[3] == "RESERVED"})


class States(Case):
    def setUp(self):
        super().setUp()
        self.sku = Sku(self.client, total=5)
        self.one = request(7)
        self.sku.reserve(self.one)

    def state(self):
        row = self.sku.fields("reservation:" + self.one[2])
        return row["status"], int(row["version"])

    def mark(self, name, version="", *more):
        return self.sku.run(name, self.one[2], version, *more)

    def project(self, state, user=7, code=""):
        return self.sku.run("project_result", self.one[1], self.one[2], user, state, self.one[4], code)

    def release(self, why, version=""):
        return self.sku.run("release", why, self.one[2], 7, version)[0]

    def moves(self):
        """Every event of the table, as the script call it is; each gives its code."""
        one = self.one[2]
        return {
            "mark_sent": lambda version="": self.mark("mark_sent", version)[0],
            "mark_pending": lambda version="": self.mark("mark_pending", version, "")[0],
            "created": lambda: self.project("CREATED")[0], "rejected": lambda: self.project("REJECTED", code="X")[0],
            "release_unsent": lambda version="": self.release("unsent", version),
            "release_rejected": lambda version="": self.release("rejected", version),
            "claim": lambda: "0" if one in self.sku.run("claim_pending", "0", "0", "100")[::8] else "-"}

    def test_every_state_takes_every_event_as_the_table_says(self):
        ways = {
            "RESERVED": [], "MQ_PENDING": ["mark_pending"], "MQ_SENT": ["mark_sent"], "CREATED": ["mark_sent", "created"],
            "REJECTED": ["mark_sent", "rejected"], "RELEASED": ["release_unsent"]}
        table = transitions()
        self.assertEqual(list(ways), list(table))
        for state, way in ways.items():
            for event, (code, after) in table[state].items():
                with self.subTest(state=state, event=event):
                    self.setUp()
                    moves = self.moves()
                    self.assertEqual(list(moves), list(table[state]))
                    for step in way:
                        moves[step]()
                    status, version = self.state()
                    self.assertEqual(status, state)
                    stock = self.sku.stock()
                    if code == "0" and event not in ("created", "rejected", "claim"):
                        self.assertEqual(moves[event](str(version + 1)), "4", "a version of another life changes nothing")
                        self.assertEqual(self.state(), (state, version))
                    self.assertEqual((moves[event](), self.state()[0]), (code, after))
                    self.assertEqual(self.state()[1], version + (code == "0"))
                    self.assertEqual(self.sku.stock(), stock + (after == "RELEASED" != state))
                    if event != "claim":
                        self.assertIn(moves[event](), "123", "the second time changes nothing")
                    self.assertEqual(self.sku.stock(), stock + (after == "RELEASED" != state))

    def test_every_history_of_four_events(self):
        """All 2,401: state, version, unit, buyer, index and result after each event are what the table leads to."""
        table, events = transitions(), list(self.moves())
        for history in itertools.product(events, repeat=4):
            self.setUp()
            moves, state, version, shown = self.moves(), "RESERVED", 1, ""
            for event in history:
                code, after = table[state][event]
                self.assertEqual(moves[event](), code, f"{history}: {event} of {state}")
                released_order = event == "created" and state == "RELEASED"
                if event in ("created", "rejected") and (code in "012" or released_order) and not shown:
                    shown = event.upper()
                state, version = after, version + (code == "0")
            self.assertEqual(self.state(), (state, version), history)
            free = state == "RELEASED"
            self.assertEqual((self.sku.stock(), self.sku.buyers() == {}), (4 + free, free), history)
            self.assertEqual(self.one[2] in self.sku.pending(), state in ("RESERVED", "MQ_PENDING"), history)
            self.assertEqual(self.sku.fields("result:" + self.one[1]).get("state", ""), shown, history)

    def test_pending_index_follows(self):
        for way, left in [("s", False), ("p", True), ("u", False), ("C", False), ("R", False)]:
            self.setUp()
            {"s": lambda: self.mark("mark_sent"), "p": lambda: self.mark("mark_pending", "", ""),
             "u": lambda: self.release("unsent"), "C": lambda: self.project("CREATED"),
             "R": lambda: self.project("REJECTED")}[way]()
            self.assertEqual(self.one[2] in self.sku.pending(), left)

    def test_versions_are_compared(self):
        self.assertEqual(self.mark("mark_sent", "2"), ["4", 1])
        self.assertEqual(self.mark("mark_pending", "9", ""), ["4", 1])
        self.assertEqual(self.release("unsent", "2"), "4")
        self.assertEqual(self.state(), ("RESERVED", 1))
        self.assertEqual(self.mark("mark_pending", "1", ""), ["0", 0])
        self.assertEqual(self.mark("mark_sent", "2"), ["0", 0])
        self.assertEqual(self.state(), ("MQ_SENT", 3))

    def test_retry_count_only_rises(self):
        self.assertEqual(self.mark("mark_pending", "", "1"), ["0", 0])
        self.assertEqual(self.mark("mark_pending", "", "2"), ["1", 0])
        self.assertEqual(self.mark("mark_pending", "", "1"), ["1", 0])
        self.assertEqual(self.sku.fields("reservation:" + self.one[2])["retry_count"], "2")
        self.assertEqual(self.state(), ("MQ_PENDING", 3))

    def test_result_of_another_user_or_request_is_refused(self):
        self.assertEqual(self.project("CREATED", user=8), ["4", 1])
        self.assertEqual(self.sku.run("project_result", new_id(), self.one[2], 7, "CREATED", 1, ""), ["4", 1])
        self.assertEqual(self.sku.run("release", "unsent", self.one[2], 8, ""), ["4", 1, 4])
        self.assertEqual(self.state(), ("RESERVED", 1))

    def test_order_of_a_released_reservation_is_shown(self):
        self.release("unsent")
        self.assertEqual(self.project("CREATED"), ["3", 1])
        self.assertEqual(self.sku.fields("result:" + self.one[1])["state"], "CREATED")
        self.assertEqual(self.state()[0], "RELEASED")

    def test_missing_reservation_and_missing_activity(self):
        other = new_id()
        self.assertEqual(self.sku.run("project_result", other, new_id(), 5, "CREATED", 6, ""), ["5", 0])
        self.assertEqual(self.sku.run("project_result", other, new_id(), 5, "REJECTED", 6, ""), ["3", 1])
        self.assertEqual(self.sku.fields("result:" + other)["state"], "CREATED")
        self.assertEqual(self.mark("mark_sent")[0] + self.sku.run("mark_sent", new_id(), "")[0], "05")
        self.assertEqual(self.sku.run("release", "unsent", new_id(), 7, ""), ["5", 0, 4])
        cold = Sku(self.client, warm=False)
        self.assertEqual(cold.run("project_result", other, new_id(), 5, "CREATED", 6, ""), ["6", 0])
        self.assertEqual(self.client.call("EXISTS", cold.key("result:" + other)), 0)

    def test_release_never_exceeds_the_total(self):
        self.client.call("SET", self.sku.key("stock"), 5)
        self.assertEqual(self.release("unsent"), "6")
        self.client.call("DEL", self.sku.key("stock"))
        self.assertEqual(self.release("unsent"), "6")
        self.assertEqual(self.client.call("EXISTS", self.sku.key("stock")), 0)

    def test_release_keeps_the_entry_of_a_later_reservation(self):
        self.release("unsent")
        later = request(7)
        self.sku.reserve(later)
        self.assertEqual(self.release("unsent"), "1")
        self.assertEqual(self.sku.buyers(), {"7": later[2]})

    def test_batches_are_judged_one_by_one(self):
        two, ghost = request(8), new_id()
        self.sku.reserve(two)
        self.sku.run("release", "unsent", two[2], 8, "")
        self.assertEqual(self.sku.run("mark_sent", two[2], "", ghost, "", self.one[2], "", self.one[2], ""), ["3501", 1])
        self.assertEqual(self.sku.run("release", "unsent", two[2], 8, "", two[2], 8, "", self.one[2], 7, ""),
                         ["113", 1, 4])

    def test_bad_arguments(self):
        for name, args in [("mark_sent", ()), ("mark_sent", (1,)), ("mark_pending", (1, 2)), ("release", ("unsent",)),
                           ("release", ("now", 1, 2, 3)), ("project_result", (1, 2, 3, "PAID", 5, 6))]:
            with self.assertRaises(ReplyError):
                self.sku.run(name, *args)


class Read(Case):
    def test_every_stage(self):
        sku = Sku(self.client)
        one, other = request(7), request(8)
        sku.reserve(one, other)
        clock, warmed, *row = sku.run("read_result", one[1])
        self.assertLess(abs(clock - now_ms()), 5_000)
        self.assertEqual(warmed, 1)
        self.assertEqual(row, ["7", one[2], "RESERVED", str(one[4]), str(one[5]), "", "", "", ""])
        sku.run("project_result", one[1], one[2], 7, "REJECTED", "", "PG_STOCK_EXHAUSTED")
        _, _, *rows = sku.run("read_result", one[1], new_id(), other[1])
        self.assertEqual(rows[:8], ["7", one[2], "REJECTED", str(one[4]), str(one[5]), "REJECTED", "", "PG_STOCK_EXHAUSTED"])
        self.assertEqual(rows[9:18], [""] * 9)
        self.assertEqual(rows[18:21], ["8", other[2], "RESERVED"])

    def test_result_alone_names_its_owner(self):
        sku = Sku(self.client)
        request_id, reservation_id = new_id(), new_id()
        sku.run("project_result", request_id, reservation_id, 7, "CREATED", 5, "")
        self.assertEqual(sku.run("read_result", request_id)[2:-1],
                         ["7", reservation_id, "", "", "", "CREATED", "5", ""])
        self.assertEqual(Sku(self.client, warm=False).run("read_result", request_id)[1:], [0] + [""] * 9)


class Books(Case):
    """rebuild_begin, restore_orders, recount, inspect and reindex."""

    def begin(self, sku, generation=2, total=None):
        return sku.run("rebuild_begin", total or sku.total, *sku.window, generation)

    def order(self, one):
        return (one[0], one[1], one[2], one[4], one[5])

    def test_a_lost_sale_is_rebuilt(self):
        sku = Sku(self.client, warm=False)
        orders = [request(user) for user in range(1, 5)]
        self.assertEqual(self.begin(sku), [0, 0])
        self.assertEqual(sku.reserve(request(9))[0], [(8, [])], "shut")
        flat = [value for one in orders for value in self.order(one)]
        self.assertEqual(sku.run("restore_orders", *flat), ["0000", 0])
        self.assertEqual(sku.run("restore_orders", *flat), ["1111", 0], "twice is once")
        self.assertEqual(sku.run("recount", "1", "open"), [2, 0, 4, 0])
        self.assertEqual(sku.run("recount", "2", "open"), [0, 6, 4, 0])
        self.assertEqual(sku.run("recount", "2", ""), [1, 6, 4, 6])
        code, details = sku.reserve(orders[0])[0][0]
        self.assertEqual((code, details[0], details[3]), (1, orders[0][2], "CREATED"))
        self.assertEqual(sku.reserve(request(1))[0], [(2, [orders[0][2]])])
        self.assertEqual(sku.reserve(request(9))[0][0][0], 0)
        for name in ("stock", "activity", "buyers", "request:" + orders[0][1], "result:" + orders[0][1],
                     "reservation:" + orders[0][2]):
            self.assertEqual(self.client.call("PEXPIRETIME", sku.key(name)), sku.window[2], name)

    def test_a_rebuild_keeps_what_is_under_way(self):
        sku = Sku(self.client)
        ordered, under_way, other = request(1), request(2), request(1)
        sku.reserve(ordered, under_way)
        self.assertEqual(self.begin(sku), [0, 2])
        self.assertEqual(self.begin(sku), [3, 2], "one rebuild of a generation")
        self.assertEqual(self.begin(sku, 3), [0, 2])
        # User 1 has an order of another reservation than the one that Redis knows: that one loses its unit to it.
        self.assertEqual(sku.run("restore_orders", *self.order(other)), ["0", 0])
        self.assertEqual(sku.fields("reservation:" + ordered[2])["status"], "RELEASED")
        self.assertEqual(sku.pending(), {under_way[2]})
        self.assertEqual(sku.run("recount", "3", "open"), [0, 8, 2, 0])
        self.assertEqual(sku.run("release", "unsent", ordered[2], 1, "")[0], "1", "its unit does not go back")
        self.assertEqual(sku.stock(), 8)

    def test_orders_that_are_contradicted_or_of_somebody_else(self):
        sku = Sku(self.client)
        released, foreign = request(1), request(2)
        sku.reserve(released, foreign)
        sku.run("release", "unsent", released[2], 1, "")
        self.assertEqual(sku.run("restore_orders", *self.order(released)), ["3", 1])
        self.assertEqual(sku.fields("reservation:" + released[2])["status"], "RELEASED")
        self.assertEqual(sku.run("restore_orders", 9, *self.order(foreign)[1:]), ["4", 1])
        self.assertEqual(Sku(self.client, warm=False).run("restore_orders", *self.order(released)), ["6", 0])

    def test_recount_never_goes_below_zero(self):
        sku = Sku(self.client, total=1)
        for user in (1, 2, 3):
            sku.run("restore_orders", *self.order(request(user)))
        self.assertEqual(sku.run("recount", "", ""), [3, 0, 3, 1])
        self.assertEqual(Sku(self.client, warm=False).run("recount", "", ""), [4, -1, 0, -1])

    def test_inspect_and_reindex(self):
        sku = Sku(self.client)
        one, two = request(1), request(2)
        sku.reserve(one, two)
        seen = sku.run("inspect", 1, one[2], 9, one[2])
        self.assertEqual(seen[:9], ["RESERVED", str(one[5]), one[1], one[3], str(one[4]), "", one[2], "1", ""])
        self.assertEqual(seen[15:], ["", "1", ""])
        self.client.call("ZREM", sku.key("pending"), one[2])
        entries = ("pending", 1, one[2], "pending", 2, two[2], "buyer", 1, one[2], "buyer", 2, new_id())
        self.assertEqual(sku.run("reindex", *entries), ["0111", 0])
        self.assertEqual(sku.pending(), {one[2], two[2]})
        self.client.call("HSET", sku.key("reservation:" + two[2]), "status", "RELEASED")
        self.assertEqual(sku.run("reindex", "buyer", 2, two[2], "pending", 2, two[2]), ["01", 0])
        self.assertEqual(set(sku.buyers()), {"1"})

    def test_bad_arguments(self):
        sku = Sku(self.client)
        self.assertEqual(sku.run("rebuild_begin", 1, 2, 3, 4, 5), [4, 0])
        for name, args in (("restore_orders", (1, 2)), ("inspect", (1,)), ("reindex", ("pending", 1))):
            with self.assertRaises(ReplyError):
                sku.run(name, *args)


class Gate(Case):
    def test_warm_is_idempotent_and_never_overwrites(self):
        sku = Sku(self.client, total=3)
        sku.reserve(request(1))
        self.assertEqual(sku.warm(), [1, 2, "1"])
        for other in [dict(total=4), dict(generation=2), dict(window=(1, *sku.window[1:]))]:
            self.assertEqual(sku.warm(**other), [2, 2, "1"])
        self.client.call("DEL", sku.key("activity"))
        self.assertEqual(sku.warm(), [3, 2, ""])

    def test_warm_checks_its_values(self):
        sku = Sku(self.client, warm=False)
        start, end, expire = sku.window
        for bad in [dict(total=-1), dict(total=3, stock=4), dict(stock=-1), dict(window=(end, start, expire)),
                    dict(window=(start, expire + 1, expire)), dict(window=(1, 2, 3)), dict(state="ajar"),
                    dict(generation=0), dict(generation="x")]:
            self.assertEqual(sku.warm(**bad), [4, -1, ""])
        self.assertEqual(sku.warm(total=10, stock=4, generation=2), [0, 4, "2"])

    def test_set_state(self):
        sku = Sku(self.client)
        self.assertEqual([sku.run("set_state", s) for s in ("closed", "closed", "x", "open")],
                         [[0, "closed"], [1, "closed"], [5, "closed"], [0, "open"]])
        self.assertEqual(Sku(self.client, warm=False).run("set_state", "open"), [4, ""])

    def test_status(self):
        sku = Sku(self.client)
        one = request(7)
        sku.reserve(one, request(8))
        self.assertEqual(sku.run("status")[:-1], [1, "open", 10, 8, 2, 2, one[5], *sku.window, 1])
        self.assertEqual(Sku(self.client, warm=False).run("status")[:-1], [0, "", -1, -1, 0, 0, -1, -1, -1, -1, -1])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        SEED = int(sys.argv[1])
    if len(sys.argv) > 2:
        ROUNDS = int(sys.argv[2])
    print(f"seed {SEED}, {ROUNDS} rounds")
    with PrivateRedis() as SERVER:
        result = unittest.main(argv=sys.argv[:1], exit=False).result
    sys.exit(not result.wasSuccessful())
