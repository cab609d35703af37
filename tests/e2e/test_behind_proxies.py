"""What proxies make of requests and streams: empty chunked bodies, removed headers, held answers."""

import pytest

from support.raw import Raw

CHUNKED = {"Transfer-Encoding": "chunked"}
SUBSCRIBING = ["/channels/{}?wait=0", "/subscribe?channel={}&wait=0"]
OTHERS = ["/channels/{}/history", "/health", "/history?channel={}"]


@pytest.mark.parametrize("last", ["0\r\n\r\n", "00;a=b\r\n\r\n", "0\r\nTrailer: x\r\n\r\n"])
@pytest.mark.parametrize("path", SUBSCRIBING + OTHERS)
def test_a_get_with_empty_chunks_is_served_and_the_connection_stays(server, channel, path, last):
    with Raw(server) as connection:
        for _ in range(2):
            # The last chunk may come later, and in pieces.
            connection.request("GET", path.format(channel), CHUNKED)
            for byte in last:
                connection.send(byte)
            response = connection.read_response()
            assert response.status in (200, 204), response
            assert response.header("Connection") != "close"
        connection.request("GET", "/channels/x/history", {})
        assert connection.read_response().status == 200


def test_a_stream_with_empty_chunks_is_opened(server, channel):
    with Raw(server) as connection:
        connection.request("GET", f"/channels/{channel}", CHUNKED | {"Accept": "text/event-stream"})
        connection.send("0\r\n\r\n")
        assert connection.read_head().status == 200


@pytest.mark.parametrize("body", ["1\r\nx\r\n0\r\n\r\n", "0\n\n", "zero\r\n"])
@pytest.mark.parametrize("path", SUBSCRIBING)
def test_a_subscription_with_a_body_is_refused(server, channel, path, body):
    with Raw(server) as connection:
        connection.request("GET", path.format(channel), CHUNKED)
        connection.send(body)
        response = connection.read_response()
    assert (response.status, response.json()["error"]) == (400, "bad_request")
    assert response.header("Connection") == "close"


def test_nothing_is_smuggled_behind_an_empty_body(server, channel):
    post = f"POST /channels/{channel} HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n"
    with Raw(server) as connection:
        connection.request("GET", f"/channels/{channel}/history", CHUNKED)
        connection.send("5\r\n" + post)
        assert connection.read_response().header("Connection") == "close"
    assert server.history(channel)["messages"] == []


@pytest.mark.parametrize("path", ["/channels/{}", "/subscribe", "/subscribe?channel={}"])
def test_a_handshake_without_its_upgrade_gets_426(server, channel, path):
    name = 'throng_refused_total{reason="upgrade"}'
    before = server.metrics()[name]
    headers = {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version": "13"}
    with Raw(server) as connection:
        connection.request("GET", path.format(channel), headers)
        response = connection.read_response()
    assert (response.status, response.json()["error"]) == (426, "upgrade_required")
    assert "proxy" in response.json()["message"] and response.header("Upgrade") == "websocket"
    assert server.metrics()[name] == before + 1


@pytest.mark.parametrize("accept, first", [("text/event-stream", b":\n\n"), ("*/*", b"hello\n")])
def test_events_have_a_byte_at_once_and_no_stream_is_transformed(serve, channel, accept, first):
    server = serve("--heartbeat", "0")
    with server.http.stream("GET", f"/channels/{channel}", headers={"Accept": accept}) as response:
        assert response.headers["Cache-Control"] == "no-store, no-transform"
        if accept == "*/*":
            # A reader of lines would take an empty one for a message.
            server.publish(channel, "hello")
        assert next(response.iter_raw()) == first


def test_a_simple_parser_does_not_drop_the_event_behind_a_heartbeat(serve, channel):
    server = serve("--heartbeat", "1s")
    with server.http.stream(
        "GET", f"/channels/{channel}", headers={"Accept": "text/event-stream"}
    ) as response:
        text = ""
        for part in response.iter_text():
            text += part
            if text.count(":\n\n") == 2 and "hello" not in text:
                server.publish(channel, "hello")
            blocks = [block for block in text.split("\n\n") if not block.startswith(":")]
            if any("data: hello" in block for block in blocks):
                break


@pytest.mark.parametrize("host, target", [("a", "/channels/a#b"), ("a b", "/channels/a")])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_refused_head_has_no_body(server, host, target, is_first):
    with Raw(server) as connection:
        if not is_first:
            connection.request("GET", "/health", {})
            connection.read_response()
        connection.host = host
        connection.request("HEAD", target, {})
        response = connection.read_head()
        assert response.status == 400 and response.header("Connection") == "close"
        assert int(response.header("Content-Length")) > 0
        assert connection.is_ended()
