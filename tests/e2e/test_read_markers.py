"""Read markers: how far a user has read the inbox, for a badge."""

import json

from websockets.sync.client import connect

from support import TIMEOUT_SECONDS
from support.raw import Raw
from support.server import eventually
from support.transports import subscribe


def ask(server, method, path):
    response = server.http.request(method, path)
    assert response.status_code == 200, response.text
    return response.json()


def follow(server, path, **options):
    """A WebSocket by a library."""
    return connect(server.ws + path, proxy=None, open_timeout=TIMEOUT_SECONDS, **options)


def test_devices_share_a_marker(server, channel):
    path = f"/users/{channel}"
    ids = []
    for number in range(3):
        ids.append(server.publish_to_user(channel, str(number))["id"])
    assert ask(server, "GET", f"{path}/read") == {"user": channel, "unread": 3}
    marked = ask(server, "PUT", f"{path}/read?id={ids[1]}")
    assert marked == {"user": channel, "read": ids[1], "unread": 1}
    with follow(server, "/subscribe", subprotocols=["throng.v1"]) as device:
        assert json.loads(device.recv(TIMEOUT_SECONDS))["type"] == "welcome"
        device.send(json.dumps({"type": "read", "user": channel, "ref": 1}))
        assert json.loads(device.recv(TIMEOUT_SECONDS)) == {"type": "read", **marked, "ref": 1}
        device.send(json.dumps({"type": "read", "user": channel, "id": ids[2]}))
        assert json.loads(device.recv(TIMEOUT_SECONDS))["unread"] == 0
    assert ask(server, "GET", f"{path}/read") == {"user": channel, "read": ids[2], "unread": 0}
    assert ask(server, "PUT", f"{path}/read?id={ids[0]}")["read"] == ids[2]
    assert ask(server, "PUT", f"{path}/read?id={ids[0]}&back=true")["unread"] == 2


def test_a_welcome_says_how_much_is_unread(server, channel):
    path = f"/users/{channel}"
    ids = [server.publish_to_user(channel, str(number))["id"] for number in range(3)]
    ask(server, "PUT", f"{path}/read?id={ids[0]}")
    with follow(server, f"/subscribe?user={channel}", subprotocols=["throng.v1"]) as device:
        assert json.loads(device.recv(TIMEOUT_SECONDS))["unread"] == 2
    with follow(server, "/subscribe", subprotocols=["throng.v1"]) as stranger:
        assert "unread" not in json.loads(stranger.recv(TIMEOUT_SECONDS))
    with follow(server, f"{path}?welcome=true") as plain:
        assert json.loads(plain.recv(TIMEOUT_SECONDS))["unread"] == 2
    with server.http.stream("GET", f"{path}?welcome=true") as stream:
        assert json.loads(next(stream.iter_lines()))["unread"] == 2


def test_all_devices_are_told_but_the_one_that_has_read(server, channel):
    path = f"/users/{channel}"
    ids = [server.publish_to_user(channel, str(number))["id"] for number in range(3)]
    with (
        follow(server, f"/subscribe?user={channel}", subprotocols=["throng.v1"]) as mover,
        follow(server, path) as plain,
        subscribe("sse", server, path) as events,
        subscribe("stream", server, path) as lines,
        follow(server, f"{path}?envelope=true") as frames,
        Raw(server) as poll,
    ):
        welcome = json.loads(mover.recv(TIMEOUT_SECONDS))
        assert json.loads(mover.recv(TIMEOUT_SECONDS))["type"] == "subscribed"
        poll.request("GET", f"{path}?since={ids[2]}&wait=30")
        eventually(lambda: ask(server, "GET", f"{path}/presence")["connections"] == 6, "all are there")

        def told():
            event = next(event for event in events.events if event.data)
            assert (event.event, event.id) == ("unread", "")
            of_each = [event.data, lines.next_line(), frames.recv(TIMEOUT_SECONDS)]
            notices = [json.loads(it) if isinstance(it, str) else it for it in of_each]
            assert notices == [notices[0]] * 3
            return notices[0]

        notice = {"type": "unread", "user": channel, "read": ids[0], "unread": 2}
        mover.send(json.dumps({"type": "read", "user": channel, "id": ids[0]}))
        assert json.loads(mover.recv(TIMEOUT_SECONDS)) == {**notice, "type": "read"}
        assert told() == notice
        excluded = {"Throng-Exclude": welcome["connection"]}
        answer = server.http.put(f"{path}/read", params={"id": ids[1]}, headers=excluded)
        assert answer.json()["unread"] == 1
        assert told()["read"] == ids[1]
        # The mover heard of neither: what comes next is of the third one.
        ask(server, "PUT", f"{path}/read?id={ids[1]}")
        ask(server, "PUT", f"{path}/read?id={ids[2]}")
        notice = {**notice, "read": ids[2], "unread": 0}
        assert told() == json.loads(mover.recv(TIMEOUT_SECONDS)) == notice
        # Neither bodies alone nor a poll.
        new = server.publish_to_user(channel, "new")["id"]
        assert plain.recv(TIMEOUT_SECONDS) == "new"
        response = poll.read_response()
        assert (response.body, response.header("throng-id")) == (b"new", new)
    refused = server.http.put(f"{path}/read?id={ids[2]}", headers={"Throng-Exclude": "?"})
    assert (refused.status_code, refused.json()["error"]) == (400, "bad_parameter")


def test_nobody_can_publish_the_notice(server, channel):
    headers = {"Throng-Event": "unread"}
    refused = server.http.post(f"/users/{channel}", content="9", headers=headers)
    assert (refused.status_code, refused.json()["error"]) == (400, "bad_parameter")
