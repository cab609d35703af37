"""Idempotency keys of several nodes, whose NATS servers forget them."""

from support.nats import connected, know_each_other
from support.nats_client import NatsClient
from support.server import eventually

LOST = 'throng_nats_events_total{event="key_lost"}'
# The stream keeps one message of each channel.
ONE = ("--history-messages", "1")


def publish(one, channel, key):
    return one.http.post(f"/channels/{channel}", content=key, headers={"Idempotency-Key": key})


def entries(broker):
    """How many entries the bucket of keys has."""
    with NatsClient(broker.upstream) as client:
        return client.request("$JS.API.STREAM.INFO.KV_throng-keys")["state"]["messages"]


def test_keys_are_known_after_restarts_although_their_messages_are_gone(brokers, start_node, channel):
    server = brokers()
    first, second = know_each_other(connected(start_node(server, *ONE)), connected(start_node(server, *ONE)))
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
    third = connected(start_node(server, *ONE))
    for one in (second, third):
        for number, id in enumerate(ids):
            again = publish(one, channel, f"k{number}")
            assert (again.status_code, again.json()["id"]) == (200, id), again.text
        assert one.metrics()[LOST] == 0
    assert publish(third, channel, "another").status_code == 201
