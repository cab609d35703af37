"""Buffered bytes are bounded, and the limits close the connections that hold the most."""

import json
import re
import time

from support.raw import BINARY, TEXT, Closed, Raw, RawWebSocket, frame
from support.server import eventually

OVERLOAD = 'throng_disconnects_total{reason="overload"}'
MIB = 1 << 20


def overloads(server):
    return server.metrics()[OVERLOAD]


def history_of(server, channel, bytes_min):
    """Publishes until the history, as JSON, has that size."""
    body = b"\x01" * 9_900
    for _ in range(bytes_min // (6 * len(body)) + 1):
        server.publish(channel, body)


def assert_bystanders_are_served(server, channel):
    """Clients that send requests and messages in pieces, and read the responses."""
    head = f"GET /health HTTP/1.1\r\nHost: {server.host}:{server.port}\r\n\r\n"
    with Raw(server) as client:
        client.send(head[:9])
        client.send(head[9:])
        assert client.read_response().status == 200
    with RawWebSocket(server, f"/channels/{channel}") as client:
        whole = frame(TEXT, b"in pieces".ljust(3000, b"."))
        for at in range(0, len(whole), 1000):
            client.send(whole[at : at + 1000])
        assert client.read_message().startswith(b"in pieces")


def test_clients_that_do_not_read_their_responses_are_closed(serve, channel):
    server = serve("--workers", 1, "--max-buffered-bytes", "8MiB", "--heartbeat", 0)
    history_of(server, channel, MIB)
    ask = json.dumps({"type": "history", "channel": channel, "limit": 100})
    hogs = []
    for _ in range(6):
        hog = RawWebSocket(server, "/subscribe", "throng.v1", receive_buffer_bytes=4096)
        hog.send(frame(TEXT, ask) * 15)
        hogs.append(hog)
        assert_bystanders_are_served(server, channel)
    # Each holds about 4 MiB, less the bytes in the kernel's buffers.
    eventually(lambda: overloads(server) >= 3, "those that hold most to be closed")
    assert_bystanders_are_served(server, channel)
    assert overloads(server) <= len(hogs)
    for hog in hogs:
        hog.close()


def test_clients_with_half_sent_messages_are_closed(serve, channel):
    server = serve("--workers", 1, "--max-buffered-bytes", "4MiB", "--heartbeat", 0)
    half = frame(BINARY, b"x" * 60_000)[:50_000]
    hogs = []
    for _ in range(4 * MIB // 50_000 + 20):
        hog = RawWebSocket(server, f"/channels/{channel}-of-hogs")
        hog.send(half)
        hogs.append(hog)
    assert_bystanders_are_served(server, channel)
    eventually(lambda: overloads(server) >= 10, "those that have held longest to be closed")
    moments = []
    for hog in hogs[:10]:
        code, reason = hog.read_close()
        assert code == 1013
        what = "too many unread responses and incomplete messages"
        found = re.fullmatch(what + r"; reconnect in (\d+) ms", reason)
        moments.append(int(found.group(1)))
    assert len(set(moments)) == 10 and all(1000 <= ms < 5000 for ms in moments), moments
    # The last one may still finish its message, and receives it.
    hogs[-1].send(frame(BINARY, b"x" * 60_000)[50_000:])
    opcode, payload = hogs[-1].read_frame()
    assert opcode == BINARY and len(payload) == 60_000
    for hog in hogs:
        hog.close()


def test_a_client_that_sends_commands_without_reading_is_closed(serve, channel):
    server = serve("--workers", 1)
    history_of(server, channel, MIB)
    ask = json.dumps({"type": "history", "channel": channel, "limit": 100})
    with RawWebSocket(server, "/subscribe", "throng.v1", receive_buffer_bytes=4096) as hog:
        hog.send_anyway(frame(TEXT, ask) * 100)
        eventually(lambda: overloads(server) == 1, "the client to be closed")
        try:
            while True:
                hog.read_frame()
        except Closed:
            pass


def read_slowly(client, seconds):
    """Reads to the end, in about this many seconds without pauses; returns the body's length."""
    head = client.read_head()
    assert head.status == 200
    length = int(head.header("Content-Length"))
    got, pause = len(client.buffer), 0.01
    client.buffer = b""
    piece = max(int(length * pause / seconds), 1)
    while got < length:
        data = client.socket.recv(piece)
        if not data:
            break
        got += len(data)
        time.sleep(pause)
    return got, length


def test_an_answer_that_is_read_steadily_is_never_cut(serve, channel):
    """A response on a kept-alive connection may take longer than the idle timeout."""
    server = serve("--idle-timeout", "2s")
    for _ in range(17):
        server.publish(channel, b"y" * 60_000)
    server.http.close()
    with Raw(server, receive_buffer_bytes=32_768) as client:
        client.request("GET", f"/channels/{channel}?history=17&wait=0")
        got, length = read_slowly(client, 6)
        assert got == length
        client.request("GET", f"/channels/{channel}?history=1&wait=0")
        assert client.read_response().status == 200
