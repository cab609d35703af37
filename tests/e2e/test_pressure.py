"""Bursts and floods of valid requests: each is answered, and other clients are not delayed."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.raw import PING, PONG, Raw, RawWebSocket, frame

CONNECTIONS = 400
BODY = b"x" * 60_000
PINGS = 20_000


def test_a_burst_of_connections_with_bodies_is_answered(serve, channel):
    """More connections than the hand-off queue to the control plane holds."""
    # The last one of them sends nothing until most others have their answers.
    server = serve("--workers", 1, "--head-timeout", "5m")
    connections = [Raw(server) for _ in range(CONNECTIONS)]
    head = f"POST /channels/{channel} HTTP/1.1\r\nHost: {connections[0].host}\r\n"
    request = f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY

    def publish(connection):
        connection.send(request)
        return connection.read_response().status

    with ThreadPoolExecutor(64) as threads:
        statuses = list(threads.map(publish, connections))
    for connection in connections:
        connection.__exit__(None, None, None)
    assert statuses == [201] * CONNECTIONS


def test_a_flood_of_pings_is_answered_and_delays_no_other_client(serve, channel):
    server = serve("--workers", 1)
    with RawWebSocket(server, f"/channels/{channel}") as flooder, ThreadPoolExecutor(1) as thread:
        sent = thread.submit(flooder.send, frame(PING, b"") * PINGS)
        for number in range(20):
            assert server.publish(channel, str(number))["subscribers"] == 1
        pongs = texts = 0
        while pongs < PINGS or texts < 20:
            opcode, _ = flooder.read_frame()
            pongs += opcode == PONG
            texts += opcode == 0x1
        sent.result()
    assert (pongs, texts) == (PINGS, 20)


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
def test_a_poll_that_half_closes_gets_its_whole_answer(serve, channel, connection):
    server = serve("--history-bytes", "4MiB")
    message = "y" * 60_000
    for _ in range(20):
        server.publish(channel, message)
    with Raw(server, receive_buffer_bytes=4096) as client:
        path = f"/channels/{channel}?history=20&wait=0"
        client.request("GET", path, {"Connection": connection})
        client.socket.shutdown(socket.SHUT_WR)
        response = client.read_response()
    assert response.status == 200
    # A response has a maximum size; the next request returns the rest.
    assert set(response.body.split(b"\n")) == {message.encode()}
