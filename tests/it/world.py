"""The running system as the end-to-end tests see it: processes, HTTP, Redis, PostgreSQL. Standard library only.

Needs the environment of `tests/stack env` and SECKILL_BIN, the binary under test. `tests/run` sets both.
"""

import asyncio
import contextlib
import json
import os
import pathlib
import random
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.parse
import urllib.request
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "lua"))
from private_redis import Client as RedisClient  # noqa: E402  (the path is set just above)

ORDERS = "/v1/seckill/orders"
# For tests of what is answered rather than how soon: a busy machine must not turn a 202 into a 504.
PATIENT = {"submit__deadline_ms": 4000, "submit__reserve_ms": 1500, "submit__publish_ms": 2000, "redis__io_timeout_ms": 1500}


def need(name):
    """An environment variable that must be there."""
    value = os.environ.get(name)
    if not value:
        sys.exit(f"{name} is not set: run this through `tests/run`, or `eval $(tests/stack env)` first")
    return value


def wait_for(what, check, seconds=30.0, pause=0.1):
    """Polls `check` until it gives something true; fails with `what` after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(pause)


class Process:
    """One `seckill serve`, on ports of its own."""

    def __init__(self, role, log_dir, binary=None, **settings):
        self.role = role
        settings = {
            "server.listen": "127.0.0.1:0", "admin.listen": "127.0.0.1:0", "identity.mode": "gateway_header",
            "shards.count": 1, "shards.pin": "false", **settings,
        }
        self.binary = binary or need("SECKILL_BIN")
        command = [self.binary, "serve", "--role", role]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        self.log_path = pathlib.Path(log_dir) / f"{role}-{uuid.uuid4().hex[:8]}.log"
        self.log = open(self.log_path, "wb")
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log)
        line = self.child.stdout.readline()
        if not line:
            raise AssertionError(f"{role} did not start:\n{self.tail()}")
        said = json.loads(line)
        self.host, self.port = self._split(said["public"]) if said["public"] else (None, None)
        self.admin = said["admin"]

    @staticmethod
    def _split(address):
        host, port = address.rsplit(":", 1)
        return host, int(port)

    def tail(self, lines=30):
        self.log.flush()
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def metric(self, name, **labels):
        """The value of one sample, 0.0 when it is not there."""
        with urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=5) as reply:
            text = reply.read().decode()
        inner = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        wanted = f"{name}{{{inner}}}" if inner else name
        for line in text.splitlines():
            if line.startswith(wanted + " "):
                return float(line.rsplit(" ", 1)[1])
        return 0.0

    def admin_status(self, path):
        try:
            with urllib.request.urlopen(f"http://{self.admin}{path}", timeout=5) as reply:
                return reply.status
        except urllib.error.HTTPError as error:
            return error.code

    def stop(self, seconds=40):
        """SIGTERM; the exit status."""
        self.child.send_signal(signal.SIGTERM)
        try:
            return self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
            raise AssertionError(f"{self.role} did not stop within {seconds} s:\n{self.tail()}") from None

    def kill(self):
        """kill -9."""
        self.child.kill()
        self.child.wait()

    def close(self):
        if self.child.poll() is None:
            self.kill()
        self.child.stdout.close()
        self.log.close()


class World:
    """Everything one test file uses. A context manager: what it started ends with it."""

    def __init__(self, name):
        self.log_dir = ROOT / ".stack" / "it" / name
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self.processes = []
        url = urllib.parse.urlsplit(need("SECKILL_REDIS"))
        self.redis = RedisClient(url.port)
        if url.password:
            self.redis.call("AUTH", url.password)
        self.pg_url = need("SECKILL_PG_URL")
        self.seckill("migrate")

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        for process in self.processes:
            if error is not None:
                print(f"--- {process.role} {process.log_path}\n{process.tail(12)}", file=sys.stderr)
            process.close()
        self.redis.close()

    def seckill(self, *arguments, check=True):
        """Runs a subcommand; its standard output."""
        done = subprocess.run([need("SECKILL_BIN"), *map(str, arguments)], capture_output=True, text=True, timeout=60)
        if check and done.returncode != 0:
            raise AssertionError(f"seckill {arguments}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def start(self, role, **settings):
        process = Process(role, self.log_dir, **{key.replace("__", "."): value for key, value in settings.items()})
        self.processes.append(process)
        return process

    def sale(self, total, activity=None, sku=None, starts="now", ends="+1h", warm=True):
        """A new sale on a SKU that nothing else uses: (activity_id, sku_id)."""
        activity = activity or random.randrange(10_000, 1 << 40)
        sku = sku or random.randrange(1, 1 << 40)
        ids = ["--activity-id", activity, "--sku-id", sku]
        self.seckill("activity", "create", *ids, "--total", total, "--starts-at", starts, "--ends-at", ends)
        if warm:
            self.seckill("activity", "warm", *ids)
        return activity, sku

    def end_other_sales(self):
        """The sales of earlier tests, of which some were spoilt on purpose, are over: what is shown and watched is this test's. Those with a
        window of their own that a second run wants to find again stay."""
        self.sql("UPDATE seckill_activity SET start_at = now() - interval '3 days', end_at = now() - interval '2 days',"
                 " expire_at = now() - interval '1 day' WHERE expire_at > now() AND end_at < '2099-01-01'")

    def sql(self, text):
        """Rows of text columns."""
        done = subprocess.run(["psql", "-XAtq", "-F", "\t", "-v", "ON_ERROR_STOP=1", "-c", text, self.pg_url],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise AssertionError(f"{text}\n{done.stderr}")
        return [line.split("\t") for line in done.stdout.splitlines()]

    @contextlib.contextmanager
    def refused_inserts(self, *rules):
        """Meanwhile PostgreSQL refuses orders: rules of a condition on NEW, the row, and n, the number of inserts so far, and the
        SQLSTATE that it raises."""
        cases = " ".join(f"IF {condition} THEN RAISE 'injected' USING ERRCODE = '{state}'; END IF;" for condition, state in rules)
        self.sql(f"""
            CREATE SEQUENCE it_refused;
            CREATE FUNCTION it_refused() RETURNS trigger LANGUAGE plpgsql AS $$
            DECLARE n BIGINT := nextval('it_refused');
            BEGIN {cases} RETURN NEW; END $$;
            CREATE TRIGGER it_refused BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION it_refused()""")
        try:
            yield
        finally:
            self.sql("DROP TRIGGER it_refused ON orders; DROP FUNCTION it_refused; DROP SEQUENCE it_refused")

    def count(self, text):
        return int(self.sql(text)[0][0])

    def orders(self, sale):
        return self.count(f"SELECT count(*) FROM orders WHERE activity_id = {sale[0]} AND sku_id = {sale[1]}")

    def assert_books(self):
        """The correctness assertions of sql/assertions give no row."""
        for path in sorted((ROOT / "sql" / "assertions").glob("*.sql")):
            rows = self.sql(path.read_text())
            assert rows == [], f"{path.name}: {rows[:5]}"

    def redis_key(self, sale, suffix):
        return f"sec:{{{sale[0]}:{sale[1]}}}:{suffix}"

    def stock(self, sale):
        return int(self.redis.call("GET", self.redis_key(sale, "stock")))

    def assert_sold(self, sale, total, sold):
        """Redis and PostgreSQL agree on what is sold."""
        assert self.orders(sale) == sold, (self.orders(sale), sold)
        assert self.stock(sale) == total - sold, (self.stock(sale), total - sold)
        buyers = self.redis.call("HLEN", self.redis_key(sale, "buyers"))
        assert buyers == sold, (buyers, sold)
        assert self.redis.call("ZCARD", self.redis_key(sale, "pending")) == 0
        self.assert_books()


def order_event(sale, user, request_id, reservation_id, message_id, order_id, **more):
    """The message of an order, as an api sends it."""
    return {
        "message_id": message_id, "message_key": f"{sale[0]}:{sale[1]}:{reservation_id}", "request_id": request_id,
        "reservation_id": reservation_id, "activity_id": sale[0], "sku_id": sale[1], "user_id": user, "order_id": order_id,
        "schema_version": 1, "created_at": "2026-06-25T12:00:00.123456Z", "retry_count": 0,
        "trace": {"traceparent": "", "tracestate": ""}, **more}


class Topic:
    """Sends to the order topic, byte for byte what it is given. Remoting frames with JSON headers."""

    NAME, TAG = "seckill-order-events", "ORDER_CREATE_REQUESTED"

    def __init__(self):
        host, port = need("SECKILL_NAMESRV").rsplit(":", 1)
        route = self._call((host, int(port)), 105, {"topic": self.NAME, "acceptStandardJsonOnly": "true"})[1]
        address = json.loads(route)["brokerDatas"][0]["brokerAddrs"]["0"]
        host, port = address.rsplit(":", 1)
        self.broker = (host, int(port))

    @staticmethod
    def _call(address, code, fields, body=b""):
        return Topic._calls(address, code, [(fields, body)])[0]

    @staticmethod
    def _calls(address, code, requests):
        """All requests down one connection, then all answers: a request waits for nobody."""
        answers = []
        with socket.create_connection(address, 5) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(30)
            for number, (fields, body) in enumerate(requests):
                header = json.dumps({"code": code, "language": "OTHER", "version": 479, "opaque": number, "flag": 0,
                                     "extFields": fields}).encode()
                connection.sendall(struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body)
            data = b""
            while len(answers) < len(requests):
                while len(data) < 4 or len(data) < 4 + struct.unpack(">I", data[:4])[0]:
                    more = connection.recv(65536)
                    assert more, "the server closed the connection"
                    data += more
                size = 4 + struct.unpack(">I", data[:4])[0]
                length = struct.unpack(">I", data[4:8])[0] & 0xffffff
                answer = json.loads(data[8:8 + length])
                assert answer["code"] == 0, answer
                answers.append((answer, data[8 + length:size]))
                data = data[size:]
        return answers

    def publish(self, body, tag=TAG, key="", times=1):
        """One message, so many times."""
        properties = "".join(f"{name}\x01{value}\x02" for name, value in (("TAGS", tag), ("KEYS", key)) if value)
        fields = {
            "a": "it", "b": self.NAME, "c": "TBW102", "d": "4", "e": "-1", "f": "0", "g": str(int(time.time() * 1000)),
            "h": "0", "i": properties, "j": "0", "k": "false"}
        self._calls(self.broker, 310, [(fields, body)] * times)


class Reply:
    """An HTTP answer."""

    def __init__(self, status, headers, body):
        self.status, self.headers = status, headers
        self.json = json.loads(body) if body else None

    @property
    def code(self):
        return (self.json or {}).get("code")


class Connection:
    """One keep-alive connection."""

    def __init__(self, host, port):
        self.address = (host, port)
        self.reader = self.writer = None

    async def _open(self):
        self.reader, self.writer = await asyncio.open_connection(*self.address)

    async def call(self, raw, seconds=15):
        if self.writer is None:
            await self._open()
        try:
            self.writer.write(raw)
            return await asyncio.wait_for(self._answer(), seconds)
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
            self.close()
            raise

    async def _answer(self):
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        if headers.get("connection") == "close":
            self.close()
        return Reply(int(head[0].split(" ")[1]), headers, body)

    def close(self):
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


def submit_bytes(sale, user, key):
    body = json.dumps({"activity_id": sale[0], "sku_id": sale[1]})
    return (f"POST {ORDERS} HTTP/1.1\r\nHost: shop.example\r\nContent-Type: application/json\r\nX-User-Id: {user}\r\n"
            f"Idempotency-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n{body}").encode()


def query_bytes(sale, user, key, wait_ms=None):
    wait = f"?wait={wait_ms}" if wait_ms is not None else ""
    return (f"GET /v1/seckill/activities/{sale[0]}/skus/{sale[1]}/requests/{key}{wait} HTTP/1.1\r\nHost: shop.example\r\n"
            f"X-User-Id: {user}\r\n\r\n").encode()


class Click:
    """One buyer's submit and what came of it."""

    __slots__ = ("user", "key", "reply", "tries")

    def __init__(self, user, key=None):
        self.user, self.key = user, key or str(uuid.uuid4())
        self.reply, self.tries = None, 0


async def _drive(targets, sale, clicks, connections, rate, patient):
    started, waiting = time.monotonic(), list(enumerate(clicks))
    waiting.reverse()

    async def one(connection_index):
        connections_of = [Connection(*target) for target in targets]
        turn = connection_index
        while waiting:
            index, click = waiting.pop()
            if rate:
                await asyncio.sleep(max(0.0, started + index / rate - time.monotonic()))
            while True:
                connection, turn = connections_of[turn % len(targets)], turn + 1
                click.tries += 1
                try:
                    click.reply = await connection.call(submit_bytes(sale, click.user, click.key))
                except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
                    click.reply = None
                # 429, 503 and 504 ask for the same key again; so does a connection that broke.
                again = click.reply is None or click.reply.status in (429, 503, 504)
                if not again or not patient or click.tries >= 200:
                    break
                await asyncio.sleep(0.05 * random.random() + 0.02 * min(click.tries, 20))
        for connection in connections_of:
            connection.close()

    await asyncio.gather(*(one(index) for index in range(connections)))


def drive(processes, sale, clicks, connections=64, rate=None, patient=True):
    """Submits every click, spread over the processes; open loop at `rate` a second, or as fast as they answer.

    `patient` buyers try the same key again after 429, 503, 504 and broken connections.
    """
    targets = [(process.host, process.port) for process in processes]
    asyncio.run(_drive(targets, sale, clicks, connections, rate, patient))


def standings(processes, sale, clicks, connections=32, wait_ms=5000):
    """The query API's answer for each click, as (click, Reply)."""
    answers, waiting = [], list(clicks)

    async def one(index):
        process = processes[index % len(processes)]
        connection = Connection(process.host, process.port)
        while waiting:
            click = waiting.pop()
            answers.append((click, await connection.call(query_bytes(sale, click.user, click.key, wait_ms))))
        connection.close()

    async def everybody():
        await asyncio.gather(*(one(index) for index in range(connections)))

    asyncio.run(everybody())
    return answers


def by_status(clicks):
    """How many clicks got which (status, code)."""
    table = {}
    for click in clicks:
        key = (click.reply.status, click.reply.code) if click.reply else ("broken", None)
        table[key] = table.get(key, 0) + 1
    return table
