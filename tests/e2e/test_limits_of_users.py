"""Limits per user and per server key, wherever the client is: connections, connects, subscriptions."""

import json
import struct
from contextlib import ExitStack

import pytest

from support.access import SECRET, bearer, server_key, token
from support.raw import CLOSE, PING, TEXT, Raw, RawWebSocket, frame, handshake_headers
from support.server import eventually

PATH = "/channels/a"
SSE = {"Accept": "text/event-stream"}
TRANSPORTS = ["stream", "sse", "poll", "websocket"]
USER, KEY = ("user", "ann", "bob"), ("key", "app", "other-app")
CASES = [(transport, *USER) for transport in TRANSPORTS] + [("websocket", *KEY)]


class Limited:
    """A server with limits per user and per key, and what its clients show."""

    def __init__(self, serve, directory, limits):
        self.operator, operator = server_key(directory, "operator", "administration", "presence")
        self.credentials, tables = {}, ""
        for name in ("app", "other-app"):
            self.credentials[name], table = server_key(directory, name, "subscribe")
            tables += table
        for user in ("ann", "bob"):
            grants = {"subscribe": ["*"], "publish": ["*"]}
            self.credentials[user] = token(sub=user, throng=grants)
        (directory / "throng.toml").write_text(
            f"[per-user]\n{limits}\n[per-key]\n{limits}\n"
            f"[[token-keys]]\nsecret = '{SECRET}'\n" + operator + tables
        )
        self.server = serve("--workers", 2)
        self.sources = 0

    def refused(self, per, limit):
        text = self.server.http.get("/metrics", headers=bearer(self.operator)).text
        name = f'throng_limits_refused_total{{per="{per}",limit="{limit}"}} '
        return next(int(line[len(name):]) for line in text.splitlines() if line.startswith(name))

    def wait_for_connections(self, count):
        """Waits until the channel of the tests has this many connections."""
        shown = bearer(self.operator)

        def connections():
            return self.server.http.get(PATH + "/presence", headers=shown).json()["connections"]

        eventually(lambda: connections() == count, f"{count} connections")

    def ask(self, transport, name, path=PATH):
        """Asks for a subscription from an address of its own. Returns the connection and whether it
        is accepted; a poll that waits gets no answer, and counts as accepted."""
        self.sources += 1
        client = Raw(self.server, source=f"127.0.0.{self.sources % 250 + 2}")
        shown = bearer(self.credentials[name])
        if transport == "websocket":
            client.request("GET", path, handshake_headers(**shown))
            assert client.read_head().status == 101
            client.send_anyway(frame(PING))
            opcode, length = client.read(2)
            if opcode & 0x0F != CLOSE:
                return client, True
            payload = client.read(length)
            assert struct.unpack(">H", payload[:2])[0] == 4006, payload
            assert payload[2:].startswith(b"reconnect in ")
            return client, False
        client.request("GET", path, shown | (SSE if transport == "sse" else {}))
        head = client.read_head()
        if head.status == 429:
            error = json.loads(client.read(int(head.header("content-length"))))
            assert error["error"] == "too_many_requests"
            assert 1 <= int(head.header("retry-after")) <= 5
            return client, False
        if transport == "sse" and head.header("content-length"):
            assert b"\nretry: " in client.read_to_end()
            return client, False
        assert head.status in (200, 204), head
        return client, True

    def is_accepted(self, transport, name, path=PATH):
        client, is_accepted = self.ask(transport, name, path)
        client.close()
        return is_accepted


@pytest.mark.parametrize(("holders", "per", "name", "other"), CASES)
def test_connections_are_limited_until_they_end(serve, tmp_path, holders, per, name, other):
    limited = Limited(serve, tmp_path, "max-connections = 2")
    with ExitStack() as stack:

        def hold(of):
            if holders == "poll":
                client = Raw(limited.server)
                client.request("GET", PATH + "?wait=30", bearer(limited.credentials[of]))
            else:
                client, is_accepted = limited.ask(holders, of)
                assert is_accepted
            return stack.enter_context(client)

        first, _, _ = hold(name), hold(name), hold(other)
        limited.wait_for_connections(3)
        for transport in TRANSPORTS:
            path = PATH + "?wait=0" if transport == "poll" else PATH
            assert not limited.is_accepted(transport, name, path)
            assert limited.is_accepted(transport, other, path)
            limited.wait_for_connections(3)
        assert limited.refused(per, "connections") == len(TRANSPORTS)
        first.close()
        # It leaves the channel before its place is free.
        eventually(lambda: limited.is_accepted("stream", name), "its place")


def test_a_poll_counts_while_it_waits(serve, tmp_path):
    limited = Limited(serve, tmp_path, "max-connections = 1")
    with Raw(limited.server) as client:
        for number in range(3):
            client.request("GET", PATH + "?wait=30", bearer(limited.credentials["ann"]))
            limited.wait_for_connections(1)
            assert not limited.is_accepted("stream", "ann")
            answer = limited.server.http.post(
                PATH, content=f"message {number}", headers=bearer(limited.credentials["bob"])
            )
            assert answer.status_code == 201
            assert client.read_response().body == b"message %d" % number
            assert limited.is_accepted("stream", "ann")
            limited.wait_for_connections(0)


@pytest.mark.parametrize(("transport", "per", "name", "other"), CASES)
def test_new_connections_per_second_are_limited(serve, tmp_path, transport, per, name, other):
    limited = Limited(serve, tmp_path, "connect-rate = 2")
    path = PATH + "?wait=0" if transport == "poll" else PATH
    outcomes = []

    def is_refused():
        outcomes.append(limited.is_accepted(transport, name, path))
        return not outcomes[-1]

    eventually(is_refused, "the limit")
    assert limited.is_accepted(transport, other, path)
    assert limited.refused(per, "connects") == 1
    eventually(lambda: not is_refused(), "room again")


@pytest.mark.parametrize(("per", "name", "_"), [USER, KEY])
def test_subscriptions_are_limited_over_all_connections(serve, tmp_path, per, name, _):
    limited = Limited(serve, tmp_path, "max-subscriptions = 3")
    first, is_accepted = limited.ask("stream", name, "/subscribe?channel=a&channel=b")
    assert is_accepted
    socket = Raw(limited.server, source="127.0.0.99")
    shown = bearer(limited.credentials[name]) | {"Sec-WebSocket-Protocol": "throng.v1"}
    socket.request("GET", "/channels/c", handshake_headers(**shown))
    assert socket.read_head().status == 101
    socket = follow_frames(socket)
    with first, socket:
        for transport in TRANSPORTS:
            assert not limited.is_accepted(transport, name, "/channels/d")

        def reply(**command):
            socket.send(frame(TEXT, json.dumps({**command, "ref": 1})))
            while (answer := json.loads(socket.read_message())).get("ref") != 1:
                pass
            return answer.get("code", answer["type"])

        assert reply(type="subscribe", channel="d") == "too_many_requests"
        assert limited.refused(per, "subscriptions") == 5
        assert reply(type="unsubscribe", channel="c") == "unsubscribed"
        assert reply(type="subscribe", channel="d") == "subscribed"
        assert reply(type="subscribe", channel="e") == "too_many_requests"
        first.close()
        eventually(lambda: reply(type="subscribe", channel="e") == "subscribed", "room")


def follow_frames(client):
    """The methods of a WebSocket for a connection whose handshake is done."""
    client.__class__ = RawWebSocket
    return client
