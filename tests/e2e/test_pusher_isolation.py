"""A channel of one application does not exist for another: over every endpoint of the HTTP API, every transport, and the
Pusher protocol, a name that is there gets the same answer as one that is not."""

import json
import re
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

from conftest import QUICK
from support.access import SECRET, bearer, server_key, token
from support.pusher import APP, OTHER, OTHER_PREFIX, PREFIX, Peer, call, settings, table
from support.raw import TEXT, Raw, RawWebSocket, frame, handshake_headers
from support.server import Server

OPENAPI = json.loads((Path(__file__).parents[2] / "docs/reference/openapi.json").read_text())
METHODS = ("get", "put", "post", "delete", "patch")
SCOPES = ("publish", "subscribe", "history", "presence", "erase", "edit", "state", "end", "update", "create", "listing")
SCOPES += ("subscriptions",)
MARK = "a-secret-of-the-shop"
TOKEN_SECRET = "the mall signs tokens of its own with this"
TOKENS = f'token-secret = "{TOKEN_SECRET}"'
STRANGERS = ["a key of the other", "a token of the other", "a token that the other has signed", "nothing"]
# What there is in the shop, and names that nothing has there.
THERE = {"channel": PREFIX + "private-there", "user": PREFIX + "ann"}
NOT_THERE = {"channel": PREFIX + "private-nowhere", "user": PREFIX + "zoe"}
PLACES = {name: re.compile(re.escape(name)) for name in [*THERE.values(), *NOT_THERE.values()]}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A server with two applications. The first has messages, a state, members, users and connections."""
    directory = tmp_path_factory.mktemp("isolation")
    owner = settings(directory)
    own, own_table = server_key(directory, "owner", *SCOPES, "administration")
    mall = f"{OTHER_PREFIX}*"
    other, other_table = server_key(directory, "mall", *SCOPES, channels=[mall], users=[mall])
    path = directory / "throng.toml"
    token_key = f"[[token-keys]]\nsecret = '{SECRET}'\n"
    path.write_text("\n".join([path.read_text(), own_table, other_table, token_key, table(OTHER, OTHER_PREFIX, TOKENS)]))
    server = Server(directory, *QUICK)
    yield World(server, bearer(own), owner, other)
    server.stop()


def token_of_other():
    """A token by the secret of the other application, which grants everything."""
    everything = {right: ["*", {"users": "*"}] for right in SCOPES if right not in ("listing", "subscriptions")}
    return token(TOKEN_SECRET, headers={"kid": OTHER["key"]}, sub=OTHER_PREFIX + "ann", throng=everything)


class World:
    def __init__(self, server, owner, _, other):
        self.server, self.owner = server, owner
        everything = {right: [f"{OTHER_PREFIX}*"] for right in ("subscribe", "publish", "history", "presence")}
        self.strangers = {
            "a key of the other": bearer(other),
            "a token of the other": bearer(token(sub=OTHER_PREFIX + "ann", throng=everything)),
            "a token that the other has signed": bearer(token_of_other()),
            "nothing": {},
        }
        self.peer = Peer(server)
        self.peer.sign_in("ann")
        self.peer.subscribe("private-there")
        self.peer.subscribe("presence-there", {"user_id": "ann", "user_info": {"mark": MARK}})
        for _ in range(3):
            self.peer.next()
        events = ("/channels/{channel}", "/users/{user}")
        self.ids = [self.ask("post", path, THERE, owner, MARK.encode()).json()["id"] for path in events]
        self.ask("put", "/channels/{channel}/state/{key}", THERE, owner, MARK.encode())
        put = self.ask("put", "/users/{user}/subscriptions", THERE, owner, b'{"channels":["shop/kept"]}')
        assert put.status_code < 300, put.text
        assert [self.peer.next()["data"] for _ in range(2)] == [MARK, MARK]

    def ask(self, method, path, names, headers, body=b""):
        values = {"key": "a", "id": "k3v9x2-1", "connection": "00000000000000ab", "version": "0", **names}
        path = re.sub(r"\{(\w+)\}", lambda found: quote(values[found[1]], safe=""), path)
        headers = {"Content-Type": "application/json", **headers} if body[:1] in (b"{", b"[") else headers
        return self.server.http.request(method, path, headers=headers, content=body)


def shown(answer):
    """The answer without the names that it repeats, and without what differs from one request to the next."""
    text = answer.text
    for pattern in PLACES.values():
        text = pattern.sub("NAME", text)
    return answer.status_code, re.sub(r'"time":\d+', "", text)


def operations(has_name):
    for path, item in OPENAPI["paths"].items():
        is_named = "{channel}" in path or "{user}" in path
        for method in (method for method in METHODS if method in item):
            if is_named == has_name:
                yield method, path


def body_of(method, path, names):
    """A body that would do something, were it allowed."""
    if path.endswith("/subscriptions") and method in ("put", "post"):
        return b'{"channels":["mall/a"]}'
    if path.endswith("/read") and method == "put":
        return b'{"id":"k3v9x2-1"}'
    return b"x" if method in ("put", "post") else b""


@pytest.mark.parametrize("stranger", STRANGERS)
def test_no_endpoint_tells_a_channel_from_none(world, stranger):
    headers, wrong = world.strangers[stranger], []
    for method, path in operations(has_name=True):
        if path.startswith("/revocations"):
            continue  # Those are for the operator, whose key is confined to no names.
        for wait in ({}, {"Prefer": "wait=0"}) if method == "get" else ({},):
            answers = [
                world.ask(method, path, names, {**headers, **wait}, body_of(method, path, names))
                for names in (THERE, NOT_THERE)
            ]
            there, not_there = map(shown, answers)
            if there != not_there or there[0] < 400 or MARK in answers[0].text:
                wrong.append((method, path, there, not_there))
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("stranger", STRANGERS)
def test_no_list_has_what_belongs_to_another(world, stranger):
    headers, wrong = world.strangers[stranger], []
    for method, path in operations(has_name=False):
        if path in ("/status/stream", "/subscribe") or method in ("put", "delete", "patch"):
            continue
        answer = world.ask(method, path, {}, headers, body_of(method, path, {}))
        body = "" if "{" in path or "javascript" in answer.headers.get("content-type", "") else answer.text
        if MARK in body or PREFIX in body:
            wrong.append((method, path, answer.status_code, body[:200]))
    assert not wrong, wrong


@pytest.mark.parametrize("query", ["channel={channel}", "user={user}", "channel=mall%2Fa&channel={channel}"])
@pytest.mark.parametrize("transport", ["websocket", "throng.v1", "sse", "stream", "poll"])
def test_no_transport_tells_a_channel_from_none(world, transport, query):
    for stranger, headers in world.strangers.items():
        answers = []
        for names in (THERE, NOT_THERE):
            path = "/subscribe?" + re.sub(r"\{(\w+)\}", lambda found: quote(names[found[1]], safe=""), query)
            with Raw(world.server) as raw:
                if transport in ("websocket", "throng.v1"):
                    protocol = {"Sec_WebSocket_Protocol": transport} if transport == "throng.v1" else {}
                    raw.request("GET", path, {**handshake_headers(**protocol), **headers})
                else:
                    accept = {"sse": {"Accept": "text/event-stream"}, "poll": {"Prefer": "wait=1"}}
                    raw.request("GET", path, {**headers, **accept.get(transport, {})})
                answer = raw.read_response()
                # A WebSocket learns why by a close frame.
                is_open = answer.status == 101
                body = (raw.read_to_end() if is_open else answer.body).decode("latin-1")
                for pattern in PLACES.values():
                    body = pattern.sub("NAME", body)
                # Without the length of the close frame, which has the name.
                answers.append((answer.status, body[2:] if is_open else body))
        assert answers[0] == answers[1] and answers[0][0] in (101, 401, 403), (stranger, answers)


def test_no_command_tells_a_channel_from_none(world):
    """Commands of a connection that stands, with a token of the other application."""
    bearer_of = world.strangers["a token of the other"]["Authorization"].split()[1]
    path = "/subscribe?channel=mall%2Fa&token=" + bearer_of
    with closing(RawWebSocket(world.server, path, "throng.v1")) as client:
        while b'"subscribed"' not in client.read_message():
            pass
        for command in ("subscribe", "publish", "history", "presence", "state"):
            answers = []
            for names in (THERE, NOT_THERE):
                said = {"type": command, "channel": names["channel"], "data": "x", "ref": 1}
                client.send(frame(TEXT, json.dumps(said)))
                answer = json.loads(client.read_message())
                assert answer["type"] == "error", answer
                answers.append(answer | {"channel": None, "message": answer["message"].replace(names["channel"], "")})
            assert answers[0] == answers[1], answers


def test_the_pusher_protocol_has_no_name_of_another(world):
    peer = Peer(world.server, app=OTHER)
    # Names have no slash, so that none of another application can be said.
    for name in (THERE["channel"], "../" + THERE["channel"], "shop%2Fprivate-there", "#server-to-user-shop/../ann"):
        peer.subscribe(name)
        assert peer.next()["event"] == "pusher:subscription_error"
        peer.next()
    for channel in ("private-there", "presence-there"):
        member = {"user_id": "eve"} if channel.startswith("presence") else None
        peer.subscribe(channel, member)
        frame = peer.next()
        assert frame["event"] == "pusher_internal:subscription_succeeded" and MARK not in json.dumps(frame)
        assert "ann" not in frame["data"]
    peer.say("client-x", {"from": "the mall"}, "private-there")
    body = {"name": "ev", "channels": ["private-there", "presence-there", "#server-to-user-ann"], "data": "x"}
    assert call(world.server, "POST", "/apps/2/events", body, app=OTHER) == (200, {})
    assert [peer.next()["event"] for _ in range(2)] == ["ev", "ev"]
    assert world.peer.is_well(), "the shop has heard nothing"
    before = world.server.http.get("/channels/shop%2Fprivate-there/history", headers=world.owner).json()
    assert [message["data"] for message in before["messages"]] == [MARK, MARK]


def test_the_http_api_has_no_name_of_another(world):
    mall = {"app": OTHER}
    channels = call(world.server, "GET", "/apps/2/channels", **mall)[1]["channels"]
    assert not [name for name in channels if "shop" in name]
    for name in ("private-elsewhere", quote(THERE["channel"], safe="")):
        status, answer = call(world.server, "GET", f"/apps/2/channels/{name}", **mall)
        assert (status, answer.get("occupied")) in ((200, False), (400, None)), (name, answer)
    for method, path, body in (
        ("GET", "/apps/1/channels", None),
        ("GET", "/apps/1/channels/private-there", None),
        ("GET", "/apps/1/channels/presence-there/users", None),
        ("POST", "/apps/1/events", {"name": "ev", "channels": ["private-there"], "data": "x"}),
        ("POST", "/apps/1/batch_events", {"batch": [{"name": "ev", "channel": "private-there", "data": "x"}]}),
        ("POST", "/apps/1/users/ann/terminate_connections", {}),
    ):
        there = call(world.server, method, path, body, **mall)
        nowhere = call(world.server, method, path.replace("there", "nowhere"), body, **mall)
        assert there == nowhere and there[0] == 401, (path, there)
    # The user of the same name is another one.
    ended = call(world.server, "POST", "/users/ann/terminate_connections", {}, **mall)
    assert ended == (200, {}) and world.peer.is_well()
    assert call(world.server, "GET", "/apps/1/channels/private-there")[1]["occupied"]
    assert APP["id"] != OTHER["id"]
