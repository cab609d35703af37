"""Processes of nodes are replaced while clients of all transports are there and publish: nothing is
lost, doubled, reordered or refused, and nobody is counted twice."""

import contextlib
import os
import shutil
import signal
import threading
import time

import httpx
import pytest
from support import TIMEOUT_SECONDS
from support.access import MINUTE, SECRET, bearer, now, server_key, token
from support.floods import finish_flood, flooding
from support.impostor import replace_by_impostor
from support.nats import QUICK, ailments, connected
from support.nats_cluster import NatsCluster
from support.server import BINARY, eventually
from support.traffic import Traffic
from support.transports import subscribe
from support.upgrades import FAILED, UpgradableServer

# `make test-long` has more.
ROUNDS = int(os.environ.get("THRONG_NODE_UPGRADES", "2"))
FLAGS = [*QUICK, "--workers", "2", "--heartbeat", "2s", "--history-messages", "10000"]


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts nodes, whose file can be replaced."""
    copy = tmp_path / "throng"
    shutil.copy(BINARY, copy)
    monkeypatch.setattr("support.server.BINARY", copy)
    with contextlib.ExitStack() as stack:

        def begin(url, *flags, **options):
            node = UpgradableServer(tmp_path, *FLAGS, "--engine", "nats", "--nats", url, *flags, **options)
            stack.callback(node.stop)
            return connected(node)

        yield begin


def replace_file(directory, text):
    """The next process is what this script makes of the binary."""
    new = directory / "new"
    new.write_text("#!/bin/sh\n" + text)
    new.chmod(0o755)
    os.replace(new, directory / "throng")


def restore_file(directory):
    """The next process is a new file with the same program."""
    shutil.copy(BINARY, directory / "new")
    os.replace(directory / "new", directory / "throng")


def know_each_other(nodes):
    """Waits until each node knows all others."""

    def others(one):
        return one.metrics()["throng_nats_other_nodes"]

    eventually(lambda: all(others(one) == len(nodes) - 1 for one in nodes), "nodes that know all")


def refuses_to_upgrade(node):
    """Asks for an upgrade that fails. Returns why."""
    before = node.log().count(FAILED)
    node.signal(signal.SIGUSR2)
    eventually(lambda: node.log().count(FAILED) > before, "a failure")
    line = node.log().split(FAILED)[-1].splitlines()[0]
    assert "continues to serve" in line
    return line


def upgrade_all(nodes, traffic):
    """Replaces the processes of all nodes, one after the other."""
    for node in nodes:
        node.upgrade()
        traffic.flow()


@contextlib.contextmanager
def counting(nodes, channel, count):
    """Asks for presence on all nodes all the while: nobody is counted twice, and an answer that is
    not partial has everybody."""
    found, faults, is_over = [], [], threading.Event()

    def ask(node):
        with httpx.Client(base_url=node.url, timeout=TIMEOUT_SECONDS, trust_env=False) as client:
            while not is_over.is_set():
                answer = client.get(f"/channels/{channel}/presence")
                if answer.status_code != 200:
                    faults.append(answer.text)
                    return
                found.append((answer.json()["connections"], answer.json().get("partial", False)))
                time.sleep(0.02)

    threads = [threading.Thread(target=ask, args=[node]) for node in nodes]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert not faults, faults
    wrong = [one for one in found if one[0] > count or (one[0] < count and not one[1])]
    assert not wrong, (wrong, len(found))
    partial = [one for one in found if one[1]]
    assert len(partial) < len(found) / 2, f"{len(partial)} of {len(found)} answers are partial"


def test_a_cluster_is_upgraded_node_by_node(tmp_path, broker, start, channel):
    nodes = [start(broker.url) for _ in range(3)]
    know_each_other(nodes)
    traffic = Traffic(nodes, channel)
    first, *others = nodes
    more = [flag for node in others for flag in ("--node", f"{node.host}:{node.port}")]
    load = ["--clients", "60", "--streams", "6", "--publish", "30", "--hold", f"{8 * ROUNDS}s"]
    assertions = ["failures == 0", "publish_failures == 0"]
    flood = flooding(tmp_path, first.url, *more, *load, assertions=assertions)
    try:
        traffic.flow()
        with counting(nodes, traffic.channels[0], len(nodes)):
            for _ in range(ROUNDS):
                upgrade_all(nodes, traffic)
                restore_file(tmp_path)
        finish_flood(flood)
        assert traffic.refused() == 0, traffic.shown()
        traffic.audit()
    finally:
        traffic.abandon()
    know_each_other(nodes)
    for node in nodes:
        assert len(node.pauses()) == ROUNDS
        assert node.metrics()["throng_nats_connected"] == 1


def test_with_three_servers(tmp_path, start, channel):
    (tmp_path / "cluster").mkdir()
    cluster = NatsCluster(tmp_path / "cluster")
    ways = [cluster.ways() for _ in range(2)]
    try:
        nodes = [start(way.url, "--nats-replicas", "3") for way in ways]
        cluster.wait_until_current()
        traffic = Traffic(nodes, channel)
        try:
            traffic.flow()
            upgrade_all(nodes, traffic)
            assert traffic.refused() == 0, traffic.shown()
            # An election beside an upgrade: the upgrade may fail then, and nothing else.
            cluster.step_down()
            with nodes[0].upgrading():
                traffic.flow()
            traffic.audit()
        finally:
            traffic.abandon()
    finally:
        for way in ways:
            way.close()
        cluster.stop()


def test_metrics_and_positions_go_on(broker, start, channel):
    node, other = start(broker.url), start(broker.url)
    path = f"/channels/{channel}"
    accepted = 'throng_nats_messages_total{what="accepted"}'
    with subscribe("websocket", node, path) as there:
        ids = [node.publish(channel, str(number))["id"] for number in range(3)]
        assert [there.next() for _ in range(3)] == list(zip(ids, "012", strict=True))
        before = node.metrics()
        node.upgrade()
        assert node.metrics()[accepted] >= before[accepted]
        ids.append(other.publish(channel, "3")["id"])
        assert there.next() == (ids[-1], "3")
        key = {"Idempotency-Key": "once"}
        first = node.publish(channel, "4", **key)["id"]
        node.upgrade()
        assert node.publish(channel, "4", **key)["id"] == first
        assert there.next() == (first, "4")
    with subscribe("sse", node, path, since=ids[0]) as late:
        assert late.take(4) == ["1", "2", "3", "4"]


def test_revocations_hold_on(tmp_path, broker, start, channel):
    key, table = server_key(tmp_path, "operator", "administration", "publish")
    (tmp_path / "throng.toml").write_text(f"[[token-keys]]\nsecret = '{SECRET}'\n{table}")
    node, other = start(broker.url), start(broker.url)
    operator = bearer(key)
    path = f"/channels/{channel}"
    grants, before = {"subscribe": ["*"]}, now() - MINUTE
    mine, others = (token(sub=user, throng=grants, iat=before) for user in ("ann", "bob"))
    answer = other.http.post("/revocations/users/ann", headers=operator)
    assert answer.status_code == 201, answer.text
    with subscribe("sse", node, path, token=others) as there:
        for number in range(3):
            node.upgrade()
            refused = node.http.get(path, headers={**bearer(mine), "Accept": "text/event-stream"})
            assert refused.status_code == 401, refused.text
            assert node.publish(channel, str(number), **operator)["id"]
            assert there.take(1) == [str(number)]


def test_without_nats_it_is_refused_and_the_old_process_goes_on(broker, start, channel):
    node = start(broker.url)
    with subscribe("websocket", node, f"/channels/{channel}") as there:
        with broker.cut_off():
            eventually(lambda: ailments(node) == ["nats_away"], "a node that is cut off")
            assert "this node cannot use NATS now, so no process can take over" in refuses_to_upgrade(node)
        connected(node)
        node.publish(channel, "back")
        assert there.next()[1] == "back"
        node.upgrade()
        node.publish(channel, "upgraded")
        assert there.next()[1] == "upgraded"


def test_a_new_process_that_cannot_reach_nats_or_is_alone_refuses(tmp_path, broker, start, channel):
    node = start(broker.url)
    with subscribe("websocket", node, f"/channels/{channel}") as there:
        for script, why in [
            (f'exec {BINARY} $(echo "$@" | sed s,{broker.url},nats://127.0.0.1:1,)', "NATS cannot be used"),
            (f'exec {BINARY} $(echo "$@" | sed "s,--engine nats --nats {broker.url},,")', "and this one engine = memory"),
        ]:
            replace_file(tmp_path, script)
            assert why in refuses_to_upgrade(node)
            node.publish(channel, why)
            assert there.next()[1] == why
        restore_file(tmp_path)
        node.upgrade()
        node.publish(channel, "upgraded")
        assert there.next()[1] == "upgraded"


@pytest.mark.parametrize("last", ["copied", "ahead", "thawed"])
def test_a_new_process_that_ends_before_it_serves(tmp_path, broker, start, channel, last):
    nodes = [start(broker.url) for _ in range(2)]
    know_each_other(nodes)
    traffic = Traffic(nodes, channel)
    try:
        traffic.flow()
        with counting(nodes, traffic.channels[0], len(nodes)):
            for node in nodes:
                replace_by_impostor(tmp_path / "throng", last, is_node=True)
                refuses_to_upgrade(node)
                traffic.flow()
                restore_file(tmp_path)
                node.upgrade()
                traffic.flow()
        assert traffic.refused() == 0, traffic.shown()
        traffic.audit()
    finally:
        traffic.abandon()
