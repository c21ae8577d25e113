"""A TCP proxy in front of a service, to make its network ill: delay, throttle, cut, swallow, double. Standard library only.

    with Proxy("redis", port) as proxy:
        proxy.delay = 0.2                                  # replies come 200 ms later
        proxy.when(b"EVALSHA", "lose_reply", every=20)     # the request arrives, its reply does not, the connection breaks
        proxy.down()                                       # nothing answers

A rule is about a request: bytes that the client's data contains, or for RocketMQ a request code. Its actions:
    cut           the connection breaks and the request does not arrive
    cut_after     the request arrives, the connection breaks at once
    lose_reply    the request arrives, the connection breaks instead of its reply
    hold_reply    the request arrives, its reply never comes, the connection stays
    double_reply  the reply comes twice
RocketMQ replies are found by their number in the connection; for the others "its reply" is what the server sends next.
"""

import asyncio
import json
import struct
import threading

ACTIONS = ("cut", "cut_after", "lose_reply", "hold_reply", "double_reply")


class Rule:
    """What happens to requests that match."""

    def __init__(self, match, action, times, every):
        assert action in ACTIONS, action
        self.match, self.action, self.times, self.every = match, action, times, every
        self.seen = self.hits = 0

    def strikes(self):
        self.seen += 1
        if self.times is not None and self.hits >= self.times or self.seen % self.every != 0:
            return False
        self.hits += 1
        return True


def frames(buffer):
    """Takes whole RocketMQ frames off the front of `buffer`."""
    while len(buffer) >= 4:
        size = 4 + struct.unpack(">I", buffer[:4])[0]
        if len(buffer) < size:
            return
        yield bytes(buffer[:size])
        del buffer[:size]


def frame_header(frame):
    """(code, opaque, is_response)"""
    if frame[4] == 1:
        code, _, _, opaque, flag = struct.unpack(">hBhii", frame[8:21])
    else:
        length = struct.unpack(">I", frame[4:8])[0] & 0xFFFFFF
        header = json.loads(frame[8:8 + length])
        code, opaque, flag = header["code"], header["opaque"], header.get("flag", 0)
    return code, opaque, bool(flag & 1)


class Link:
    """One connection through the proxy."""

    def __init__(self, proxy, reader, writer):
        self.proxy, self.client_reader, self.client_writer = proxy, reader, writer
        self.server_writer = None
        self.next_reply = None                      # action on what the server sends next
        self.replies = {}                           # RocketMQ: opaque -> action
        self.held = False
        self.forwarded = [0, 0]                     # bytes to the server, to the client

    def break_off(self):
        for writer in (self.client_writer, self.server_writer):
            if writer is not None and not writer.is_closing():
                writer.transport.abort()

    async def run(self):
        proxy = self.proxy
        try:
            server_reader, self.server_writer = await asyncio.open_connection("127.0.0.1", proxy.target)
        except OSError:
            self.break_off()
            return
        pumps = [asyncio.ensure_future(self.upstream()), asyncio.ensure_future(self.downstream(server_reader))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self.break_off()

    async def upstream(self):
        buffer = bytearray()
        while True:
            data = await self.client_reader.read(65536)
            if not data:
                return
            if self.proxy.kind != "rocketmq":
                await self.request(data, data, None)
                continue
            buffer += data
            for frame in frames(buffer):
                code, opaque, is_response = frame_header(frame)
                await self.request(frame, None if is_response else code, opaque)

    async def request(self, data, what, opaque):
        proxy, action = self.proxy, None
        for rule in list(proxy.rules):
            matches = what is not None and (rule.match == what if isinstance(what, int) else rule.match in what)
            if matches and rule.strikes():
                action = rule.action
                break
        if action == "cut":
            raise ConnectionError("cut")
        if action in ("lose_reply", "hold_reply", "double_reply"):
            if opaque is None:
                self.next_reply = action
            else:
                self.replies[opaque] = action
        await self.send(self.server_writer, data, 0)
        if action == "cut_after":
            raise ConnectionError("cut")

    async def downstream(self, reader):
        buffer = bytearray()
        while True:
            data = await reader.read(65536)
            if not data:
                return
            if self.proxy.kind != "rocketmq":
                action, self.next_reply = self.next_reply, None
                await self.reply(data, action)
                continue
            buffer += data
            for frame in frames(buffer):
                _, opaque, is_response = frame_header(frame)
                await self.reply(self.proxy.rewritten(frame), self.replies.pop(opaque, None) if is_response else None)

    async def reply(self, data, action):
        if action == "lose_reply":
            raise ConnectionError("lost")
        if action == "hold_reply" and self.proxy.kind != "rocketmq":
            self.held = True
        if self.held or action == "hold_reply":
            return
        if self.proxy.delay:
            await asyncio.sleep(self.proxy.delay)
        await self.send(self.client_writer, data, 1)
        if action == "double_reply":
            await self.send(self.client_writer, data, 1)

    async def send(self, writer, data, direction):
        limit = self.proxy.cut_at[direction]
        if limit is not None and self.forwarded[direction] + len(data) > limit:
            data = data[:limit - self.forwarded[direction]]
            writer.write(data)
            await writer.drain()
            raise ConnectionError("cut")
        self.forwarded[direction] += len(data)
        if self.proxy.rate:
            for at in range(0, len(data), 512):
                writer.write(data[at:at + 512])
                await writer.drain()
                await asyncio.sleep(min(512, len(data) - at) / self.proxy.rate)
        else:
            writer.write(data)
            await writer.drain()


class Proxy:
    """Listens on `port` and passes everything on to `target`, as ill as it is told to be. Settings may change at any time."""

    def __init__(self, kind, target, rewrite=None):
        assert kind in ("redis", "postgres", "rocketmq")
        self.kind, self.target, self.rewrite = kind, target, rewrite
        self.healthy()
        self.links, self.server, self.opened = set(), None, 0
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.port = self.call(self._listen(0))

    def healthy(self):
        """No delay, no limit, no rule."""
        self.delay, self.rate, self.cut_at, self.rules = 0.0, None, [None, None], []

    def when(self, match, action, times=None, every=1):
        """A rule; the one that is returned counts its `hits`."""
        rule = Rule(match, action, times, every)
        self.rules = [*self.rules, rule]
        return rule

    def rewritten(self, frame):
        """A reply in which one address stands for another; both are equally long, so every length still holds."""
        if self.rewrite is None:
            return frame
        old, new = (str(port).encode() for port in self.rewrite)
        assert len(old) == len(new), "ports of different lengths"
        return frame.replace(b":" + old, b":" + new)

    def cut_all(self):
        """Every connection breaks."""
        async def cut():
            for link in list(self.links):
                link.break_off()
        self.call(cut())

    def down(self):
        """Connections break, and new ones are refused."""
        async def close():
            self.server.close()
            self.server = None
            for link in list(self.links):
                link.break_off()
        self.call(close())

    def up(self):
        self.call(self._listen(self.port))

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(10)

    async def _listen(self, port):
        self.server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        return self.server.sockets[0].getsockname()[1]

    async def _accept(self, reader, writer):
        link = Link(self, reader, writer)
        self.links.add(link)
        self.opened += 1
        try:
            await link.run()
        finally:
            self.links.discard(link)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.server is not None:
            self.down()
        self.loop.call_soon_threadsafe(self.loop.stop)


def proxied_rocketmq(name_server, broker):
    """Proxies of a broker and of the name server that then names the proxy: (proxy of name server, proxy of broker)."""
    for _ in range(50):
        front = Proxy("rocketmq", broker)
        if len(str(front.port)) == len(str(broker)):
            return Proxy("rocketmq", name_server, rewrite=(broker, front.port)), front
        front.__exit__()
    raise AssertionError("no port as long as the broker's")


