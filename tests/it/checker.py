"""The invariant checker: what must hold of a sale whatever went wrong, read straight from Redis and PostgreSQL.

It shares nothing with the product: no script, no query API, no code of the paths it judges. A click that was answered 202 is a
promise; everything else is arithmetic.
"""

import pathlib

ASSERTIONS = pathlib.Path(__file__).resolve().parents[2] / "sql" / "assertions"
MANY = "local all = {} for i, key in ipairs(KEYS) do all[i] = redis.call('HGETALL', key) end return all"
OPEN = ("RESERVED", "MQ_PENDING", "MQ_SENT")


class Checker:
    """Judges one sale. `redis` and `sql` are a client and a function that runs one statement."""

    def __init__(self, sale, total, redis, sql):
        self.sale, self.total, self.redis, self.sql = sale, total, redis, sql
        self.prefix = f"sec:{{{sale[0]}:{sale[1]}}}:"
        self.where = f"activity_id = {sale[0]} AND sku_id = {sale[1]}"

    def fields(self, key):
        flat = self.redis.call("HGETALL", key)
        return dict(zip(flat[::2], flat[1::2]))

    def all_fields(self, keys):
        """The hashes of many keys."""
        found = {}
        for at in range(0, len(keys), 1000):
            some = keys[at:at + 1000]
            for key, flat in zip(some, self.redis.call("EVAL", MANY, len(some), *some)):
                found[key] = dict(zip(flat[::2], flat[1::2]))
        return found

    def reservations(self):
        """reservation_id -> its hash"""
        start = self.prefix + "reservation:"
        keys = self.redis.call("KEYS", start + "*")
        return {key[len(start):]: row for key, row in self.all_fields(keys).items()}

    def unsettled(self):
        """What is still on its way; empty when the sale has come to rest."""
        waiting = []
        due = self.sql(f"SELECT count(*) FROM release_outbox WHERE applied_at IS NULL AND {self.where}")[0][0]
        if due != "0":
            waiting.append(f"{due} releases not applied")
        pending = self.redis.call("ZCARD", self.prefix + "pending")
        if pending:
            waiting.append(f"{pending} in the pending index")
        if not waiting:
            still = [row["status"] for row in self.reservations().values() if row["status"] in OPEN]
            if still:
                waiting.append(f"{len(still)} reservations open: {sorted(set(still))}")
        return waiting

    def check(self, clicks):
        """Everything. What it counted; an AssertionError names the first thing that is wrong."""
        orders = {row[1]: row for row in self.sql(
            f"SELECT user_id, request_id, reservation_id, order_id FROM orders WHERE {self.where}")}
        releases = {row[0]: row for row in self.sql(
            f"SELECT request_id, reservation_id, reason FROM release_outbox WHERE {self.where}")}
        keys = {click.key: click for click in clicks}
        reservations = self.reservations()

        promised = [click for click in clicks if click.reply is not None and click.reply.status == 202]
        for click in promised:
            if click.reply.json["state"] == "RELEASED":
                # The answer to a second try: the end of a reservation whose message was never sent (strict mode).
                row = reservations.get(click.reply.json["reservation_id"], {})
                assert row.get("status") == "RELEASED" and click.key not in orders, f"{click.key}: {row}"
                continue
            order, release = orders.get(click.key), releases.get(click.key)
            state = reservations.get(click.reply.json["reservation_id"], {}).get("status")
            finals = (order is not None) + (release is not None)
            assert finals == 1, f"202 of {click.key}: order {order}, release {release}, reservation {state}"
            if order:
                assert order[2] == click.reply.json["reservation_id"], f"{click.key}: another reservation than promised"
                assert int(order[3]) == int(click.reply.json["order_id"]), f"{click.key}: another order than promised"
                assert int(order[0]) == click.user, f"{click.key}: another user's order"
        for request_id, order in orders.items():
            assert request_id in keys, f"an order nobody asked for: {order}"
            assert int(order[0]) == keys[request_id].user, f"another user's order: {order}"

        users = [order[0] for order in orders.values()]
        assert len(users) == len(set(users)), "a user has two orders"
        assert len(orders) <= self.total, f"oversold: {len(orders)} of {self.total}"

        buyers = self.fields(self.prefix + "buyers")
        stock = int(self.redis.call("GET", self.prefix + "stock"))
        assert buyers == {order[0]: order[2] for order in orders.values()}, (
            f"buyers and orders differ: {len(buyers)} and {len(orders)}, "
            f"{list(set(buyers) ^ set(users))[:5]}")
        assert stock >= 0 and stock + len(buyers) == self.total, f"{stock} left + {len(buyers)} sold is not {self.total}"

        by_reservation = {order[2]: order for order in orders.values()}
        for reservation_id, row in reservations.items():
            expected = "CREATED" if reservation_id in by_reservation else "RELEASED"
            assert row["status"] == expected, f"reservation {reservation_id} is {row['status']}, not {expected}"
        shown = self.all_fields([self.prefix + "result:" + request_id for request_id in orders])
        for order in orders.values():
            result = shown[self.prefix + "result:" + order[1]]
            assert result.get("state") == "CREATED" and result.get("order_id") == order[3], f"{order}: shown {result}"
            assert result.get("user_id") == order[0], f"{order}: shown to {result.get('user_id')}"
        waiting = self.unsettled()
        assert not waiting, waiting
        self.books()
        return {"promised": len(promised), "orders": len(orders), "released": len(releases), "stock": stock}

    def books(self):
        """The correctness assertions of sql/assertions give no row."""
        for path in sorted(ASSERTIONS.glob("*.sql")):
            rows = self.sql(path.read_text())
            assert rows == [], f"{path.name}: {rows[:5]}"
