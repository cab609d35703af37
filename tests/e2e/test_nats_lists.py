"""Lists over several nodes: of channels, of users, and of connections that are behind."""

import re
from contextlib import ExitStack

import pytest

from support.access import SECRET, bearer, server_key
from support.lists import names
from support.nats import connected, know_each_other, user_of_the_guide
from support.raw import RawWebSocket
from support.server import eventually
from support.transports import subscribe

# A message of which few fill the buffers of a reader with the smallest window.
PIECE, PIECES = "x" * 16_000, 60


def page(one, path="/channels", **parameters):
    answer = one.http.get(path, params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_each_node_lists_what_is_followed_on_any(own_node):
    three = know_each_other(own_node(), own_node(), own_node())
    with ExitStack() as stack:
        for number in range(30):
            # Every third one is followed on two nodes.
            for one in {three[number % 3], three[0] if number % 3 == 2 else three[number % 3]}:
                path = f"/channels/rooms%2F{number}"
                stack.enter_context(subscribe("sse", one, path, user=f"u{number % 5}"))
        expected = sorted(f"rooms/{number}" for number in range(30))
        for one in three:
            assert names(one, "/channels") == expected
            assert names(one, "/channels", limit=7) == expected
            assert names(one, "/channels", pattern="rooms/1*", limit=3) == [
                name for name in expected if name.startswith("rooms/1")
            ]
            assert names(one, "/users") == [f"u{number}" for number in range(5)]
        id = three[1].publish("rooms/2", "x")["id"]
        # Pages of one list may be asked of different nodes.
        after, entries = {}, []
        for turn in range(100):
            found = page(three[turn % 3], limit=4, **after)
            entries += found["channels"]
            if not found["more"]:
                break
            after = {"after": found["after"]}
        assert sorted(entry["channel"] for entry in entries) == expected
        assert all("partial" not in page(one) for one in three)
        both = {entry["channel"]: entry for entry in entries}["rooms/2"]
        assert both == {"channel": "rooms/2", "subscribers": 2, "id": id, "messages": 1}
        refused = three[0].http.get("/channels", params={"after": "7"})
        assert (refused.status_code, refused.json()["error"]) == (400, "bad_parameter")


# Channels of a node's own beside those in the stream.
LOCAL = """
[[channels]]
match = "memory/*"
journal = "memory"
local = true

[[channels]]
match = "disk/*"
journal = "disk"
local = true

[[channels]]
match = "short/*"
messages = 2
"""


@pytest.fixture
def place(tmp_path, own_node):
    """Starts nodes with channels of their own, each with a data directory."""
    (tmp_path / "throng.toml").write_text(LOCAL)
    return lambda name: own_node("--data", str(tmp_path / name))


def entries(one, path="/channels", **parameters):
    """The entries on all pages of a list, of which nothing is missing."""
    found, after = [], {}
    while after is not None:
        listed = page(one, path, **parameters, **after)
        assert "partial" not in listed
        found += listed[path[1:]]
        after = {"after": listed["after"]} if listed["more"] else None
    return sorted(found, key=lambda entry: entry[path[1:-1]])


def test_each_node_lists_what_has_messages_anywhere(place):
    three = know_each_other(*(place(name) for name in "abc"))
    ids = {}
    for number in range(60):
        name = f"rooms/{number}"
        ids[name] = three[number % 3].publish(name, "x")["id"]
    for number in range(4):
        ids["short/1"] = three[number % 3].publish("short/1", str(number))["id"]
    for number, one in enumerate(three):
        one.publish(f"memory/{number}", "x")
        one.publish("memory/all", "x")
        one.publish(f"disk/{number}", "x")
        one.http.post(f"/users/u{number}", content="x").raise_for_status()
    own = sorted(f"{kind}/{of}" for kind in ("memory", "disk") for of in range(3))
    expected = sorted([*ids, *own, "memory/all"])
    with subscribe("sse", three[1], "/channels/rooms%2F7"):
        for one in three:
            assert names(one, "/channels", limit=17) == expected
            assert names(one, "/channels", pattern="*/1") == ["disk/1", "memory/1", "rooms/1", "short/1"]
            assert names(one, "/users") == ["u0", "u1", "u2"]
            found = {entry["channel"]: entry for entry in entries(one)}
            followed = {"channel": "rooms/7", "subscribers": 1, "id": ids["rooms/7"], "messages": 1}
            assert found["rooms/7"] == followed
            assert (found["short/1"]["id"], found["short/1"]["messages"]) == (ids["short/1"], 2)
            assert all(found[name]["id"] == id for name, id in ids.items())
            assert found["memory/all"]["messages"] == 3
            assert {name for name, entry in found.items() if entry.get("local")} == {*own, "memory/all"}
        # What comes while a list is read does not hide what was there.
        first = page(three[0], limit=30)
        three[1].publish("new", "x")
        rest = page(three[2], after=first["after"], limit=100)
        assert not rest["more"]
        listed = [entry["channel"] for entry in first["channels"] + rest["channels"]]
        assert sorted(name for name in listed if name != "new") == expected
        assert "new" in names(three[0], "/channels")
    # Nobody follows anything, and no process has seen a message.
    for one in three:
        one.stop()
    again = know_each_other(*(place(name) for name in "abc"))
    expected = sorted([*ids, "new", *(f"disk/{number}" for number in range(3))])
    for one in again:
        assert names(one, "/channels", limit=17) == expected
        found = {entry["channel"]: entry for entry in entries(one, limit=25)}
        assert all(found[name]["id"] == id for name, id in ids.items())
        assert (found["rooms/7"]["messages"], found["short/1"]["messages"]) == (1, 2)


def test_a_list_without_nats_is_partial_and_has_what_the_node_has(tmp_path, broker, start_node):
    (tmp_path / "throng.toml").write_text(LOCAL)
    one = connected(start_node(broker, "--data", str(tmp_path / "data")))
    for name in ("rooms/1", "memory/1", "disk/1"):
        one.publish(name, "x")
    assert names(one, "/channels") == ["disk/1", "memory/1", "rooms/1"]
    with broker.cut_off():
        eventually(lambda: page(one).get("partial"), "nothing is known of the stream")
        assert names(one, "/channels") == ["disk/1", "memory/1"]
    connected(one)
    eventually(lambda: "partial" not in page(one), "all is known again")
    assert names(one, "/channels") == ["disk/1", "memory/1", "rooms/1"]


def test_a_list_without_the_permission_for_it_is_partial(tmp_path, strict_broker, start_node):
    user = user_of_the_guide()
    one = connected(start_node(strict_broker, "--nats-login", str(tmp_path / "login")))
    one.publish("rooms/1", "x")
    assert [entry["channel"] for entry in entries(one)] == ["rooms/1"]
    denied = re.sub(r"\$JS.API.CONSUMER.[A-Z.]*", "none.", user)
    assert denied != user
    strict_broker.reload(f"authorization {{ users: [ {denied} ] }}")
    with subscribe("sse", connected(one), "/channels/rooms%2F2"):
        eventually(lambda: page(one).get("partial"), "it may not")
        assert names(one, "/channels") == ["rooms/2"]
        assert "$JS.API.CONSUMER." in one.log()


def test_a_list_says_that_a_frozen_node_is_missing(own_node):
    both = know_each_other(own_node(), own_node())
    with subscribe("sse", both[0], "/channels/a"), subscribe("sse", both[1], "/channels/b"):
        assert names(both[0], "/channels") == ["a", "b"]
        with both[1].frozen():
            found = page(both[0])
            listed = [entry["channel"] for entry in found["channels"]]
            assert (listed, found["partial"]) == (["a"], True)
        eventually(lambda: names(both[0], "/channels") == ["a", "b"], "the other node's part")
        both[1].stop()
        eventually(lambda: "partial" not in page(both[0]), "a list without the node")


def test_a_key_sees_on_all_nodes_what_it_is_for(tmp_path, own_node):
    key, table = server_key(tmp_path, "rooms", "listing", channels=["rooms/*"])
    keys = f"[[token-keys]]\nsecret = '{SECRET}'\n{table}"
    (tmp_path / "throng.toml").write_text(f"[access]\nsubscribe = 'anyone'\n{keys}")
    both = [own_node(), own_node()]
    with ExitStack() as stack:
        for number, one in enumerate(both * 5):
            for kind in ("rooms", "others"):
                stack.enter_context(subscribe("sse", one, f"/channels/{kind}%2F{number}"))
        expected = sorted(f"rooms/{number}" for number in range(10))
        for one in both:
            assert names(one, "/channels", key, limit=3) == expected
            found = one.http.get("/channels", params={"limit": 3}, headers=bearer(key)).json()
            assert len(found["channels"]) == 3


def test_connections_of_all_nodes_that_are_behind_are_listed(own_node, channel):
    room = ("--max-lag-messages", "10k", "--max-lag-bytes", "64MiB")
    both = know_each_other(own_node(*room), own_node(*room))
    with ExitStack() as stack:
        for one in both:
            path = f"/subscribe?channel={channel}&user=ann"
            slow = RawWebSocket(one, path, "throng.v1", receive_buffer_bytes=4096)
            stack.enter_context(slow)
        for _ in range(PIECES):
            both[0].publish(channel, PIECE)

        def behind(one, **parameters):
            return page(one, "/connections", sort="behind", **parameters)

        for one in both:
            eventually(lambda one=one: behind(one)["count"] == 2, "both slow connections")
            found = behind(one)
            assert "partial" not in found and not found["more"]
            assert {entry["user"] for entry in found["connections"]} == {"ann"}
            assert all(entry["channels"] == [channel] for entry in found["connections"])
            held = [entry["bytes"] + entry["kernel_bytes"] for entry in found["connections"]]
            assert held == sorted(held, reverse=True)
            cut = behind(one, limit=1)
            assert (cut["count"], len(cut["connections"]), cut["more"]) == (2, 1, True)
