"""Read markers: how far a user has read the inbox or a channel, for a badge."""

import json

import pytest
from websockets.sync.client import connect

from support import TIMEOUT_SECONDS
from support.access import SECRET, bearer, server_key, token
from support.raw import Raw
from support.server import Server, eventually
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


ROOMS = """
[[channels]]
match = "rooms/*"
read-markers = true
"""


@pytest.fixture(params=["memory", "disk"])
def rooms(request, tmp_path):
    """A server whose rooms have read markers."""
    durable = "durable = true\n" if request.param == "disk" else ""
    (tmp_path / "throng.toml").write_text(ROOMS + durable)
    flags = ["--data", tmp_path / "data"] if durable else []
    server = Server(tmp_path, *flags)
    yield server
    server.stop()


def refusal(answer):
    return answer.status_code, answer.json()["error"]


def test_each_user_has_a_marker_in_a_channel(rooms):
    path, by_name = "/channels/rooms%2F1/read", {"channel": "rooms/1", "reader": "ann"}
    ids = [rooms.publish("rooms/1", str(number))["id"] for number in range(3)]
    assert ask(rooms, "GET", f"{path}?reader=ann") == {"channel": "rooms/1", "unread": 3}
    marked = ask(rooms, "PUT", f"{path}?reader=ann&id={ids[1]}")
    assert marked == {"channel": "rooms/1", "read": ids[1], "unread": 1}
    assert ask(rooms, "PUT", f"{path}?reader=ann&id={ids[0]}") == marked, "it does not go back"
    assert ask(rooms, "GET", f"{path}?reader=bo")["unread"] == 3
    assert rooms.http.get("/read", params=by_name).json() == marked
    back = rooms.http.put("/read", params={**by_name, "id": ids[0], "back": "true"})
    assert back.json()["unread"] == 2, back.text
    assert ask(rooms, "GET", "/users/ann/read")["unread"] == 0, "the inbox has a marker of its own"
    # Channels of other rules have none, and a marker is a user's.
    assert refusal(rooms.http.get("/channels/other/read?reader=ann")) == (400, "bad_request")
    for wrong in ("", f"?id={ids[0]}", "?reader=", f"?reader=ann&id={ids[0]}&since=1", "?reader=%01"):
        assert refusal(rooms.http.get(path + wrong))[0] == 400, wrong
    for wrong in ("?reader=ann", "?reader=ann&id=x", f"?reader=ann&id={ids[0]}&back=perhaps"):
        assert refusal(rooms.http.put(path + wrong))[0] == 400, wrong
    assert refusal(rooms.http.post(path))[0] == 405


def test_devices_are_told_of_a_marker_in_a_channel(rooms):
    ids = [rooms.publish("rooms/1", str(number))["id"] for number in range(2)]
    protocols = {"subprotocols": ["throng.v1"]}
    with (
        follow(rooms, "/subscribe?user=ann", **protocols) as mover,
        follow(rooms, "/subscribe?user=ann", **protocols) as other,
        follow(rooms, "/subscribe?user=bo&channel=rooms/1", **protocols) as bo,
        subscribe("sse", rooms, "/users/ann") as events,
    ):
        devices = (mover, other, bo)
        for device in devices:
            heard = {}
            while heard.get("type") != "subscribed":
                heard = json.loads(device.recv(TIMEOUT_SECONDS))
        eventually(lambda: ask(rooms, "GET", "/users/ann/presence")["connections"] == 3, "all are there")
        mover.send(json.dumps({"type": "read", "channel": "rooms/1", "id": ids[0], "ref": 7}))
        marker = {"channel": "rooms/1", "read": ids[0], "unread": 1}
        assert json.loads(mover.recv(TIMEOUT_SECONDS)) == {"type": "read", **marker, "ref": 7}
        event = next(event for event in events.events if event.data)
        assert (event.event, event.id) == ("unread", "")
        assert json.loads(event.data) == {"type": "unread", **marker}
        assert json.loads(other.recv(TIMEOUT_SECONDS)) == {"type": "unread", **marker}
        bo.send(json.dumps({"type": "read", "channel": "rooms/1"}))
        heard = {}
        while heard.get("type") != "read":
            heard = json.loads(bo.recv(TIMEOUT_SECONDS))
            assert heard["type"] != "unread", "it is nobody else's"
        assert heard == {"type": "read", "channel": "rooms/1", "unread": 2}
    with follow(rooms, "/subscribe", **protocols) as stranger:
        stranger.recv(TIMEOUT_SECONDS)
        stranger.send(json.dumps({"type": "read", "channel": "rooms/1"}))
        assert json.loads(stranger.recv(TIMEOUT_SECONDS))["code"] == "forbidden"


def test_markers_go_with_their_channel_and_a_user_has_so_many(rooms):
    def mark(room, reader="ann"):
        id = rooms.publish(room, "x")["id"]
        return rooms.http.put("/read", params={"channel": room, "reader": reader, "id": id})

    for reader in ("ann", "bo"):
        assert mark("rooms/x", reader).json()["unread"] == 0
    erased = rooms.http.delete("/channels/rooms%2Fx").json()
    assert erased["markers"] == 2, erased
    assert rooms.http.delete("/channels/rooms%2Fx").json()["markers"] == 0
    for number in range(1_000):
        answer = mark(f"rooms/{number}")
        assert answer.status_code == 200, answer.text
    assert refusal(mark("rooms/1000")) == (400, "too_many_channels")
    assert mark("rooms/999").status_code == 200, "those that there are move on"
    assert mark("rooms/1000", "bo").status_code == 200
    assert "throng_read_markers_refused_total 1\n" in rooms.http.get("/metrics").text
    report = rooms.http.post("/users/ann/erasure").json()
    eventually(lambda: rooms.http.get("/users/ann/erasure").json()["state"] == "done", "the erasure")
    report = rooms.http.get("/users/ann/erasure").json()
    assert report["erased"]["markers"] == 1_000, report
    assert mark("rooms/1000").status_code == 200


def test_a_user_moves_the_own_marker_alone(tmp_path):
    key, table = server_key(tmp_path, "rooms", "subscribe")
    of_rooms, rooms_table = server_key(tmp_path, "one", "subscribe", channels="rooms/*")
    secret = f'[[token-keys]]\nsecret = "{SECRET}"\n'
    (tmp_path / "throng.toml").write_text(secret + ROOMS + 'publish = "anyone"\n' + table + rooms_table)
    server = Server(tmp_path)
    try:
        id = server.publish("rooms/1", "x")["id"]
        ann = bearer(token(throng={"subscribe": ["rooms/*"]}))
        stranger = bearer(token(sub="bo", throng={"subscribe": ["others/*"]}))

        def mark(credential, reader=None):
            params = {"channel": "rooms/1", "id": id, **({"reader": reader} if reader else {})}
            return server.http.put("/read", params=params, headers=credential)

        assert mark(ann).json()["unread"] == 0
        assert mark(ann, "ann").status_code == 200
        assert refusal(mark(ann, "bo")) == (403, "forbidden"), "not that of another user"
        assert refusal(mark(stranger)) == (403, "forbidden"), "not where the user may not subscribe"
        assert refusal(mark({}))[0] in (400, 401)
        assert mark(bearer(key), "bo").json()["unread"] == 0
        assert refusal(mark(bearer(key))) == (400, "bad_parameter"), "a key is no user"
        assert refusal(mark(bearer(of_rooms), "bo")) == (403, "forbidden"), "it may not follow inboxes"
    finally:
        server.stop()
