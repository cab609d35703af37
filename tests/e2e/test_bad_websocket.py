"""Bad WebSocket peers: each gets the documented close code and is counted."""

import json

import pytest

from support.raw import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT
from support.raw import Raw, RawWebSocket, frame, handshake_headers
from support.server import eventually
from support.transports import subscribe

MESSAGE_BYTES_MAX = 64 * 1024


@pytest.fixture(scope="module")
def bystander_connection(server):
    with subscribe("sse", server, "/channels/bystander") as connection:
        yield connection


@pytest.fixture(autouse=True)
def bystander(server, bystander_connection, request):
    yield
    server.publish("bystander", request.node.name)
    assert bystander_connection.take(1) == [request.node.name]


def count(server, *words):
    """The sum of all counters with one of these words in the name."""
    return sum(n for name, n in server.metrics().items() if any(word in name for word in words))


def assert_counted(server, before, *words):
    """Waits for a counter to increase; it may do so after the client has the close frame."""
    eventually(lambda: count(server, *words) > before, f"a counter of {words} to go up")


HANDSHAKES = {
    "no key": ({"Sec_WebSocket_Key": None}, 400, "bad_handshake"),
    "short key": ({"Sec_WebSocket_Key": "c2hvcnQ="}, 400, "bad_handshake"),
    "key of words": ({"Sec_WebSocket_Key": "not base64 at all ..."}, 400, "bad_handshake"),
    "no Connection": ({"Connection": None}, 400, "bad_handshake"),
    "version 8": ({"Sec_WebSocket_Version": "8"}, 426, "upgrade_required"),
    "version of words": ({"Sec_WebSocket_Version": "x"}, 426, "upgrade_required"),
    "no version": ({"Sec_WebSocket_Version": None}, 426, "upgrade_required"),
}


@pytest.mark.parametrize("case", HANDSHAKES)
def test_a_bad_handshake_is_refused(server, channel, case):
    changes, status, code = HANDSHAKES[case]
    before = count(server, "refused", "error")
    with Raw(server) as connection:
        connection.request("GET", f"/channels/{channel}", handshake_headers(**changes))
        response = connection.read_response()
    assert (response.status, response.json()["error"]) == (status, code)
    if status == 426:
        assert response.header("Sec-WebSocket-Version") == "13"
    assert_counted(server, before, "refused", "error")


def test_a_websocket_requested_without_an_upgrade_gets_426(server, channel):
    response = server.http.get(f"/channels/{channel}", params={"transport": "websocket"})
    assert (response.status_code, response.json()["error"]) == (426, "upgrade_required")


@pytest.mark.parametrize(
    "target, code", [("/channels/a%00", "bad_name"), ("/channels/a?since=x", "bad_id")]
)
def test_a_bad_url_is_refused_before_the_upgrade(server, target, code):
    with Raw(server) as connection:
        connection.request("GET", target, handshake_headers())
        response = connection.read_response()
    assert (response.status, response.json()["error"]) == (400, code)


def close_payload(code, reason=b""):
    return code.to_bytes(2, "big") + reason


FRAMES = {
    "unmasked": (frame(TEXT, "x", masked=False), 1002),
    "reserved bit 1": (frame(TEXT, "x", reserved=4), 1002),
    "reserved bit 3": (frame(TEXT, "x", reserved=1), 1002),
    "opcode 3": (frame(3, "x"), 1002),
    "opcode 7": (frame(7, "x"), 1002),
    "opcode 11": (frame(11, "x"), 1002),
    "opcode 15": (frame(15, "x"), 1002),
    "continuation of nothing": (frame(CONTINUATION, "x"), 1002),
    "text within a text": (frame(TEXT, "a", final=False) + frame(TEXT, "b"), 1002),
    "binary within a text": (frame(TEXT, "a", final=False) + frame(BINARY, "b"), 1002),
    "ping in fragments": (frame(PING, "x", final=False), 1002),
    "close in fragments": (frame(CLOSE, close_payload(1000), final=False), 1002),
    "ping of 126 bytes": (frame(PING, "x" * 126), 1002),
    "text not UTF-8": (frame(TEXT, b"\xff"), 1007),
    "text with a cut character": (frame(TEXT, b"\xc3"), 1007),
    "text with a surrogate": (frame(TEXT, b"\xed\xa0\x80"), 1007),
    "text cut between fragments, wrongly": (
        frame(TEXT, b"\xc3", final=False) + frame(CONTINUATION, b"x"),
        1007,
    ),
    "length of a gigabyte": (frame(BINARY, "", length=1 << 30), 1009),
    "close of one byte": (frame(CLOSE, b"\x03"), 1002),
    "close with a bad reason": (frame(CLOSE, close_payload(1000, b"\xff")), 1007),
    **{
        f"close code {code}": (frame(CLOSE, close_payload(code)), 1002)
        for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65535)
    },
}


@pytest.mark.parametrize("path", ["/channels/{}", "/subscribe?channel={}&channel={}-b"])
@pytest.mark.parametrize("case", FRAMES)
def test_a_bad_frame_closes_the_connection(server, channel, case, path):
    data, code = FRAMES[case]
    before = count(server, 'disconnects_total{reason="protocol')
    protocol = "throng.v1" if "subscribe" in path else None
    with RawWebSocket(server, path.format(channel, channel), protocol) as connection:
        connection.send_anyway(data)
        closed, reason = connection.read_close()
    assert closed == code, reason
    assert "\n" not in reason and len(reason) <= 123
    # By which a client tells the server's close from another's.
    assert reason.startswith({1002: "bad_request: ", 1007: "bad_utf8: ", 1009: "too_large: "}[code])
    assert_counted(server, before, 'disconnects_total{reason="protocol')
    server.wait_for_connections(channel, 0)
    assert server.history(channel)["messages"] == []


@pytest.mark.parametrize("code", [1000, 1001, 1003, 1011, 1014, 3000, 4999])
def test_a_valid_close_code_is_echoed(server, channel, code):
    with RawWebSocket(server, f"/channels/{channel}") as connection:
        connection.send(frame(CLOSE, close_payload(code, b"bye")))
        assert connection.read_close()[0] in (1000, code)


def test_close_without_a_code_is_answered(server, channel):
    with RawWebSocket(server, f"/channels/{channel}") as connection:
        connection.send(frame(CLOSE))
        assert connection.read_close()[0] in (None, 1000)


def test_control_frames_between_fragments_are_accepted(server, channel):
    with RawWebSocket(server, f"/channels/{channel}") as connection:
        connection.send(
            frame(TEXT, "a\u00fc".encode()[:2], final=False)
            + frame(PING, "p")
            + frame(PONG, "unasked")
            + frame(CONTINUATION, "a\u00fc".encode()[2:] + b"b")
        )
        assert connection.read_frame() == (PONG, b"p")
        assert connection.read_message().decode() == "aüb"


def test_the_largest_message_is_accepted_byte_by_byte(server, channel):
    with RawWebSocket(server, f"/channels/{channel}") as connection:
        data = frame(TEXT, "x" * MESSAGE_BYTES_MAX)
        for byte in data[:20]:
            connection.send(bytes([byte]))
        connection.send(data[20:])
        assert connection.read_message() == b"x" * MESSAGE_BYTES_MAX


def test_frames_sent_with_the_handshake_are_not_lost(server, channel):
    with Raw(server) as connection:
        headers = "".join(f"{name}: {value}\r\n" for name, value in handshake_headers().items())
        connection.send(
            f"GET /channels/{channel} HTTP/1.1\r\nHost: {connection.host}\r\n{headers}\r\n".encode()
            + frame(TEXT, "early")
        )
        assert connection.read_response().status == 101
        assert connection.read(2 + len("early")) == b"\x81\x05early"


class V1(RawWebSocket):
    """A throng.v1 connection of raw frames, after the welcome."""

    def __init__(self, server):
        super().__init__(server, "/subscribe", "throng.v1")
        assert json.loads(self.read_message())["type"] == "welcome"

    def ask(self, text):
        self.send(frame(TEXT, text))
        return json.loads(self.read_message())


def test_v1_binary_is_refused(server):
    with V1(server) as connection:
        connection.send(frame(BINARY, b"{}"))
        assert connection.read_close()[0] == 1003


COMMANDS = [
    ("", "bad_json"),
    ("nonsense", "bad_json"),
    ('{"type":"ping"', "bad_json"),
    ('{"type":"ping"} x', "bad_json"),
    ("[" * 10000, "bad_json"),
    ("[]", "bad_json"),
    ("{}", "bad_request"),
    ('{"type":7}', "bad_request"),
    ('{"type":"dance"}', "bad_request"),
    ('{"type":"subscribe"}', "bad_request"),
    ('{"type":"subscribe","channel":7}', "bad_request"),
    ('{"type":"subscribe","channel":"a","user":"b"}', "bad_request"),
    ('{"type":"subscribe","channel":"a","history":"all"}', "bad_request"),
    ('{"type":"subscribe","channel":""}', "bad_name"),
    ('{"type":"subscribe","channel":"a/../b"}', "bad_name"),
    ('{"type":"subscribe","channel":"a\\u0000"}', "bad_name"),
    ('{"type":"subscribe","channel":"a","since":"x"}', "bad_id"),
    ('{"type":"unsubscribe","channel":"never"}', "not_subscribed"),
    ('{"type":"publish","channel":"x"}', "bad_request"),
    ('{"type":"publish","channel":"x","data":"!!","encoding":"base64"}', "bad_request"),
    ('{"type":"publish","channel":"","data":1}', "bad_name"),
    ('{"type":"history","channel":"x","before":"x"}', "bad_id"),
    ('{"type":"presence"}', "bad_request"),
]


def test_a_bad_v1_command_is_answered_with_an_error(server):
    """The connection stays open."""
    with V1(server) as connection:
        for text, code in COMMANDS:
            before = count(server, "refused", "error")
            answer = connection.ask(text)
            assert (answer["type"], answer["code"]) == ("error", code), (text[:80], answer)
            assert 5 < len(answer["message"]) < 300 and "\n" not in answer["message"]
            assert_counted(server, before, "refused", "error")
        assert connection.ask('{"type":"ping"}') == {"type": "pong"}


OVERSIZED = {
    "one frame": frame(TEXT, "", length=MESSAGE_BYTES_MAX + 1),
    "fragments": frame(TEXT, "x" * 40000, final=False) + frame(CONTINUATION, "x" * 40000),
}


@pytest.mark.parametrize("case", OVERSIZED)
def test_a_message_over_the_limit_closes_the_connection(server, channel, case):
    with RawWebSocket(server, f"/channels/{channel}") as connection:
        connection.send_anyway(OVERSIZED[case])
        code, reason = connection.read_close()
    assert code == 1009 and reason
    assert server.history(channel)["messages"] == []


def test_the_v1_size_limit_applies_to_the_decoded_message(server, channel):
    """The size of its JSON does not matter."""
    with V1(server) as connection:
        for data, kind in [("\x01" * MESSAGE_BYTES_MAX, "published"), ("x" * 70000, "error")]:
            text = json.dumps({"type": "publish", "channel": channel, "data": data})
            answer = connection.ask(text)
            assert answer["type"] == kind
        assert answer["code"] == "too_large"
    with RawWebSocket(server, "/subscribe", "throng.v1") as connection:
        connection.send_anyway(frame(TEXT, "", length=6 * MESSAGE_BYTES_MAX + 4097))
        assert connection.read_close()[0] == 1009


def test_v1_errors_carry_the_ref(server):
    with V1(server) as connection:
        for ref in (1, "one", 1.5):
            answer = connection.ask(json.dumps({"type": "unsubscribe", "channel": "a", "ref": ref}))
            assert (answer["code"], answer["ref"]) == ("not_subscribed", ref)


def test_v1_refuses_a_second_subscription_to_a_channel(server, channel):
    with V1(server) as connection:
        text = json.dumps({"type": "subscribe", "channel": channel})
        assert connection.ask(text)["type"] == "subscribed"
        assert connection.ask(text)["code"] == "already_subscribed"
        assert server.presence(channel)["connections"] == 1
