"""`throng flood` loads several nodes as one target."""

import json

import pytest

from support import TIMEOUT_SECONDS
from support.nats import connected
from support.server import run_throng

LOAD = ["--clients", "60", "--streams", "10", "--hold", "2s", "--publish", "50"]
WHOLE = ["lost == 0", "missed == 0", "duplicated == 0", "reordered == 0", "failures == 0"]


@pytest.fixture
def nodes(broker, start_node):
    """Three nodes."""
    return [connected(one) for one in [start_node(broker) for _ in range(3)]]


def test_clients_and_publishers_are_on_all_nodes(tmp_path, nodes):
    before = [node.metrics() for node in nodes]
    first, *others = nodes
    flags = [flag for node in others for flag in ("--node", f"{node.host}:{node.port}")]
    checks = [flag for check in WHOLE for flag in ("--assert", check)]
    command = ["flood", first.url, *flags, *LOAD, *checks, "--json", "-"]
    done = run_throng(*command, directory=tmp_path, timeout=3 * TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    total = json.loads(done.stdout)["total"]
    assert total["published"] == 100 and total["received"] == total["expected"] == 600
    accepted, delivered = (
        f'throng_nats_messages_total{{what="{what}"}}' for what in ("accepted", "delivered")
    )
    for node, then in zip(nodes, before, strict=True):
        now = node.metrics()
        assert now[accepted] > then[accepted], "each node is published to"
        assert now[delivered] > then[delivered], "and has clients"
