"""Peers that fall silent, and the signs of life of the server."""

from support.raw import PING, PONG, CLOSE, Raw, RawWebSocket, frame

HEARTBEATS = 4


def test_a_websocket_that_answers_no_ping_is_closed(serve, channel):
    server = serve("--heartbeat", "1s")
    with RawWebSocket(server, f"/channels/{channel}") as silent:
        opcodes = []
        while True:
            opcode, payload = silent.read_frame()
            opcodes.append(opcode)
            if opcode == CLOSE:
                break
        assert int.from_bytes(payload[:2], "big") == 4001
        assert 1 <= opcodes.count(PING) <= 3
        silent.is_ended()
    server.wait_for_connections(channel, 0)
    assert sum(n for name, n in server.metrics().items() if 'reason="silent"' in name) == 1


def test_a_websocket_that_answers_stays(serve, channel):
    server = serve("--heartbeat", "1s")
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


def test_a_peer_without_pings_stays_when_heartbeats_are_off(serve, channel):
    server = serve("--heartbeat", "0")
    with RawWebSocket(server, f"/channels/{channel}") as peer:
        server.publish(channel, "x")
        assert peer.read_frame() == (1, b"x")
