"""Volatile messages: for those that are there."""

import json

import pytest
from websockets.sync.client import connect

from support import TIMEOUT_SECONDS
from support.raw import Raw
from support.transports import subscribe


def post(server, channel, body, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return server.http.post(f"/channels/{channel}", params={"volatile": "true"}, content=body, headers=named)


def test_a_volatile_message_leaves_no_trace(server, channel):
    path = f"/channels/{channel}"
    before = server.publish(channel, "before")["id"]
    answer = post(server, channel, "nobody is there")
    assert (answer.status_code, answer.json()) == (200, {"volatile": True, "subscribers": 0})
    with subscribe("sse", server, path) as subscriber:
        server.wait_for_connections(channel, 1)
        assert post(server, channel, "typing").json()["subscribers"] == 1
        event = next(event for event in subscriber.events if event.data)
        # The library repeats the last id that an event had.
        assert (event.id, event.data) == ("", "typing")
        after = server.publish(channel, "after")["id"]
        assert subscriber.next() == (after, "after")
    assert [message["data"] for message in server.history(channel)["messages"]] == ["before", "after"]
    with Raw(server) as client:
        client.request("GET", f"{path}?since={before}&wait=0")
        response = client.read_response()
        assert (response.header("throng-recovered"), response.body) == ("true", b"after")


@pytest.mark.parametrize("transport", ["stream", "websocket"])
def test_an_envelope_of_a_volatile_message_has_no_id(server, channel, transport):
    with subscribe(transport, server, f"/channels/{channel}") as subscriber:
        server.wait_for_connections(channel, 1)
        post(server, channel, '{"x": 4}', Content_Type="application/json")
        if transport == "stream":
            envelope = subscriber.next_line()
        else:
            envelope = json.loads(subscriber.socket.recv(timeout=TIMEOUT_SECONDS))
        assert envelope.pop("time") > 0
        assert envelope == {"type": "message", "channel": channel, "data": {"x": 4}}


def test_a_long_poll_is_answered_and_stays_where_it_was(server, channel):
    last = server.publish(channel, "kept")["id"]
    with Raw(server) as client:
        client.request("GET", f"/channels/{channel}?since={last}&wait=30")
        server.wait_for_connections(channel, 1)
        post(server, channel, "typing")
        response = client.read_response()
        assert (response.status, response.body) == (200, b"typing")
        assert response.header("throng-id") == last


def test_a_page_publishes_what_it_does_not_get_itself(server, channel):
    def ask(socket, **command):
        socket.send(json.dumps(command))
        return json.loads(socket.recv(timeout=TIMEOUT_SECONDS))

    url = f"{server.ws}/subscribe"
    with connect(url, subprotocols=["throng.v1"], proxy=None) as sender:
        assert json.loads(sender.recv(timeout=TIMEOUT_SECONDS))["type"] == "welcome"
        assert ask(sender, type="subscribe", channel=channel)["type"] == "subscribed"
        with subscribe("sse", server, f"/channels/{channel}") as other:
            server.wait_for_connections(channel, 2)
            command = {"type": "publish", "channel": channel, "data": "ann", "volatile": True}
            answer = ask(sender, **command, echo=False)
            assert answer == {"type": "published", "channel": channel, "volatile": True, "subscribers": 1}
            assert next(event for event in other.events if event.data).data == "ann"
        refused = ask(sender, **command, key="k")
        assert (refused["type"], refused["code"]) == ("error", "bad_request")


def test_the_disk_does_not_hear_of_a_volatile_message(serve, tmp_path):
    settings = tmp_path / "settings.toml"
    settings.write_text('[[channels]]\nmatch = "kept/*"\ndurable = true\n')
    server = serve("--config", settings, "--data", tmp_path / "data")
    with subscribe("sse", server, "/channels/kept%2Fa") as subscriber:
        server.wait_for_connections("kept/a", 1)
        written = 'throng_data_written_total{of="messages"}'
        before = server.metrics()[written]
        answer = post(server, "kept%2Fa", "typing")
        assert answer.json() == {"volatile": True, "subscribers": 1}
        assert next(event for event in subscriber.events if event.data).data == "typing"
        assert server.metrics()[written] == before
        assert server.publish("kept/a", "kept")["id"].endswith("-1")
