"""Laravel Echo: channels, private and presence channels, whispers, notifications and refusals, as with Reverb."""

import json

import pytest

from conftest import QUICK
from support.access import bearer, server_key
from support.pusher import APP, settings
from support.relay import Relay
from support.server import Server, eventually
from support.stock import Stock

SHIPPED = "App\\Events\\OrderShipped"
NOTIFICATION = "Illuminate\\Notifications\\Events\\BroadcastNotificationCreated"


@pytest.fixture(scope="module")
def application(tmp_path_factory):
    directory = tmp_path_factory.mktemp("echo")
    settings(directory)
    running = Server(directory, *QUICK)
    yield running
    running.stop()


@pytest.fixture(params=["node", "chromium"])
def echo(request, application, node):
    """Laravel Echo in Node or in a page, as a script does what a test tells it."""
    place = "node" if request.param == "node" else request.getfixturevalue("chromium")
    return Stock(node("echo.mjs", place, application.url, json.dumps(APP)))


def trigger(echo, *what):
    echo.tell("library", "trigger", *what)
    assert echo.wait("library") == [200]


def test_events_reach_echo_by_their_class(echo, channel):
    echo.tell("ann", "connect")
    echo.tell("ann", "channel", channel, "OrderShipped")
    echo.wait("ann", "subscribed", channel)
    trigger(echo, channel, SHIPPED, {"order": 7})
    assert echo.wait("ann", "heard", channel, "OrderShipped") == [{"order": 7}]


def test_others_alone_get_what_goes_to_others(echo, channel):
    for name in ("ann", "bob"):
        echo.tell(name, "connect")
        echo.tell(name, "private", channel, ".shipped")
        echo.wait(name, "subscribed", channel)
    echo.tell("ann", "socket")
    (socket,) = echo.wait("ann", "socket")
    name = f"private-{channel}"
    trigger(echo, name, "shipped", {"n": 1}, {"socket_id": socket})
    trigger(echo, name, "shipped", {"n": 2})
    assert echo.wait("bob", "heard", channel, ".shipped") == [{"n": 1}]
    assert echo.wait("ann", "heard", channel, ".shipped") == [{"n": 2}]
    echo.tell("ann", "whisper", channel, {"typing": True})
    assert echo.wait("bob", "whisper", channel) == [{"typing": True}]
    trigger(echo, name, NOTIFICATION, {"id": "1", "text": "hello"})
    assert echo.wait("ann", "notification", channel) == [{"id": "1", "text": "hello"}]


def test_presence_channels_say_who_is_here(echo, channel):
    for name in ("ann", "bob"):
        echo.tell(name, "connect")
    echo.tell("ann", "join", channel)
    assert echo.wait("ann", "here", channel) == [[{"name": "ann!"}]]
    echo.tell("bob", "join", channel)
    (here,) = echo.wait("bob", "here", channel)
    assert sorted(user["name"] for user in here) == ["ann!", "bob!"]
    assert echo.wait("ann", "joining", channel) == [{"name": "bob!"}]
    echo.tell("bob", "leave", channel)
    assert echo.wait("ann", "leaving", channel) == [{"name": "bob!"}]


def test_a_refusal_says_which_channel_and_why(echo):
    echo.tell("ann", "connect")
    for name, status in (("forbidden", 403), ("forged", 401)):
        echo.tell("ann", "private", name, "x")
        assert echo.wait("ann", "error", name) == [status]


def in_node(node, server):
    """Laravel Echo in Node, by way of a server or a relay."""
    return Stock(node("echo.mjs", "node", server.url, json.dumps(APP)))


def join(echo, name, room):
    """Joins a presence channel: the names of all who are there."""
    echo.tell(name, "connect")
    echo.tell(name, "join", room)
    return sorted(user["name"] for user in echo.wait(name, "here", room)[0])


def test_echo_comes_back_after_a_restart(tmp_path, node):
    settings(tmp_path)
    server = Server(tmp_path, *QUICK)
    echo = in_node(node, server)
    assert join(echo, "ann", "room") == ["ann!"]
    echo.tell("ann", "private", "a", ".shipped")
    echo.wait("ann", "subscribed", "a")
    server.stop()
    server = Server(tmp_path, *QUICK, port=server.port)
    echo.wait("ann", "subscribed", "a")
    assert echo.wait("ann", "here", "room") == [[{"name": "ann!"}]]
    trigger(echo, "private-a", "shipped", {"n": 1})
    assert echo.wait("ann", "heard", "a", ".shipped") == [{"n": 1}]
    server.stop()


def test_an_upgrade_keeps_echo(tmp_path, upgradable, node):
    settings(tmp_path)
    server = upgradable()
    echo = in_node(node, server)
    assert join(echo, "ann", "room") == ["ann!"]
    echo.tell("ann", "private", "a", ".shipped")
    echo.wait("ann", "subscribed", "a")
    server.upgrade()
    trigger(echo, "private-a", "shipped", {"n": 1})
    assert echo.wait("ann", "heard", "a", ".shipped") == [{"n": 1}]
    # It is still a member, and its subscriptions are those of before.
    assert join(echo, "bob", "room") == ["ann!", "bob!"]
    assert echo.wait("ann", "joining", "room") == [{"name": "bob!"}]
    assert ["ann", "subscribed", "a"] not in echo.lines


def test_echo_goes_on_after_a_cut(tmp_path, serve, node):
    key, table = server_key(tmp_path, "operator", "administration")
    settings(tmp_path, table)
    with (tmp_path / "throng.toml").open("a") as file:
        file.write('[[channels]]\nmatch = "shop/presence-*"\nresume = "at-least-once"\n')
    server = serve()
    server.http.headers.update(bearer(key))
    with Relay(server) as relay:
        echo, publisher = in_node(node, relay), in_node(node, server)
        assert join(echo, "ann", "room") == ["ann!"]
        echo.tell("ann", "listen", "room", ".shipped")
        trigger(publisher, "presence-room", "shipped", {"n": 1})
        assert echo.wait("ann", "heard", "room", ".shipped") == [{"n": 1}]
        with relay.closed():
            relay.cut()
            eventually(lambda: server.metrics()["throng_bookmarks_left_total"] == 1, "a bookmark")
            trigger(publisher, "presence-room", "shipped", {"n": 2})
        # What it has not confirmed comes again.
        while echo.wait("ann", "heard", "room", ".shipped") != [{"n": 2}]:
            pass
        assert server.metrics()['throng_bookmarks_ended_total{outcome="taken"}'] == 1
