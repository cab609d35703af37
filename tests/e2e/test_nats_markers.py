"""Read markers over several nodes: moved on one, they are the same on all."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from websockets.sync.client import connect

from support import TIMEOUT_SECONDS
from support.nats import connected
from support.server import eventually
from support.transports import subscribe


@pytest.fixture
def node(tmp_path, strict_broker, start_node):
    """Starts connected nodes, which are allowed all that they need."""
    started = []

    def begin(*flags):
        started.append(connected(start_node(strict_broker, "--nats-login", tmp_path / "login", *flags)))
        return started[-1]

    yield begin
    for server in started:
        if server.process.poll() is None:
            server.stop()
        assert "Permissions Violation" not in server.log()


def ask(one, method, path):
    answer = one.http.request(method, path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def follow(one, path, **options):
    return connect(one.ws + path, proxy=None, open_timeout=TIMEOUT_SECONDS, **options)


def test_a_marker_is_the_same_on_all_nodes(node):
    near, far = node(), node()
    assert ask(far, "GET", "/users/a%2Fb.c/read") == {"user": "a/b.c", "unread": 0}
    path = "/users/ann/read"
    ids = [near.publish_to_user("ann", str(number))["id"] for number in range(5)]
    near.publish("elsewhere", "x")
    assert ask(far, "GET", path) == {"user": "ann", "unread": 5}
    assert ask(near, "PUT", f"{path}?id={ids[1]}") == {"user": "ann", "read": ids[1], "unread": 3}
    assert ask(far, "GET", path) == {"user": "ann", "read": ids[1], "unread": 3}
    assert ask(far, "PUT", f"{path}?id={ids[0]}")["read"] == ids[1], "it does not go back"
    assert ask(far, "PUT", f"{path}?id={ids[3]}")["unread"] == 1
    # An id beyond the last message, and one of another stream.
    epoch, _, offset = ids[4].rpartition("-")
    for unknown in (f"{epoch}-{int(offset) + 1}", f"{epoch}-{int(offset) + 99}", f"z{epoch}-1"):
        marked = ask(near, "PUT", f"{path}?id={unknown}&back=true")
        assert marked == {"user": "ann", "read": ids[3], "unread": 1}, unknown
    assert ask(near, "PUT", f"{path}?id={ids[0]}&back=true")["unread"] == 4
    third = node()
    assert ask(third, "GET", path) == {"user": "ann", "read": ids[0], "unread": 4}
    with follow(third, "/subscribe?user=ann", subprotocols=["throng.v1"]) as device:
        assert json.loads(device.recv(TIMEOUT_SECONDS))["unread"] == 4
        near.publish_to_user("ann", "new")
        # The answer to its subscription may come before.
        found = {}
        while "data" not in found:
            found = json.loads(device.recv(TIMEOUT_SECONDS))
        assert found["data"] == "new"
        device.send(json.dumps({"type": "read", "user": "ann", "id": ids[2], "ref": 1}))
        answer = {"type": "read", "user": "ann", "read": ids[2], "unread": 3, "ref": 1}
        assert json.loads(device.recv(TIMEOUT_SECONDS)) == answer
    assert ask(far, "GET", path)["unread"] == 3
    with far.http.stream("GET", "/users/ann?welcome=true") as stream:
        assert json.loads(next(stream.iter_lines()))["unread"] == 3


def test_a_moved_marker_is_told_on_all_nodes(node):
    near, far = node(), node()
    path = "/users/ann/read"
    ids = [near.publish_to_user("ann", str(number))["id"] for number in range(3)]
    with (
        subscribe("sse", near, "/users/ann") as here,
        follow(far, "/subscribe?user=ann", subprotocols=["throng.v1"]) as there,
    ):

        def heard():
            found = {}
            while found.get("type") not in ("subscribed", "read", "unread"):
                found = json.loads(there.recv(TIMEOUT_SECONDS))
            return found

        def told():
            event = next(event for event in here.events if event.data and event.event != "late")
            assert event.event == "unread"
            return json.loads(event.data)

        assert heard()["type"] == "subscribed"
        ask(near, "PUT", f"{path}?id={ids[0]}")
        notice = {"type": "unread", "user": "ann", "read": ids[0], "unread": 2}
        assert told() == heard() == notice
        there.send(json.dumps({"type": "read", "user": "ann", "id": ids[1]}))
        notice |= {"read": ids[1], "unread": 1}
        assert (told(), heard()) == (notice, {**notice, "type": "read"})
        # What is where it was is told to nobody, and a command not to the one that has sent it.
        ask(near, "PUT", f"{path}?id={ids[1]}")
        ask(far, "PUT", f"{path}?id={ids[2]}")
        assert told() == heard() == {**notice, "read": ids[2], "unread": 0}


def test_of_devices_that_read_on_at_the_same_time_the_furthest_counts(node):
    nodes = [node() for _ in range(3)]
    ids = [nodes[0].publish_to_user("ann", str(number))["id"] for number in range(60)]

    def read(at):
        for id in ids[at::3]:
            ask(nodes[at], "PUT", f"/users/ann/read?id={id}")

    with ThreadPoolExecutor() as pool:
        list(pool.map(read, range(3)))
    for one in nodes:
        assert ask(one, "GET", "/users/ann/read") == {"user": "ann", "read": ids[-1], "unread": 0}


def test_a_marker_survives_the_broker_and_does_not_move_without_it(node, strict_broker):
    one = node()
    ids = [one.publish_to_user("ann", str(number))["id"] for number in range(3)]
    ask(one, "PUT", f"/users/ann/read?id={ids[0]}")
    strict_broker.kill()
    eventually(lambda: one.metrics()["throng_nats_connected"] == 0, "it is cut off")
    refused = one.http.put("/users/ann/read", params={"id": ids[1]})
    assert (refused.status_code, refused.json()["error"]) == (503, "unavailable")
    assert one.http.get("/users/ann/read").status_code == 503
    strict_broker.launch()
    connected(one)
    assert ask(one, "GET", "/users/ann/read") == {"user": "ann", "read": ids[0], "unread": 2}


def test_what_history_does_not_have_is_not_unread(node):
    one = node("--history-messages", "4")
    other = node("--history-messages", "4")
    ids = [one.publish_to_user("ann", str(number))["id"] for number in range(10)]
    assert ask(other, "GET", "/users/ann/read")["unread"] == 4
    # It is gone, and those after it that are there are unread.
    assert ask(other, "PUT", f"/users/ann/read?id={ids[2]}")["unread"] == 4
    assert ask(one, "PUT", f"/users/ann/read?id={ids[7]}") == {
        "user": "ann", "read": ids[7], "unread": 2,
    }


def test_a_marker_in_a_channel_is_the_same_on_all_nodes(node, tmp_path):
    (tmp_path / "rooms.toml").write_text('[[channels]]\nmatch = "rooms/*"\nread-markers = true\n')
    near, far = (node("--config", tmp_path / "rooms.toml") for _ in range(2))
    path = "/channels/rooms%2F1/read?reader=ann"
    ids = [near.publish("rooms/1", str(number))["id"] for number in range(3)]
    assert ask(far, "GET", path) == {"channel": "rooms/1", "unread": 3}
    with follow(far, "/subscribe?user=ann", subprotocols=["throng.v1"]) as device:
        heard = {}
        while heard.get("type") != "subscribed":
            heard = json.loads(device.recv(TIMEOUT_SECONDS))
        marker = {"channel": "rooms/1", "read": ids[1], "unread": 1}
        assert ask(near, "PUT", f"{path}&id={ids[1]}") == marker
        while heard.get("type") != "unread":
            heard = json.loads(device.recv(TIMEOUT_SECONDS))
        assert heard == {"type": "unread", **marker}
        device.send(json.dumps({"type": "read", "channel": "rooms/1", "id": ids[2]}))
        while heard.get("type") != "read":
            heard = json.loads(device.recv(TIMEOUT_SECONDS))
        assert heard == {"type": "read", "channel": "rooms/1", "read": ids[2], "unread": 0}
    assert ask(near, "PUT", f"{path}&id={ids[0]}")["read"] == ids[2], "it does not go back"
    other = ask(near, "PUT", f"/channels/rooms%2F1/read?reader=bo&id={ids[0]}")
    assert (other["read"], other["unread"]) == (ids[0], 2)
    assert near.http.delete("/channels/rooms%2F1").json()["markers"] == 2
    assert ask(far, "GET", path) == {"channel": "rooms/1", "unread": 0}
