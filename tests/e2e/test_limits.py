"""Limits per address, with clients at many addresses of 127.0.0.0/8."""

import base64
import hmac
import json
import struct
import time
from contextlib import ExitStack

import pytest

from support.access import bearer, server_key
from support.raw import CLOSE, TEXT, Raw, RawWebSocket, frame, handshake_headers
from support.server import eventually

CONNECTIONS = 'throng_limits_refused_total{per="address",limit="connections"}'
CONNECTS = 'throng_limits_refused_total{per="address",limit="connects"}'
SUBSCRIPTIONS = 'throng_limits_refused_total{per="address",limit="subscriptions"}'
PUBLISHES = 'throng_limits_refused_total{per="address",limit="publishes"}'
BYTES = 'throng_limits_refused_total{per="address",limit="published_bytes"}'


def ask(server, method, path, source, headers=None, body=b""):
    """One request on a connection of its own from an address."""
    with Raw(server, source=source) as client:
        client.request(method, path, {**(headers or {}), "Connection": "close"}, body)
        return client.read_response()


def follow(server, path, source):
    """A stream from an address that the server has accepted."""
    client = Raw(server, source=source)
    client.request("GET", path)
    assert client.read_head().status == 200
    return client


def expect_refusal(answer):
    """A 429 with its code and a moment to come back."""
    assert answer.status == 429, answer
    assert answer.json()["error"] == "too_many_requests"
    assert 1 <= int(answer.header("retry-after")) <= 5


def test_connections_of_an_address_are_limited(serve, channel):
    server = serve("--max-connections-per-address", 3, "--workers", 2)
    path = f"/channels/{channel}"
    with ExitStack() as stack:
        held = [stack.enter_context(follow(server, path, "127.0.0.2")) for _ in range(3)]
        for _ in range(5):
            expect_refusal(ask(server, "GET", path, "127.0.0.2"))
        for source in ("127.0.0.3", "127.0.0.4"):
            stack.enter_context(follow(server, path, source))
        assert server.metrics()[CONNECTIONS] == 5
        # A place is free again once a connection has closed.
        held[0].close()
        eventually(
            lambda: ask(server, "GET", "/health", "127.0.0.2").status == 200, "a place is free"
        )


def test_connections_of_both_planes_count(serve, channel):
    server = serve("--max-connections-per-address", 2)
    source = "127.0.0.5"
    with Raw(server, source=source) as kept, Raw(server, source=source) as other:
        for client in (kept, other):
            client.request("GET", "/health")
            assert client.read_response().status == 200
        expect_refusal(ask(server, "GET", "/health", source))
        # From the control plane back to a worker, it is still one connection.
        kept.request("GET", f"/channels/{channel}")
        assert kept.read_head().status == 200
        expect_refusal(ask(server, "GET", "/health", source))
    for _ in range(2):
        eventually(lambda: ask(server, "GET", "/health", source).status == 200, "both have gone")


@pytest.mark.parametrize("transport", ["websocket", "sse"])
def test_clients_that_read_no_status_are_told_in_their_own_form(serve, channel, transport):
    server = serve("--max-connections-per-address", 1)
    path, source = f"/channels/{channel}", "127.0.0.2"
    with follow(server, path, source), Raw(server, source=source) as client:
        if transport == "sse":
            client.request("GET", path, {"Accept": "text/event-stream"})
            answer = client.read_response()
            assert answer.status == 200 and b"\nretry: " in answer.body, answer
            return
        client.request("GET", path, handshake_headers())
        assert client.read_head().status == 101
        payload = client.read_to_end()
        assert payload[0] & 0x0F == CLOSE
        assert struct.unpack(">H", payload[2:4])[0] == 4006
        assert payload[4:].startswith(b"reconnect in ")


def test_new_connections_per_second_are_limited(serve):
    # So low that it is reached on a machine that needs seconds for these requests, too.
    server = serve("--connect-rate-per-address", 1)
    answers = [ask(server, "GET", "/health", "127.0.0.2") for _ in range(40)]
    refused = [answer for answer in answers if answer.status == 429]
    assert len(refused) >= 10, [answer.status for answer in answers]
    expect_refusal(refused[0])
    assert server.metrics()[CONNECTS] == len(refused)
    assert ask(server, "GET", "/health", "127.0.0.3").status == 200


def test_subscriptions_of_an_address_are_limited_over_all_connections(serve, channel):
    server = serve("--max-subscriptions-per-address", 3)
    source = "127.0.0.2"
    first = follow(server, f"/subscribe?channel={channel}-1&channel={channel}-2", source)
    socket = RawWebSocket(server, f"/channels/{channel}-3", "throng.v1", source=source)
    expect_refusal(ask(server, "GET", f"/channels/{channel}-4", source))
    command = {"type": "subscribe", "channel": f"{channel}-5", "ref": 1}
    with first, socket:

        def reply(wanted):
            socket.send(frame(TEXT, json.dumps(command)))
            while (answer := json.loads(socket.read_message()))["type"] not in wanted:
                pass
            return answer

        assert reply(["error"])["code"] == "too_many_requests"
        assert server.metrics()[SUBSCRIPTIONS] == 2
        first.close()
        eventually(lambda: reply(["error", "subscribed"])["type"] == "subscribed", "room")


def test_publishing_is_limited_over_http(serve, channel):
    server = serve("--publish-rate-per-address", 1)
    path, source = f"/channels/{channel}", "127.0.0.2"
    with Raw(server, source=source) as client:
        answers = []
        for number in range(40):
            client.request("POST", path, body=b"message %d" % number)
            answers.append(client.read_response())
    refused = [answer for answer in answers if answer.status == 429]
    assert len(refused) >= 10, [answer.status for answer in answers]
    expect_refusal(refused[0])
    assert server.metrics()[PUBLISHES] == len(refused)
    assert len(server.history(channel)["messages"]) == 40 - len(refused)
    assert ask(server, "POST", path, "127.0.0.3", body=b"another address").status == 201


def test_each_line_of_a_batch_is_a_message(serve, channel):
    server = serve("--publish-rate-per-address", 10)
    lines = [json.dumps({"channel": channel, "data": number}) for number in range(60)]
    body = "\n".join(lines).encode()
    answer = ask(server, "POST", "/publish", "127.0.0.2", body=body)
    outcomes = [json.loads(line) for line in answer.body.splitlines()]
    accepted = [outcome for outcome in outcomes if "id" in outcome]
    assert 10 <= len(accepted) < 60
    refused = [outcome["error"] for outcome in outcomes if "error" in outcome]
    assert set(refused) == {"too_many_requests"}


def test_published_bytes_are_limited(serve, channel):
    server = serve("--publish-byte-rate-per-address", "10k")
    path, source = f"/channels/{channel}", "127.0.0.2"
    statuses = []

    def is_limited():
        statuses.append(ask(server, "POST", path, source, body=b"x" * 4000).status)
        return statuses[-1] == 429

    eventually(is_limited, "the limit")
    assert statuses[:2] == [201, 201], statuses
    assert server.metrics()[BYTES] == statuses.count(429)
    # A body without a length counts once it is read.
    chunks = b"fa0\r\n" + b"x" * 4000 + b"\r\n0\r\n\r\n"
    chunked = []

    def is_limited_then():
        with Raw(server, source="127.0.0.3") as client:
            client.request("POST", path, {"Transfer-Encoding": "chunked"})
            client.send(chunks)
            chunked.append(client.read_response().status)
        return chunked[-1] == 429

    eventually(is_limited_then, "the limit of bodies without a length")
    assert chunked[0] == 201, chunked


def test_what_a_head_announces_silences_nobody(serve, tmp_path, channel):
    """One head without a body, of a client that may not publish or sends more than fits."""
    operator, operators = server_key(tmp_path, "app", "publish")
    (tmp_path / "throng.toml").write_text(f"[[token-keys]]\nsecret = '{SECRET}'\n{operators}")
    server = serve("--publish-byte-rate-per-address", "1k", "--max-message-bytes", "10k")
    path, key = f"/channels/{channel}", bearer(operator)
    # The server answers the head at once.
    awaits = {"Expect": "100-continue"}
    stranger = {**awaits, "Content-Length": "10000"}
    assert ask(server, "POST", path, "127.0.0.2", stranger).status == 401
    too_large = {**key, **awaits, "Content-Length": "4294967296"}
    assert ask(server, "POST", path, "127.0.0.2", too_large).status == 413
    assert ask(server, "POST", path, "127.0.0.2", key, b"x" * 1000).status == 201


def test_a_plain_websocket_that_publishes_too_often_is_closed(serve, channel):
    server = serve("--publish-rate-per-address", 5)
    with RawWebSocket(server, f"/channels/{channel}", source="127.0.0.2") as socket:
        socket.send_anyway(frame(TEXT, "again") * 40)
        # Its own messages come first.
        while (received := socket.read_frame())[0] != CLOSE:
            pass
        code, reason = struct.unpack(">H", received[1][:2])[0], received[1][2:].decode()
        assert code == 4006 and "this address publishes too often; reconnect in " in reason
    assert server.metrics()['throng_disconnects_total{reason="limit"}'] == 1


def test_throng_v1_says_so_and_stays(serve, channel):
    server = serve("--publish-rate-per-address", 5)
    command = {"type": "publish", "channel": channel, "data": "x", "echo": False, "ref": 1}
    path = f"/channels/{channel}"
    with RawWebSocket(server, path, "throng.v1", source="127.0.0.2") as socket:
        # At once: it does not matter how fast this machine sends.
        socket.send(frame(TEXT, json.dumps(command)) * 30)
        answers = []
        while len(answers) < 30:
            answer = json.loads(socket.read_message())
            if answer["type"] in ("published", "error"):
                answers.append(answer)
        refused = [answer for answer in answers if answer["type"] == "error"]
        assert 5 <= len(refused) <= 25
        assert {answer["code"] for answer in refused} == {"too_many_requests"}


def test_the_admin_listener_has_no_limits_per_address(serve, channel):
    limits = ["--max-connections-per-address", 1, "--publish-rate-per-address", 1]
    server = serve("--admin-listen", "127.0.0.1:0", *limits)
    with server.admin() as admin:
        for _ in range(10):
            assert admin.post(f"/channels/{channel}", content=b"x").status_code == 201


SECRET = "a secret of at least thirty-two bytes"


def token(user):
    """A token of a user who may publish everywhere, signed with HS256."""

    def part(value):
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        return base64.urlsafe_b64encode(text).rstrip(b"=")

    claims = {"sub": user, "exp": int(time.time()) + 600, "throng": {"publish": ["*"]}}
    signed = part({"alg": "HS256"}) + b"." + part(claims)
    signature = hmac.new(SECRET.encode(), signed, "sha256").digest()
    return (signed + b"." + part(signature)).decode()


def test_a_user_is_limited_wherever_the_user_is(serve, tmp_path, channel):
    (tmp_path / "throng.toml").write_text(
        f'[[token-keys]]\nalgorithm = "HS256"\nsecret = "{SECRET}"\n'
        "[per-user]\npublish-rate = 2\n"
    )
    server = serve()
    path = f"/channels/{channel}"

    def statuses(user, count):
        headers = {"Authorization": f"Bearer {token(user)}"}
        for number in range(count):
            source = f"127.0.0.{2 + number % 2}"
            yield ask(server, "POST", path, source, headers, b"x").status

    answers = []
    eventually(lambda: answers.extend(statuses("ann", 10)) or 429 in answers, "the limit")
    assert set(answers) == {201, 429}, answers
    assert list(statuses("bob", 2)) == [201, 201]


def test_reads_over_throng_v1_are_limited_and_the_connection_stays(serve, channel):
    server = serve("--read-byte-rate-per-address", "10k")
    server.http.post(f"/channels/{channel}", content="x" * 20_000)
    with RawWebSocket(server, f"/channels/{channel}", "throng.v1") as socket:

        def command(kind, reference):
            text = json.dumps({"type": kind, "channel": channel, "ref": reference})
            socket.send(frame(TEXT, text))
            while (answer := json.loads(socket.read_message())).get("ref") != reference:
                pass
            return answer

        assert command("history", 1)["type"] == "history"
        for number, kind in enumerate(("history", "presence"), 2):
            answer = command(kind, number)
            assert (answer["type"], answer["code"]) == ("error", "too_many_requests"), kind
        # What is read over HTTP counts for the same address.
        expect_refusal(ask(server, "GET", f"/channels/{channel}/history", "127.0.0.1"))
        assert command("unsubscribe", 4)["type"] == "unsubscribed"
    text = server.http.get("/metrics").text
    assert 'throng_limits_refused_total{per="address",limit="read_bytes"} 3' in text


def test_a_head_counts_for_each_of_its_channels(serve):
    server = serve("--read-byte-rate-per-address", "10k")
    channels = "&".join(f"channel=c{number}" for number in range(40))
    path = f"/subscribe?{channels}&transport=stream"

    def status(source):
        with Raw(server, source=source) as client:
            client.request("HEAD", path, {"Connection": "close"})
            return client.read_head().status

    assert [status(source) for source in ("127.0.0.2", "127.0.0.2", "127.0.0.3")] == [200, 429, 200]


def test_reads_are_limited_by_what_they_produce(serve, channel):
    server = serve("--read-byte-rate-per-address", "10k")
    path = f"/channels/{channel}"
    server.http.post(path, content="x" * 20_000)
    assert server.http.get(path + "/history").status_code == 200
    for method, what in (("GET", "/history"), ("GET", "/presence"), ("HEAD", "?transport=stream")):
        refused = server.http.request(method, path + what)
        assert refused.status_code == 429, (method, what)
        assert int(refused.headers["retry-after"]) >= 1
    assert server.http.post(path, content="x").status_code == 201
    text = server.http.get("/metrics").text
    assert 'throng_limits_refused_total{per="address",limit="read_bytes"} 3' in text
