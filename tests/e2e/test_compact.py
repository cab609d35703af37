"""Compact messages: arrays, the numbers of channels, and frames with several, in a client of Python's `websockets`."""

import json
import time
from contextlib import contextmanager

import pytest
from websockets.sync.client import connect

from support import TIMEOUT_SECONDS
from support.server import Server
from support.upgrades import QUIET, UpgradableServer

CHANNELS = 200


class Reader:
    """A client of `throng.v1` with compact messages. It checks that each message of a channel comes once, in order."""

    def __init__(self, socket):
        self.socket = socket
        self.names, self.offsets, self.epochs = {}, {}, {}
        self.frames = 0

    def command(self, **command):
        self.socket.send(json.dumps(command))

    def receive(self, timeout=TIMEOUT_SECONDS):
        """The messages of the next frame, with the name of the channel instead of its number; a notice as it is."""
        frame = json.loads(self.socket.recv(timeout=timeout))
        if isinstance(frame, dict):
            self.learn(frame)
            return frame
        assert frame[0] == 0 and len(frame) > 1, frame
        self.frames += 1
        return [self.message(*message) for message in frame[1:]]

    def learn(self, notice):
        for told in [notice, *notice.get("channels", [])]:
            if isinstance(told, dict) and "number" in told:
                epoch, offset = told["id"].split("-")
                self.names[told["number"]], self.epochs[told["channel"]] = told["channel"], epoch
                self.offsets[told["channel"]] = int(offset)

    def message(self, number, offset, data, *rest):
        name = self.names[number]
        assert offset == self.offsets[name] + 1, (name, offset)
        self.offsets[name] = offset
        return (name, data, *rest)

    def messages(self, count):
        """The next messages, as many as this or more."""
        received = []
        while len(received) < count:
            frame = self.receive()
            received += frame if isinstance(frame, list) else []
        return received


@contextmanager
def reader(server, query="", channels=()):
    url = f"{server.ws}/subscribe?envelope=compact{query}"
    with connect(url, subprotocols=["throng.v1"], open_timeout=TIMEOUT_SECONDS) as socket:
        reader = Reader(socket)
        assert reader.receive()["type"] == "welcome"
        for channel in channels:
            reader.command(type="subscribe", channel=channel)
            assert reader.receive()["type"] == "subscribed"
        yield reader


@pytest.fixture
def quiet(tmp_path):
    server = Server(tmp_path, "--max-channels-per-connection", "500", *QUIET)
    yield server
    server.kill()


def test_a_message_is_a_short_array(server, channel):
    with reader(server, "&time=true", [channel]) as timed, reader(server, "", [channel]) as plain:
        assert timed.names == plain.names, "the number is the node's"
        server.publish(channel, json.dumps({"price": 187.4}), content_type="application/json")
        assert plain.receive() == [(channel, {"price": 187.4})]
        [(_, data, published)] = timed.receive()
        assert data == {"price": 187.4} and abs(time.time() * 1000 - published) < 60_000
        server.publish(channel, b"\0\xff", content_type="image/png")
        others = {"content_type": "image/png", "encoding": "base64"}
        assert plain.receive() == [(channel, "AP8=", others)]
        message_id = server.publish(channel, "hello")["id"]
        assert plain.receive() == [(channel, "hello")]
        assert message_id == f"{plain.epochs[channel]}-{plain.offsets[channel]}"


def test_a_burst_over_many_channels_comes_in_few_frames(quiet):
    channels = [f"price-{number}" for number in range(CHANNELS)]
    with reader(quiet, channels=channels) as page:
        lines = [{"channel": name, "data": {"p": n}} for n in range(5) for name in channels]
        for start in range(0, len(lines), 1000):
            quiet.publish_batch(lines[start : start + 1000])
        received = page.messages(len(lines))
        assert sorted(received, key=str) == sorted(
            [(line["channel"], line["data"]) for line in lines], key=str
        )
        assert page.frames < len(lines) / 10, f"{page.frames} frames for {len(lines)} messages"
        assert quiet.metrics()["throng_joined_frames_total"] > 0


def test_messages_one_by_one_come_one_by_one(quiet):
    with reader(quiet, channels=["a", "b"]) as page:
        for number in range(6):
            name = "ab"[number % 2]
            quiet.publish_batch([{"channel": name, "data": number}])
            assert page.receive() == [(name, number)]
        assert page.frames == 6 and quiet.metrics()["throng_joined_frames_total"] == 0


def test_a_new_process_keeps_the_numbers(tmp_path):
    server = UpgradableServer(tmp_path, *QUIET)
    try:
        others = [f"other-{number}" for number in range(20)]
        with reader(server, channels=others), reader(server, channels=["a", "b"]) as page:
            names = dict(page.names)
            server.publish("a", "before")
            assert page.receive() == [("a", "before")]
            server.upgrade()
            server.publish("b", "after")
            server.publish("a", "after")
            assert sorted(page.messages(2)) == [("a", "after"), ("b", "after")]
            assert page.names == names
            with reader(server, channels=["a"]) as late:
                assert late.names.items() <= names.items()
    finally:
        server.stop()


def test_events_and_lines_are_compact_too(server, channel):
    server.publish(channel, "hi")
    for accept in ["text/event-stream", "*/*"]:
        url = f"/channels/{channel}?envelope=compact&history=1"
        with server.http.stream("GET", url, headers={"Accept": accept}) as response:
            lines = (line for line in response.iter_lines() if line and not line.startswith("event:"))
            told = json.loads(next(lines).removeprefix("data: "))
            [[name, number, epoch]] = told["channels"]
            line = next(lines)
            if accept == "text/event-stream":
                offset = line.removeprefix(f"id: {epoch}-")
                line = next(lines).removeprefix("data: ")
            else:
                offset = str(json.loads(line)[1])
            assert name == channel and line == f'[{number},{offset},"hi"]'


@pytest.mark.parametrize("query", ["wait=1&envelope=compact", "envelope=short", "time=2"])
def test_what_is_not_there_is_refused(server, channel, query):
    answer = server.http.get(f"/channels/{channel}?{query}")
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_parameter")
