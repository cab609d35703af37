"""Heartbeats of the server, and peers that stop answering."""

import time

from support.networks import CLIENT, in_a_network, needs_networks
from support.raw import CLOSE, PING, PONG, TEXT, Raw, RawWebSocket, frame, handshake_headers

HEARTBEATS = 4

# By default the kernel gives up after a quarter of an hour.
VANISHED_SECONDS = 60


def test_a_websocket_gets_pongs_that_it_need_not_answer(serve, channel):
    server = serve("--heartbeat", "1s", "--ping-interval", "0")
    with RawWebSocket(server, f"/channels/{channel}") as peer:
        assert [peer.read_frame() for _ in range(HEARTBEATS)] == [(PONG, b"")] * HEARTBEATS
        server.publish(channel, "still here")
        assert peer.read_message() == b"still here"
    assert sum(n for name, n in server.metrics().items() if "heartbeats_sent_total" in name) >= 4


def test_v1_gets_a_frame_that_a_page_can_see(serve, channel):
    server = serve("--heartbeat", "1s", "--ping-interval", "0")
    with RawWebSocket(server, f"/channels/{channel}", protocol="throng.v1") as peer:
        assert [peer.read_frame()[0] for _ in range(2)] == [TEXT, TEXT]
        for _ in range(HEARTBEATS):
            assert peer.read_frame() == (TEXT, b'{"type":"heartbeat"}')


def test_a_websocket_that_answers_no_ping_is_closed(serve, channel):
    server = serve("--heartbeat", "1s", "--ping-interval", "2s")
    with RawWebSocket(server, f"/channels/{channel}") as silent:
        opcodes = []
        while True:
            opcode, payload = silent.read_frame()
            opcodes.append(opcode)
            if opcode == CLOSE:
                break
        assert int.from_bytes(payload[:2], "big") == 4001
        assert opcodes.count(PING) == 1
        silent.is_ended()
    server.wait_for_connections(channel, 0)
    assert sum(n for name, n in server.metrics().items() if 'reason="ping_timeout"' in name) == 1


def test_a_websocket_that_answers_pings_stays_open(serve, channel):
    server = serve("--heartbeat", "1s", "--ping-interval", "1s")
    with RawWebSocket(server, f"/channels/{channel}") as peer:
        for _ in range(HEARTBEATS):
            opcode, payload = peer.read_frame()
            assert opcode == PING
            peer.send(frame(PONG, payload))
        server.publish(channel, "still here")
        assert peer.read_message() == b"still here"


def test_server_sent_events_get_comments(serve, channel):
    server = serve("--heartbeat", "1s")
    with Raw(server) as subscriber:
        subscriber.request("GET", f"/channels/{channel}", {"Accept": "text/event-stream"})
        assert subscriber.read_head().status == 200
        for _ in range(2):
            assert subscriber.read_chunk().startswith(b":")
        server.publish(channel, "x")
        chunk = subscriber.read_chunk()
        while chunk.startswith(b":"):
            chunk = subscriber.read_chunk()
        assert b"data: x\n" in chunk


def test_a_stream_gets_empty_lines(serve, channel):
    server = serve("--heartbeat", "1s")
    with Raw(server) as subscriber:
        subscriber.request("GET", f"/channels/{channel}")
        assert subscriber.read_head().status == 200
        assert [subscriber.read_chunk() for _ in range(2)] == [b"\n", b"\n"]


def test_a_peer_gets_nothing_when_heartbeats_are_off(serve, channel):
    server = serve("--heartbeat", "0", "--ping-interval", "1s")
    with RawWebSocket(server, f"/channels/{channel}") as peer:
        server.publish(channel, "x")
        assert peer.read_frame() == (TEXT, b"x")


@needs_networks
def test_a_peer_whose_packets_vanish_is_closed(serve, channel):
    """On every transport, with and without messages."""
    upgrade = handshake_headers()
    path = f"/channels/{channel}"
    requests = [
        (path, upgrade),
        (path, {**upgrade, "Sec-WebSocket-Protocol": "throng.v1"}),
        (path, {"Accept": "text/event-stream"}),
        (path, {}),
        (f"{path}?wait=300", {}),
    ]
    in_a_network(lambda cable: vanish(cable, serve, channel, requests, "--heartbeat", "1s"))


@needs_networks
def test_a_peer_that_has_chosen_rare_heartbeats_vanishes_no_longer(serve, channel):
    path = f"/channels/{channel}?heartbeat=3600s"
    requests = [(path, {"Accept": "text/event-stream"}), (path, {})]
    settings = ["--heartbeat", "1s", "--ping-interval", "5s"]
    in_a_network(lambda cable: vanish(cable, serve, channel, requests, *settings))


def vanish(cable, serve, channel, requests, *settings):
    """Peers that have sent these requests vanish, and are closed in time."""
    server = serve(*settings, "--allow-anyone", listen=cable.server)
    peers = []
    for target, headers in requests:
        peer = cable.client_socket()
        peer.connect((server.host, server.port))
        lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
        head = f"GET {target} HTTP/1.1\r\nHost: {server.host}\r\n{''.join(lines)}\r\n"
        peer.sendall(head.encode())
        peers.append(peer)
    server.wait_for_connections(channel, len(requests))
    assert peers[0].getsockname()[0] == CLIENT
    cable.cut()
    deadline = time.monotonic() + VANISHED_SECONDS
    while (left := server.presence(channel)["connections"]) > 0:
        assert time.monotonic() < deadline, f"{left} of {len(requests)} are still there"
        time.sleep(0.05)
    for peer in peers:
        peer.close()
