"""Channels and subscriptions with a pace: what comes within it goes out together."""

import json
import time

import pytest
from websockets.sync.client import connect

from support import TIMEOUT_SECONDS
from support.transports import subscribe

# Longer than any test waits: what is held comes only because there is so much of it.
CHANNELS = """
[[channels]]
match = "paced:*"
pace = "1m"
max-lag-messages = 8

[[channels]]
match = "latest:*"
pace = "3s"
lag-policy = "latest"
"""
FIRES_EARLY = 8 // 2 + 1


@pytest.fixture
def config(tmp_path):
    """A file with rules that have a pace."""
    path = tmp_path / "throng.toml"
    path.write_text(CHANNELS)
    return path


@pytest.mark.parametrize("transport", ["stream", "sse", "websocket"])
def test_a_rule_holds_what_comes_within_its_pace_and_joins_it(serve, config, transport):
    server = serve("--config", config)
    with subscribe(transport, server, "/subscribe?channel=paced:a&channel=b") as reader:
        server.publish("paced:a", "0")
        assert reader.next()[1] == "0", "the first after silence at once"
        held = [str(number) for number in range(1, FIRES_EARLY + 1)]
        for text in held[:-1]:
            server.publish("paced:a", text)
        server.publish("b", "later")
        assert reader.next()[1] == "later", "it passes what is held"
        server.publish("paced:a", held[-1])
        assert reader.take(FIRES_EARLY) == held


def test_a_latest_channel_with_a_pace_has_the_newest(serve, config):
    server = serve("--config", config)
    with subscribe("stream", server, "/channels/latest:a") as reader:
        server.publish("latest:a", "0")
        assert reader.next()[1] == "0"
        server.publish_batch([{"channel": "latest:a", "data": str(n)} for n in range(1, 5)])
        skipped = {"type": "conflated", "channel": "latest:a", "count": 3}
        assert reader.next_line() == skipped
        assert reader.next()[1] == "4"


def test_a_client_chooses_a_slower_pace(serve):
    server = serve()
    with subscribe("websocket", server, "/channels/a", pace="400ms") as slow:
        with subscribe("websocket", server, "/channels/a") as quick:
            began = time.monotonic()
            for number in range(3):
                server.publish("a", str(number))
            assert slow.next()[1] == "0", "the first after silence at once"
            assert quick.take(3) == ["0", "1", "2"]
            assert slow.take(2) == ["1", "2"]
            assert time.monotonic() - began >= 0.4, "not before the pace lets them out"


def test_a_command_has_a_pace_that_survives_an_upgrade(upgradable):
    server = upgradable()
    protocol = {"subprotocols": ["throng.v1"], "proxy": None, "open_timeout": TIMEOUT_SECONDS}
    with connect(server.ws + "/subscribe", **protocol) as socket:
        read = lambda: json.loads(socket.recv(timeout=TIMEOUT_SECONDS))
        assert read()["type"] == "welcome"
        for command in [{"channel": "a", "pace": 3000}, {"channel": "b"}]:
            socket.send(json.dumps({"type": "subscribe", **command}))
            assert read()["type"] == "subscribed"
        server.upgrade()
        server.publish("a", "0")
        assert read()["data"] == "0"
        for channel, text in [("a", "1"), ("a", "2"), ("b", "later")]:
            server.publish(channel, text)
        assert [read()["data"] for _ in range(3)] == ["later", "1", "2"]


@pytest.mark.parametrize("pace", ["9ms", "1s", "60001", ""])
def test_a_pace_out_of_its_range_is_refused(server, pace):
    response = server.http.get("/channels/a", params={"pace": pace})
    assert response.status_code == 400
    assert "whole number of milliseconds, 10 to 60000" in response.json()["message"]


def test_a_long_poll_has_no_pace(server):
    response = server.http.get("/channels/a", params={"pace": "100ms", "wait": "1"})
    assert response.status_code == 400 and "long-poll" in response.json()["message"]
