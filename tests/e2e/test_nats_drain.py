"""One of three nodes is drained to the others, while all of them are loaded."""

import json
import re
import subprocess

import pytest
from websockets.exceptions import ConnectionClosed

from support import TIMEOUT_SECONDS
from support.floods import finish_flood, flooding
from support.nats import connected
from support.server import BINARY, clean_environment, eventually, run_throng
from support.transports import subscribe

CLIENTS = 60
ON_EACH = CLIENTS // 3
# Clients a second: so slow that the drain can be looked at.
RETURN_RATE = 5
# Clients whose close frames are looked at.
WATCHED = 3


@pytest.fixture
def nodes(broker, start_node):
    """Three nodes."""
    return [connected(one) for one in [start_node(broker) for _ in range(3)]]


@pytest.fixture
def shown(tmp_path, broker):
    """What `throng cluster` says of a node; None if it is not there."""

    def of(node):
        done = run_throng("cluster", "--nats", broker.url, "--json", directory=tmp_path)
        found = json.loads(done.stdout)["nodes"]
        return next((one for one in found if one["name"].endswith(f":{node.port}")), None)

    return of


def test_clients_of_a_drained_node_go_to_another_and_are_whole(tmp_path, nodes, shown):
    stays, other, leaves = nodes
    ways = [flag for node in (other, leaves) for flag in ("--node", f"{node.host}:{node.port}")]
    load = [stays.url, *ways, "--transport", "sse", "--clients", CLIENTS, "--streams", 5]
    load += ["--publish", 50, "--keep", "--failover", f"{stays.host}:{stays.port}"]
    report = tmp_path / "report.json"
    load += ["--hold", "12s", "--json", report]
    # What a node that ends is asked to publish may be refused: all that was accepted arrives.
    flood = flooding(tmp_path, *map(str, load), assertions=())
    eventually(lambda: shown(leaves)["connections"] >= ON_EACH, "its clients are there")
    others = [subscribe("websocket", leaves, "/channels/quiet") for _ in range(WATCHED)]
    address = f"{leaves.host}:{leaves.port}"
    rate = ["--return-rate", str(RETURN_RATE), "--listen", address]
    draining = subprocess.Popen(
        [BINARY, "drain", *rate],
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    eventually(lambda: shown(leaves)["status"] == "draining", "the drain is shown")
    assert any("draining" in said for said in shown(leaves)["suspect"])
    output, _ = draining.communicate(timeout=TIMEOUT_SECONDS)
    assert draining.returncode == 0 and output.endswith("drained; the server ends\n"), output
    assert leaves.wait() == 0
    eventually(lambda: shown(leaves) is None, "who has ended is not listed")
    eventually(lambda: shown(stays)["connections"] >= 2 * ON_EACH, "its clients are on another")
    finish_flood(flood)
    total = json.loads(report.read_text())["total"]
    assert total["active"] == CLIENTS
    for one in others:
        with pytest.raises(ConnectionClosed) as closed:
            one.socket.recv(timeout=TIMEOUT_SECONDS)
        assert closed.value.rcvd.code == 1012
        assert re.fullmatch(r"reconnect in \d+ ms", closed.value.rcvd.reason), "it has a moment"
        one.close()
