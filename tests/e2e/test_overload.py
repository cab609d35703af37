"""The configured number of connections, and not one more."""

import json

from support.raw import Closed, Raw, RawWebSocket, TEXT, frame
from support.server import eventually

CONNECTIONS_MAX = 20


def open_sse(server, channel):
    """A subscriber, or the refusal that came in its place."""
    connection = Raw(server)
    connection.send(
        f"GET /channels/{channel} HTTP/1.1\r\nHost: {connection.host}\r\n"
        "Accept: text/event-stream\r\n\r\n"
    )
    head = connection.read_head()
    return connection, head


def refusal(server, channel):
    """Tries once more to subscribe and returns the refusal, body included."""
    with Raw(server) as connection:
        host = f"Host: {connection.host}\r\n"
        connection.send_anyway(f"GET /channels/{channel} HTTP/1.1\r\n{host}\r\n")
        response = connection.read_head()
        if response.header("Content-Length"):
            response.body = connection.read(int(response.header("Content-Length")))
        return response


def test_one_too_many_is_told_and_nobody_else_suffers(serve, channel):
    server = serve("--max-connections", CONNECTIONS_MAX)
    # Requests need room too, so publishing goes over a connection that counts among the twenty.
    publisher = RawWebSocket(server, "/subscribe", "throng.v1")
    assert json.loads(publisher.read_message())["type"] == "welcome"
    subscribers = []
    for _ in range(CONNECTIONS_MAX - 1):
        connection, head = open_sse(server, channel)
        assert head.status == 200
        subscribers.append(connection)

    response = refusal(server, channel)
    assert response.status == 503 and int(response.header("Retry-After")) >= 1
    assert response.json()["error"] == "full"

    def publish(data):
        command = {"type": "publish", "channel": channel, "data": data}
        publisher.send(frame(TEXT, json.dumps(command)))
        answer = json.loads(publisher.read_message())
        assert answer["type"] == "published"
        return answer["subscribers"]

    assert publish("still here") == CONNECTIONS_MAX - 1
    for connection in subscribers:
        assert b"data: still here\n" in connection.read_until(b"\n\n")

    subscribers.pop().close()

    def there_is_room():
        try:
            connection, head = open_sse(server, channel)
        except Closed:
            return False
        if head.status != 200:
            connection.close()
            return False
        subscribers.append(connection)
        return True

    eventually(there_is_room, "room for one more")
    assert publish("and the new one") == CONNECTIONS_MAX - 1
    for connection in subscribers:
        assert b"data: and the new one\n" in connection.read_until(b"\n\n")
        connection.close()
    publisher.close()


def test_connections_that_say_nothing_do_not_keep_others_out_for_ever(serve, channel):
    server = serve("--max-connections", 4, "--head-timeout", "1s")
    server.http.close()
    silent = [Raw(server) for _ in range(4)]

    def got_in():
        try:
            connection, head = open_sse(server, channel)
        except Closed:
            return False
        connection.close()
        return head.status == 200

    eventually(got_in, "the silent ones to be closed")
    for connection in silent:
        connection.close()
