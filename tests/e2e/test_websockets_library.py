"""Python's `websockets`: plain messages, and every command of throng.v1."""

import base64
import json

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from support import TIMEOUT_SECONDS


def plain(server, path, **options):
    return connect(server.ws + path, proxy=None, open_timeout=TIMEOUT_SECONDS, **options)


class V1:
    """A throng.v1 connection, after the welcome."""

    def __init__(self, server, path="/subscribe"):
        self.context = plain(server, path, subprotocols=["throng.v1"])
        self.socket = self.context.__enter__()
        assert self.socket.subprotocol == "throng.v1"
        self.welcome = self.next()
        assert self.welcome["type"] == "welcome" and self.welcome["connection"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.__exit__(None, None, None)

    def next(self):
        return json.loads(self.socket.recv(timeout=TIMEOUT_SECONDS))

    def ask(self, type, **fields):
        self.socket.send(json.dumps({"type": type, **fields}))
        return self.next()


@pytest.fixture
def v1(server):
    with V1(server) as connection:
        yield connection


def test_plain_text_and_binary(server, channel):
    path = f"/channels/{channel}"
    with plain(server, path) as ann, plain(server, path) as bo:
        ann.send("hello ✓")
        bo.send(b"\x00\x01\xff")
        for socket in (ann, bo):
            assert {socket.recv(TIMEOUT_SECONDS), socket.recv(TIMEOUT_SECONDS)} == {
                "hello ✓",
                b"\x00\x01\xff",
            }
    kinds = {m["data"]: m.get("content_type") for m in server.history(channel)["messages"]}
    assert kinds == {
        "hello ✓": None,
        base64.b64encode(b"\x00\x01\xff").decode(): "application/octet-stream",
    }


def test_plain_frames_hold_exactly_what_was_published(server, channel):
    with plain(server, f"/channels/{channel}") as socket:
        server.publish(channel, b'{ "spaces":  "kept" }', Content_Type="application/json")
        server.publish(channel, b"\xff", Content_Type="application/octet-stream")
        server.publish(channel, "")
        assert socket.recv(TIMEOUT_SECONDS) == '{ "spaces":  "kept" }'
        assert socket.recv(TIMEOUT_SECONDS) == b"\xff"
        assert socket.recv(TIMEOUT_SECONDS) == ""


def test_plain_fragments_are_one_message(server, channel):
    with plain(server, f"/channels/{channel}") as socket:
        socket.send(["one ", "mess", "age"])
        assert socket.recv(TIMEOUT_SECONDS) == "one message"


def test_plain_welcome(server, channel):
    with plain(server, f"/channels/{channel}?welcome=true") as socket:
        welcome = json.loads(socket.recv(TIMEOUT_SECONDS))
        headers = socket.response.headers
        assert welcome["type"] == "welcome" and welcome["id"] == headers["Throng-Id"]
        assert welcome["connection"] == headers["Throng-Connection"]


def test_plain_on_several_channels_cannot_publish(server, channel):
    with plain(server, f"/subscribe?channel={channel}&channel={channel}-b") as socket:
        server.publish(channel + "-b", "heard")
        assert socket.recv(TIMEOUT_SECONDS) == "heard"
        socket.send("to whom?")
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(TIMEOUT_SECONDS)
        assert closed.value.rcvd.code == 1008


def test_server_answers_ping_and_close(server, channel):
    with plain(server, f"/channels/{channel}") as socket:
        assert socket.ping("payload").wait(TIMEOUT_SECONDS)
        socket.close(1000)
        assert socket.close_code == 1000


def test_unknown_subprotocol_is_plain(server, channel):
    with plain(server, f"/channels/{channel}", subprotocols=["chat.v9"]) as socket:
        assert socket.subprotocol is None
        server.publish(channel, "x")
        assert socket.recv(TIMEOUT_SECONDS) == "x"


def test_v1_starts_with_the_channels_of_the_url(server, channel):
    id = server.publish(channel, "before")["id"]
    with V1(server, f"/channels/{channel}") as connection:
        assert connection.next() == {"type": "subscribed", "channel": channel, "id": id}
        server.publish(channel, b"[1]", Content_Type="application/json")
        message = connection.next()
        assert message["type"] == "message" and message["channel"] == channel
        assert message["data"] == [1] and isinstance(message["time"], int)


def test_v1_welcome_names_the_heartbeat(v1):
    assert v1.welcome["heartbeat"] == 25


def test_v1_subscribe_and_unsubscribe(server, v1, channel):
    answer = v1.ask("subscribe", channel=channel, ref=7)
    assert answer["type"] == "subscribed" and answer["ref"] == 7 and "recovered" not in answer
    server.publish(channel, "in")
    assert v1.next()["data"] == "in"
    assert v1.ask("unsubscribe", channel=channel, ref="x") == {
        "type": "unsubscribed",
        "channel": channel,
        "ref": "x",
    }
    assert server.publish(channel, "out")["subscribers"] == 0
    assert v1.ask("ping") == {"type": "pong"}


def test_v1_subscribe_resumes(server, v1, channel):
    id = server.publish(channel, "0")["id"]
    server.publish(channel, "1")
    answer = v1.ask("subscribe", channel=channel, since=id)
    assert answer["recovered"] is True
    assert v1.next()["data"] == "1"
    v1.ask("unsubscribe", channel=channel)
    assert v1.ask("subscribe", channel=channel, since="0000zz-1")["recovered"] is False
    assert [v1.next()["data"], v1.next()["data"]] == ["0", "1"]


def test_v1_subscribe_with_history(server, v1, channel):
    for n in range(4):
        server.publish(channel, str(n))
    assert v1.ask("subscribe", channel=channel, history=2)["type"] == "subscribed"
    assert [v1.next()["data"], v1.next()["data"]] == ["2", "3"]


def test_v1_publish(server, v1, channel):
    v1.ask("subscribe", channel=channel)
    v1.socket.send(json.dumps({"type": "publish", "channel": channel, "data": {"a": 1}, "ref": 1}))
    frames = sorted([v1.next(), v1.next()], key=lambda frame: frame["type"])
    assert [frame["type"] for frame in frames] == ["message", "published"]
    assert frames[0]["data"] == {"a": 1} and frames[0]["id"] == frames[1]["id"]
    assert frames[1]["subscribers"] == 1 and frames[1]["ref"] == 1


def test_v1_publish_without_echo(server, v1, channel):
    v1.ask("subscribe", channel=channel)
    answer = v1.ask("publish", channel=channel, data="quiet", echo=False)
    assert answer["type"] == "published" and answer["subscribers"] == 0
    assert v1.ask("ping")["type"] == "pong"
    assert server.history(channel)["messages"][-1]["data"] == "quiet"


def test_v1_publish_with_a_key(server, v1, channel):
    first = v1.ask("publish", channel=channel, data="x", key="K")
    again = v1.ask("publish", channel=channel, data="x", key="K")
    assert again["id"] == first["id"] and again["duplicate"] is True
    assert "duplicate" not in first


def test_v1_publish_binary_and_content_type(server, v1, channel):
    v1.ask("publish", channel=channel, data="AAE=", encoding="base64", content_type="image/png")
    message = server.history(channel)["messages"][0]
    assert (message["data"], message["encoding"]) == ("AAE=", "base64")
    assert message["content_type"] == "image/png"


def test_v1_history_and_presence(server, v1, channel):
    ids = [server.publish(channel, str(n))["id"] for n in range(5)]
    page = v1.ask("history", channel=channel, limit=2, ref=1)
    assert page["type"] == "history" and page["id"] == ids[4] and page["more"] is True
    assert page["ref"] == 1
    assert [message["data"] for message in page["messages"]] == ["3", "4"]
    page = v1.ask("history", channel=channel, limit=10, before=ids[3])
    assert [message["data"] for message in page["messages"]] == ["0", "1", "2"]
    assert page["more"] is False
    with plain(server, f"/channels/{channel}?user=ann"):
        found = v1.ask("presence", channel=channel, ref=2)
        assert found == {
            "type": "presence",
            "channel": channel,
            "connections": 1,
            "users": ["ann"],
            "more": False,
            "ref": 2,
        }


def test_v1_users(server, v1, channel):
    answer = v1.ask("subscribe", user=channel)
    assert answer["type"] == "subscribed" and answer["user"] == channel
    assert server.publish_to_user(channel, "for you")["subscribers"] == 1
    message = v1.next()
    assert message["user"] == channel and "channel" not in message
    v1.ask("unsubscribe", user=channel)
    assert v1.ask("publish", user=channel, data="x")["user"] == channel


def test_v1_follows_many_channels(server, v1, channel):
    names = [f"{channel}-{n}" for n in range(100)]
    for name in names:
        v1.socket.send(json.dumps({"type": "subscribe", "channel": name}))
    assert [v1.next()["channel"] for _ in names] == names
    server.publish_batch([{"channel": name, "data": name} for name in names])
    assert sorted(v1.next()["data"] for _ in names) == sorted(names)


def test_v1_refuses_too_many_channels(serve, channel):
    server = serve("--max-channels-per-connection", 2)
    with V1(server) as connection:
        for n in range(2):
            assert connection.ask("subscribe", channel=f"{channel}-{n}")["type"] == "subscribed"
        answer = connection.ask("subscribe", channel=channel, ref=3)
        assert (answer["code"], answer["ref"]) == ("too_many_channels", 3)
        connection.ask("unsubscribe", channel=f"{channel}-0")
        assert connection.ask("subscribe", channel=channel)["type"] == "subscribed"


def test_v1_follows_a_list_of_channels(server, v1, channel):
    old = server.publish(f"{channel}-c", "old")
    entries = [f"{channel}-a", f"{channel}-b", {"channel": f"{channel}-c", "since": old["id"]}]
    answer = v1.ask("subscribe", channels=[*entries, f"{channel}-a", "a//b"], history=0, ref=1)
    assert (answer["type"], answer["ref"]) == ("subscribed", 1)
    a, b, c, again, bad = answer["channels"]
    assert (a["channel"], b["channel"]) == (f"{channel}-a", f"{channel}-b")
    assert (c["id"], c["recovered"]) == (old["id"], True)
    assert again["error"]["code"] == "already_subscribed"
    assert (bad["channel"], bad["error"]["code"]) == ("a//b", "bad_name")
    server.publish(f"{channel}-b", "new")
    assert v1.next()["data"] == "new"
    answer = v1.ask("unsubscribe", channels=[f"{channel}-b", f"{channel}-x"])
    assert answer["channels"][0] == f"{channel}-b"
    assert answer["channels"][1]["error"]["code"] == "not_subscribed"


def test_v1_follows_ten_thousand_channels_in_one_round_trip(serve):
    server = serve("--max-channels-per-connection", 10_000)
    names = [f"prices/{n}" for n in range(10_000)]
    with V1(server) as connection:
        assert connection.welcome["channels_max"] == 10_000
        answer = connection.ask("subscribe", channels=names)
        assert [entry["channel"] for entry in answer["channels"]] == names
        assert all("id" in entry for entry in answer["channels"])
        assert "error" in connection.ask("subscribe", channels=["more"])["channels"][0]
        server.publish_batch([{"channel": name, "data": name} for name in names[::100]])
        assert sorted(connection.next()["data"] for _ in names[::100]) == sorted(names[::100])
        assert connection.ask("unsubscribe", channels=names)["channels"] == names
        assert connection.ask("ping")["type"] == "pong"
