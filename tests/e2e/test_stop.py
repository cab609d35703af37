"""Stopping: everything is delivered, everybody is told when to come back, and nobody is let in."""

import re
import signal
import socket

import pytest

from support.raw import Raw, RawWebSocket
from support.server import Server

BURST = [f"last words {n}" for n in range(200)]
WINDOW_MS = 5000
CLIENTS = 40


@pytest.fixture
def stopping(tmp_path):
    """A server that these tests stop themselves."""
    server = Server(tmp_path, "--drain-window", f"{WINDOW_MS}ms", "--drain-timeout", "10s")
    yield server
    if server.process.poll() is None:
        server.kill()


def open_http(server, channel, accept):
    connection = Raw(server)
    connection.request("GET", f"/channels/{channel}", {"Accept": accept})
    assert connection.read_head().status == 200
    return connection


def body_to_the_end(connection):
    """The rest of a chunked body, which must end as one should."""
    body = b""
    while chunk := connection.read_chunk():
        body += chunk
    return body.decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_burst_just_before_the_end_is_delivered(stopping, channel, number):
    server = stopping
    id = server.history(channel)["id"]
    stream = open_http(server, channel, "*/*")
    sse = open_http(server, channel, "text/event-stream")
    websocket = RawWebSocket(server, f"/channels/{channel}")
    poll = Raw(server)
    poll.request("GET", f"/channels/{channel}-poll?wait=60")
    server.wait_for_connections(f"{channel}-poll", 1)

    lines = [{"channel": channel, "data": line} for line in BURST]
    answers = server.publish_batch([*lines, {"channel": f"{channel}-poll", "data": "answered"}])
    assert all(answer["subscribers"] == 3 for answer in answers[:-1]), id
    server.signal(number)

    got = [websocket.read_message().decode() for _ in BURST]
    assert got == BURST
    code, reason = websocket.read_close()
    assert code == 1012 and re.fullmatch(r"reconnect in \d+ ms", reason)

    assert [line for line in body_to_the_end(stream).split("\n") if line] == BURST
    events = body_to_the_end(sse)
    assert re.findall(r"^data: (.*)$", events, re.MULTILINE) == BURST
    (retry,) = re.findall(r"^retry: (\d+)$", events, re.MULTILINE)
    assert 0 <= int(retry) <= WINDOW_MS
    assert poll.read_response().body == b"answered"
    assert server.wait() == 0, server.log()


def test_a_waiting_poll_is_answered(stopping, channel):
    with Raw(stopping) as poll:
        poll.request("GET", f"/channels/{channel}?wait=60")
        stopping.wait_for_connections(channel, 1)
        stopping.signal()
        response = poll.read_response()
        assert response.status in (204, 503)
        if response.status == 204:
            assert response.header("Throng-Id")
        else:
            assert response.header("Retry-After")
    assert stopping.wait() == 0, stopping.log()


def test_clients_are_spread_over_the_window(stopping, channel):
    sockets = [RawWebSocket(stopping, f"/channels/{channel}") for _ in range(CLIENTS)]
    streams = [open_http(stopping, channel, "text/event-stream") for _ in range(CLIENTS)]
    stopping.signal()
    delays = []
    for websocket in sockets:
        code, reason = websocket.read_close()
        assert code == 1012
        delays.append(int(re.fullmatch(r"reconnect in (\d+) ms", reason).group(1)))
    retries = []
    for stream in streams:
        (retry,) = re.findall(r"^retry: (\d+)$", body_to_the_end(stream), re.MULTILINE)
        retries.append(int(retry))
    for found in (delays, retries):
        assert all(0 <= delay <= WINDOW_MS for delay in found), found
        # By chance alone, all forty would fall into one half once in five hundred thousand million.
        assert min(found) < WINDOW_MS / 2 < max(found), found
    assert stopping.wait() == 0, stopping.log()


def test_a_client_that_does_not_read_does_not_hold_up_the_stop(tmp_path, channel):
    server = Server(tmp_path, "--drain-window", "0ms", "--drain-timeout", "1s")
    with RawWebSocket(server, f"/channels/{channel}", receive_buffer_bytes=4096):
        for _ in range(8):
            server.publish_batch([{"channel": channel, "data": "x" * 60000} for _ in range(16)])
        server.signal()
        assert server.wait() == 0, server.log()


def test_new_connections_are_refused_once_stopped(stopping, channel):
    with RawWebSocket(stopping, f"/channels/{channel}") as websocket:
        stopping.signal()
        assert websocket.read_close()[0] == 1012
    assert stopping.wait() == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((stopping.host, stopping.port), timeout=5)


def test_a_request_under_way_is_answered(stopping, channel):
    """A publish of which only the head has come when the signal does."""
    with Raw(stopping) as publisher:
        publisher.send(
            f"POST /channels/{channel} HTTP/1.1\r\nHost: {publisher.host}\r\n"
            "Expect: 100-continue\r\nContent-Length: 4\r\n\r\n"
        )
        assert publisher.read_head().status == 100
        stopping.signal()
        publisher.send("last")
        assert publisher.read_response().status in (201, 503)
    assert stopping.wait() == 0


def test_a_second_server_takes_the_port_at_once(tmp_path, channel):
    first = Server(tmp_path, "--drain-window", "0ms")
    with RawWebSocket(first, f"/channels/{channel}") as websocket:
        first.signal()
        websocket.read_close()
    assert first.wait() == 0
    second = Server(tmp_path, "--drain-window", "0ms", port=first.port)
    assert second.publish(channel, "x")["subscribers"] == 0
    second.stop()
