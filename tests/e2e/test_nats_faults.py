"""Three nodes over three nats-servers, of which some fail while messages are published to all nodes:
over HTTP and WebSocket, with keys and without. Nothing is lost, doubled or reordered, and
subscribers stay connected.

`THRONG_FAULT_SECONDS` is for how long nodes are cut off or frozen; `make test-long` sets it.
"""

import time

import pytest
from websockets.exceptions import ConnectionClosed

from support import TIMEOUT_SECONDS
from support.nats import ailments, connected
from support.nats_cluster import NatsCluster
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

    def begin(*flags):
        ways = cluster.ways()
        own = ["--engine", "nats", "--nats", ways.url, "--nats-replicas", "3"]
        server = Server(directory, *FLAGS, *own, *flags)
        server.ways = ways
        started.append(server)
        return server

    yield begin
    for server in started:
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
        # A leader that has lost its majority may take itself for one for a while, so what the
        # probes say depends on which server is left.
        hold(lambda: traffic.refused() > before, "publishers are told")
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
