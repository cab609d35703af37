"""Members of channels of several nodes: each node lists those of all, tells of each once, and knows when it cannot know."""

import contextlib
import json
import shutil
import threading

import pysher
import pytest
from httpx_sse import EventSource
from websockets.sync.client import connect

from support import TIMEOUT_SECONDS
from support.access import SECRET, bearer, server_key, token
from support.doors import Door
from support.nats import QUICK, connected, know_each_other
from support.pusher import APP, Peer, call, settings
from support.server import BINARY, eventually
from support.transports import HttpStream
from support.upgrades import UpgradableServer, is_running
from support.stock import Stock

CONFIG = f"""
[[token-keys]]
secret = '{SECRET}'
[[channels]]
match = "rooms/*"
members = "user"
members-grace = "1s"
"""
GRANTS = {"subscribe": ["rooms/*"], "presence": ["rooms/*"]}
ROOM = "rooms/a"
PATH = "/channels/rooms%2Fa"


@pytest.fixture
def operator(tmp_path):
    """A server key that may see metrics: the headers that show it, and its table."""
    key, table = server_key(tmp_path, "operator", "administration")
    return bearer(key), table


@pytest.fixture
def start(tmp_path, lasting_broker, monkeypatch, operator):
    """Starts nodes of an installation of the test's own, whose file can be replaced, and stops them."""
    if not (tmp_path / "throng.toml").exists():
        (tmp_path / "throng.toml").write_text(CONFIG + operator[1])
    copy = tmp_path / "throng"
    shutil.copy(BINARY, copy)
    monkeypatch.setattr("support.server.BINARY", copy)
    with contextlib.ExitStack() as stack:

        def begin(url=lasting_broker.url):
            prefix = tmp_path.name[-32:].replace(".", "-")
            flags = ["--config", "throng.toml", "--engine", "nats", "--nats", url, "--nats-prefix", prefix]
            server = UpgradableServer(tmp_path, *QUICK, *flags)
            stack.callback(lambda: is_running(server.pid) and server.stop())
            server.http.headers.update(operator[0])
            return connected(server)

        yield begin


class Member(HttpStream):
    """A user that follows the room, and its members if it `watches` them."""

    def __init__(self, server, user, watches=False, **claims):
        headers = bearer(token(sub=user, throng=GRANTS, **claims))
        parameters = {"presence": "true"} if watches else {}
        super().__init__(server, PATH, None, {"envelope": "true", **parameters}, headers)
        self.lines = self.response.iter_lines()
        self.members, self.has_list, self.events = {}, False, []

    def read(self):
        """Takes the next event. After the list nobody joins or leaves twice, and no update says the same again."""
        frame = json.loads(next(line for line in self.lines if line))
        if frame["type"] != "presence":
            return
        event, member = frame["event"], frame.get("member", {})
        user, info = member.get("user"), member.get("info")
        self.events.append((event, user))
        if event == "state":
            self.has_list = True
        elif event in ("partial", "whole"):
            self.events.pop()
        elif not self.has_list:
            # Each has a member's newest, whatever it was.
            self.members.pop(user, None)
            if event != "leave":
                self.members[user] = info
        elif event == "join":
            assert user not in self.members, self.events
            self.members[user] = info
        elif event == "update":
            assert user in self.members and self.members[user] != info, self.events
            self.members[user] = info
        else:
            assert event == "leave" and user in self.members, self.events
            del self.members[user]

    def knows(self, *users):
        """Reads until it knows these members and no others. Returns the events."""
        self.events.clear()
        while not self.has_list or set(self.members) != {*users}:
            self.read()
        return [*self.events]


def listed(server):
    """Answers who is in the room."""
    answer = server.http.get(f"{PATH}/presence", headers=bearer(token(throng=GRANTS)))
    assert answer.status_code == 200, answer.text
    return answer.json()


def eventually_lists(server, *users):
    """Waits until a node lists these members, and knows that they are all."""
    answers = []

    def is_so():
        answers.append(listed(server))
        return answers[-1]["users"] == sorted(users) and "partial" not in answers[-1]

    eventually(is_so, lambda: f"{sorted(users)}: {answers[-1]}\n{server.log()}")
    return answers[-1]


def test_every_node_lists_and_tells_the_members_of_all(start):
    three = know_each_other(start(), start(), start())
    with (
        Member(three[0], "ann", watches=True, info={"name": "Ann"}) as ann,
        Member(three[2], "cy", watches=True) as cy,
    ):
        again = Member(three[1], "ann", info={"name": "Ann"})
        bob = Member(three[1], "bob", info={"name": "Bob"})
        for member in (ann, cy):
            member.knows("ann", "bob", "cy")
            assert member.members == {"ann": {"name": "Ann"}, "bob": {"name": "Bob"}, "cy": None}
        for one in three:
            found = eventually_lists(one, "ann", "bob", "cy")
            assert found["members"][1] == {"user": "bob", "info": {"name": "Bob"}}
            assert found["connections"] == 4
        # She is on another node still.
        again.close()
        bob.close()
        for member in (ann, cy):
            assert member.knows("ann", "cy") == [("leave", "bob")]
        ann.close()
        assert cy.knows("cy") == [("leave", "ann")]
        for one in three:
            eventually_lists(one, "cy")


def test_a_node_that_dies_takes_its_members_with_it(start):
    both = know_each_other(start(), start())
    with Member(both[0], "ann", watches=True) as ann, Member(both[1], "ann"), Member(both[1], "bob"):
        ann.knows("ann", "bob")
        both[1].kill()
        assert ann.knows("ann") == [("leave", "bob")]
        eventually_lists(both[0], "ann")


def test_a_node_that_stops_says_so(start):
    both = know_each_other(start(), start())
    with Member(both[0], "ann", watches=True) as ann, Member(both[1], "bob") as bob:
        ann.knows("ann", "bob")
        both[1].stop()
        # He comes back elsewhere within the grace, or is another one who joins.
        bob.close()
        assert ann.knows("ann") == [("leave", "bob")]
        eventually_lists(both[0], "ann")


def test_a_node_that_is_cut_off_removes_nobody_and_says_so(start, lasting_broker):
    way = Door(lambda: lasting_broker.upstream)
    both = know_each_other(start(), start(way.url))
    with (
        Member(both[1], "ann", watches=True) as ann,
        Member(both[0], "bob"),
        Member(both[0], "cy", watches=True) as cy,
    ):
        ann.knows("ann", "bob", "cy")
        cy.knows("ann", "bob", "cy")
        with way.cut_off():
            eventually(lambda: "partial" in listed(both[1]), "a node that knows that it is cut off")
            # For the other one it is gone.
            assert cy.knows("bob", "cy") == [("leave", "ann")]
            found = listed(both[1])
            assert (found["users"], found["partial"]) == (["ann", "bob", "cy"], True)
            with Member(both[1], "dee", watches=True) as dee:
                dee.knows("ann", "bob", "cy", "dee")
                assert ann.knows("ann", "bob", "cy", "dee") == [("join", "dee")]
                # Its own members come and go.
            assert ann.knows("ann", "bob", "cy") == [("leave", "dee")]
        assert cy.knows("ann", "bob", "cy") == [("join", "ann")]
        for one in both:
            eventually_lists(one, "ann", "bob", "cy")
        # Nobody who was there meanwhile is told of.
        with Member(both[0], "eve"):
            assert ann.knows("ann", "bob", "cy", "eve") == [("join", "eve")]
    way.close()


def over_http(server, headers):
    """The frames of a response that does not end."""
    query = {"envelope": "true", "presence": "true"}
    with HttpStream(server, PATH, None, query, headers) as stream:
        if "Accept" in headers:
            yield from (json.loads(event.data) for event in EventSource(stream.response).iter_sse() if event.data)
        else:
            yield from (json.loads(line) for line in stream.response.iter_lines() if line)


def over_websocket(server, headers):
    """The frames of `throng.v1`."""
    url = f"{server.ws}/subscribe"
    with connect(url, subprotocols=["throng.v1"], additional_headers=headers, proxy=None) as socket:
        socket.send(json.dumps({"type": "subscribe", "channel": ROOM, "presence": True}))
        while True:
            yield json.loads(socket.recv(timeout=TIMEOUT_SECONDS))


def over_polls(server, headers):
    """The lines of long polls, each from the last event on."""
    query = {"envelope": "true", "wait": 1, "presence": "true"}
    while True:
        answer = server.http.get(PATH, params=query, headers=headers)
        assert answer.status_code in (200, 204), answer.text
        query["since"] = answer.headers["Throng-Id"]
        for frame in map(json.loads, filter(None, answer.text.split("\n"))):
            query["presence"] = frame["id"]
            yield frame


SSE = {"Accept": "text/event-stream"}
FOLLOWERS = {
    "stream": over_http,
    "sse": lambda server, headers: over_http(server, SSE | headers),
    "websocket": over_websocket,
    "poll": over_polls,
}


class Follower:
    """Follows the members of the room over a transport, and what it is told of the list as a whole."""

    def __init__(self, transport, server, user):
        frames = FOLLOWERS[transport](server, bearer(token(sub=user, throng=GRANTS)))
        self.frames = (frame for frame in frames if frame["type"] == "presence")
        self.members, self.is_partial = None, None
        self.listed = set()
        # It connects now.
        self.read()

    def read(self):
        """Takes the next event. A difference comes with a list before it, and nobody leaves a partial one."""
        frame = next(self.frames)
        event, user = frame["event"], frame.get("member", {}).get("user")
        if event == "join":
            self.listed.add(user)
        elif event == "leave":
            self.listed.discard(user)
        if event in ("state", "partial", "whole"):
            assert event == "state" or self.members is not None, frame
            self.is_partial = frame.get("partial", False)
            assert (event == "whole") <= (not self.is_partial) and (event == "partial") <= self.is_partial, frame
        if event == "state" or self.members is not None:
            self.members = {*self.listed}

    def until(self, *users, partial):
        """Reads until it knows these members, and whether others may be missing."""
        while (self.members, self.is_partial) != ({*users}, partial):
            self.read()


@pytest.mark.parametrize("transport", FOLLOWERS)
def test_those_who_follow_members_are_told_when_a_node_is_cut_off(start, lasting_broker, transport):
    way = Door(lambda: lasting_broker.upstream)
    both = know_each_other(start(), start(way.url))
    # A channel that somebody follows all the time has room for others while its node is cut off.
    with Member(both[0], "bob") as bob, Member(both[1], "eve"):
        ann, cy = Follower(transport, both[1], "ann"), Follower(transport, both[0], "cy")
        ann.until("ann", "bob", "cy", "eve", partial=False)
        cy.until("ann", "bob", "cy", "eve", partial=False)
        with way.cut_off():
            # Nobody leaves.
            ann.until("ann", "bob", "cy", "eve", partial=True)
            # For the other node it is gone.
            cy.until("bob", "cy", partial=False)
            bob.close()
            cy.until("cy", partial=False)
            with Member(both[1], "dee"):
                ann.until("ann", "bob", "cy", "dee", "eve", partial=True)
        # Who has gone meanwhile leaves before the list is known to be whole.
        ann.until("ann", "cy", "eve", partial=False)
        cy.until("ann", "cy", "eve", partial=False)
    way.close()


def test_an_upgrade_of_a_node_is_no_event(start):
    both = know_each_other(start(), start())
    with (
        Member(both[0], "ann", watches=True, info={"n": 1}) as ann,
        Member(both[1], "bob", watches=True, info={"n": 2}) as bob,
        Member(both[1], "cy"),
    ):
        for one in both:
            ann.knows("ann", "bob", "cy")
            bob.knows("ann", "bob", "cy")
            one.upgrade()
            for other in both:
                found = eventually_lists(other, "ann", "bob", "cy")
                assert [it.get("info") for it in found["members"]] == [{"n": 1}, {"n": 2}, None]
        with Member(both[0], "eve"):
            for member in (ann, bob):
                assert member.knows("ann", "bob", "cy", "eve") == [("join", "eve")]


def test_the_newest_word_of_a_member_counts_on_all_nodes(start):
    both = know_each_other(start(), start())
    with Member(both[0], "bob", watches=True) as bob, Member(both[0], "ann", info={"n": 1}):
        bob.knows("ann", "bob")
        with Member(both[1], "ann", watches=True, info={"n": 2}) as ann:
            for member in (ann, bob):
                while member.members.get("ann") != {"n": 2}:
                    member.read()
        for one in both:
            assert eventually_lists(one, "ann", "bob")["members"][0]["info"] == {"n": 2}


@pytest.fixture
def applications(tmp_path, operator, request):
    """Two nodes with an application of the Pusher protocol."""
    settings(tmp_path, operator[1])
    begin = request.getfixturevalue("start")
    return know_each_other(begin(), begin())


def users(application, room):
    """The users of a presence channel."""
    status, answer = call(application, "GET", f"/apps/1/channels/{room}/users")
    assert status == 200, answer
    return sorted(user["id"] for user in answer["users"])


def test_presence_channels_of_pusher_are_those_of_all_nodes(applications, channel):
    room = f"presence-{channel}"
    peers = [Peer(one) for one in applications]
    peers[0].subscribe(room, member={"user_id": "ann", "user_info": {"n": 1}})
    assert peers[0].next()["event"] == "pusher_internal:subscription_succeeded"
    eventually(lambda: users(applications[1], room) == ["ann"], "ann on the other node")
    peers[1].subscribe(room, member={"user_id": "bob"})
    assert peers[1].next()["event"] == "pusher_internal:subscription_succeeded"
    added = peers[0].next()
    assert added["event"] == "pusher_internal:member_added"
    assert json.loads(added["data"])["user_id"] == "bob"
    for one in applications:
        eventually(lambda one=one: users(one, room) == ["ann", "bob"], "both users")
        answer = call(one, "GET", f"/apps/1/channels/{room}", info="user_count")
        assert answer == (200, {"occupied": True, "user_count": 2})
        answer = call(one, "GET", "/apps/1/channels", info="user_count", filter_by_prefix=room)
        assert answer == (200, {"channels": {room: {"user_count": 2}}})
    peers[1].say("pusher:unsubscribe", {"channel": room})
    removed = peers[0].next()
    assert removed["event"] == "pusher_internal:member_removed"
    assert json.loads(removed["data"])["user_id"] == "bob"
    eventually(lambda: users(applications[1], room) == ["ann"], "ann alone")


def test_stock_clients_on_two_nodes_see_each_other(applications, node, channel):
    room = f"presence-{channel}"
    first, second = (Stock(node("pusher.mjs", "node", one.url, json.dumps(APP))) for one in applications)
    first.connect("ann", "ann")
    second.connect("bob", "bob")
    assert first.follow("ann", room) == [{"ann": {"name": "ann!"}}]
    second.follow("bob", room)
    assert first.wait("ann", "event", room, "pusher:member_added")[0]["id"] == "bob"
    second.tell("bob", "disconnect")
    assert first.wait("ann", "event", room, "pusher:member_removed")[0]["id"] == "bob"


def test_echo_on_two_nodes(applications, node, channel):
    ann, bob = (Stock(node("echo.mjs", "node", one.url, json.dumps(APP))) for one in applications)
    for echo, name in ((ann, "ann"), (bob, "bob")):
        echo.tell(name, "connect")
        echo.tell(name, "private", channel, ".shipped")
        echo.wait(name, "subscribed", channel)
        echo.tell(name, "join", channel)
        echo.wait(name, "here", channel)
    assert ann.wait("ann", "joining", channel) == [{"name": "bob!"}]
    ann.tell("library", "trigger", f"private-{channel}", "shipped", {"n": 1})
    for echo, name in ((ann, "ann"), (bob, "bob")):
        assert echo.wait(name, "heard", channel, ".shipped") == [{"n": 1}]
    ann.tell("ann", "whisper", channel, {"t": 1})
    assert bob.wait("bob", "whisper", channel) == [{"t": 1}]
    bob.tell("bob", "leave", channel)
    assert ann.wait("ann", "leaving", channel) == [{"name": "bob!"}]


def test_pysher_hears_of_members_on_another_node(applications, channel):
    room = f"presence-{channel}"
    joined, added, removed = threading.Event(), threading.Event(), threading.Event()
    client = pysher.Pusher(
        APP["key"],
        custom_host=applications[0].host,
        port=applications[0].port,
        secure=False,
        secret=APP["secret"],
        user_data={"user_id": "py"},
    )

    def begin(_):
        followed = client.subscribe(room)
        followed.bind("pusher_internal:subscription_succeeded", lambda _: joined.set())
        followed.bind("pusher_internal:member_added", lambda _: added.set())
        followed.bind("pusher_internal:member_removed", lambda _: removed.set())

    client.connection.bind("pusher:connection_established", begin)
    client.connect()
    try:
        assert joined.wait(TIMEOUT_SECONDS)
        peer = Peer(applications[1])
        peer.subscribe(room, member={"user_id": "bob"})
        assert peer.next()["event"] == "pusher_internal:subscription_succeeded"
        assert added.wait(TIMEOUT_SECONDS)
        peer.say("pusher:unsubscribe", {"channel": room})
        assert removed.wait(TIMEOUT_SECONDS)
    finally:
        client.disconnect(timeout=0)
