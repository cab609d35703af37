"""Laravel Echo: channels, private and presence channels, whispers, notifications and refusals, as with Reverb."""

import json

import pytest

from conftest import QUICK
from support.pusher import APP, settings
from support.server import Server
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
