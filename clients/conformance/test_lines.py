"""Slow and dying lines: messages arrive soon, over a transport that works, and clients come back to
WebSockets."""

import pytest
from lines import Line, LineProxy

TRANSPORTS = ["websocket", "sse", "poll"]
LESSER = TRANSPORTS[1:]
# Short times, so that attempts fail soon; delays between attempts are small.
HASTY = {"random": 0.1, "transports": TRANSPORTS, "open_timeout_ms": 1_000}


@pytest.fixture
def line_proxy(loop, server):
    """A proxy whose lines are given by transport."""
    made = []

    def start(delay=0.0, **lines):
        made.append(LineProxy(loop, server, delay, **lines))
        return made[-1]

    yield start
    for each in made:
        each.close()


def is_open_over(*transports):
    def matches(event):
        is_open = event["event"] == "state" and event["state"] == "open"
        return is_open and event["transport"] in transports

    return matches


def check_messages(client, server, channel, count=5):
    """Messages published from now on arrive after the earlier ones, each once and in order."""
    have = len(client.all("message"))
    for number in range(have, have + count):
        server.publish(channel, f"number {number}")
    client.until_all("message", have + count)
    expected = [f"number {number}" for number in range(have + count)]
    assert [each["data"] for each in client.all("message")] == expected
    assert not client.all("gap") and not client.all("error")


def followed(connect, through, server, channel, **options):
    """A client that follows the channel from a message on that it does not get."""
    since = server.publish(channel, "before")["id"]
    client = connect(through.url, **{**HASTY, **options})
    client.tell("subscribe", channels=[channel], since=since)
    return client


def until_it_is_back(client, through):
    """Cuts the client's connections now and then until it is on a WebSocket again: it need not try
    at each reconnect."""
    for _ in range(30):
        through.cut()
        event = client.until(is_open_over(*TRANSPORTS))
        if event["transport"] == "websocket" or client.within(2, is_open_over("websocket")):
            return
    raise AssertionError(f"it never came back: {client.heard[-20:]}")


@pytest.mark.parametrize("dying", [["websocket"], ["websocket", "sse"]], ids="+".join)
def test_a_transport_that_keeps_dying_is_given_up(any_client, line_proxy, server, channel, dying):
    through = line_proxy(**{each: Line(dies_after=0.1) for each in dying})
    client = followed(any_client, through, server, channel)
    client.until(is_open_over(*TRANSPORTS[len(dying) :]))
    check_messages(client, server, channel)


def test_a_filter_of_large_frames_does_not_keep_messages_from_being_published(
    any_client, line_proxy, server, channel
):
    through = line_proxy(websocket=Line(frame_bytes_max=2_000))
    client = followed(any_client, through, server, channel)
    client.until(is_open_over(*TRANSPORTS))
    client.tell("publish", channel=channel, data="x" * 4_000)
    client.until_all("published", 1)
    client.until_all("message", 1)
    kept = [each["data"] for each in server.history(channel)["messages"]]
    assert kept == ["before", "x" * 4_000], "published once"


@pytest.mark.parametrize(
    "line", [Line(is_hole=True), Line(is_hole_once_open=True)], ids=["at first", "once open"]
)
def test_a_black_hole_of_websockets(any_client, line_proxy, server, channel, line):
    through = line_proxy(websocket=line)
    options = {"heartbeat_ms": 1_000, "request_timeout_ms": 1_500}
    client = followed(any_client, through, server, channel, **options)
    client.until(is_open_over(*LESSER))
    check_messages(client, server, channel)


def test_websockets_are_tried_again_after_refusals(any_client, line_proxy, server, channel):
    through = line_proxy(websocket=Line(is_refused=True))
    client = followed(any_client, through, server, channel)
    client.until(is_open_over(*LESSER))
    check_messages(client, server, channel)
    through.lines = {}
    until_it_is_back(client, through)
    check_messages(client, server, channel)


@pytest.mark.parametrize(
    "line", [Line(late=3.4, late_count=1), Line(is_hole=True)], ids=["late", "hole"]
)
def test_one_bad_moment_does_not_end_websockets(any_client, line_proxy, server, channel, line):
    through = line_proxy(websocket=line)
    # A hole that ends while the client finds out whether the server answers.
    through.are_cleared_by_health = line.is_hole
    client = followed(any_client, through, server, channel)
    client.until(is_open_over(*TRANSPORTS))
    check_messages(client, server, channel)
    until_it_is_back(client, through)
    check_messages(client, server, channel)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_slow_line_connects(any_client, line_proxy, server, channel, transport):
    """A round trip takes longer than the first attempt may."""
    through = line_proxy(delay=0.5)
    options = {"transports": [transport], "open_timeout_ms": 400}
    client = followed(any_client, through, server, channel, **options)
    check_messages(client, server, channel)
