"""Nodes over a nats-server that is too old, that limits them, or that they have never reached."""

import re
from contextlib import ExitStack

import pytest

from support.nats import ailments, connected, old_program
from support.server import closed_port, eventually, run_throng
from support.transports import subscribe

READY = "/health/ready"
POLLED = "throng_nats_polled_channels"
# Channels that fit beside the own subscriptions of a node, and those that do not.
LIMIT, MANY = 40, 60


def follow(stack, node, channels):
    """Subscribers of these channels."""
    path = "/channels/{}"
    return [stack.enter_context(subscribe("sse", node, path.format(name))) for name in channels]


def test_channels_beyond_the_limit_of_nats_are_polled_and_the_others_do_not_notice(brokers, start_node):
    limited = brokers(f"max_subscriptions: {LIMIT}")
    here, other = (connected(start_node(limited)) for _ in range(2))
    names = [f"c{number}" for number in range(MANY)]
    with ExitStack() as stack:
        few = follow(stack, here, names[:20])
        assert here.metrics()[POLLED] == 0
        all_of_them = few + follow(stack, here, names[20:])
        eventually(lambda: ailments(here) == ["nats_limit"], "what NATS refuses")
        assert here.http.get(READY).status_code == 200
        eventually(lambda: MANY - LIMIT < here.metrics()[POLLED] < MANY - 20, "all that is refused")
        for publisher in (here, other):
            for name in names:
                publisher.publish(name, name)
            for subscriber, name in zip(all_of_them, names, strict=True):
                assert subscriber.take(1) == [name]
        # It never left, nor was it told again of each refusal.
        assert here.metrics()['throng_nats_events_total{event="lost"}'] == 0
        here.says("raise max_subscriptions")
        assert here.log().count("maximum subscriptions exceeded") == 1
        # Whoever goes makes room for others.
        for subscriber in few + all_of_them[20:30]:
            subscriber.close()
        eventually(lambda: here.metrics()[POLLED] == 0, "room for the rest")
        eventually(lambda: ailments(here) == [], "a node that is well")
        other.publish(names[-1], "last")
        assert all_of_them[-1].take(1) == ["last"]


def test_a_limit_holds_after_nats_was_restarted(brokers, start_node):
    limited = brokers(f"max_subscriptions: {LIMIT}")
    here = connected(start_node(limited))
    names = [f"c{number}" for number in range(MANY)]
    with ExitStack() as stack:
        subscribers = follow(stack, here, names)
        eventually(lambda: ailments(here) == ["nats_limit"], "what NATS refuses")
        limited.kill()
        eventually(lambda: "nats_away" in ailments(here), "a lost server")
        limited.launch()
        eventually(lambda: ailments(here) == ["nats_limit"], "the server, and what it refuses")
        for name in names:
            here.publish(name, name)
        for subscriber, name in zip(subscribers, names, strict=True):
            assert subscriber.take(1) == [name]


def test_the_doctor_names_the_limit(brokers, tmp_path):
    limited = brokers(f"max_subscriptions: {LIMIT}")
    done = run_throng("doctor", "--nats", limited.url, directory=tmp_path)
    (line,) = [line for line in done.stdout.splitlines() if line.split()[1:2] == ["channels"]]
    assert line.startswith("should") and re.search(r" [34]\d at most ", line), done.stdout
    assert "raise max_subscriptions" in done.stdout
    unlimited = brokers()
    done = run_throng("doctor", "--nats", unlimited.url, directory=tmp_path)
    assert "no limit found" in done.stdout and "max_subscriptions" not in done.stdout


@pytest.mark.skipif(old_program() is None, reason="there is no old nats-server")
def test_a_server_that_is_too_old_is_named(brokers, start_node):
    old = brokers(program=old_program())
    here = start_node(old)
    eventually(lambda: ailments(here) == ["nats_version"], "the version")
    answer = here.http.get(READY)
    (reason,) = answer.json()["reasons"]
    sentence = "is too old, 2.11 or later is needed"
    assert sentence in reason["message"]
    here.says(sentence)
    assert answer.status_code == 503 and here.log().count("is too old") == 1


def test_a_node_that_has_never_reached_nats_is_not_ready(brokers, start_node):
    with closed_port() as port:
        nowhere = brokers()
        nowhere.url = f"nats://127.0.0.1:{port}"
        lost = start_node(nowhere)
        assert lost.http.get(READY).json()["status"] == "starting"
        answer = lost.http.get("/health")
        assert (answer.status_code, answer.text) == (503, "starting\n")
        assert lost.http.get("/health/live").status_code == 200
        assert lost.metrics()["throng_ready"] == 0


def test_a_node_that_loses_nats_stays_ready(brokers, start_node):
    server = brokers()
    here = connected(start_node(server))
    server.kill()
    eventually(lambda: ailments(here) == ["nats_away"], "the loss")
    assert here.http.get(READY).status_code == 200 and here.metrics()["throng_ready"] == 1
