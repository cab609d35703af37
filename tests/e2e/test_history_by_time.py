"""History and subscriptions that begin at a time, pages in either order, and positions alone."""

import json
import time

import pytest
from support import TIMEOUT_SECONDS
from support.server import eventually
from support.transports import TRANSPORTS, subscribe
from websockets.sync.client import connect

SETTINGS = """
[[channels]]
match = "kept*"
durable = true
"""
# Times are whole milliseconds, and these messages have to have different ones.
APART_SECONDS = 0.005


@pytest.fixture(params=["memory", "disk", "nats"])
def place(request, serve, tmp_path, channel):
    """A server, and a channel with messages at different times: in memory, on its disk, or in NATS."""
    if request.param == "nats":
        server = request.getfixturevalue("own_node")()
    elif request.param == "disk":
        (tmp_path / "throng.toml").write_text(SETTINGS)
        server, channel = serve("--data", tmp_path / "data"), "kept"
    else:
        server = serve()
    for number in range(5):
        post = server.http.post(f"/channels/{channel}", content=f"n{number}")
        assert post.status_code == 201, post.text
        time.sleep(APART_SECONDS)
    return server, channel


def page(place, **query):
    server, channel = place
    response = server.http.get(f"/channels/{channel}/history", params=query)
    assert response.status_code == 200, response.text
    return response.json()


def data(page):
    return [message["data"] for message in page["messages"]]


def test_a_page_begins_at_a_time_and_goes_on_after_its_newest(place):
    times = [message["time"] for message in page(place)["messages"]]
    assert data(page(place, since_time=times[2])) == ["n2", "n3", "n4"]
    assert data(page(place, since_time=times[2] + 1)) == ["n3", "n4"]
    first = page(place, since_time=0, limit=2)
    assert (data(first), first["more"], "recovered" in first) == (["n0", "n1"], True, False)
    after = first["messages"][-1]["id"]
    assert data(page(place, after=after, limit=9)) == ["n2", "n3", "n4"]
    late = page(place, since_time=times[4] + 60_000)
    assert (data(late), late["more"]) == ([], False)


def test_the_newest_message_comes_first_if_asked(place):
    newest = page(place, order="newest", limit=2)
    assert (data(newest), newest["more"]) == (["n4", "n3"], True)
    before = newest["messages"][-1]["id"]
    assert data(page(place, order="newest", before=before)) == ["n2", "n1", "n0"]
    assert data(page(place, order="newest", since_time=0, limit=2)) == ["n1", "n0"]
    assert data(page(place, order="oldest", limit=2)) == ["n3", "n4"]


def test_a_page_of_nothing_tells_where_the_channel_is(place):
    alone = page(place, limit=0)
    assert (alone["messages"], alone["id"]) == ([], page(place)["messages"][-1]["id"])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_subscription_begins_at_a_time(place, transport):
    server, channel = place
    times = [message["time"] for message in page(place)["messages"]]
    with subscribe(transport, server, f"/channels/{channel}", since_time=times[3]) as subscriber:
        assert subscriber.recovered is None
        assert subscriber.take(2) == ["n3", "n4"]
        if transport != "poll":
            server.http.post(f"/channels/{channel}", content="live")
            assert subscriber.take(1) == ["live"]


def test_an_id_overrides_the_time(place):
    server, channel = place
    last = page(place)["id"]
    path = f"/channels/{channel}"
    with subscribe("sse", server, path, since=last, since_time=0) as subscriber:
        assert subscriber.recovered is True
        server.http.post(path, content="live")
        assert subscriber.take(1) == ["live"]


def test_commands_have_the_same(place):
    server, channel = place
    times = [message["time"] for message in page(place)["messages"]]
    with connect(f"{server.ws}/subscribe", subprotocols=["throng.v1"]) as socket:

        def answer(**command):
            socket.send(json.dumps(command))
            while True:
                reply = json.loads(socket.recv(timeout=TIMEOUT_SECONDS))
                if reply["type"] not in ("welcome", "message"):
                    return reply

        reply = answer(type="history", channel=channel, since_time=times[3], order="newest")
        assert data(reply) == ["n4", "n3"]
        assert answer(type="history", channel=channel, limit=0)["messages"] == []
        both = answer(type="history", channel=channel, since_time=1, after=reply["id"])
        assert (both["code"], "exclude" in both["message"]) == ("bad_request", True)
        socket.send(json.dumps({"type": "subscribe", "channel": channel, "since_time": times[4]}))
        eventually(lambda: "n4" in socket.recv(timeout=TIMEOUT_SECONDS), "the last message")


@pytest.mark.parametrize(
    "query",
    [
        "since_time=-1",
        "since_time=now",
        "since_time=1.5",
        "since_time=9007199254740992",
        "since_time=1&after=k-1",
        "order=down",
        "limit=1001",
        "limit=-1",
        "since_tim=1",
    ],
)
def test_a_page_that_is_none_is_refused(server, channel, query):
    response = server.http.get(f"/channels/{channel}/history?{query}")
    assert response.status_code == 400, response.text
    assert response.json()["error"] == "bad_parameter"


@pytest.mark.parametrize(
    "query", ["since_time=x", "since_time=1&since_time=1", "since_time=1&history=1"]
)
def test_a_subscription_from_no_time_is_refused(server, channel, query):
    response = server.http.get(f"/channels/{channel}?{query}&wait=0")
    assert (response.status_code, response.json()["error"]) == (400, "bad_parameter")
    head = server.http.head(f"/channels/{channel}?{query}&wait=0")
    assert head.status_code == 400
