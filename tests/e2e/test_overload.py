"""A full server: subscribers get a time to retry; all other requests are answered."""

import json
import re
from contextlib import ExitStack, contextmanager

import pytest

from support.raw import Closed, Raw, RawWebSocket, frame, handshake_headers, TEXT
from support.server import eventually

CONNECTIONS_MAX = 20
# Twice the reserve of a worker and the control plane for connections that do not subscribe.
EXCESS_CONNECTIONS = 256
# Viewers of the status page that a full worker still takes.
VIEWERS_MAX = 8
SSE = {"Accept": "text/event-stream"}
ACCEPTED = "throng_connections_accepted_total"


def subscribe(server, channel, headers=SSE, query=""):
    """Asks to subscribe; returns the connection and the head of the answer."""
    connection = Raw(server)
    connection.request("GET", f"/channels/{channel}{query}", headers)
    return connection, connection.read_head()


def fill(server, channel, stack, count=CONNECTIONS_MAX):
    """Subscribers, until the server is full."""
    for _ in range(count):
        connection, head = subscribe(server, channel)
        stack.enter_context(connection)
        assert head.status == 200 and head.header("Throng-Id"), head


def ask(server, method, path, body=b""):
    """One request on a new connection."""
    with Raw(server) as connection:
        connection.request(method, path, {"Connection": "close"}, body)
        return connection.read_response()


def refused_events(server, channel):
    """The retry time that a full server gives an SSE client, in milliseconds."""
    with Raw(server) as connection:
        connection.request("GET", f"/channels/{channel}", SSE)
        response = connection.read_response()
        assert connection.is_ended()
    assert response.status == 200
    assert response.header("Content-Type") == "text/event-stream"
    assert response.header("Throng-Id") is None
    lines = response.body.decode().split("\n")
    assert lines[0].startswith(": full: ") and lines[2:] == ["", ""], lines
    retry_ms = int(re.fullmatch(r"retry: (\d+)", lines[1]).group(1))
    assert int(response.header("Retry-After")) == -(-retry_ms // 1000)
    return retry_ms


def refused_websocket(server, channel, protocol=None):
    """The same for a WebSocket."""
    with RawWebSocket(server, f"/channels/{channel}", protocol) as websocket:
        assert websocket.response.header("Sec-WebSocket-Protocol") == protocol
        code, reason = websocket.read_close()
    assert code == 1013
    return int(re.fullmatch(r"reconnect in (\d+) ms", reason).group(1))


def refused_503(server, channel, headers=None, query=""):
    """The same for what a browser's subscriptions do not use, in seconds."""
    with Raw(server) as connection:
        connection.request("GET", f"/channels/{channel}{query}", headers)
        response = connection.read_response()
    assert response.status == 503 and response.json()["error"] == "full"
    return int(response.header("Retry-After"))


def is_served(server, channel):
    """Whether publishers, probes and scrapers are answered, each on a connection of its own."""
    answers = [
        ask(server, "POST", f"/channels/{channel}", b"hi").status,
        ask(server, "GET", "/health").status,
        ask(server, "GET", "/metrics").status,
        ask(server, "GET", f"/channels/{channel}/history").status,
    ]
    return answers == [201, 200, 200, 200]


def test_a_full_server_answers_everything_but_subscriptions(serve, channel):
    server = serve("--max-connections", CONNECTIONS_MAX, "--workers", 1)
    with ExitStack() as stack:
        fill(server, channel, stack)
        assert is_served(server, channel)
        assert 1000 <= refused_events(server, channel) < 10_000
        assert 1000 <= refused_websocket(server, channel) < 10_000
        assert 1000 <= refused_websocket(server, channel, "throng.v1") < 10_000
        assert 1 <= refused_503(server, channel) <= 10
        assert 1 <= refused_503(server, channel, query="?wait=5") <= 10
        assert is_served(server, channel)
        assert server.metrics()['throng_refused_total{reason="full"}'] == 5


def test_workers_hand_off_to_others_before_they_refuse(serve, channel):
    server = serve("--max-connections", CONNECTIONS_MAX, "--workers", 4)
    with ExitStack() as stack:
        fill(server, channel, stack)
        assert server.presence(channel)["connections"] == CONNECTIONS_MAX
        refused_events(server, channel)
        assert is_served(server, channel)


def test_every_refused_client_gets_its_own_retry_time(serve, channel):
    server = serve("--max-connections", 1, "--workers", 1)
    with ExitStack() as stack:
        fill(server, channel, stack, 1)
        retry_times = [refused_events(server, channel) for _ in range(20)]
        assert len(set(retry_times)) == 20, retry_times
        assert max(retry_times) - min(retry_times) > 4500, retry_times
        seconds = {refused_503(server, channel) for _ in range(20)}
        assert len(seconds) >= 8, seconds


def test_a_full_server_still_answers_a_bad_request_with_its_error(serve, channel):
    server = serve("--max-connections", 1, "--workers", 1)
    with ExitStack() as stack:
        fill(server, channel, stack, 1)
        assert ask(server, "GET", f"/channels/{channel}?since=nonsense").status == 400
        with Raw(server) as connection:
            headers = {**SSE, "Origin": "http://page.example"}
            connection.request("GET", f"/channels/{channel}", headers)
            assert connection.read_response().status == 403


def test_unfinished_heads_are_evicted(serve, channel):
    server = serve("--max-connections", CONNECTIONS_MAX, "--workers", 1, "--head-timeout", "60s")
    with ExitStack() as stack:
        fill(server, channel, stack)
        before = server.metrics()[ACCEPTED]
        halves = []
        for _ in range(EXCESS_CONNECTIONS):
            halves.append(stack.enter_context(Raw(server)))
            halves[-1].send_anyway("GET /health HTTP/1.1\r\nHost")
            if len(halves) == 1:
                eventually(lambda: server.metrics()[ACCEPTED] > before, "the oldest")
        assert is_served(server, channel)
        # The oldest is evicted with an error response.
        response = halves[0].read_response()
        assert response.status == 503 and response.json()["error"] == "full"
        # The newest stays.
        halves[-1].send(": x\r\n\r\n")
        assert halves[-1].read_response().status == 200
        assert server.metrics()['throng_disconnects_total{reason="evicted"}'] >= EXCESS_CONNECTIONS / 2


def test_silent_connections_are_evicted_for_new_ones(serve, channel):
    """Kept-alive connections without a request, and requests without their bodies."""
    server = serve("--max-connections", CONNECTIONS_MAX, "--workers", 1, "--idle-timeout", "60s")
    with ExitStack() as stack:
        fill(server, channel, stack)
        for nth in range(EXCESS_CONNECTIONS):
            silent = stack.enter_context(Raw(server))
            if nth % 2:
                silent.request("GET", "/health")
                assert silent.read_response().status == 200
            else:
                length = {"Content-Length": 9, "Expect": "100-continue"}
                silent.request("POST", f"/channels/{channel}", length)
                assert silent.read_head().status == 100
        assert is_served(server, channel)
        assert server.metrics()["throng_http_connections_evicted_total"] >= EXCESS_CONNECTIONS / 2


def test_refused_clients_that_stay_do_not_keep_others_out(serve, channel):
    server = serve("--max-connections", CONNECTIONS_MAX, "--workers", 1)
    with ExitStack() as stack:
        fill(server, channel, stack)
        for _ in range(EXCESS_CONNECTIONS):
            staying = stack.enter_context(Raw(server))
            staying.request("GET", f"/channels/{channel}", SSE)
            assert staying.read_response().status == 200
        assert is_served(server, channel)


def test_a_kept_connection_that_subscribes_is_refused_in_the_same_form(serve, channel):
    server = serve("--max-connections", CONNECTIONS_MAX, "--workers", 1)
    with ExitStack() as stack:
        fill(server, channel, stack)
        kept = stack.enter_context(Raw(server))
        kept.request("GET", "/health")
        assert kept.read_response().body == b"ok\n"
        kept.request("GET", f"/channels/{channel}", SSE)
        response = kept.read_response()
        assert response.status == 200 and b"\nretry: " in response.body
        kept = stack.enter_context(Raw(server))
        kept.request("GET", "/health")
        assert kept.read_response().body == b"ok\n"
        kept.request("GET", f"/channels/{channel}", handshake_headers())
        assert kept.read_response().status == 101
        assert kept.read(2)[0] == 0x88


def test_a_closed_subscriber_frees_its_place(serve, channel):
    server = serve("--max-connections", CONNECTIONS_MAX, "--workers", 2)
    publisher = RawWebSocket(server, "/subscribe", "throng.v1")
    assert json.loads(publisher.read_message())["type"] == "welcome"
    with ExitStack() as stack:
        stack.enter_context(publisher)
        fill(server, channel, stack, CONNECTIONS_MAX - 2)
        last, head = subscribe(server, channel)
        assert head.status == 200
        refused_events(server, channel)
        last.close()

        def has_capacity():
            try:
                connection, head = subscribe(server, channel)
            except Closed:
                return False
            stack.enter_context(connection)
            return head.header("Throng-Id") is not None

        eventually(has_capacity, "capacity for one more")
        publisher.send(frame(TEXT, json.dumps({"type": "publish", "channel": channel, "data": 1})))
        answer = json.loads(publisher.read_message())
        assert answer["subscribers"] == CONNECTIONS_MAX - 1, answer


def test_silent_connections_take_no_place_of_a_subscriber(serve, channel):
    server = serve("--max-connections", 4, "--workers", 1, "--head-timeout", "60s")
    with ExitStack() as stack:
        for _ in range(8):
            silent = stack.enter_context(Raw(server))
            silent.send("G")
        fill(server, channel, stack, 4)
        refused_events(server, channel)


@contextmanager
def status_stream(server, is_admin):
    """A viewer of the samples: its first sample, or `None` if it was refused."""
    with ExitStack() as stack:
        client = stack.enter_context(server.admin()) if is_admin else server.http
        response = stack.enter_context(client.stream("GET", "/status/stream"))
        assert response.status_code == 200, response.read()
        data = (line[6:] for line in response.iter_lines() if line.startswith("data: "))
        yield json.loads(sample) if (sample := next(data, None)) else None


@pytest.mark.parametrize("is_admin", [True, False])
def test_a_full_server_accepts_a_few_viewers(serve, channel, is_admin):
    admin = ("--admin-listen", "127.0.0.1:0") if is_admin else ()
    server = serve("--max-connections", CONNECTIONS_MAX, "--workers", 1, *admin)
    with ExitStack() as stack:
        fill(server, channel, stack)
        for _ in range(VIEWERS_MAX):
            leave = ExitStack()
            stack.enter_context(leave)
            sample = leave.enter_context(status_stream(server, is_admin))
            assert sample["connections"]["capacity"] == CONNECTIONS_MAX
            assert sample["connections"]["sse"] == CONNECTIONS_MAX
        refused_events(server, channel)
        with status_stream(server, is_admin) as sample:
            assert sample is None, "further viewers are refused"
        leave.close()

        def is_seen():
            with status_stream(server, is_admin) as sample:
                return sample is not None

        eventually(is_seen, "the place of the viewer that left")
        refused_events(server, channel)
