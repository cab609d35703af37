"""Messages that expire."""

import json

import pytest

from support.raw import Raw
from support.server import eventually
from support.transports import subscribe


def post(server, path, body, **headers):
    response = server.http.post(path, content=body, headers=headers)
    assert response.status_code == 201, response.text
    return response.json()["id"]


def page(server, path):
    return server.http.get(f"{path}/history").json()["messages"]


def test_an_expired_message_is_in_no_history_and_leaves_no_gap(server, channel):
    path = f"/channels/{channel}"
    before = post(server, path, "before")
    brief = post(server, path, "brief", **{"Throng-Expires-In": "1"})
    line = {"channel": channel, "data": "brief, too", "expires_in": 1}
    batch = server.http.post("/publish", content=json.dumps(line))
    assert "id" in batch.json()
    after = post(server, path, "after", **{"Throng-Expires-In": "31536000"})
    found = [message["id"] for message in page(server, path)]
    assert {before, after} <= set(found)
    envelope = next(message for message in page(server, path) if message["id"] == after)
    assert envelope["expires"] == envelope["time"] + 31_536_000_000
    eventually(lambda: len(page(server, path)) == 2, "the expiry")
    with Raw(server) as client:
        client.request("GET", f"{path}?since={before}&wait=0")
        response = client.read_response()
        assert (response.status, response.body) == (200, b"after")
        assert response.header("throng-recovered") == "true"
    assert brief not in [message["id"] for message in page(server, path)]
    eventually(lambda: server.metrics()["throng_log_messages_expired_total"] >= 2, "the count")


@pytest.mark.parametrize("transport", ["stream", "sse", "websocket"])
def test_a_client_that_is_there_gets_what_expires_later(server, channel, transport):
    path = f"/channels/{channel}"
    with subscribe(transport, server, path) as subscriber:
        server.wait_for_connections(channel, 1)
        post(server, path, "brief", **{"Throng-Expires-In": "60"})
        assert subscriber.next()[1] == "brief"


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "soon", "31536001"])
def test_a_time_that_is_none_is_refused(server, channel, value):
    headers = {"Throng-Expires-In": value}
    response = server.http.post(f"/channels/{channel}", content="x", headers=headers)
    assert (response.status_code, response.json()["error"]) == (400, "bad_parameter")
    assert page(server, f"/channels/{channel}") == []
