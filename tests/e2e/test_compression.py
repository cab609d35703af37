"""gzip of HTTP responses, and permessage-deflate (RFC 7692): what is negotiated, what is compressed on the wire, what is refused;
with Python's `websockets`, Node's `ws` and Chromium, which offer it by themselves."""

import gzip
import hashlib
import json
import struct
import zlib

import pytest
from websockets.sync.client import connect

from support import TIMEOUT_SECONDS
from support.raw import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, Raw, frame, handshake_headers
from support.relay import Relay
from support.server import eventually, run_throng

ANSWER = "permessage-deflate; server_no_context_takeover; client_no_context_takeover"
OFFER = "permessage-deflate; client_max_window_bits"
TAIL = b"\x00\x00\xff\xff"
RSV1 = 4
QUOTES = json.dumps(
    [{"symbol": f"SYM{n % 97}", "price": n * 37 % 1000 / 7, "side": "buy"} for n in range(80)]
)


def deflated(message):
    """A message as the payload of a compressed frame."""
    compress = zlib.compressobj(wbits=-15)
    return (compress.compress(message) + compress.flush(zlib.Z_SYNC_FLUSH)).removesuffix(TAIL)


def inflated(payload):
    """The inverse."""
    return zlib.decompressobj(wbits=-15).decompress(payload + TAIL)


class Deflating(Raw):
    """A WebSocket without a library that has offered compression."""

    def __init__(self, server, path, offer=OFFER, **headers):
        super().__init__(server)
        headers = handshake_headers(Sec_WebSocket_Extensions=offer, **headers)
        self.request("GET", path, headers)
        self.response = self.read_response()
        assert self.response.status == 101, self.response
        self.extensions = self.response.header("sec-websocket-extensions")

    def read_frame(self):
        """The next frame but pongs: its opcode, whether it is compressed, and its payload as sent."""
        while True:
            first, second = self.read(2)
            assert first & 0xB0 == 0x80 and second & 0x80 == 0, (first, second)
            size = second
            if size == 126:
                (size,) = struct.unpack(">H", self.read(2))
            elif size == 127:
                (size,) = struct.unpack(">Q", self.read(8))
            payload = self.read(size)
            if first & 0x0F != PONG:
                return first & 0x0F, first & 0x40 != 0, payload

    def read_compressed(self):
        """The next message, which is compressed, and its size on the wire."""
        opcode, is_compressed, payload = self.read_frame()
        assert opcode in (TEXT, BINARY) and is_compressed
        return inflated(payload), len(payload)

    def read_close(self):
        """The code of the close frame, which is next."""
        opcode, is_compressed, payload = self.read_frame()
        assert opcode == CLOSE and not is_compressed, payload
        return struct.unpack(">H", payload[:2])[0]


@pytest.mark.parametrize(
    "offer, answer",
    [
        ("permessage-deflate", ANSWER),
        (OFFER, ANSWER),
        ("permessage-deflate; client_max_window_bits=10; server_no_context_takeover", ANSWER),
        ("permessage-deflate; server_max_window_bits=15", f"{ANSWER}; server_max_window_bits=15"),
        ("permessage-deflate; server_max_window_bits=9, permessage-deflate", ANSWER),
        ("permessage-deflate; server_max_window_bits=9", None),
        ("permessage-deflate; unknown", None),
        ("x-webkit-deflate-frame", None),
    ],
)
def test_offers(server, channel, offer, answer):
    with Deflating(server, f"/channels/{channel}", offer) as socket:
        assert socket.extensions == answer
        server.publish(channel, QUOTES)
        opcode, is_compressed, payload = socket.read_frame()
        assert opcode == TEXT and is_compressed == (answer is not None)
        assert (inflated(payload) if is_compressed else payload) == QUOTES.encode()


def test_a_header_that_is_no_list_of_extensions(server, channel):
    with Raw(server) as raw:
        headers = handshake_headers(Sec_WebSocket_Extensions="permessage-deflate;")
        raw.request("GET", f"/channels/{channel}", headers)
        response = raw.read_response()
    assert response.status == 400 and response.json()["error"] == "bad_handshake"


def test_it_can_be_switched_off(serve, channel):
    server = serve("--compression=false")
    with Deflating(server, f"/channels/{channel}") as socket:
        assert socket.extensions is None
        server.publish(channel, QUOTES)
        assert socket.read_frame() == (TEXT, False, QUOTES.encode())


def test_what_is_compressed(server, channel):
    path = f"/channels/{channel}"
    with Deflating(server, path) as socket, Deflating(
        server, path + "?envelope=true"
    ) as enveloped, Deflating(server, path, None) as plain:
        before = server.metrics()
        server.publish(channel, QUOTES)
        message, size = socket.read_compressed()
        assert message == QUOTES.encode() and size < len(QUOTES) * 0.4
        assert plain.read_frame() == (TEXT, False, QUOTES.encode())
        envelope, _ = enveloped.read_compressed()
        assert json.loads(envelope)["data"] == QUOTES
        name = "throng_messages_compressed_total"
        eventually(lambda: server.metrics()[name] == before[name] + 2, "both were counted")
        # Small.
        server.publish(channel, "a" * 800)
        assert socket.read_frame() == (TEXT, False, b"a" * 800)
        # Binary, and binary that is compressed already.
        server.publish(channel, bytes(5000), Content_Type="application/octet-stream")
        assert socket.read_compressed()[0] == bytes(5000)
        noise = b"".join(hashlib.sha256(bytes([n])).digest() for n in range(200))
        server.publish(channel, noise, Content_Type="application/octet-stream")
        assert socket.read_frame() == (BINARY, False, noise)
        server.publish(channel, bytes(5000), Content_Type="image/png")
        assert socket.read_frame() == (BINARY, False, bytes(5000))
        # Control frames never.
        socket.send(frame(PING, "x" * 100))
        first, _ = socket.read(2)
        assert first == 0x80 | PONG and socket.read(100) == b"x" * 100
    # What a client catches up on is as it was published.
    with Deflating(server, path + "?history=5") as late:
        assert late.extensions == ANSWER
        assert late.read_frame() == (TEXT, False, QUOTES.encode())


def test_clients_may_compress(server, channel):
    with Deflating(server, f"/channels/{channel}") as socket:
        compressed = deflated(QUOTES.encode())
        socket.send(frame(TEXT, compressed, reserved=RSV1))
        assert socket.read_compressed()[0] == QUOTES.encode()
        # In fragments, of which only the first is marked, with a ping between.
        socket.send(frame(TEXT, compressed[:10], final=False, reserved=RSV1))
        socket.send(frame(PING) + frame(CONTINUATION, compressed[10:11], final=False))
        socket.send(frame(CONTINUATION, compressed[11:]))
        assert socket.read_compressed()[0] == QUOTES.encode()
        # Not compressed, small, and empty.
        socket.send(frame(TEXT, "plain") + frame(BINARY, deflated(b"\xff"), reserved=RSV1))
        socket.send(frame(TEXT, deflated(b""), reserved=RSV1))
        frames = [socket.read_frame() for _ in range(3)]
        assert frames == [(TEXT, False, b"plain"), (BINARY, False, b"\xff"), (TEXT, False, b"")]


@pytest.mark.parametrize(
    "sent, code",
    [
        (frame(TEXT, deflated(bytes(70_000)), reserved=RSV1), 1009),
        (frame(TEXT, deflated(bytes(50_000_000)), reserved=RSV1), 1009),
        (frame(BINARY, bytes(80_000), reserved=RSV1), 1009),
        (frame(TEXT, b"\xff" * 10, reserved=RSV1), 4007),
        (frame(TEXT, deflated(QUOTES.encode())[:-20], reserved=RSV1), 4007),
        (frame(TEXT, deflated(b"\xff\xfe"), reserved=RSV1), 1007),
        (frame(PING, b"x", reserved=RSV1), 1002),
        (frame(TEXT, b"a", final=False) + frame(CONTINUATION, b"b", reserved=RSV1), 1002),
        (frame(TEXT, deflated(b"a"), reserved=2), 1002),
        (frame(TEXT, deflated(b"a"), reserved=1), 1002),
    ],
    ids=[
        "bomb", "large-bomb", "long", "no-deflate", "half", "no-utf8", "ping", "continuation", "rsv2",
        "rsv3",
    ],
)
def test_what_clients_must_not_send(server, channel, sent, code):
    with Deflating(server, f"/channels/{channel}") as socket:
        socket.send_anyway(sent)
        assert socket.read_close() == code


def test_a_client_that_keeps_its_context_is_told_and_works_without(server, channel):
    """As Safari and iOS 15 do: the second message refers to the first one."""
    compress = zlib.compressobj(wbits=-15)
    first, second = (
        (compress.compress(QUOTES.encode()) + compress.flush(zlib.Z_SYNC_FLUSH)).removesuffix(TAIL)
        for _ in range(2)
    )
    with Deflating(server, f"/channels/{channel}") as socket:
        socket.send(frame(TEXT, first, reserved=RSV1))
        assert socket.read_frame()[0] == TEXT
        socket.send(frame(TEXT, second, reserved=RSV1))
        opcode, _, payload = socket.read_frame()
        assert (opcode, payload[:2]) == (CLOSE, struct.pack(">H", 4007))
        reason = payload[2:].decode()
        assert reason.startswith("bad_compression: ") and "?compression=none" in reason
    with Deflating(server, f"/channels/{channel}?compression=none") as socket:
        assert socket.extensions is None
        socket.send(frame(TEXT, QUOTES))
        assert socket.read_frame() == (TEXT, False, QUOTES.encode())
    for transport in ("sse", "poll"):
        params = {"compression": "none", "transport": transport, "wait": 0, "history": 1}
        with server.http.stream("GET", f"/channels/{channel}", params=params) as response:
            assert response.status_code == 200
    answer = server.http.get(f"/channels/{channel}", params={"compression": "gzip"})
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_parameter")


def test_a_bomb_within_the_limit_of_messages(serve, channel):
    server = serve("--max-message-bytes", "8MiB", "--max-lag-bytes", "8MiB")
    with Deflating(server, f"/channels/{channel}") as socket:
        socket.send(frame(TEXT, deflated(b"text, " * 500_000), reserved=RSV1))
        assert socket.read_close() == 1009
    with Deflating(server, f"/channels/{channel}") as socket:
        # 3 MB that are not repeated so often.
        text = "".join(hashlib.sha256(str(n).encode()).hexdigest() for n in range(50_000))
        socket.send(frame(TEXT, deflated(text.encode()), reserved=RSV1))
        assert socket.read_frame() == (TEXT, False, text.encode()), "larger than what is compressed"


def test_without_the_extension_a_compressed_message_is_an_error(server, channel):
    with Deflating(server, f"/channels/{channel}", None) as socket:
        socket.send(frame(TEXT, deflated(b"a"), reserved=RSV1))
        assert socket.read_close() == 1002


def test_websockets_library(server, channel):
    with Relay(server) as relay:
        with connect(f"{relay.ws}/channels/{channel}", proxy=None) as socket:
            (extension,) = socket.protocol.extensions
            assert extension.name == "permessage-deflate"
            assert extension.remote_no_context_takeover and extension.local_no_context_takeover
            server.publish(channel, QUOTES)
            assert socket.recv(TIMEOUT_SECONDS) == QUOTES
            for message in ["a" * 50_000, QUOTES * 5, "", "short"]:
                socket.send(message)
                assert socket.recv(TIMEOUT_SECONDS) == message
            socket.send(QUOTES.encode())
            assert socket.recv(TIMEOUT_SECONDS) == QUOTES.encode()
        sent = 7 * len(QUOTES) + 50_000
        (relayed,) = relay.relayed
        assert len(relayed.from_server) < sent * 0.4
        assert len(relayed.from_client) < sent * 0.4


def test_v1(server, channel):
    path = f"/subscribe?channel={channel}"
    with Deflating(server, path, Sec_WebSocket_Protocol="throng.v1") as socket:
        assert socket.extensions == ANSWER
        for kind in ("welcome", "subscribed"):
            _, is_compressed, payload = socket.read_frame()
            assert json.loads(payload)["type"] == kind and not is_compressed
        command = json.dumps({"type": "publish", "channel": channel, "data": json.loads(QUOTES)})
        socket.send(frame(TEXT, deflated(command.encode()), reserved=RSV1))
        frames = [socket.read_frame() for _ in range(2)]
        messages = [json.loads(inflated(p) if is_c else p) for _, is_c, p in frames]
        assert {message["type"]: is_c for message, (_, is_c, _) in zip(messages, frames)} == {
            "published": False,
            "message": True,
        }
        message = next(message for message in messages if message["type"] == "message")
        assert message["data"] == json.loads(QUOTES)


def test_node_ws(server, node, channel):
    child = node("deflate.mjs", f"{server.ws}/channels/{channel}")

    def event():
        return json.loads(child.stdout.readline())

    assert event() == {"event": "open", "extensions": "permessage-deflate"}
    server.publish(channel, QUOTES)
    first = event()
    assert first["hash"] == hashlib.sha256(QUOTES.encode()).hexdigest()
    server.publish(channel, QUOTES)
    assert event()["bytesRead"] - first["bytesRead"] < len(QUOTES) * 0.4
    child.stdin.write("from node, compressed. \n")
    child.stdin.flush()
    text = "from node, compressed. " * 100
    assert event()["hash"] == hashlib.sha256(text.encode()).hexdigest()
    assert server.metrics()["throng_messages_inflated_total"] > 0


def test_chromium(server, node, chromium, channel):
    with Relay(server) as relay:
        child = node("deflate-page.mjs", chromium, relay.url, channel)

        def say(**what):
            child.stdin.write(json.dumps(what) + "\n")
            child.stdin.flush()

        assert json.loads(child.stdout.readline()) == {
            "event": "open",
            "extensions": "permessage-deflate; server_no_context_takeover; "
            "client_no_context_takeover",
        }
        # The browser fetches the page and its icon over connections of their own.
        (socket,) = [each for each in relay.relayed if b"HTTP/1.1 101" in each.from_server]
        head, before = socket.from_server.rsplit(b"\r\n\r\n", 1)
        assert f"Sec-WebSocket-Extensions: {ANSWER}".encode() in head and not before
        start, sent = len(socket.from_server), len(socket.from_client)
        server.publish(channel, QUOTES)
        server.publish(channel, "small")
        say(**{"await": 2})
        assert json.loads(child.stdout.readline())["received"] == [QUOTES, "small"]
        came = bytes(socket.from_server[start:])
        assert came[0] == 0xC1 and len(came) < len(QUOTES) * 0.4
        assert came.endswith(b"\x81\x05small")
        say(**{"send": QUOTES * 4, "await": 3})
        assert json.loads(child.stdout.readline())["received"][2] == QUOTES * 4
        assert socket.from_client[sent] == 0xC1
        assert len(socket.from_client) - sent < len(QUOTES) * 4 * 0.4


def fetched(server, path, method="GET", body=b"", **headers):
    """A response, and its body without its compression."""
    with Raw(server) as raw:
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        raw.request(method, path, headers, body)
        response = raw.read_response(is_head=method == "HEAD")
    is_compressed = response.header("content-encoding") == "gzip"
    return response, gzip.decompress(response.body) if is_compressed else response.body


def test_history_is_compressed_for_those_who_accept_it(server, channel):
    path = f"/channels/{channel}/history"
    for _ in range(5):
        server.publish(channel, QUOTES)
    plain, body = fetched(server, path)
    assert plain.header("content-encoding") is None
    assert plain.header("vary") == "Accept-Encoding, Origin"
    compressed, same = fetched(server, path, Accept_Encoding="br, gzip")
    assert compressed.header("content-encoding") == "gzip" and same == body
    assert compressed.header("vary") == "Accept-Encoding, Origin"
    # Each message by itself, although all are equal: no message tells anything about another.
    assert len(body) * 0.1 < len(compressed.body) < len(body) * 0.4
    refused, _ = fetched(server, path, Accept_Encoding="gzip;q=0")
    assert refused.body == body
    head, _ = fetched(server, path, "HEAD", Accept_Encoding="gzip")
    assert head.header("content-length") == str(len(compressed.body))


def test_a_batch_is_answered_compressed(server, channel):
    lines = "".join(json.dumps({"channel": channel, "data": n}) + "\n" for n in range(100))
    response, answers = fetched(server, "/publish", "POST", lines.encode(), Accept_Encoding="gzip")
    assert response.header("content-encoding") == "gzip"
    assert len(response.body) < len(answers) * 0.4
    messages = server.history(channel)["messages"]
    assert [message["data"] for message in messages] == list(range(100))
    assert [json.loads(line)["id"] for line in answers.splitlines()] == [
        message["id"] for message in messages
    ]
    short, _ = fetched(server, f"/channels/{channel}", "POST", b"x", Accept_Encoding="gzip")
    assert short.header("content-encoding") is None


@pytest.mark.parametrize("path", ["/chat", "/chat.js", "/status", "/status.css", "/throng.js"])
def test_files_are_compressed(server, path):
    plain, body = fetched(server, path)
    compressed, same = fetched(server, path, Accept_Encoding="gzip")
    assert compressed.header("content-encoding") == "gzip" and same == body == plain.body
    assert len(compressed.body) < len(body) * 0.6
    assert "Accept-Encoding" in compressed.header("vary")


def test_what_may_mix_secrets_with_input_is_not_compressed(server, channel):
    with Deflating(server, f"/channels/{channel}?user={'u' * 60}"):
        for path in [f"/channels/{channel}/presence", "/channels", "/metrics", "/status.json"]:
            response, _ = fetched(server, path, Accept_Encoding="gzip")
            assert response.status == 200 and response.header("content-encoding") is None, path


def test_flood(server, tmp_path):
    flags = ["--clients", "20", "--hold", "1s", "--publish", "10", "--size", "3000", "--deflate"]
    before = server.metrics()
    done = run_throng(
        "flood", server.url, *flags, "--assert", "lost == 0", "--json", "-", directory=tmp_path
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["total"]["delivery"]["count"] == 200
    name = "throng_websockets_compressed_total"
    assert server.metrics()[name] == before[name] + 20


def test_flood_says_that_a_server_does_not_compress(serve, tmp_path):
    server = serve("--compression=false")
    done = run_throng(
        "flood", server.url, "--clients", "2", "--hold", "1s", "--deflate", directory=tmp_path
    )
    assert "does not compress messages" in done.stdout + done.stderr
