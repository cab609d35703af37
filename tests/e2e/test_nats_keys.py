"""Idempotency keys of several nodes, whose NATS servers forget them."""

import pytest

from support.nats import brokers_in, connected, know_each_other, nodes_in
from support.nats_client import NatsClient
from support.server import eventually

LOST = 'throng_nats_events_total{event="key_lost"}'
# The stream keeps one message of each channel.
ONE = ("--history-messages", "1")


@pytest.fixture
def broker(tmp_path):
    """Starts nats-servers."""
    with brokers_in(tmp_path) as begin:
        yield begin


@pytest.fixture
def node(tmp_path):
    """Starts nodes, and stops them."""
    with nodes_in(tmp_path) as begin:
        yield begin


def publish(one, channel, key):
    return one.http.post(f"/channels/{channel}", content=key, headers={"Idempotency-Key": key})


def entries(broker):
    """How many entries the bucket of keys has."""
    with NatsClient(broker.upstream) as client:
        return client.request("$JS.API.STREAM.INFO.KV_throng-keys")["state"]["messages"]


def test_keys_are_known_after_restarts_although_their_messages_are_gone(broker, node, channel):
    server = broker()
    first, second = know_each_other(connected(node(server, *ONE)), connected(node(server, *ONE)))
    ids = []
    for number in range(5):
        answer = publish(first, channel, f"k{number}")
        assert answer.status_code == 201
        ids.append(answer.json()["id"])
    eventually(lambda: entries(server) > 0, "the keys in their bucket")
    first.stop()
    server.kill()
    server.launch()
    connected(second)
    third = connected(node(server, *ONE))
    for one in (second, third):
        for number, id in enumerate(ids):
            again = publish(one, channel, f"k{number}")
            assert (again.status_code, again.json()["id"]) == (200, id), again.text
        assert one.metrics()[LOST] == 0
    assert publish(third, channel, "another").status_code == 201
