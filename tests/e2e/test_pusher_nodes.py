"""Applications of the Pusher protocol with clients on two nodes: webhooks and numbers of subscribers mean both.

Webhooks come at least once: when another node begins to send them, it repeats the last ones in their order.
"""

import json

import pytest

from support.access import server_key
from support.nats import NatsServer, connected, know_each_other
from support.pusher import APP, PATH, PREFIX, Peer, call, signed_query, table
from support.raw import Raw, handshake_headers
from support.server import eventually
from support.upgrades import UpgradableServer
from test_pusher_webhooks import QUICK, Receiver

ALL = ["channel_occupied", "channel_vacated", "member_added", "member_removed", "client_event"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A nats-server that stays up."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    yield server
    server.stop()


@pytest.fixture
def receiver():
    """The application's endpoint."""
    running = Receiver()
    yield running
    running.close()


@pytest.fixture
def start(tmp_path, broker, receiver):
    """Starts two nodes whose application has a webhook for these events, and stops them."""
    started = []

    def begin(events=ALL, *more):
        hook = (f'webhook = "{receiver.url}"', f"webhook-events = {json.dumps(events)}", *more)
        watch = server_key(tmp_path, "watch", "administration")
        (tmp_path / "throng.toml").write_text("\n".join([watch[1], table(APP, PREFIX, *hook)]))
        prefix = tmp_path.name[-32:].replace(".", "-")
        for _ in range(2):
            flags = ["--config", "throng.toml", "--engine", "nats", "--nats", broker.url, "--nats-prefix", prefix]
            node = UpgradableServer(tmp_path, *QUICK, *flags)
            node.http.headers["Authorization"] = f"Bearer {watch[0]}"
            started.append(connected(node))
        return know_each_other(*started)

    yield begin
    for server in started:
        if server.process.poll() is None or server.pid != server.process.pid:
            server.stop()


def follow(server, channel, member=None):
    """A client that follows a channel."""
    peer = Peer(server)
    peer.subscribe(channel, member)
    while peer.next()["event"] != "pusher_internal:subscription_succeeded":
        pass
    return peer


def status_of(server):
    """The status with which a connection begins, which is over then."""
    with Raw(server) as raw:
        raw.request("GET", PATH, handshake_headers())
        return raw.read_head().status


def told(receiver, channel):
    """What the application was told of a channel, in its order: names and users."""
    events = [event for event in receiver.events() if event["channel"] == channel]
    return [f"{event['name']} {event.get('user_id', '')}".strip() for event in events]


def is_told(receiver, channel, *expected):
    """Waits until the application was told exactly this of a channel, the last of it last."""

    def is_all():
        words = told(receiver, channel)
        return {*words} == {*expected} and words[-1] == expected[-1]

    eventually(is_all, receiver.events)


def test_a_channel_is_occupied_while_any_node_has_a_subscriber(start, receiver):
    one, other = start()
    ann = follow(one, "news")
    is_told(receiver, "news", "channel_occupied")
    bob = follow(other, "news")
    ann.say("pusher:unsubscribe", {"channel": "news"})
    # A departure that comes later, and so is told later, from each node.
    for at, node in enumerate((one, other)):
        follow(node, f"later{at}").close()
        is_told(receiver, f"later{at}", "channel_occupied", "channel_vacated")
    assert {*told(receiver, "news")} == {"channel_occupied"}
    bob.close()
    is_told(receiver, "news", "channel_occupied", "channel_vacated")


def test_members_of_both_nodes_are_told_together(start, receiver):
    one, other = start()
    room = "presence-r"
    ann = follow(one, room, {"user_id": "ann"})
    again = follow(other, room, {"user_id": "ann"})
    bob = follow(other, room, {"user_id": "bob"})
    again.say("client-t", {"t": 1}, room)

    def words():
        return {*told(receiver, room)}

    begun = {"channel_occupied", "client_event ann", "member_added ann", "member_added bob"}
    eventually(lambda: words() == begun, receiver.events)
    event = next(event for event in receiver.events() if event["name"] == "client_event")
    assert event["socket_id"] == again.socket_id
    ann.close()
    bob.close()
    eventually(lambda: "member_removed bob" in words(), receiver.events)
    assert "member_removed ann" not in words()
    again.close()
    gone = {"channel_vacated", "member_removed ann", "member_removed bob"}
    eventually(lambda: words() == begun | gone, receiver.events)


@pytest.mark.parametrize("which", (0, 1))
def test_the_node_that_is_left_tells_the_rest(start, receiver, which):
    nodes = start()
    dies, stays = nodes[which], nodes[1 - which]
    there = follow(dies, "there")
    here = follow(stays, "here")
    is_told(receiver, "there", "channel_occupied")
    is_told(receiver, "here", "channel_occupied")
    dies.kill()
    later = follow(stays, "after")
    is_told(receiver, "after", "channel_occupied")
    is_told(receiver, "there", "channel_occupied", "channel_vacated")
    assert {*told(receiver, "here")} == {"channel_occupied"}
    here.close()
    later.close()
    there.close()
    is_told(receiver, "here", "channel_occupied", "channel_vacated")


def test_an_upgrade_vacates_nothing(start, receiver):
    one, other = start()
    here, there = follow(one, "here"), follow(other, "there")
    for channel in ("here", "there"):
        is_told(receiver, channel, "channel_occupied")
    for node in (one, other):
        node.upgrade()
    know_each_other(one, other)
    # What comes and goes later is told after anything that the upgrades had led to.
    follow(one, "later").close()
    is_told(receiver, "later", "channel_occupied", "channel_vacated")
    for channel in ("here", "there"):
        assert {*told(receiver, channel)} == {"channel_occupied"}
    for peer, channel in ((here, "here"), (there, "there")):
        peer.close()
        is_told(receiver, channel, "channel_occupied", "channel_vacated")


def counts_to(peer, count):
    """Waits until a client is told that so many follow its channel."""
    while True:
        frame = peer.next()
        if frame["event"] == "pusher_internal:subscription_count":
            data = frame["data"]
            if json.loads(data) == {"subscription_count": count}:
                return


def test_numbers_of_subscribers_are_those_of_both_nodes(start, receiver):
    one, other = start(["subscription_count"], "subscription-counts = true")
    ann, bob = follow(one, "news"), follow(other, "news")
    for peer in (ann, bob):
        counts_to(peer, 2)
    for node in (one, other):
        answer = call(node, "GET", "/apps/1/channels/news", info="subscription_count")
        assert answer == (200, {"occupied": True, "subscription_count": 2})
        answer = call(node, "GET", "/apps/1/channels", info="subscription_count")
        assert answer == (200, {"channels": {"news": {"subscription_count": 2}}})

    def counts():
        return [event["subscription_count"] for event in receiver.events()]

    # Of numbers that wait together, the application is told the newest.
    eventually(lambda: counts()[-1:] == [2], counts)
    bob.close()
    counts_to(ann, 1)
    eventually(lambda: counts()[-1:] == [1], counts)
    ann.close()
    eventually(lambda: counts()[-1:] == [0], counts)


def test_limits_of_an_application_count_on_both_nodes(start):
    # No other limit: the nodes know each other's clients by keys that they have for these alone.
    one, other = start(ALL, "max-connections = 2", "max-subscriptions = 2", "publish-rate = 3")
    ann, bob = follow(one, "news"), follow(other, "news")
    # A second until they know of each other.
    for node in (one, other):
        eventually(lambda node=node: status_of(node) == 429, "a full node")
    ann.subscribe("more")
    assert ann.next()["event"] == "pusher:subscription_error"
    ann.close()
    eventually(lambda: status_of(other) == 101, "a place is free on the other node")
    batch = {"batch": [{"name": "ev", "channel": "news", "data": "x"}] * 3}

    def publish(node):
        return call(node, "POST", "/apps/1/batch_events", batch)[0]

    def publishes_elsewhere():
        publish(one)
        assert publish(other) in (200, 429)
        refused = other.metrics()
        return refused['throng_limits_refused_elsewhere_total{per="app",limit="publishes"}']

    eventually(publishes_elsewhere, "a refusal for what another node took")
    assert bob.socket_id


def test_an_event_excludes_a_connection_of_any_node(start):
    """Without limits, for which alone nodes once agreed on what names connections."""
    both = start()
    peers = [follow(node, "news") for node in both]
    for node in both:
        for excluded in peers:
            for name, more in (("some", {"socket_id": excluded.socket_id}), ("all", {})):
                body = {"name": name, "channels": ["news"], "data": "x", **more}
                assert call(node, "POST", "/apps/1/events", body) == (200, {})
            for peer in peers:
                names = ["all"] if peer is excluded else ["some", "all"]
                assert [peer.next()["event"] for _ in names] == names


def test_answers_without_another_node_say_so(start):
    one, other = start()
    here, there = follow(one, "presence-r", {"user_id": "ann"}), follow(other, "presence-r", {"user_id": "bob"})
    paths = ["/apps/1/channels", "/apps/1/channels/presence-r", "/apps/1/channels/presence-r/users"]

    def marks():
        queries = [signed_query("GET", path) for path in paths]
        answers = [one.http.get(f"{path}?{query}") for path, query in zip(paths, queries)]
        assert [answer.status_code for answer in answers] == [200] * 3
        return [answer.headers.get("Throng-Partial") for answer in answers]

    eventually(lambda: marks() == [None] * 3, "whole answers")
    with other.frozen():
        eventually(lambda: marks() == ["true"] * 3, "marks of what is missing")
    eventually(lambda: marks() == [None] * 3, "whole answers again")
    assert here.socket_id and there.socket_id
