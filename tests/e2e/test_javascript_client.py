"""The JavaScript client that the server serves, against the real server."""

import json

import pytest

from support.raw import RawWebSocket
from support.server import Server
from support.transports import subscribe

TRANSPORTS = ["websocket", "sse", "poll"]
QUICK = ["--drain-window", "100ms"]


class Client:
    """The client in a Node process, and the events that it has printed."""

    def __init__(self, node, server, transport, **options):
        self.child = node("client.mjs", server.url, transport, json.dumps(options))
        self.heard = []

    def tell(self, command, **parameters):
        self.child.stdin.write(json.dumps({"command": command, **parameters}) + "\n")
        self.child.stdin.flush()

    def until(self, matches):
        """Reads on until an event matches; returns that one."""
        while True:
            line = self.child.stdout.readline()
            assert line, "the program has ended"
            event = json.loads(line)
            self.heard.append(event)
            if matches(event):
                return event

    def until_state(self, state):
        return self.until(lambda it: it["event"] == "state" and it["state"] == state)

    def until_all(self, name, count):
        """Reads until there are `count` events of that name in all; returns them."""
        while len(self.all(name)) < count:
            self.until(lambda it: it["event"] == name)
        return self.all(name)

    def all(self, name):
        return [event for event in self.heard if event["event"] == name]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_frozen_server_is_noticed_and_nothing_is_lost(serve, node, channel, transport):
    server = serve()
    client = Client(node, server, transport, requestTimeoutMs=1500)
    client.tell("subscribe", channels=[channel])
    client.until_state("open")
    client.tell("publish", channel=channel, data=0)
    client.until_all("message", 1)
    client.until_all("published", 1)
    with server.frozen():
        # The unanswered publish is the only sign for the client that the server has stopped.
        for number in range(1, 11):
            client.tell("publish", channel=channel, data=number)
        client.until_state("waiting")
    client.until_all("published", 11)
    client.tell("publish", channel=channel, data="last")
    client.until(lambda it: it["event"] == "message" and it["data"] == "last")
    expected = [*range(11), "last"]
    assert [event["data"] for event in client.all("message")] == expected
    kept = [envelope["data"] for envelope in server.history(channel)["messages"]]
    assert kept == expected, "each once, in the order of publishing"
    assert not client.all("gap") and not client.all("unpublished")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_presence_is_pushed_on_every_transport(serve, node, channel, transport):
    server = serve("--presence-events")
    client = Client(node, server, transport, user="ann")

    def until_here(*users):
        return client.until(lambda it: it["event"] == "presence" and it["users"] == [*users])

    client.tell("subscribe", channels=[f"{channel}-plain"])
    client.tell("subscribe", channels=[channel], presence=True)
    until_here("ann")
    with subscribe("sse", server, f"/channels/{channel}", user="bob"):
        until_here("ann", "bob")
    read = 'throng_http_request_duration_seconds_count{route="presence"}'
    assert server.metrics().get(read, 0) == 0, "nothing is read where it is pushed"
    assert {event["channel"] for event in client.all("presence")} == {channel}


@pytest.mark.parametrize("transport", ["websocket", "sse"])
@pytest.mark.parametrize("members", ["user", "connection"])
def test_members_have_their_keys_and_a_number(serve, node, channel, transport, members):
    server = serve("--presence-members", members)
    client = Client(node, server, transport, user="ann")
    client.tell("subscribe", channels=[channel], presence=True)
    follow = lambda: subscribe("sse", server, f"/channels/{channel}", user="bob")
    with follow(), follow():
        count = 3 if members == "connection" else 2
        told = client.until(lambda it: it["event"] == "presence" and len(it["keys"]) == count)
    assert (told["connections"], sorted(told["users"])) == (count, ["ann", "bob"])
    assert None not in told["keys"]
    assert (sorted(told["keys"]) == ["ann", "bob"]) == (members == "user")


def outcome_at_frozen(server, client, channel, *, subscribes=False):
    """Publishes while the server is stopped; checks the reported outcome after it continues."""
    with server.frozen():
        if subscribes:
            client.tell("subscribe", channels=[channel])
        client.tell("publish", channel=channel, data="may be")
        end = client.until(lambda it: it["event"] in ("published", "unpublished"))
    assert (end["event"], end["code"]) == ("unpublished", "timeout"), end
    assert end["key"], "the key with which to try again"
    if end["outcome"] == "unknown":
        client.until(lambda it: it["event"] == "message" and it["data"] == "may be")
    else:
        client.until_all("subscribed", 1)
        server.publish(channel, "later")
        client.until(lambda it: it["event"] == "message" and it["data"] == "later")
        assert [event["data"] for event in client.all("message")] == ["later"]
    return end["outcome"]


@pytest.mark.parametrize("confirmed", [False, True], ids=["open", "subscribed"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_publish_to_a_frozen_server_is_of_unknown_outcome(
    serve, node, channel, transport, confirmed
):
    server = serve()
    client = Client(node, server, transport, publishTimeoutMs=300)
    client.tell("subscribe", channels=[channel])
    # A socket is open before the subscription is confirmed, a stream or a poll after.
    client.until_state("open")
    if confirmed:
        client.until_all("subscribed", 1)
    assert outcome_at_frozen(server, client, channel) == "unknown"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_queued_publish_to_a_frozen_server_is_unpublished(serve, node, channel, transport):
    server = serve()
    client = Client(node, server, transport, publishTimeoutMs=300)
    client.until(lambda it: it["event"] == "ready")
    assert outcome_at_frozen(server, client, channel, subscribes=True) == "unpublished"


@pytest.mark.parametrize("transport", ["sse", "poll"])
def test_the_outcome_is_right_when_a_server_freezes_during_connect(
    serve, node, channel, transport
):
    server = serve()
    client = Client(node, server, transport, publishTimeoutMs=300)
    client.tell("subscribe", channels=[channel])
    # The place in the channel is known; whether the stream or poll got through depends on the
    # moment, and so does whether the publish leaves.
    client.until_all("subscribed", 1)
    assert outcome_at_frozen(server, client, channel) in ("unknown", "unpublished")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_channels_beyond_the_limit_of_a_connection_are_followed(serve, node, transport):
    server = serve("--max-channels-per-connection", 16)
    channels = [f"c{number}" for number in range(50)]
    client = Client(node, server, transport)
    client.tell("subscribe", channels=channels)
    client.until_all("subscribed", len(channels))
    for name in channels:
        server.publish(name, name)
    messages = client.until_all("message", len(channels))
    assert sorted(event["data"] for event in messages) == sorted(channels)
    assert not client.all("error")


def test_more_channels_than_a_connection_takes_unless_set(serve, node):
    server = serve()
    channels = [f"c{number}" for number in range(200)]
    client = Client(node, server, "websocket")
    client.tell("subscribe", channels=channels)
    client.until_all("subscribed", len(channels))
    for name in channels:
        server.publish(name, name)
    client.until_all("message", len(channels))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_history_is_marked_as_replayed(serve, node, channel, transport):
    server = serve()
    for number in range(3):
        server.publish(channel, str(number))
    client = Client(node, server, transport)
    client.tell("subscribe", channels=[channel], history=2)
    client.until_all("message", 2)
    server.publish(channel, "live")
    messages = client.until_all("message", 3)
    flags = [(event["data"], event["replayed"]) for event in messages]
    assert flags == [("1", True), ("2", True), ("live", False)]


@pytest.mark.parametrize("transport", ["websocket", "sse"])
def test_a_publish_does_not_overtake_its_own_subscription(server, node, channel, transport):
    client = Client(node, server, transport)
    client.tell("subscribe", channels=[channel])
    client.tell("publish", channel=channel, data="first")
    assert client.until(lambda it: it["event"] == "published")["subscribers"] == 1
    client.until_all("message", 1)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_stop_and_a_restart_cause_a_gap_only(tmp_path, node, channel, transport):
    first = Server(tmp_path, *QUICK)
    client = Client(node, first, transport)
    client.tell("subscribe", channels=[channel])
    client.until_state("open")
    client.until_all("subscribed", 1)
    first.publish(channel, "before")
    client.until_all("message", 1)
    first.stop()
    second = Server(tmp_path, *QUICK, port=first.port)
    client.until(lambda it: it["event"] == "gap")
    second.publish(channel, "after")
    client.until(lambda it: it["event"] == "message" and it["data"] == "after")
    assert client.all("state")[-1]["transport"] == transport
    second.stop()


@pytest.mark.parametrize("transport", ["sse", "poll"])
def test_names_too_long_for_one_request_are_spread_over_several(server, node, channel, transport):
    channels = [f"{channel}-{number}-".ljust(220, "x") for number in range(100)]
    client = Client(node, server, transport)
    client.tell("subscribe", channels=channels)
    client.until_all("subscribed", len(channels))
    for name in channels:
        server.publish(name, name)
    messages = client.until_all("message", len(channels))
    assert sorted(event["data"] for event in messages) == sorted(channels)
    assert not client.all("error")


def test_clients_wait_for_a_full_server(serve, node, channel):
    # All at the same time: the server tells each to wait for some seconds.
    chosen = [*TRANSPORTS, ",".join(TRANSPORTS)]
    # Over HTTP a client has more than one connection.
    server = serve("--workers", 1, "--max-connections", 12)
    clients = [Client(node, server, transport) for transport in chosen]
    for client in clients:
        client.until(lambda it: it["event"] == "ready")
    holders = [RawWebSocket(server, f"/channels/{channel}-held") for _ in range(12)]
    for client in clients:
        client.tell("subscribe", channels=[channel])
    for client in clients:
        assert client.until_state("waiting")["delayMs"] > 0
    for holder in holders:
        holder.close()
    for client, transport in zip(clients, chosen, strict=True):
        # A full server is no reason to fall back to another transport.
        assert client.until_state("open")["transport"] == transport.split(",")[0]
        client.until_all("subscribed", 1)
    server.publish(channel, "in at last")
    for client in clients:
        client.until_all("message", 1)
