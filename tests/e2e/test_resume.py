"""Resuming with an id: exactly the missed messages, or a reported gap."""

import pytest

from support.server import Server
from support.transports import TRANSPORTS, subscribe

MISSED = [f"missed {n}" for n in range(5)]


def leave_and_miss(server, channel, transport):
    """Subscribes, reads one message, closes; five are published. Returns the last id read."""
    path = f"/channels/{channel}"
    with subscribe(transport, server, path) as subscriber:
        server.publish(channel, "heard")
        id, data = subscriber.next()
        assert data == "heard"
    server.wait_for_connections(channel, 0)
    for message in MISSED:
        server.publish(channel, message)
    return id


@pytest.mark.parametrize("back", TRANSPORTS)
@pytest.mark.parametrize("left", TRANSPORTS)
def test_an_id_of_any_transport_resumes_on_any(server, channel, left, back):
    id = leave_and_miss(server, channel, left)
    with subscribe(back, server, f"/channels/{channel}", since=id) as subscriber:
        assert subscriber.recovered is True
        server.publish(channel, "live")
        assert subscriber.take(6) == [*MISSED, "live"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_id_of_the_start_resumes_too(server, channel, transport):
    """A subscriber without messages resumes with the id of its response."""
    with subscribe(transport, server, f"/channels/{channel}") as subscriber:
        id = subscriber.id
    for message in MISSED:
        server.publish(channel, message)
    with subscribe(transport, server, f"/channels/{channel}", since=id) as subscriber:
        assert subscriber.recovered is True
        assert subscriber.take(5) == MISSED


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_foreign_epoch_is_a_gap(server, channel, transport):
    server.publish(channel, "kept")
    with subscribe(transport, server, f"/channels/{channel}", since="0000zz-1") as subscriber:
        assert subscriber.recovered is False
        assert subscriber.take(1) == ["kept"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_id_of_the_future_is_a_gap(server, channel, transport):
    epoch = server.publish(channel, "kept")["id"].rpartition("-")[0]
    path = f"/channels/{channel}"
    with subscribe(transport, server, path, since=f"{epoch}-1000") as subscriber:
        assert subscriber.recovered is False
        assert subscriber.take(1) == ["kept"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_id_that_is_too_old_is_a_gap(serve, channel, transport):
    server = serve("--history-messages", 5)
    old = server.publish(channel, "0")["id"]
    for n in range(1, 21):
        server.publish(channel, str(n))
    with subscribe(transport, server, f"/channels/{channel}", since=old) as subscriber:
        assert subscriber.recovered is False
        assert subscriber.take(5) == ["16", "17", "18", "19", "20"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_oldest_id_without_a_gap_recovers(serve, channel, transport):
    server = serve("--history-messages", 5)
    ids = [server.publish(channel, str(n))["id"] for n in range(10)]
    path = f"/channels/{channel}"
    with subscribe(transport, server, path, since=ids[4]) as subscriber:
        assert subscriber.recovered is True
        assert subscriber.take(5) == ["5", "6", "7", "8", "9"]
    with subscribe(transport, server, path, since=ids[3]) as subscriber:
        assert subscriber.recovered is False
        assert subscriber.take(5) == ["5", "6", "7", "8", "9"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_id_from_before_a_restart_is_a_gap(tmp_path, channel, transport):
    first = Server(tmp_path, "--drain-window", "0ms")
    id = first.publish(channel, "lost")["id"]
    port = first.port
    first.stop()
    second = Server(tmp_path, "--drain-window", "0ms", port=port)
    try:
        with subscribe(transport, second, f"/channels/{channel}", since=id) as subscriber:
            assert subscriber.recovered is False
            second.publish(channel, "new")
            assert subscriber.take(1) == ["new"]
    finally:
        second.stop()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_several_channels_resume_with_one_joint_id(server, channel, transport):
    path = f"/subscribe?channel={channel}-a&channel={channel}-b&user={channel}"
    with subscribe(transport, server, path) as subscriber:
        id = subscriber.id
        assert len(id.split(",")) == 3
    server.publish(channel + "-b", "to b")
    server.publish(channel + "-a", "to a")
    server.publish_to_user(channel, "to the user")
    with subscribe(transport, server, path, since=id) as subscriber:
        assert subscriber.recovered is True
        assert sorted(subscriber.take(3)) == ["to a", "to b", "to the user"]
        server.publish(channel + "-a", "live")
        assert subscriber.take(1) == ["live"]


def test_the_joint_id_of_each_event_resumes(server, channel):
    path = f"/subscribe?channel={channel}-a&channel={channel}-b"
    with subscribe("sse", server, path) as subscriber:
        server.publish(channel + "-a", "a1")
        server.publish(channel + "-b", "b1")
        ids = [subscriber.next()[0] for _ in range(2)]
    server.publish(channel + "-a", "a2")
    with subscribe("sse", server, path, since=ids[1]) as subscriber:
        assert subscriber.recovered is True
        assert subscriber.take(1) == ["a2"]
    with subscribe("sse", server, path, since=ids[0]) as subscriber:
        assert subscriber.recovered is True
        assert sorted(subscriber.take(2)) == ["a2", "b1"]


def test_resuming_under_load_has_no_gap(server, channel):
    """The backlog is sent while the channel grows: each message arrives exactly once."""
    id = server.publish(channel, "start")["id"]
    server.publish_batch([{"channel": channel, "data": str(n)} for n in range(50)])
    with subscribe("websocket", server, f"/channels/{channel}", since=id) as subscriber:
        server.publish_batch([{"channel": channel, "data": str(n)} for n in range(50, 500)])
        assert subscriber.take(500) == [str(n) for n in range(500)]


@pytest.mark.parametrize("name", ["lastEventId", "lastEventID", "last_event_id", "Last-Event-ID"])
def test_libraries_resume_by_a_parameter(server, channel, name):
    first, second = (server.publish(channel, text)["id"] for text in ("one", "two"))
    answer = server.http.get(f"/channels/{channel}?wait=0&since={second}&{name}={first}")
    assert (answer.text, answer.headers["Throng-Recovered"]) == ("two", "true")
    answer = server.http.get(f"/channels/{channel}?{name}={first}&last-event-id={first}")
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_parameter")
