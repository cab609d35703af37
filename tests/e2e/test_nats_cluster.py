"""How the nodes of a cluster are: on the terminal, in the status and in the metrics."""

import json
import re

import pytest

from support.nats import connected
from support.server import closed_port, eventually, run_throng
from support.transports import subscribe


@pytest.fixture
def node(tmp_path, strict_broker, start_node):
    """Starts connected nodes."""
    return lambda *flags: connected(start_node(strict_broker, "--nats-login", tmp_path / "login", *flags))


@pytest.fixture
def cluster(tmp_path, strict_broker):
    """Runs the command; returns the exit code and its report."""

    def run(*flags):
        options = ("--nats", strict_broker.url, "--nats-login", tmp_path / "login", *flags)
        done = run_throng("cluster", *options, directory=tmp_path)
        if "--json" not in flags:
            return done.returncode, done.stdout, done.stderr
        assert done.stdout, done.stderr
        report = json.loads(done.stdout)
        assert (done.returncode == 0) == (report["suspect"] == [])
        return done.returncode, report

    return run


def port(one):
    return one.url.rpartition(":")[2]


def by_port(report):
    return {found["name"].rpartition(":")[2]: found for found in report["nodes"]}


def status(one):
    return one.http.get("/status.json").json()["cluster"]


def test_the_nodes_are_shown_with_their_connections(node, cluster):
    both = [node(), node()]
    with subscribe("sse", both[0], "/channels/a"), subscribe("sse", both[0], "/channels/b"):
        reports = []

        def is_known():
            reports.append(cluster("--json"))
            found = by_port(reports[-1][1])
            return all(
                port(one) in found and len(found) == 2 and found[port(one)]["status"] == "ready"
                for one in both
            ) and reports[-1][0] == 0 and found[port(both[0])]["connections"] >= 2

        eventually(is_known, f"both nodes and their connections: {reports[-1:]}")
        report = reports[-1][1]
        first, second = (by_port(report)[port(one)] for one in both)
        assert first["version"] == second["version"]
        assert first["answered"] and first["is_open"] and first["epoch"] == second["epoch"] != ""
        assert report["stream"]["name"] == "throng-channels"
        code, text, _ = cluster()
        assert code == 0 and "2 nodes have" in text and "nothing is suspect" in text, text
        assert re.search(rf"^ready +\S+:{port(both[0])} ", text, re.MULTILINE), text

        # Each node shows the other one, too.
        def is_shown():
            nodes = status(both[1])["nodes"]
            return len(nodes) == 2 and nodes[1]["connections"] >= 2 and not nodes[1]["suspect"]

        eventually(is_shown, f"the status of both: {status(both[1])}")
        shown = status(both[1])
        assert shown["open"] and shown["revocations_age_ms"] is None and shown["trouble"] is None
        names = [found["name"].rpartition(":")[2] for found in shown["nodes"]]
        assert names == [port(both[1]), port(both[0])], "the one that is asked comes first"
        metrics = both[1].metrics()
        assert metrics[f'throng_nats_nodes{{version="{first["version"]}"}}'] == 2
        assert metrics["throng_nats_suspect_nodes"] == 0


def test_what_is_suspect_is_named(node, cluster, strict_broker):
    both = [node(), node()]
    eventually(lambda: cluster("--json")[0] == 0, "nothing suspect")

    def is_known():
        others = status(both[0])["nodes"][1:]
        return [found["name"].rpartition(":")[2] for found in others] == [port(both[1])]

    eventually(is_known, "a node that knows the other")
    with both[1].frozen():
        code, report = cluster("--json")
        frozen = by_port(report)[port(both[1])]
        assert (code, frozen["answered"]) == (1, False)
        assert "does not answer" in frozen["suspect"][0]
        assert any(port(both[1]) in said for said in report["suspect"])
        code, text, _ = cluster()
        assert code == 1 and "suspect" in text and "does not answer" in text
        eventually(lambda: both[0].metrics()["throng_nats_suspect_nodes"] == 1, "it is suspect")
        silent = status(both[0])["nodes"][1]
        assert silent["silent_ms"] >= 2_500 and "was heard" in silent["suspect"][0]
    eventually(lambda: cluster("--json")[0] == 0, "nothing suspect any more")


def test_without_nodes_there_is_a_clear_error(cluster, strict_broker, tmp_path):
    code, _, errors = cluster()
    assert code == 1 and "no node answers" in errors, errors
    with closed_port() as nobody:
        nowhere = f"nats://127.0.0.1:{nobody}"
        done = run_throng("cluster", "--nats", nowhere, directory=tmp_path)
    assert done.returncode == 1 and "no server of NATS can be used" in done.stderr
