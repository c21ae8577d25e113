"""An OpenTelemetry collector as small as a test needs: takes OTLP over HTTP and reads the spans. Standard library only.

Field numbers by opentelemetry-proto, trace/v1/trace.proto, common/v1/common.proto and resource/v1/resource.proto.
"""

import collections
import http.server
import struct
import threading
import time

KINDS = {1: "internal", 2: "server", 3: "client", 4: "producer", 5: "consumer"}
Span = collections.namedtuple(
    "Span", "trace id parent name kind start end attributes links status flags resource")


def fields(data):
    """(number, value) of each field of a protobuf message: numbers for varints and fixed sizes, bytes for the rest."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            value = varint()
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value = struct.unpack("<Q" if kind == 1 else "<I", data[at:at + size])[0]
            at += size
        else:
            assert kind == 2, f"wire type {kind}"
            size = varint()
            value = data[at:at + size]
            assert len(value) == size, "a cut message"
            at += size
        yield key >> 3, value


def first(message, number, default=None):
    return next((value for field, value in fields(message) if field == number), default)


def attributes(message, number):
    """Repeated KeyValue: text and whole numbers."""
    found = {}
    for field, pair in fields(message):
        if field == number:
            value = first(pair, 2, b"")
            [(kind, inner)] = list(fields(value))
            assert kind in (1, 3), f"an attribute of kind {kind}"
            found[first(pair, 1).decode()] = inner.decode() if kind == 1 else inner
    return found


def spans_of(request):
    """The spans of an ExportTraceServiceRequest."""
    for field, resource_spans in fields(request):
        assert field == 1
        resource = attributes(first(resource_spans, 1, b""), 1)
        for number, scope_spans in fields(resource_spans):
            if number != 2:
                continue
            for inner, span in fields(scope_spans):
                if inner != 2:
                    continue
                status = first(span, 15, b"")
                links = [(first(link, 1).hex(), first(link, 2).hex()) for at, link in fields(span) if at == 13]
                yield Span(first(span, 1).hex(), first(span, 2).hex(), first(span, 4, b"").hex(), first(span, 5).decode(),
                           KINDS[first(span, 6)], first(span, 7), first(span, 8), attributes(span, 9), links,
                           (first(status, 3, 0), first(status, 2, b"").decode()), first(span, 16, 0), resource)


class Collector:
    """Listens until the end of the `with`. `refusing` makes it answer 503."""

    def __init__(self):
        self.spans, self.refusing, self.requests = [], False, 0
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):  # noqa: N802  (the name is the library's)
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.requests += 1
                assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf", self.path
                if not collector.refusing:
                    collector.spans += spans_of(body)
                self.send_response(503 if collector.refusing else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def trace(self, trace, names, seconds=20):
        """The spans of a trace, once these names are among them."""
        end = time.monotonic() + seconds
        while True:
            spans = [span for span in self.spans if span.trace == trace]
            missing = collections.Counter(list(names)) - collections.Counter(span.name for span in spans)
            if not missing:
                return spans
            assert time.monotonic() < end, f"{sorted(missing)} missing among {sorted(span.name for span in spans)}"
            time.sleep(0.1)
