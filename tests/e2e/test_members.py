"""Members of channels: lists, events, what members show, over upgrades."""

import json
from contextlib import ExitStack

import pytest
import websockets.sync.client
from support import TIMEOUT_SECONDS
from support.access import SECRET, bearer, token
from websockets.exceptions import ConnectionClosed

CONFIG = f"""
[[token-keys]]
secret = '{SECRET}'
[[channels]]
match = "rooms/*"
members = "user"
members-grace = "1s"
[[channels]]
match = "desks/*"
members = "connection"
"""
GRANTS = {name: ["rooms/*", "desks/*"] for name in ("subscribe", "presence")}
UPDATES = {**GRANTS, "update": ["rooms/*", "desks/*"]}
ROOM = "rooms/a"
PATH = "/channels/rooms%2Fa"


@pytest.fixture
def server(upgradable, tmp_path):
    (tmp_path / "throng.toml").write_text(CONFIG)
    return upgradable("--config", "throng.toml")


@pytest.fixture
def member(server):
    """Connects a client of throng.v1 as a user."""
    with ExitStack() as stack:

        def connect(user, grants=GRANTS, **claims):
            headers = bearer(token(sub=user, throng=grants, **claims))
            options = {
                "subprotocols": ["throng.v1"],
                "additional_headers": headers,
                "proxy": None,
            }
            client = websockets.sync.client.connect(f"{server.ws}/subscribe", **options)
            return Member(stack.enter_context(client))

        yield connect


class Member:
    """A client of throng.v1."""

    def __init__(self, socket):
        self.socket = socket
        assert self.next()["type"] == "welcome"

    def next(self):
        return json.loads(self.socket.recv(timeout=TIMEOUT_SECONDS))

    def ask(self, **command):
        """The answer to a command, and the events before it."""
        self.socket.send(json.dumps(command))
        frame, events = self.next(), []
        while frame["type"] == "presence" and "event" in frame:
            events.append(frame)
            frame = self.next()
        return frame, events

    def shown(self, member):
        return member.get("user"), member.get("info")

    def told(self, count):
        """What it is told of members: event, user and info."""
        events = [self.next() for _ in range(count)]
        return [(it["event"], *self.shown(it.get("member", {}))) for it in events]


def members(server, **parameters):
    answer = server.http.get(
        f"{PATH}/presence", params=parameters, headers=bearer(token(throng=GRANTS))
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_members_are_listed_and_told(server, member):
    ann = member("ann", info={"name": "Ann"})
    ann.ask(type="subscribe", channel=ROOM, presence=True)
    assert ann.told(2) == [("join", "ann", {"name": "Ann"}), ("state", None, None)]
    bob = member("bob", UPDATES)
    bob.ask(type="subscribe", channel=ROOM, info={"is": "here"})
    assert ann.told(1) == [("join", "bob", {"is": "here"})]
    answer, _ = bob.ask(type="update", channel=ROOM, info={"is": "away"}, ref=1)
    assert answer == {"type": "updated", "channel": ROOM, "ref": 1}
    assert ann.told(1) == [("update", "bob", {"is": "away"})]
    expected = {
        "channel": ROOM,
        "connections": 2,
        "users": ["ann", "bob"],
        "members": [
            {"user": "ann", "info": {"name": "Ann"}},
            {"user": "bob", "info": {"is": "away"}},
        ],
        "more": False,
    }
    assert members(server) == expected
    first = members(server, limit=1)
    assert (first["next"], first["more"]) == ("ann", True)
    assert members(server, after="ann")["users"] == ["bob"]
    answer, _ = ann.ask(type="presence", channel=ROOM)
    assert answer["members"] == expected["members"]
    bob.socket.close()
    assert ann.told(1) == [("leave", "bob", None)]


def test_an_upgrade_is_no_event(server, member):
    ann, bob = member("ann"), member("bob", UPDATES)
    ann.ask(type="subscribe", channel=ROOM, presence=True)
    assert len(ann.told(2)) == 2
    bob.ask(type="subscribe", channel=ROOM, info={"n": 1})
    assert ann.told(1) == [("join", "bob", {"n": 1})]
    server.upgrade()
    assert members(server)["members"] == [
        {"user": "ann"},
        {"user": "bob", "info": {"n": 1}},
    ]
    bob.ask(type="update", channel=ROOM, info={"n": 2})
    assert ann.told(1) == [("update", "bob", {"n": 2})]
    bob.socket.close()
    assert ann.told(1) == [("leave", "bob", None)]


def test_what_may_not_be_shown_is_refused(server, member):
    ann, bob = member("ann"), member("bob", UPDATES)
    for command in ({"type": "subscribe", "info": {}}, {"type": "update", "info": {}}):
        assert ann.ask(channel=ROOM, **command)[0]["code"] == "forbidden"
    ann.ask(type="subscribe", channel=ROOM, presence=True)
    assert len(ann.told(2)) == 2
    for info, code in (
        [{"x": "x" * 1025}, "too_large"],
        [[], "bad_request"],
        ["ann", "bad_request"],
    ):
        answer, _ = bob.ask(type="subscribe", channel=ROOM, info=info)
        assert answer["code"] == code, info
    with pytest.raises(ConnectionClosed):
        bob.ask(type="subscribe", channel=ROOM, info={"x": "x" * (1 << 20)})
    # A token says who somebody is, and nothing else does.
    eve = member("eve", {**UPDATES, "subscribe": ["rooms/*", {"users": "*"}]})
    eve.ask(type="subscribe", user="bob")
    eve.ask(type="subscribe", channel=ROOM, info={"user": "bob"})
    assert ann.told(1) == [("join", "eve", {"user": "bob"})]
    assert members(server)["users"] == ["ann", "eve"]


def test_events_come_over_server_sent_events_and_long_polls(server, member):
    headers = bearer(token(sub="ann", throng=GRANTS))
    accept = {**headers, "Accept": "text/event-stream"}
    with server.http.stream(
        "GET", PATH, params={"presence": "true"}, headers=accept
    ) as stream:
        lines = (
            line.removeprefix("data: ")
            for line in stream.iter_lines()
            if line.startswith("data: ")
        )
        join, end = (json.loads(next(lines)) for _ in range(2))
        assert (
            join["event"],
            join["member"]["user"],
            end["event"],
            end["members"],
        ) == (
            "join",
            "ann",
            "state",
            1,
        )
        poll = {"wait": "30", "presence": "true"}
        told = server.http.get(PATH, params=poll, headers=headers).text.splitlines()
        assert [json.loads(line)["event"] for line in told] == ["join", "state"]
        bob = member("bob")
        bob.ask(type="subscribe", channel=ROOM)
        poll["presence"] = json.loads(told[-1])["id"]
        told = server.http.get(PATH, params=poll, headers=headers).text.splitlines()
        assert [json.loads(line)["member"]["user"] for line in told] == ["bob"]


def test_each_connection_is_a_member_where_a_rule_says_so(server, member):
    desk = "desks/a"
    ann = member("ann")
    ann.ask(type="subscribe", channel=desk, presence=True)
    own, end = ann.next()["member"], ann.next()
    assert (own["user"], end["event"], end["members"]) == ("ann", "state", 1)
    again = member("ann", UPDATES)
    again.ask(type="subscribe", channel=desk, info={"n": 2})
    second = ann.next()
    assert (second["event"], second["member"]["info"]) == ("join", {"n": 2})
    assert second["member"]["user"] == "ann" and second["member"]["connection"] != own["connection"]
    again.ask(type="update", channel=desk, info={"n": 3})
    assert ann.told(1) == [("update", "ann", {"n": 3})]
    server.upgrade()
    headers = bearer(token(throng=GRANTS))
    page = server.http.get("/channels/desks%2Fa/presence", headers=headers).json()
    assert (page["users"], len(page["members"])) == (["ann"], 2)
    again.socket.close()
    gone = ann.next()
    assert (gone["event"], gone["member"]["connection"]) == ("leave", second["member"]["connection"])


def test_a_user_with_many_connections_joins_and_leaves_once(server, member):
    ann = member("ann")
    ann.ask(type="subscribe", channel=ROOM, presence=True)
    assert len(ann.told(2)) == 2
    many = [member("bob") for _ in range(3)]
    for bob in many:
        bob.ask(type="subscribe", channel=ROOM)
    for bob in many:
        bob.socket.close()
    assert ann.told(2) == [("join", "bob", None), ("leave", "bob", None)]
    cy = member("cy")
    cy.ask(type="subscribe", channel=ROOM)
    assert ann.told(1) == [("join", "cy", None)]
