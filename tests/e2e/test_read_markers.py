"""Read markers: how far a user has read the inbox, for a badge."""

import json

from websockets.sync.client import connect

from support import TIMEOUT_SECONDS


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
