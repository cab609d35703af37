"""NATS as it is in the world: limits of servers and accounts, servers that are about to shut down,
streams that somebody seals or purges, and a server that stands still.
"""

import concurrent.futures
import json
import os
import re
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from support import NO_TLS, TIMEOUT_SECONDS
from support.nats import ailments, connected
from support.nats_client import NatsClient
from support.nats_cluster import NatsCluster
from support.server import eventually
from support.transports import subscribe

LOST = 'throng_nats_events_total{event="lost"}'


def account(jetstream="enabled", limits=""):
    """The configuration of a server whose clients share an account with limits."""
    limits = f"limits {{ {limits} }}" if limits else ""
    users = "users: [ { user: a, password: b } ]"
    return f"accounts {{ A {{ jetstream: {jetstream}, {users}\n{limits} }} }}\nno_auth_user: a"


def refusals(node, limit):
    """How often NATS has refused something because of a limit."""
    return node.metrics()[f'throng_nats_limits_total{{limit="{limit}"}}']


def ask(broker, subject, payload=None):
    """The answer of a server to a request."""
    with NatsClient(broker.upstream) as client:
        return client.request(subject, payload)


def post(node, channel, body):
    """The answer to a publication."""
    return node.http.post(f"/channels/{channel}", content=body)


def test_a_payload_limit_of_the_account_refuses_only_what_exceeds_it(brokers, start_node, channel):
    here = connected(start_node(brokers(account(limits="max_payload: 16384"))))
    with subscribe("sse", here, f"/channels/{channel}") as there:
        for _ in range(2):
            answer = post(here, channel, "x" * 20_000)
            assert answer.status_code == 413, answer.text
            assert "max_payload of NATS" in answer.json()["message"]
        sent = here.publish(channel, "small")["id"]
        assert there.next() == (sent, "small")
    assert here.metrics()[LOST] == 0 and refusals(here, "payload") == 2
    here.says("raise max_payload of the servers, or of the account")
    assert here.log().count("raise max_payload") == 1


def test_a_payload_limit_that_is_lowered_costs_one_connection(brokers, start_node, channel):
    server = brokers("max_payload: 1MB")
    here = connected(start_node(server))
    here.publish(channel, "x" * 20_000)
    server.reload("max_payload: 16384")
    # The node does not know: the server hangs up, and says the new limit when it is back.
    assert post(here, channel, "x" * 20_000).status_code == 504
    connected(here)
    assert post(here, channel, "x" * 20_000).status_code == 413
    assert here.publish(channel, "small")["id"] and here.metrics()[LOST] == 1


def test_many_channels_are_compared_within_a_small_payload(brokers, start_node):
    server = brokers("max_payload: 8192")
    here = connected(start_node(server))
    names = [f"{number}-{'long' * 20}" for number in range(200)]
    with ExitStack() as stack:
        subscribers = [
            stack.enter_context(subscribe("sse", here, f"/channels/{name}")) for name in names
        ]
        server.kill()
        eventually(lambda: ailments(here) == ["nats_away"], "a lost server")
        server.launch()
        connected(here)
        for name in names:
            here.publish(name, name)
        for subscriber, name in zip(subscribers, names, strict=True):
            assert subscriber.take(1) == [name]
    assert here.metrics()[LOST] == 1


@pytest.mark.parametrize("limit", ["storage", "streams"])
def test_a_stream_that_a_limit_forbids_is_named_and_made_later(brokers, start_node, channel, limit):
    limits = {"storage": "{ max_file: 1MB }", "streams": "{ max_streams: 1 }"}
    server = brokers(account(limits[limit]))
    here = start_node(server)
    eventually(lambda: ailments(here) == ["nats_refused"], "what NATS refuses")
    (reason,) = here.http.get("/health/ready").json()["reasons"]
    assert f"because of a limit ({limit})" in reason["message"]
    here.says("raise the ")
    assert refusals(here, limit) > 0 and here.http.get("/health/live").status_code == 200
    server.reload(account())
    connected(here)
    assert here.publish(channel, "x")["id"]


def test_a_storage_limit_of_the_account_refuses_messages_by_its_name(brokers, start_node, channel):
    server = brokers(account("{ max_file: 2GB }"))
    here = connected(start_node(server, "--history-total-bytes", "64MiB"))
    with subscribe("sse", here, f"/channels/{channel}") as there:
        here.publish(channel, "x" * 60_000)
        server.reload(account("{ max_file: 1000 }"))

        def is_refused():
            answer = post(here, channel, "y" * 60_000)
            return answer.status_code == 507 and "storage in NATS" in answer.json()["message"]

        eventually(is_refused, lambda: f"a limit: {here.log()}")
        assert refusals(here, "storage") > 0 and here.metrics()[LOST] == 0
        here.says("raise the storage of the account")
        assert here.log().count("raise the storage") == 1
        server.reload(account("{ max_file: 2GB }"))
        eventually(lambda: post(here, channel, "z").status_code == 201, "room again")
        assert there.take(1) == ["x" * 60_000] and there.next()[1]


def test_a_connection_too_many_disturbs_no_other(brokers, start_node, channel):
    server = brokers("max_connections: 1")
    here = connected(start_node(server))
    late = start_node(server)
    eventually(lambda: refusals(late, "connections") > 0, "a connection too many")
    late.says("maximum connections exceeded; raise max_connections")
    assert ailments(late) == ["nats_away"]
    assert here.publish(channel, "x")["id"] and here.metrics()[LOST] == 0
    server.reload("max_connections: 10")
    connected(late)


def test_own_subscriptions_without_room_are_named(brokers, start_node, channel):
    here = connected(start_node(brokers("max_subscriptions: 3")))
    here.says("no room for the subscriptions of the node itself")
    assert refusals(here, "subscriptions") > 0
    with subscribe("sse", here, f"/channels/{channel}") as there:
        sent = here.publish(channel, "x")["id"]
        assert there.next() == (sent, "x")


def test_a_stream_that_is_sealed_is_named_and_replaced_once_removed(brokers, start_node, channel):
    server = brokers()
    here = connected(start_node(server))
    first = here.publish(channel, "first")["id"]
    config = ask(server, "$JS.API.STREAM.INFO.throng-channels")["config"]
    assert ask(server, "$JS.API.STREAM.UPDATE.throng-channels", {**config, "sealed": True})["config"]
    with subscribe("websocket", here, f"/channels/{channel}") as there:
        eventually(lambda: ailments(here) == ["nats_refused"], "a sealed stream")
        here.says("it is sealed, and stays so: remove it")
        answer = post(here, channel, "x")
        assert answer.status_code == 503 and int(answer.headers["Retry-After"]) >= 1
        there.socket.ping().wait(TIMEOUT_SECONDS)
        assert ask(server, "$JS.API.STREAM.DELETE.throng-channels")["success"]
        here.says("has lost messages")
    connected(here)
    with subscribe("websocket", here, f"/channels/{channel}", since=first) as again:
        assert again.recovered is False
        sent = here.publish(channel, "new")["id"]
        assert again.next() == (sent, "new")


def test_a_purged_stream_is_a_gap_for_those_who_lack_messages(brokers, start_node, channel):
    server = brokers()
    here = connected(start_node(server))
    first, last = (here.publish(channel, text)["id"] for text in ("first", "last"))
    assert ask(server, "$JS.API.STREAM.PURGE.throng-channels")["success"]
    assert here.history(channel)["messages"] == []
    with subscribe("websocket", here, f"/channels/{channel}", since=first) as late:
        assert late.recovered is False
        with subscribe("websocket", here, f"/channels/{channel}", since=last) as up_to_date:
            assert up_to_date.recovered is True
            sent = here.publish(channel, "new")["id"]
            assert late.next() == up_to_date.next() == (sent, "new")


def test_a_server_that_stands_still_bounds_the_memory_of_a_node(brokers, start_node):
    server = brokers()
    here = connected(start_node(server))
    # As much as may be under way, each message in a channel of its own.
    batches, lines, body = 10, 100, "x" * 60_000
    held = batches * lines * len(body)

    def memory():
        status = Path(f"/proc/{here.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) << 10

    def publish(batch):
        items = [{"channel": f"c{batch}-{line}", "data": body} for line in range(lines)]
        text = "\n".join(json.dumps(item) for item in items)
        answer = client.post("/publish", content=text)
        return [json.loads(line) for line in answer.text.splitlines()]

    url = {"base_url": here.url, "trust_env": False, "verify": NO_TLS}
    with (
        httpx.Client(timeout=2 * TIMEOUT_SECONDS, **url) as client,
        concurrent.futures.ThreadPoolExecutor(batches) as pool,
    ):
        assert all("id" in line for line in publish(batches))
        before, most = memory(), 0
        os.kill(server.process.pid, signal.SIGSTOP)
        answers = [pool.submit(publish, batch) for batch in range(batches)]
        until = time.monotonic() + 8
        while time.monotonic() < until:
            most = max(most, memory())
            time.sleep(0.02)
        busy = post(here, "c", "x")
        os.kill(server.process.pid, signal.SIGCONT)
        lines = [line for answer in answers for line in answer.result()]
    assert busy.status_code == 503 and int(busy.headers["Retry-After"]) >= 1
    errors = {line["error"] for line in lines if "error" in line}
    assert errors and errors <= {"busy", "unavailable", "outcome_unknown"}, errors
    # The requests, the messages under way, and what waits to be written.
    assert most - before < 4 * held, f"{(most - before) / held:.1f} times as much as was published"
    assert here.metrics()['throng_nats_messages_total{what="refused"}'] > 0
    connected(here)
    assert here.publish("c", "x")["id"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Three servers."""
    found = NatsCluster(tmp_path_factory.mktemp("cluster"))
    yield found
    found.stop()


@pytest.mark.parametrize("leads", [False, True])
def test_a_node_leaves_a_lame_duck_and_publishers_do_not_notice(
    cluster, start_node, channel, leads
):
    ways = [cluster.ways() for _ in cluster.members]
    other = connected(start_node(ways[0], "--nats-replicas", "3"))
    cluster.wait_until_current()
    leader = cluster.wait_for_leader()
    chosen = [member for member in cluster.members if (member is leader) == leads][0]
    ways.append(cluster.ways(chosen))
    here = connected(start_node(ways[-1], "--nats-replicas", "3"))
    try:
        with subscribe("sse", other, f"/channels/{channel}") as there:
            sent = [here.publish(channel, "0")["id"]]
            chosen.process.send_signal(signal.SIGUSR2)
            until = time.monotonic() + TIMEOUT_SECONDS
            while "about to shut down; going to another" not in here.log():
                assert time.monotonic() < until, here.log()
                sent.append(here.publish(channel, str(len(sent)))["id"])
            for _ in range(100):
                sent.append(here.publish(channel, str(len(sent)))["id"])
            assert [there.next() for _ in sent] == [(id, str(at)) for at, id in enumerate(sent)]
        assert here.metrics()[LOST] == 0 and not ailments(here)
    finally:
        for server in (here, other):
            server.stop()
        for way in ways:
            way.close()
        with chosen.killed():
            pass
        cluster.wait_until_current()
