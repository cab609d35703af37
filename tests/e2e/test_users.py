"""Messages to one user, on all of that user's devices."""

import pytest

from support.transports import TRANSPORTS, subscribe


@pytest.mark.parametrize("first, second", [("sse", "websocket"), ("stream", "sse")])
def test_two_devices_on_different_transports(server, channel, first, second):
    path = f"/users/{channel}"
    with subscribe(first, server, path) as phone, subscribe(second, server, path) as desk:
        assert server.publish_to_user(channel, "ping")["subscribers"] == 2
        assert phone.take(1) == desk.take(1) == ["ping"]


def test_a_waiting_poll_counts_as_a_device(server, channel):
    path = f"/users/{channel}"
    with subscribe("sse", server, path) as desk, subscribe("poll", server, path) as phone:
        server.publish_to_user(channel, "ping")
        assert phone.take(1) == desk.take(1) == ["ping"]


def test_a_message_to_an_absent_user_has_no_subscribers(server, channel):
    assert server.publish_to_user(channel, "hello?")["subscribers"] == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_absent_user_gets_everything_on_the_next_connection(server, channel, transport):
    path = f"/users/{channel}"
    with subscribe("sse", server, path) as phone:
        server.publish_to_user(channel, "seen")
        id, _ = phone.next()
    for n in range(3):
        server.publish_to_user(channel, f"while away {n}")
    with subscribe(transport, server, path, since=id) as back:
        assert back.recovered is True
        assert back.take(3) == ["while away 0", "while away 1", "while away 2"]


@pytest.mark.parametrize("transport", ["stream", "sse", "websocket"])
def test_a_connection_of_a_user_follows_the_inbox_too(server, channel, transport):
    with subscribe(transport, server, f"/channels/{channel}", user="u-" + channel) as subscriber:
        assert server.publish_to_user("u-" + channel, "private")["subscribers"] == 1
        server.publish(channel, "public")
        assert sorted(subscriber.take(2)) == ["private", "public"]


def test_users_do_not_receive_each_others_messages(server, channel):
    with (
        subscribe("sse", server, f"/users/{channel}-a") as ann,
        subscribe("sse", server, f"/users/{channel}-b") as bo,
    ):
        server.publish_to_user(channel + "-a", "for ann")
        server.publish_to_user(channel + "-b", "for bo")
        assert ann.take(1) == ["for ann"]
        assert bo.take(1) == ["for bo"]
