"""Durable channels on a machine whose clock is set."""

import pytest

from support.durable import SETTINGS
from support.server import eventually
from support.transports import subscribe

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def start(serve, tmp_path, clock):
    """Starts a server with durable channels, and says how to set its clock."""
    (tmp_path / "throng.toml").write_text(SETTINGS)
    move, environment = clock
    place = ("--config", "throng.toml", "--data", "data")
    return lambda: serve(*place, environment=environment), move


def publish(server, text, key=None):
    headers = {"Idempotency-Key": key} if key else {}
    answer = server.http.post("/channels/kept", content=text, headers=headers)
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


def messages(server):
    return server.history("kept")["messages"]


def test_a_clock_that_is_set_forward_expires_nothing(start):
    begin, move = start
    server = begin()
    first = publish(server, "0", key="first")["id"]
    server.publish("in-memory", "its time follows")
    began_ms = messages(server)[0]["time"]
    # History is kept for an hour.
    move("+3d")

    def seen_ms():
        return server.history("in-memory")["messages"][0]["time"]

    eventually(lambda: seen_ms() > began_ms + DAY_MS, "the time of three days later")
    # The journal looks twice a second.
    looks = server.metrics()["throng_uptime_seconds"] + 2
    eventually(lambda: server.metrics()["throng_uptime_seconds"] >= looks, "a look at what expires")
    assert publish(server, "again", key="first")["id"] == first, "the retry of a publication"
    publish(server, "1")
    times = [message["time"] - began_ms for message in messages(server)]
    assert times[0] == 0 and times[1] > 2 * DAY_MS, times
    with subscribe("sse", server, "/channels/kept", since=first) as subscriber:
        assert subscriber.recovered is True
        assert subscriber.next()[1] == "1"


def test_a_clock_that_was_ahead_for_a_moment_is_right_afterwards(start):
    begin, move = start
    move("+365d")
    server = begin()
    publish(server, "0", key="first")
    ahead_ms = messages(server)[0]["time"]
    move("+0")
    server.stop()
    server = begin()
    publish(server, "1")
    assert publish(server, "again", key="first")["duplicate"] is True
    times = [message["time"] - ahead_ms for message in messages(server)]
    assert times[0] == 0 and times[1] < -300 * DAY_MS, times
