"""In a storm clients are told moments to come back, each in the form that it understands."""

import re
import struct
import time
from contextlib import ExitStack

import websockets.sync.client

from support import TIMEOUT_SECONDS
from support.raw import CLOSE, Raw
from support.server import eventually

WAIT_MS = 100
# A first batch of 64 is accepted before anybody looks at the queue. At the rate that the server is
# given, those behind it take longer than half of the wait. All fit into a queue of 128.
BEFORE, BEHIND, RATE = 70, 40, 100


def storm_server(serve, *arguments):
    """A server with one queue, in which nobody waits for long, and which is said to be slow."""
    limits = ("--admission-wait", f"{WAIT_MS}ms", "--admission-rate", str(RATE))
    return serve("--workers", "1", *limits, *arguments)


def crowd(stack, server, count):
    """Connections that ask for a stream."""
    for _ in range(count):
        raw = stack.enter_context(Raw(server))
        raw.request("GET", "/channels/crowd")
        yield raw


def storm(stack, server, requests, between=lambda: None):
    """Lets connections wait in the queue of a server that stands still, with `requests` (method,
    path, headers, body) and those that `between` opens among them; returns theirs once the server
    goes on."""
    with server.frozen():
        list(crowd(stack, server, BEFORE))
        sent = []
        for method, path, headers, body in requests:
            raw = stack.enter_context(Raw(server))
            raw.request(method, path, headers, body)
            sent.append(raw)
        between()
        list(crowd(stack, server, BEHIND))
        # What the queue is made of is the time that they wait.
        time.sleep(3 * WAIT_MS / 1000)
    return sent


def websocket_headers(subprotocol=None):
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    return headers | ({"Sec-WebSocket-Protocol": subprotocol} if subprotocol else {})


def told_ms(raw):
    """The moment in the close frame of a WebSocket that was refused."""
    head = raw.read_head()
    assert head.status == 101 and head.header("throng-id") is None
    assert int(head.header("retry-after")) >= 1
    kind, length = raw.read(2)
    code, reason = struct.unpack(f">H{length - 2}s", raw.read(length))
    assert (kind, code) == (0x80 | CLOSE, 1013)
    return int(re.fullmatch(rb"reconnect in (\d+) ms", reason).group(1))


def refused(server):
    """The clients that were told a moment, as the metrics count them."""
    return server.metrics()['throng_refused_total{reason="storm"}']


def test_each_transport_is_told_a_moment_and_everything_else_is_served(serve):
    server = storm_server(serve)
    requests = [
        ("GET", "/channels/news", websocket_headers(), b""),
        ("GET", "/channels/news", websocket_headers("throng.v1"), b""),
        ("GET", "/channels/news", {"Accept": "text/event-stream"}, b""),
        ("GET", "/channels/news", None, b""),
        ("GET", "/channels/news?wait=30", None, b""),
        ("POST", "/channels/news", None, b"published in the storm"),
        ("GET", "/health/ready", None, b""),
    ]
    with ExitStack() as stack:
        there = stack.enter_context(Raw(server))
        there.request("GET", "/channels/news")
        assert there.read_head().status == 200
        plain, v1, sse, stream, poll, publisher, probe = storm(stack, server, requests)
        moments = [told_ms(plain), told_ms(v1)]
        head = sse.read_head()
        assert (head.status, head.header("content-type")) == (200, "text/event-stream")
        events = sse.read_to_end()
        moments.append(int(re.search(rb"^retry: (\d+)$", events, re.MULTILINE).group(1)))
        for request in (stream, poll):
            head = request.read_response()
            assert (head.status, head.json()["error"]) == (503, "busy")
            assert int(head.header("retry-after")) >= 1
        assert moments == sorted(moments) and len(set(moments)) == 3, "one after the other"
        assert publisher.read_response().status == 201
        assert probe.read_response().status == 200
        assert b"published in the storm" in there.read_until(b"published in the storm")
    assert refused(server) >= 5
    eventually(
        lambda: server.http.get("/status.json").json()["admission"]["told"] == refused(server),
        "the sample after the storm",
    )


def test_without_a_limit_everybody_waits_and_is_served(serve):
    server = serve("--workers", "1", "--admission-wait", "0")
    with ExitStack() as stack:
        (raw,) = storm(stack, server, [("GET", "/channels/news", websocket_headers(), b"")])
        head = raw.read_head()
        assert head.status == 101 and head.header("throng-id")
    assert refused(server) == 0


def test_a_client_that_heeds_its_moment_is_back_with_what_it_missed(serve):
    server = storm_server(serve, "--history-messages", "100")
    with ExitStack() as stack:
        (first,) = storm(stack, server, [("GET", "/channels/news", websocket_headers(), b"")])
        ms = told_ms(first)
        server.publish("news", "while it waits")
        time.sleep(ms / 1000)
        url = f"{server.ws}/channels/news?history=1"
        options = {"proxy": None, "open_timeout": TIMEOUT_SECONDS}
        with websockets.sync.client.connect(url, **options) as client:
            assert client.recv(TIMEOUT_SECONDS) == "while it waits"
