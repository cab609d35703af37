"""Frames that clients acknowledge: one that is slow itself gets the newest messages, the number of those that it skipped, and never a gap."""

import json
import threading
import time
from contextlib import contextmanager

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from support import TIMEOUT_SECONDS
from support.server import eventually

# The most that a client may owe.
OWED = 8
STALENESS_SECONDS = 1.0
RULES = """
[[channels]]
match = "bounded:*"
lag-policy = "latest"
max-staleness = "1s"

[[channels]]
match = "patient:*"
lag-policy = "latest"
max-staleness = "1m"
"""


class Reader:
    """A client of `throng.v1` with compact messages that acknowledges when it is told to."""

    def __init__(self, socket):
        self.socket = socket
        self.names = {}
        self.owed = 0
        # Of each channel, what came and how many were skipped.
        self.got, self.skipped = {}, {}

    def command(self, **command):
        self.socket.send(json.dumps(command))

    def read(self, timeout=TIMEOUT_SECONDS):
        """Reads a frame. Returns its messages, with the names of their channels."""
        frame = json.loads(self.socket.recv(timeout=timeout))
        if isinstance(frame, dict):
            assert frame["type"] not in ("gap", "error", "conflated"), frame
            if "number" in frame:
                self.names[frame["number"]] = frame["channel"]
            return []
        asks, *items = frame
        self.owed += asks
        messages = []
        for number, second, *rest in items:
            name = self.names[number]
            if not rest:
                self.skipped[name] = self.skipped.get(name, 0) - second
            else:
                self.got.setdefault(name, []).append(rest[0])
                messages.append((name, rest[0]))
        asked = [name for name, _ in messages if name.startswith(("bounded:", "patient:"))]
        assert (asks == 1) == bool(asked), frame
        return messages

    def read_all(self, silence=0.3):
        """Reads until nothing comes for so long."""
        messages = []
        while True:
            try:
                messages += self.read(silence)
            except TimeoutError:
                return messages

    def until(self, message):
        """Reads until a message comes."""
        while message not in self.read():
            pass

    def acknowledge(self, frames=None):
        frames = self.owed if frames is None else frames
        self.owed -= frames
        self.command(type="ack", frames=frames)

    def count(self, channel):
        """How many of a channel's messages came, or were told as skipped."""
        return len(self.got.get(channel, [])) + self.skipped.get(channel, 0)


@contextmanager
def reader(server, *channels):
    url = f"{server.ws}/subscribe?envelope=compact"
    with connect(url, subprotocols=["throng.v1"], open_timeout=TIMEOUT_SECONDS) as socket:
        reader = Reader(socket)
        reader.command(type="subscribe", channels=list(channels))
        while len(reader.names) < len(channels):
            frame = json.loads(socket.recv(timeout=TIMEOUT_SECONDS))
            told = frame.get("channels", [])
            reader.names |= {entry["number"]: entry["channel"] for entry in told}
        yield reader


@pytest.fixture
def rules(tmp_path):
    path = tmp_path / "throng.toml"
    path.write_text(RULES)
    return path


def publish_and_read(server, client, channel, count):
    """Publishes messages with numbers, each in a frame of its own."""
    for number in range(count):
        server.publish(channel, str(number))
        client.until((channel, str(number)))


@pytest.mark.parametrize("channel", ["bounded:a", "patient:a"])
def test_a_client_that_owes_too_much_gets_the_newest_later(serve, rules, channel):
    server = serve("--config", rules)
    with reader(server, channel, "other") as slow, reader(server, channel) as quick:
        for number in range(40):
            server.publish(channel, str(number))
            quick.until((channel, str(number)))
            quick.acknowledge()
        server.publish("other", "goes on")
        slow.until(("other", "goes on"))
        slow.read_all()
        assert len(slow.got[channel]) == slow.owed <= OWED
        # It is told what it skips with a newer message, never before one. A frame written to `quick`
        # may wake the publisher before the same frame is written to `slow`, which then skips it.
        assert slow.count(channel) == int(slow.got[channel][-1]) + 1
        slow.acknowledge()
        slow.until((channel, "39"))
        assert slow.count(channel) == 40 and slow.skipped[channel] >= 40 - OWED - 1
        assert quick.got[channel] == [str(number) for number in range(40)] and not quick.skipped


def test_a_client_that_was_busy_gets_nothing_old(serve, rules):
    server = serve("--config", rules)
    accepted, is_over = [0], threading.Event()

    def publish():
        while not is_over.is_set():
            server.publish("bounded:a", str(accepted[0] + 1))
            accepted[0] += 1
            time.sleep(0.02)

    publisher = threading.Thread(target=publish)
    with reader(server, "bounded:a") as client:
        publisher.start()
        try:
            for _ in range(2):
                # Its handlers do not run, whatever its system reads for it meanwhile.
                time.sleep(2 * STALENESS_SECONDS)
                assert len(client.read_all()) <= OWED
                newest, older = accepted[0], 0
                client.acknowledge()
                while not any(int(number) >= newest for _, number in client.read()):
                    older += 1
                # The worker may take the acknowledgement before what was accepted last.
                assert older <= 2, f"{older} older than message {newest}"
            assert client.skipped["bounded:a"] > 0
        finally:
            is_over.set()
            publisher.join()


def test_a_client_that_never_acknowledges_is_held_and_stays(serve, rules):
    server = serve("--config", rules, "--heartbeat", "1s", "--ping-interval", "1s")
    with reader(server, "bounded:a", "other") as stuck, reader(server, "bounded:a") as good:
        for number in range(20):
            server.publish("bounded:a", str(number))
            good.until(("bounded:a", str(number)))
            good.acknowledge()
        eventually(lambda: server.metrics()["throng_connections_behind"] == 1, "it is behind")
        behind = server.http.get("/connections", params={"sort": "behind"}).json()["connections"]
        assert behind[0]["messages"] > 0 and behind[0]["bytes"] > 0, behind
        stuck.read_all()
        server.publish("other", "here")
        stuck.until(("other", "here"))
        assert len(stuck.got["bounded:a"]) <= OWED


@pytest.mark.parametrize("acknowledged", [1, 3])
def test_what_was_not_sent_cannot_be_acknowledged(serve, rules, acknowledged):
    server = serve("--config", rules)
    with reader(server, "bounded:a") as client:
        publish_and_read(server, client, "bounded:a", acknowledged - 1)
        assert client.owed == acknowledged - 1
        client.acknowledge(acknowledged)
        with pytest.raises(ConnectionClosed) as closed:
            client.read()
        assert closed.value.rcvd.code == 4008
        assert closed.value.rcvd.reason == "frames were acknowledged that had not been sent"
    assert server.metrics()['throng_disconnects_total{reason="bad_ack"}'] == 1


def test_what_is_owed_survives_an_upgrade(upgradable, rules):
    server = upgradable("--config", rules)
    with reader(server, "patient:a") as client:
        publish_and_read(server, client, "patient:a", OWED)
        for number in range(OWED, OWED + 3):
            server.publish("patient:a", str(number))
        server.upgrade()
        assert client.read_all() == [] and client.owed == OWED
        client.acknowledge()
        client.until(("patient:a", str(OWED + 2)))
        assert client.count("patient:a") == OWED + 3
        client.acknowledge()
        client.acknowledge(1)
        with pytest.raises(ConnectionClosed) as closed:
            client.read()
        assert closed.value.rcvd.code == 4008
