"""An event to 100 channels whose journal fails midway: the same request again completes it, and nothing comes twice."""

import threading
from pathlib import Path

from support.nats import connected
from support.nats import QUICK as QUICK_NODE
from support.pusher import APP, Peer, call, settings
from support.server import Server, eventually
from support.small_disk import mount_small
from test_full_disk import fill

EVENTS = f"/apps/{APP['id']}/events"
DURABLE = '[[channels]]\nmatch = "shop/kept-*"\ndurable = true\n'
ROUNDS = 4


def event(channels):
    return {"name": "ev", "channels": channels, "data": "x"}


def kept(server, channel):
    """How many messages a channel has."""
    return len(server.history(f"shop/{channel}")["messages"])


def test_a_disk_that_fails_midway(tmp_path):
    headers = settings(tmp_path)
    with (tmp_path / "throng.toml").open("a") as file:
        file.write(DURABLE)
    data = tmp_path / "data"
    data.mkdir()
    server = Server(tmp_path, "--data", data, prepare=mount_small(data, 192))
    server.http.headers.update(headers)
    # Every other channel is on the disk.
    channels = [f"{kind}-{number}" for number in range(50) for kind in ("brief", "kept")]
    filler = fill(Path(f"/proc/{server.process.pid}/root{data}"))
    large = {"name": "ev", "channel": "kept-other", "data": "x" * 4096}
    eventually(lambda: call(server, "POST", EVENTS, large)[0] in (504, 507), "a disk that refuses")

    def publish():
        return call(server, "POST", EVENTS, event(channels), headers={"Idempotency-Key": "one"})[0]

    assert publish() in (504, 507)
    assert {kept(server, channel) for channel in channels[::2]} == {1}, "the others are published"
    filler.unlink()
    eventually(lambda: publish() == 200, "the rest")
    assert publish() == 200
    assert {channel: kept(server, channel) for channel in channels} == dict.fromkeys(channels, 1)
    server.stop()


def test_a_broker_that_dies_midway(tmp_path, broker):
    headers = settings(tmp_path)
    server = Server(tmp_path, *QUICK_NODE, "--engine", "nats", "--nats", broker.url)
    server.http.headers.update(headers)
    connected(server)
    every = []
    for round in range(ROUNDS):
        channels = [f"round-{round}-{number}" for number in range(100)]
        answers = []

        def publish(channels=channels, round=round, answers=answers):
            key = {"Idempotency-Key": f"round-{round}"}
            answers.append(call(server, "POST", EVENTS, event(channels), headers=key)[0])
            return answers[-1] == 200

        first = Peer(server)
        first.subscribe(channels[0])
        first.next()
        sender = threading.Thread(target=publish)
        sender.start()
        # At once, or as soon as the first is published.
        if round % 2:
            assert first.next()["event"] == "ev"
        broker.kill()
        sender.join()
        assert answers[0] in (200, 503, 504)
        broker.launch()
        eventually(publish, lambda answers=answers: f"the rest: {answers}")
        assert publish()
        every += channels
    assert {channel: kept(server, channel) for channel in every} == dict.fromkeys(every, 1)
    server.stop()
