"""Forged tokens count against their address, on every transport; with tokens that PyJWT makes."""

import json
import struct
from functools import cache

import pytest

from support.access import SECRET, bearer, server_key, token
from support.raw import CLOSE, TEXT, Raw, RawWebSocket, frame, handshake_headers
from support.server import eventually

REFUSED = 'throng_limits_refused_total{per="address",limit="bad_tokens"}'
GRANTS = {"subscribe": ["*"], "publish": ["*"], "history": ["*"]}
HERE, ELSEWHERE = "127.0.0.2", "127.0.0.3"
PATH = "/channels/a"


class Limited:
    """A server that verifies few bad tokens of an address."""

    def __init__(self, serve, directory, *flags):
        self.operator, operator = server_key(directory, "operator", "administration")
        (directory / "throng.toml").write_text(f"[[token-keys]]\nsecret = '{SECRET}'\n" + operator)
        self.server = serve("--bad-token-rate-per-address", 2, *flags)

    def refused(self):
        text = self.server.http.get("/metrics", headers=bearer(self.operator)).text
        lines = (line for line in text.splitlines() if line.startswith(REFUSED))
        return int(next(lines)[len(REFUSED):])


@pytest.fixture
def limited(serve, tmp_path):
    return Limited(serve, tmp_path)


@cache
def good(number):
    """The same token each time."""
    return token(throng=GRANTS, jti=f"good-{number}")


def forged():
    return token(SECRET[::-1], throng=GRANTS)


def outcome(status, code, retry_after):
    """What a status says: whether the token was accepted, refused or not verified."""
    if status == 429:
        assert code == "too_many_requests" and 1 <= int(retry_after) <= 5
        return "limited"
    return {200: "accepted", 201: "accepted", 204: "accepted", 401: "refused"}[status]


def by_http(method, path, body=b""):
    def attempt(server, source, shown):
        with Raw(server, source=source) as client:
            client.request(method, path, {**bearer(shown), "Connection": "close"}, body)
            head = client.read_head()
            code = None
            if head.status >= 400:
                code = json.loads(client.read(int(head.header("content-length"))))["error"]
            return outcome(head.status, code, head.header("retry-after"))

    return attempt


def by_sse(server, source, shown):
    with Raw(server, source=source) as client:
        client.request("GET", PATH, {**bearer(shown), "Accept": "text/event-stream"})
        head = client.read_head()
        # An event stream that the client may ask for again has a time, and its end.
        if head.status == 200 and head.header("content-length"):
            body = client.read_to_end()
            assert body.startswith(b": too_many_requests") and b"\nretry: " in body, body
            return "limited"
        return outcome(head.status, None, None)


def by_websocket(server, source, shown):
    with Raw(server, source=source) as client:
        protocol = f"throng.plain, throng.token.{shown}"
        client.request("GET", PATH, handshake_headers(**{"Sec-WebSocket-Protocol": protocol}))
        assert client.read_head().status == 101
        client.send_anyway(frame(TEXT, "still there?"))
        first = client.read(2)
        if first[0] & 0x0F != CLOSE:
            return "accepted"
        payload = client.read(first[1])
        code, reason = struct.unpack(">H", payload[:2])[0], payload[2:].decode()
        assert (code == 4006) == reason.startswith("reconnect in "), (code, reason)
        return {4003: "refused", 4004: "refused", 4006: "limited"}[code]


def by_command(server, source, shown):
    protocol = f"throng.v1, throng.token.{good(0)}"
    with RawWebSocket(server, PATH, protocol, source=source) as socket:
        socket.send(frame(TEXT, json.dumps({"type": "auth", "token": shown, "ref": 1})))
        while (answer := json.loads(socket.read_message())).get("ref") != 1:
            pass
        if answer["type"] == "authenticated":
            return "accepted"
        return {"invalid_token": "refused", "too_many_requests": "limited"}[answer["code"]]


TRANSPORTS = {
    "stream": by_http("GET", PATH),
    "poll": by_http("GET", PATH + "?wait=0"),
    "sse": by_sse,
    "websocket": by_websocket,
    "throng.v1": by_command,
    "publish": by_http("POST", PATH, b"x"),
    "history": by_http("GET", PATH + "/history"),
}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_beyond_the_limit_only_tokens_that_were_verified_before_count(limited, transport):
    attempt, server = TRANSPORTS[transport], limited.server
    known = good(0)
    assert attempt(server, ELSEWHERE, known) == "accepted"
    outcomes = []

    def is_limited(shown):
        outcomes.append(attempt(server, HERE, shown))
        return outcomes[-1] == "limited"

    assert attempt(server, HERE, forged()) == "refused"
    eventually(lambda: is_limited(forged()), "the limit")
    assert set(outcomes) <= {"refused", "limited"}
    assert attempt(server, HERE, known) == "accepted", "another client behind the same address"
    assert attempt(server, ELSEWHERE, forged()) == "refused"
    # A good token that nobody has shown yet is not verified either. On a slow machine there is
    # room again: then the next one.
    eventually(
        lambda: is_limited(forged()) and is_limited(good(len(outcomes))), "an unverified good token"
    )
    assert limited.refused() == outcomes.count("limited")


def test_behind_a_proxy_the_address_is_the_clients(serve, tmp_path):
    flags = ["--client-address-header", "x-forwarded-for", "--trusted-proxies", "127.0.0.1"]
    server = Limited(serve, tmp_path, *flags).server

    def status(method, client, shown):
        headers = bearer(shown) | ({"X-Forwarded-For": client} if client else {})
        with Raw(server) as raw:
            raw.request(method, PATH, headers, b"x" if method == "POST" else b"")
            return raw.read_head().status

    for method in ("GET", "POST"):
        client, other = f"203.0.113.{len(method)}", "203.0.113.99"
        eventually(lambda: status(method, client, forged()) == 429, "the limit")
        assert status(method, other, forged()) == 401
        # Of the proxy's own there is none.
        assert {status(method, None, forged()) for _ in range(10)} == {401}


def test_on_loopback_there_is_no_limit_by_default(serve, tmp_path):
    (tmp_path / "throng.toml").write_text(f"[[token-keys]]\nsecret = '{SECRET}'\n")
    server = serve()
    assert {by_http("GET", PATH)(server, HERE, forged()) for _ in range(30)} == {"refused"}


def test_failed_logins_count_for_the_client_behind_the_proxy(serve, tmp_path):
    flags = ["--client-address-header", "x-forwarded-for", "--trusted-proxies", "127.0.0.1"]
    limited = Limited(serve, tmp_path, *flags)

    def status(client, key):
        headers = {"Origin": limited.server.url, "X-Forwarded-For": client}
        return limited.server.http.post("/status/login", data={"key": key}, headers=headers).status_code

    eventually(lambda: status("203.0.113.1", "no key") == 429, "the limit of failed logins")
    assert status("203.0.113.2", limited.operator) == 303
