"""History, presence, idempotency and exclusion."""

import pytest

from support.transports import subscribe


def data(page):
    return [message["data"] for message in page["messages"]]


def test_history_pages_both_ways(server, channel):
    ids = [server.publish(channel, str(n))["id"] for n in range(10)]
    page = server.history(channel, limit=4)
    assert data(page) == ["6", "7", "8", "9"]
    assert page["id"] == ids[9] and page["more"] is True and "recovered" not in page

    page = server.history(channel, limit=4, before=page["messages"][0]["id"])
    assert data(page) == ["2", "3", "4", "5"] and page["more"] is True
    page = server.history(channel, limit=4, before=page["messages"][0]["id"])
    assert data(page) == ["0", "1"] and page["more"] is False

    page = server.history(channel, limit=4, after=ids[1])
    assert data(page) == ["2", "3", "4", "5"]
    assert page["more"] is True and page["recovered"] is True
    page = server.history(channel, limit=4, after=page["messages"][-1]["id"])
    assert data(page) == ["6", "7", "8", "9"]
    assert page["more"] is False and page["recovered"] is True
    page = server.history(channel, after=ids[9])
    assert data(page) == [] and page["recovered"] is True


def test_history_of_an_unused_channel_is_empty(server, channel):
    page = server.history(channel)
    assert page["channel"] == channel and page["messages"] == [] and page["more"] is False
    # The id is where a message that is published from now on comes after.
    server.publish(channel, "first")
    page = server.history(channel, after=page["id"])
    assert page["recovered"] is True and data(page) == ["first"]


def test_history_after_a_foreign_id_is_not_whole(server, channel):
    server.publish(channel, "x")
    page = server.history(channel, after="0000zz-1")
    assert page["recovered"] is False and data(page) == ["x"]


def test_history_of_a_user(server, channel):
    server.publish_to_user(channel, "for you")
    page = server.http.get(f"/users/{channel}/history").json()
    assert page["user"] == channel and data(page) == ["for you"]
    assert page["messages"][0]["user"] == channel and "channel" not in page["messages"][0]
    assert server.history(channel)["messages"] == []


def test_history_continues_live_without_a_gap(server, channel):
    server.publish(channel, "old")
    page = server.history(channel)
    server.publish(channel, "between")
    with subscribe("sse", server, f"/channels/{channel}", since=page["id"]) as subscriber:
        server.publish(channel, "live")
        assert subscriber.take(2) == ["between", "live"]


def test_names_with_slashes_and_beyond_ascii(server):
    name = "rooms/zürich/№ 7?&=#%"
    path = "/channels/rooms%2Fz%C3%BCrich%2F%E2%84%96%207%3F%26%3D%23%25"
    with subscribe("stream", server, path) as it:
        assert server.publish(name, "here")["subscribers"] == 1
        envelope = it.next_line()
        assert envelope["channel"] == name and envelope["data"] == "here"


def test_presence(server, channel):
    path = f"/channels/{channel}"
    assert server.presence(channel) == {
        "channel": channel,
        "connections": 0,
        "users": [],
        "more": False,
    }
    with (
        subscribe("sse", server, path, user="ann"),
        subscribe("stream", server, path, user="ann"),
        subscribe("websocket", server, path, user="bo"),
        subscribe("websocket", server, path),
    ):
        found = server.presence(channel)
        assert found["connections"] == 4
        assert sorted(found["users"]) == ["ann", "bo"] and found["more"] is False
        found = server.presence(channel, limit=1)
        assert len(found["users"]) == 1 and found["more"] is True
    server.wait_for_connections(channel, 0)
    assert server.presence(channel)["users"] == []


def test_an_idempotency_key_publishes_once(server, channel):
    with subscribe("stream", server, f"/channels/{channel}") as subscriber:
        url = f"/channels/{channel}"
        first = server.http.post(url, content="once", headers={"Idempotency-Key": "k"})
        again = server.http.post(url, content="twice", headers={"Idempotency-Key": "k"})
        other = server.http.post(url, content="other", headers={"Idempotency-Key": "l"})
        assert (first.status_code, again.status_code, other.status_code) == (201, 200, 201)
        assert again.json()["id"] == first.json()["id"] and again.json()["duplicate"] is True
        assert "duplicate" not in first.json()
        elsewhere = server.publish(channel + "-b", "x", Idempotency_Key="k")
        assert "duplicate" not in elsewhere
        assert subscriber.take(2) == ["once", "other"]


@pytest.mark.parametrize("key", ["", "k" * 129])
def test_a_key_of_the_wrong_length_is_refused(server, channel, key):
    response = server.http.post(
        f"/channels/{channel}", content="x", headers={"Idempotency-Key": key}
    )
    assert response.status_code == 400 and response.json()["error"] == "bad_parameter"


@pytest.mark.parametrize("transport", ["stream", "sse", "websocket"])
def test_exclude_leaves_out_the_named_connection(server, channel, transport):
    path = f"/channels/{channel}"
    with subscribe(transport, server, path) as spared, subscribe("sse", server, path) as other:
        answer = server.publish(channel, "not for one", Throng_Exclude=spared.connection)
        assert answer["subscribers"] == 1
        server.publish(channel, "for all")
        assert spared.take(1) == ["for all"]
        assert other.take(2) == ["not for one", "for all"]
