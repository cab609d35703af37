"""Channels that are created on one of several nodes, over a real nats-server."""

import time

import pytest
from support.nats import NatsServer, connected, know_each_other, nodes_in
from support.server import eventually
from support.transports import subscribe
from websockets.exceptions import ConnectionClosedOK

SETTINGS = """
[history]
age = "1m"
[[channels]]
match = "made/*"
must-exist = true
[[channels]]
match = "open/*"
may-end = true
"""

PATH = "/channels/made%2Fa"
NOT_CREATED = (404, "not_created")


@pytest.fixture
def pair(tmp_path):
    """Two nodes that know each other."""
    directory = tmp_path / "nats"
    directory.mkdir()
    broker = NatsServer(directory)
    file = tmp_path / "throng.toml"
    file.write_text(SETTINGS)
    with nodes_in(tmp_path) as begin:
        nodes = [connected(begin(broker, "--config", file)) for _ in range(2)]
        know_each_other(*nodes)
        yield nodes
    broker.stop()


def create(server, path=PATH, **properties):
    answer = server.http.put(f"{path}/creation", json=properties)
    return answer.status_code, answer.json().get("error")


def publish(server, path=PATH, text="[1]"):
    answer = server.http.post(path, content=text)
    return answer.status_code, answer.json().get("error")


def test_what_one_node_creates_all_have(pair):
    near, far = pair
    assert publish(far) == NOT_CREATED
    assert far.http.get(PATH, params={"wait": 1}).status_code == 404
    assert create(near, content_type="application/json") == (201, None)
    assert create(far, content_type="application/json") == (200, None)
    assert create(far) == (409, "already_created")
    with subscribe("sse", near, PATH) as followed:
        assert publish(far, text="no JSON") == (415, "other_type")
        assert publish(far) == (201, None)
        events = (event for event in followed.events if event.data)
        assert next(events).data == "[1]"
        assert far.http.delete(PATH).status_code == 200
        assert [event.event for event in events] == ["erased", "ended"]
    assert publish(near) == NOT_CREATED
    assert publish(far) == NOT_CREATED


def test_a_channel_that_may_end_can_be_created_and_others_cannot(pair):
    near, far = pair
    for node, channel, expected in [
        (near, "/channels/open%2Fa", (201, None)),
        (far, "/channels/open%2Fa", (200, None)),
        (far, "/channels/other", (501, "not_implemented")),
    ]:
        assert create(node, channel, content_type="text/html") == expected
    assert publish(near, "/channels/open%2Fa", "<p>") == (201, None)
    assert far.history("open/a")["messages"][0]["data"] == "<p>"


def test_the_time_of_a_channel_is_over_once_and_without_the_node_that_has_created_it(pair):
    near, far = pair
    over = int(time.time() * 1000) + 2_000
    for channel in ("made%2Fa", "made%2Fb"):
        assert create(near, f"/channels/{channel}", expires_at=over) == (201, None)
    with subscribe("websocket", far, PATH) as socket:
        assert publish(near) == (201, None)
        assert socket.take(1) == ["[1]"]
        near.kill()
        with pytest.raises(ConnectionClosedOK):
            socket.next()
    for channel in ("made%2Fa", "made%2Fb"):
        path = f"/channels/{channel}"
        eventually(lambda path=path: publish(far, path) == NOT_CREATED, "the channel to go")
    assert create(far, content_type="text/plain") == (201, None)
