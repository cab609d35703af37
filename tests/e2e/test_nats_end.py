"""Channels that end on one of several nodes, over a real nats-server."""

import json
import threading

import pytest
from websockets.exceptions import ConnectionClosedOK

from support import TIMEOUT_SECONDS
from support.nats import connected, know_each_other
from support.server import eventually
from support.transports import TRANSPORTS, subscribe

SETTINGS = """
[[channels]]
match = "*"
may-end = true
"""


@pytest.fixture
def start(tmp_path, broker, start_node):
    """Starts connected nodes whose channels may end."""
    file = tmp_path / "throng.toml"
    file.write_text(SETTINGS)
    return lambda: connected(start_node(broker, "--config", file))


def end(server, channel, last=None):
    """Ends a channel; its ids."""
    answer = server.http.post(f"/channels/{channel}/end", content=last or b"")
    assert answer.status_code == 201, answer.text
    return answer.json()


def reopen(server, channel):
    """Opens a channel again."""
    answer = server.http.delete(f"/channels/{channel}/end")
    assert answer.status_code == 200, answer.text


def publish(server, channel, text="late"):
    """The status of a publication, and its error if it has one."""
    answer = server.http.post(f"/channels/{channel}", content=text)
    return answer.status_code, answer.json().get("error")


CLOSED = (409, "closed")


def rest(transport, follower, server, channel):
    """The data of the messages that a subscriber gets until it is told of the end."""
    found = []
    if transport == "stream":
        return [json.loads(line)["data"] for line in follower.lines if line]
    if transport == "sse":
        for event in follower.events:
            if event.event == "ended":
                return found
            if event.event == "message" and event.data:
                found.append(event.data)
        raise AssertionError("the response is complete without an end")
    if transport == "websocket":
        with pytest.raises(ConnectionClosedOK) as closed:
            while True:
                found.append(follower.next()[1])
        assert closed.value.rcvd.reason == "the channel has ended"
        return found
    while True:
        poll = {"envelope": "true", "wait": TIMEOUT_SECONDS // 2, "since": follower.id}
        answer = server.http.get(f"/channels/{channel}", params=poll)
        found += [json.loads(line)["data"] for line in answer.text.split("\n") if line]
        follower.id = answer.headers["throng-id"]
        if answer.headers.get("throng-ended") == "true" and answer.status_code == 204:
            return found


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_end_reaches_the_subscribers_of_every_node(start, channel, transport):
    nodes = [start(), start()]
    path = f"/channels/{channel}"
    followers = [subscribe(transport, node, path) for node in nodes]
    nodes[0].publish(channel, "first")
    end(nodes[1], channel, "last")
    for node, follower in zip(nodes, followers, strict=True):
        assert rest(transport, follower, node, channel) == ["first", "last"]
        follower.close()


def test_no_node_takes_messages_after_the_end(start, channel):
    nodes = [start(), start()]
    first = nodes[0].publish(channel, "first")["id"]
    ids = end(nodes[0], channel, "last")
    nodes.append(start())
    know_each_other(*nodes)
    for node in nodes:
        assert publish(node, channel) == CLOSED
        again = node.http.post(f"/channels/{channel}/end")
        assert (again.status_code, again.json()["error"]) == CLOSED
        page = node.history(channel)
        assert [message["data"] for message in page["messages"]] == ["first", "last"]
        assert page["ended"] is True
        # Whoever comes later reads the log and the end.
        late = subscribe("sse", node, f"/channels/{channel}", since=first)
        assert (late.recovered, rest("sse", late, node, channel)) == (True, ["last"])
        late.close()
        browser = node.http.get(
            f"/channels/{channel}", headers={"Accept": "text/event-stream", "Last-Event-ID": ids["ended"]}
        )
        assert (browser.status_code, browser.headers["throng-ended"]) == (204, "true")
    assert publish(nodes[0], f"{channel}-other") == (201, None)
    reopen(nodes[2], channel)
    for number, node in enumerate(nodes):
        assert publish(node, channel, str(number)) == (201, None)
        assert "ended" not in node.history(channel)
        lines = subscribe("stream", node, f"/channels/{channel}", since=first)
        assert lines.recovered is True
        assert lines.take(2 + number) == ["last", *map(str, range(number + 1))]
        lines.close()


def test_a_channel_that_was_opened_again_has_no_end_for_new_subscribers(start, channel):
    nodes = [start(), start()]
    end(nodes[0], channel)
    # Both nodes know the end, and one of them does not hear of the opening.
    for node in nodes:
        answer = node.http.get(f"/channels/{channel}", headers={"Accept": "text/event-stream"})
        assert answer.status_code == 204
    reopen(nodes[0], channel)
    for node in nodes:
        with subscribe("stream", node, f"/channels/{channel}") as lines:
            node.publish(channel, "again")
            assert lines.take(1) == ["again"]


def test_of_two_nodes_one_ends_the_channel(start, channel):
    nodes = [start(), start()]
    statuses = []

    def race(node):
        statuses.append(node.http.post(f"/channels/{channel}/end", content="last").status_code)

    threads = [threading.Thread(target=race, args=[node]) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [201, 409]
    assert [message["data"] for message in nodes[0].history(channel)["messages"]] == ["last"]


def test_a_closed_channel_under_a_publish_storm(start, channel):
    nodes = [start(), start()]
    path = f"/channels/{channel}"
    followers = [subscribe("stream", node, path) for node in nodes]
    accepted, refusals, is_over = [set(), set()], [0, 0], threading.Event()

    def storm(at, thread):
        number = 0
        # Each goes on until it was refused often, so that all were after the end.
        while not (is_over.is_set() and number % 50 == 0):
            text = f"{at} {thread} {number}"
            number += 1
            status = publish(nodes[at], channel, text)
            if status == (201, None):
                accepted[at].add(text)
            else:
                assert status == CLOSED, status
                refusals[at] += 1

    threads = [threading.Thread(target=storm, args=[at, number]) for at in (0, 1) for number in range(4)]
    for thread in threads:
        thread.start()
    eventually(lambda: all(len(some) > 20 for some in accepted), "publications on both nodes")
    end(nodes[0], channel, "last")
    before = [len(some) for some in accepted]
    late = [publish(node, channel) for node in nodes]
    eventually(lambda: all(count > 50 for count in refusals), "refusals on both nodes")
    is_over.set()
    for thread in threads:
        thread.join()
    assert late == [CLOSED, CLOSED]
    # An answer that was on its way when the end was answered may be counted later.
    assert all(len(some) - count <= 4 for some, count in zip(accepted, before, strict=True))
    for node, follower in zip(nodes, followers, strict=True):
        found = rest("stream", follower, node, channel)
        assert found[-1] == "last"
        assert sorted(found[:-1]) == sorted(accepted[0] | accepted[1]), "each accepted one, once"
        follower.close()


def test_an_end_outlives_nodes_and_nats(start, channel, broker):
    node = start()
    first = node.publish(channel, "first")["id"]
    end(node, channel, "last")
    node.kill()
    broker.kill()
    broker.launch()
    nodes = [start(), start()]
    for node in nodes:
        assert publish(node, channel) == CLOSED
        late = subscribe("sse", node, f"/channels/{channel}", since=first)
        assert (late.recovered, rest("sse", late, node, channel)) == (True, ["last"])
        late.close()
    # The messages may go, and the end stays.
    erased = nodes[0].http.delete(f"/channels/{channel}/history")
    assert erased.status_code == 200, erased.text
    for node in nodes:
        assert publish(node, channel) == CLOSED
        assert node.history(channel)["ended"] is True
    erased = nodes[1].http.delete(f"/channels/{channel}")
    assert erased.status_code == 200, erased.text
    assert [publish(node, channel) for node in nodes] == [(201, None)] * 2


def test_subscribers_of_a_node_that_was_cut_off_learn_of_the_end(start, channel, broker):
    nodes = [start(), start()]
    followers = [subscribe(kind, node, f"/channels/{channel}") for kind in ("sse", "stream") for node in nodes]
    nodes[0].publish(channel, "first")
    for follower in followers:
        assert follower.take(1) == ["first"]
    broker.kill()
    broker.launch()
    for node in nodes:
        connected(node)
    end(nodes[1], channel, "last")
    for at, follower in enumerate(followers):
        assert rest(("sse", "stream")[at // 2], follower, nodes[at % 2], channel) == ["last"]
        follower.close()


def test_without_the_setting_a_channel_says_how_it_could_end(broker, start_node):
    one = connected(start_node(broker))
    answer = one.http.post("/channels/a/end", content="last")
    assert (answer.status_code, answer.json()["error"]) == (501, "not_implemented")
    assert "may-end = true" in answer.json()["message"]
    assert one.history("a")["messages"] == []
    assert publish(one, "a") == (201, None)
