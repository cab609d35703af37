"""Three nodes over three nats-servers, of which some fail while messages are published to all nodes:
over HTTP and WebSocket, with keys and without. Nothing is lost, doubled or reordered, and
subscribers stay connected.

`THRONG_FAULT_SECONDS` is for how long nodes are cut off or frozen; `make test-long` sets it.
"""

import contextlib
import subprocess
import time
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from support import TIMEOUT_SECONDS
from support.nats import ailments, connected
from support.nats_cluster import NatsCluster, slowed
from support.server import Server, eventually
from support.traffic import FAULT_SECONDS, Traffic
from support.transports import subscribe

# Histories are longer than what is published while a node is away, so that nothing is gone.
FLAGS = ["--drain-window", "200ms", "--drain-timeout", "5s", "--heartbeat", "2s"]
FLAGS += ["--history-messages", "10000"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Three servers."""
    found = NatsCluster(tmp_path_factory.mktemp("cluster"))
    yield found
    found.stop()


@pytest.fixture(scope="module")
def start(tmp_path_factory, cluster):
    """Starts nodes whose stream is on all servers, and which begin with another server each."""
    directory, started = tmp_path_factory.mktemp("nodes"), []

    def begin(*flags, first=None, environment=None):
        ways = cluster.ways(first)
        own = ["--engine", "nats", "--nats", ways.url, "--nats-replicas", "3"]
        server = Server(directory, *FLAGS, *own, *flags, environment=environment)
        server.ways, server.is_killed = ways, False
        started.append(server)
        return server

    yield begin
    for server in started:
        if not server.is_killed:
            server.stop()
        server.ways.close()


@pytest.fixture(scope="module")
def nodes(start):
    """Three nodes."""
    return [connected(node) for node in [start() for _ in range(3)]]


@pytest.fixture
def traffic(cluster, nodes, channel):
    """What is published and received during the test, and audited at its end."""
    for node in nodes:
        connected(node)
    cluster.wait_until_current()
    flowing = Traffic(nodes, channel)
    try:
        flowing.flow()
        yield flowing
        flowing.flow()
        flowing.audit()
    finally:
        flowing.abandon()


def hold(is_noticed, what):
    """Waits until a fault is noticed, and longer if that was asked for."""
    until = time.monotonic() + FAULT_SECONDS
    eventually(is_noticed, what)
    time.sleep(max(0, until - time.monotonic()))


def test_a_leader_steps_down(cluster, traffic):
    for _ in range(3):
        before = cluster.wait_for_leader()
        cluster.step_down()
        cluster.wait_for_leader(other_than=before)
        traffic.flow()


def test_the_leader_is_killed(cluster, traffic):
    leader = cluster.wait_for_leader()
    with leader.killed():
        cluster.wait_for_leader(other_than=leader)
        traffic.flow()
    cluster.wait_until_current()


def test_the_leader_is_frozen(cluster, traffic):
    leader = cluster.wait_for_leader()
    with leader.frozen():
        cluster.wait_for_leader(other_than=leader)
        traffic.flow()
    cluster.wait_until_current()


def test_a_majority_is_lost(cluster, nodes, traffic):
    first, second, _ = cluster.members
    with first.killed(), second.killed():
        before = traffic.refused()
        hold(lambda: traffic.refused() > before, "publishers are told")
        # That NATS is away, has no leader, or has one that stores nothing: it depends on which
        # server is left.
        for node in nodes:
            eventually(lambda node=node: ailments(node), "the probes say so")
    cluster.wait_for_leader()
    for node in nodes:
        connected(node)
    traffic.flow()


def test_all_servers_are_killed(cluster, nodes, traffic):
    first, second, third = cluster.members
    with first.killed(), second.killed(), third.killed():
        for node in nodes:
            eventually(lambda node=node: ailments(node) == ["nats_away"], "a node is cut off")
    cluster.wait_for_leader()
    for node in nodes:
        connected(node)
    traffic.flow()


def test_a_node_is_cut_off(nodes, traffic):
    away, *others = nodes
    with away.ways.cut_off():
        hold(lambda: ailments(away) == ["nats_away"], "the node is cut off")
        traffic.flow(among=others)
    connected(away)


def test_a_node_is_frozen(nodes, traffic):
    away, *others = nodes
    with away.frozen():
        hold(lambda: True, "")
        traffic.flow(among=others, count=50)
    connected(away)


def test_a_leader_that_has_lost_its_majority_is_noticed(cluster, start, traffic, channel):
    leader = cluster.wait_for_leader()
    node = connected(start(first=leader))
    others = [member for member in cluster.members if member is not leader]
    with others[0].killed(), others[1].killed():

        def is_told():
            answer = node.http.post(f"/channels/{channel}", content="x")
            return answer.status_code == 503 and ailments(node) == ["nats_stalled"]

        # The first ones are under way when it is not known yet.
        eventually(is_told, "publishers are refused, and the probes say why")
        assert node.metrics()["throng_nats_stalled"] == 1
    cluster.wait_for_leader()
    connected(node)
    node.publish(channel, "stored again")
    assert node.metrics()["throng_nats_stalled"] == 0


def test_a_node_is_killed_and_its_clients_resume_on_another(start, nodes, traffic):
    victim = connected(start())
    name = traffic.channels[0]
    with subscribe("sse", victim, f"/channels/{name}") as there:
        seen = [there.next() for _ in range(5)]
        victim.kill()
        victim.is_killed = True
    traffic.flow()
    with subscribe("websocket", nodes[1], f"/channels/{name}", since=seen[-1][0]) as back:
        assert back.recovered is True
        seen += [back.next() for _ in range(20)]
    # Somebody who was never gone has the same, in the same order and nothing between.
    received = next(one.received for listened, one in traffic.listeners if listened == name)
    eventually(lambda: seen[-1] in received, "the others have it, too")
    first = received.index(seen[0])
    assert received[first : first + len(seen)] == seen


def test_a_node_is_slow(nodes, traffic):
    slow, *others = nodes
    with slowed(slow.process):
        hold(lambda: True, "")
        traffic.flow(among=others, count=50)
        traffic.flow()
    connected(slow)


def test_the_way_of_a_node_is_slow(nodes, traffic):
    slow, *others = nodes
    with slow.ways.slow(0.3):
        hold(lambda: True, "")
        traffic.flow(among=others, count=50)
        traffic.flow(count=3)
    connected(slow)


def test_the_leader_is_slow(cluster, traffic):
    leader = cluster.wait_for_leader()
    with slowed(leader.process):
        hold(lambda: True, "")
        traffic.flow(count=3)
    cluster.wait_until_current()


def test_clocks_are_apart(start, nodes, traffic, clock_library, channel):
    # By less than messages are kept for: a node goes by its own clock for what has expired.
    apart = [connected(start(environment=clock_library(seconds))) for seconds in (-600, 600)]
    behind, ahead = (
        parsedate_to_datetime(node.http.get("/health").headers["Date"]) for node in apart
    )
    assert (ahead - behind).total_seconds() > 1_000, "the library has no effect"
    path, keys = f"/channels/{channel}", {"Idempotency-Key": "once"}
    with contextlib.ExitStack() as stack:
        there = [stack.enter_context(subscribe("sse", node, path)) for node in [*nodes, *apart]]
        ids = [node.publish(channel, str(number))["id"] for number, node in enumerate(apart)]
        # A key is the servers' matter.
        once = [node.publish(channel, "again", **keys)["id"] for node in [*apart, nodes[0]]]
        assert len(set(once)) == 1
        expected = [(ids[0], "0"), (ids[1], "1"), (once[0], "again")]
        for one in there:
            assert [one.next() for _ in expected] == expected
    for node in apart:
        assert [one["id"] for one in node.history(channel)["messages"]] == [*ids, once[0]]
        with subscribe("websocket", node, path, since=ids[0]) as back:
            assert back.recovered is True
            assert [back.next(), back.next()] == expected[1:]


@pytest.fixture(scope="module")
def clock_library(tmp_path_factory):
    """Returns the environment of a server whose clock is ahead by some seconds."""
    directory = tmp_path_factory.mktemp("clock")
    source, library = Path(__file__).parent / "support" / "clock.c", directory / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return lambda seconds: {"LD_PRELOAD": str(library), "CLOCK_AHEAD_SECONDS": str(seconds)}


def test_a_full_stream_drops_the_oldest(start, channel):
    size = ["--nats-prefix", "full", "--history-total-bytes", "256KiB"]
    both = [connected(start(*size)) for _ in range(2)]
    path = f"/channels/{channel}"
    bodies = [f"{number}:{'x' * 30_000}" for number in range(20)]
    with subscribe("sse", both[1], path) as there:
        ids = [both[0].publish(channel, body)["id"] for body in bodies]
        assert there.take(len(bodies)) == bodies
    with subscribe("websocket", both[1], path, since=ids[0]) as late:
        assert late.recovered is False
        assert late.next()[1] in bodies[-8:]
    with subscribe("websocket", both[1], path, since=ids[-2]) as late:
        assert late.recovered is True and late.next() == (ids[-1], bodies[-1])


def test_no_id_is_given_out_twice_when_a_stream_is_deleted(cluster, start, channel):
    both = [connected(start("--nats-prefix", "anew")) for _ in range(2)]
    path, bodies = f"/channels/{channel}", [str(number) for number in range(20)]
    with subscribe("sse", both[1], path) as there:
        last = [both[0].publish(channel, body)["id"] for body in bodies][-1]
        # Both nodes know how far the stream is.
        assert there.take(len(bodies)) == bodies
    ids, epochs, old = {node: [last] for node in both}, set(), last.partition("-")[0]
    assert cluster.ask("$JS.API.STREAM.DELETE.anew-channels")["success"]

    def are_new():
        # Most are refused, or nobody knows what became of them, until the stream is there again.
        for node in both:
            answer = node.http.post(f"/channels/{channel}", content="y")
            if answer.status_code == 201:
                ids[node].append(answer.json()["id"])
        epochs.update(id.partition("-")[0] for of in ids.values() for id in of)
        return all(not of[-1].startswith(f"{old}-") for of in ids.values())

    eventually(are_new, f"ids of a new epoch: {ids}")
    assert len(epochs) == 2, epochs
    for node, of in ids.items():
        offsets = [int(id.partition("-")[2]) for id in of if id.startswith(f"{old}-")]
        assert offsets == [offsets[0]], f"an id of the stream that is gone: {of}\n{node.log()}"


def test_after_a_stream_is_deleted_everything_begins_anew(cluster, start, channel):
    both = [connected(start("--nats-prefix", "gone")) for _ in range(2)]
    path = f"/channels/{channel}"
    first = both[0].publish(channel, "first")["id"]
    with subscribe("websocket", both[1], path) as there:
        assert cluster.ask("$JS.API.STREAM.DELETE.gone-channels")["success"]
        with pytest.raises(ConnectionClosed) as closed:
            there.socket.recv(timeout=TIMEOUT_SECONDS)
        assert closed.value.rcvd.code == 1012
    # Each node finds out for itself, within two seconds.
    for node in both:
        eventually(lambda node=node: "has lost messages" in node.log(), "the loss is noticed")
        connected(node)
    with subscribe("websocket", both[1], path, since=first) as again:
        assert again.recovered is False
        new = both[0].publish(channel, "new")["id"]
        assert again.next() == (new, "new")
