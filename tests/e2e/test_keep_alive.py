"""One connection, several requests: it moves between the planes and loses nothing."""

import json

from support.raw import Raw


def test_page_then_publish_then_subscribe_on_one_connection(server, channel):
    with Raw(server) as connection:
        connection.request("GET", "/chat")
        assert connection.read_response().status == 200
        connection.request("POST", f"/channels/{channel}", body=b"first")
        response = connection.read_response()
        assert response.status == 201
        connection.request("GET", f"/channels/{channel}?since={response.json()['id']}")
        head = connection.read_head()
        assert head.status == 200 and head.header("Throng-Recovered") == "true"
        assert server.publish(channel, "second")["subscribers"] == 1
        assert connection.read_chunk() == b"second\n"


def test_poll_after_poll_on_one_connection(server, channel):
    id = server.history(channel)["id"]
    with Raw(server) as connection:
        for n in range(20):
            connection.request("GET", f"/channels/{channel}?wait=10&since={id}")
            if n % 2:
                server.wait_for_connections(channel, 1)
            published = server.publish(channel, f"message {n}")["id"]
            response = connection.read_response()
            assert response.status == 200 and response.body == f"message {n}".encode()
            id = response.header("Throng-Id")
            assert id == published
        connection.request("GET", "/health")
        assert connection.read_response().status == 200
        connection.request("GET", f"/channels/{channel}?wait=0&since={id}")
        assert connection.read_response().status == 204


def test_pipelined_publishes_are_answered_in_order(server, channel):
    with Raw(server) as connection:
        host = f"Host: {connection.host}\r\n"
        connection.send(
            "".join(
                f"POST /channels/{channel} HTTP/1.1\r\n{host}Content-Length: 1\r\n\r\n{n}"
                for n in range(5)
            )
        )
        ids = [connection.read_response().json()["id"] for _ in range(5)]
    messages = server.history(channel)["messages"]
    assert [message["data"] for message in messages] == list("01234")
    assert [message["id"] for message in messages] == ids


def test_pipelined_publish_and_subscribe(server, channel):
    """The subscription is already in the bytes that went to the control plane with the publish."""
    with Raw(server) as connection:
        host = f"Host: {connection.host}\r\n"
        connection.send(
            f"POST /channels/{channel} HTTP/1.1\r\n{host}Content-Length: 3\r\n\r\none"
            f"GET /channels/{channel}?history=1 HTTP/1.1\r\n{host}\r\n"
        )
        assert connection.read_response().status == 201
        assert connection.read_head().status == 200
        assert connection.read_chunk() == b"one\n"
        server.publish(channel, "two")
        assert connection.read_chunk() == b"two\n"


def test_pipelined_polls(server, channel):
    id = server.history(channel)["id"]
    server.publish(channel, "one")
    with Raw(server) as connection:
        target = f"/channels/{channel}?wait=5&since={id}"
        connection.send(f"GET {target} HTTP/1.1\r\nHost: {connection.host}\r\n\r\n" * 3)
        assert [connection.read_response().body for _ in range(3)] == [b"one"] * 3


def test_a_head_sent_byte_by_byte_is_answered(server, channel):
    with Raw(server) as connection:
        head = f"POST /channels/{channel} HTTP/1.1\r\nHost: {connection.host}\r\n"
        for byte in f"{head}Content-Length: 2\r\n\r\nok".encode():
            connection.send(bytes([byte]))
        assert connection.read_response().status == 201


def test_connection_close_is_honoured(server, channel):
    with Raw(server) as connection:
        connection.request("POST", f"/channels/{channel}", {"Connection": "close"}, b"x")
        assert connection.read_response().status == 201
        assert connection.is_ended()


def test_http_1_0_is_answered_and_closed(server, channel):
    with Raw(server) as connection:
        connection.request("POST", f"/channels/{channel}", body=b"old", version="HTTP/1.0")
        answer = connection.read_to_end()
    assert b" 201 " in answer.split(b"\r\n")[0]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["subscribers"] == 0


def test_a_connection_without_requests_is_closed(serve):
    server = serve("--idle-timeout", "1s")
    with Raw(server) as connection:
        connection.request("GET", "/health")
        assert connection.read_response().status == 200
        assert connection.is_ended()


def test_a_closed_subscriber_is_no_longer_counted(server, channel):
    for leave in (Raw.close, Raw.reset):
        connection = Raw(server)
        connection.request("GET", f"/channels/{channel}")
        assert connection.read_head().status == 200
        assert server.presence(channel)["connections"] == 1
        leave(connection)
        server.wait_for_connections(channel, 0)
