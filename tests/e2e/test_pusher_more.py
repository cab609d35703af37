"""What applications of the Pusher protocol get beyond the protocol: numbers of subscribers, ids and earlier events."""

import json

import pytest

from conftest import QUICK
from support.pusher import APP, OTHER, OTHER_PREFIX, PREFIX, Peer, call, settings, signed_query, table
from support.server import Server
from support.stock import Stock

COUNT = "pusher_internal:subscription_count"


@pytest.fixture(scope="module")
def application(tmp_path_factory):
    """A server with an application that gets more, and one that does not. Its headers show a native key."""
    directory = tmp_path_factory.mktemp("more")
    headers = settings(directory)
    path = directory / "throng.toml"
    tables = [table(APP, PREFIX, "history = true", "subscription-counts = true"), table(OTHER, OTHER_PREFIX)]
    path.write_text(path.read_text().split("[[apps]]")[0] + "\n".join(tables))
    running = Server(directory, *QUICK)
    running.http.headers.update(headers)
    yield running
    running.stop()


def counts_until(peer, number):
    """The numbers that a peer is told, up to this one."""
    told = []
    while not told or told[-1] != number:
        frame = peer.next()
        if frame["event"] == COUNT:
            told.append(json.loads(frame["data"])["subscription_count"])
    return told


def publish(server, channel, *texts, app=APP):
    batch = {"batch": [{"name": "ev", "channel": channel, "data": text} for text in texts]}
    assert call(server, "POST", f"/apps/{app['id']}/batch_events", batch, app=app) == (200, {})


def test_clients_are_told_how_many_follow_a_channel(application, channel):
    name = f"private-{channel}"
    first, second = Peer(application), Peer(application)
    first.subscribe(name)
    counts_until(first, 1)
    second.subscribe(name)
    assert counts_until(first, 2) == [2]
    assert counts_until(second, 2) == [2], "those who come last, too"
    # Native followers count, and are told by a message that nobody keeps.
    with application.http.stream("GET", f"/channels/shop%2F{name}?envelope=true") as answer:
        assert counts_until(first, 3) == [3]
        message = json.loads(next(answer.iter_lines()))
        assert (message["data"], "id" in message) == ({"subscription_count": 3}, False)
    second.close()
    assert counts_until(first, 1)[-1] == 1
    history = application.http.get(f"/channels/shop%2F{name}/history").json()
    assert history["messages"] == []


def test_members_are_not_counted_twice(application, channel):
    peer = Peer(application)
    peer.subscribe(f"presence-{channel}", {"user_id": "ann"})
    peer.next()
    other = Peer(application, app=OTHER)
    other.subscribe(channel)
    other.next()
    # Another channel's number shows that the first one's had time to come.
    peer.subscribe(channel)
    events = [peer.next() for _ in range(2)]
    assert [(event["event"], event["channel"]) for event in events[1:]] == [(COUNT, channel)]
    assert other.is_well()


@pytest.mark.parametrize("place", ["node", "chromium"])
def test_stock_clients_show_how_many_follow_a_channel(request, application, node, place, channel):
    where = "node" if place == "node" else request.getfixturevalue("chromium")
    stock = Stock(node("pusher.mjs", where, application.url, json.dumps(APP)))
    stock.connect("ann", "ann")
    stock.follow("ann", channel)
    assert stock.wait("ann", "event", channel, "pusher:subscription_count") == [{"subscription_count": 1}]
    # An id in the frame does not disturb it.
    publish(application, channel, '{"n":1}')
    assert stock.wait("ann", "event", channel, "ev") == [{"n": 1}]


def test_a_client_goes_on_from_the_last_event_that_it_has_had(application, channel):
    peer = Peer(application)
    peer.subscribe(channel)
    publish(application, channel, "one", "two", "three")
    ids = {}
    while len(ids) < 3:
        frame = peer.next()
        if frame["event"] == "ev":
            ids[frame["data"]] = frame["id"]

    def begin(**more):
        later = Peer(application)
        later.subscribe(channel, **more)
        answer = later.next()
        texts = []
        while not texts or texts[-1] != "three":
            frame = later.next()
            if frame["event"] == "ev":
                texts.append(frame["data"])
        return json.loads(answer["data"]), texts

    assert begin(since=ids["one"]) == ({"id": ids["one"], "recovered": True}, ["two", "three"])
    assert begin(history=2) == ({}, ["two", "three"])
    native = application.http.get(f"/channels/shop%2F{channel}/history").json()["messages"]
    assert [message["id"] for message in native] == list(ids.values()), "the ids of the native interface"


def test_a_client_is_told_of_events_that_it_has_missed(application, channel):
    peer = Peer(application)
    for since in ("0000000000-1", "nonsense"):
        peer.subscribe(channel, since=since)
        frame = peer.next()
        if since == "nonsense":
            assert frame["event"] == "pusher:subscription_error"
            break
        assert json.loads(frame["data"])["recovered"] is False
        peer.say("pusher:unsubscribe", {"channel": channel})
        while peer.say("pusher:ping", {}) or peer.next()["event"] != "pusher:pong":
            pass


def test_earlier_events_need_the_setting(application, channel):
    publish(application, channel, "before", app=OTHER)
    peer = Peer(application, app=OTHER)
    for more in ({"history": 1}, {"since": "0000000000-1"}):
        peer.subscribe(channel, **more)
        refused = peer.next()
        assert refused["event"] == "pusher:subscription_error" and "403" in refused["data"]
        assert peer.next()["event"] == "pusher:error"
    peer.subscribe(channel)
    assert peer.next() == {"event": "pusher_internal:subscription_succeeded", "channel": channel, "data": "{}"}
    assert peer.is_well(), "it has neither a number nor what was before"


def test_applications_may_use_any_host_name(application, channel):
    """The server listens on loopback, behind a proxy that forwards the name."""
    host = {"Host": "push.example.com"}
    body = {"name": "a", "channel": channel, "data": "x"}
    assert call(application, "POST", "/apps/1/events", body, headers=host)[0] == 200
    assert call(application, "GET", "/apps/1/channels", headers=host)[0] == 200
    forged = signed_query("GET", "/apps/1/channels", app={**APP, "secret": "f" * 20})
    for method, path, query in (("GET", "/apps/1/channels", forged), ("GET", f"/channels/shop%2F{channel}/history", "")):
        status, answer = call(application, method, path, query=query, headers=host)
        assert (status, answer["error"]) == (403, "host_refused"), path


def test_a_channel_that_is_named_twice_gets_an_event_once(application, channel):
    body = {"name": "a", "channels": [channel, channel], "data": "x"}
    assert call(application, "POST", "/apps/1/events", body)[0] == 200
    assert len(application.http.get(f"/channels/shop%2F{channel}/history").json()["messages"]) == 1
