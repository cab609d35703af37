"""Receipts with several nodes: they count the subscribers of all."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from support.nats import connected, nodes_in
from support.raw import RawWebSocket
from support.transports import subscribe

LONG = "receipt, wait=60"
PIECE = "x" * (64 << 10)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory, lasting_broker):
    """Three connected nodes."""
    with nodes_in(tmp_path_factory.mktemp("nodes")) as begin:
        yield [connected(node) for node in [begin(lasting_broker) for _ in range(3)]]


def receipt_of(node, path, body, preference=LONG):
    answer = node.http.post(path, content=body, headers={"Prefer": preference})
    assert answer.status_code == 201, answer.text
    receipt = answer.json()["receipt"]
    assert receipt["matched"] == receipt["written"] + receipt["behind"] + receipt["dropped"]
    return receipt


@pytest.mark.parametrize("publisher", [0, 1, 2])
def test_a_receipt_counts_all_nodes(nodes, channel, publisher):
    path = f"/channels/{channel}"
    with (
        subscribe("sse", nodes[0], path) as here,
        subscribe("websocket", nodes[1], path) as there,
        subscribe("stream", nodes[1], path) as beside,
    ):
        receipt = receipt_of(nodes[publisher], path, "x")
        assert (receipt["outcome"], receipt["matched"], receipt["written"]) == ("complete", 3, 3)
        assert "partial" not in receipt
        assert here.take(1) == there.take(1) == beside.take(1) == ["x"]
    for node in nodes[:2]:
        node.wait_for_connections(channel, 0)
    nobody = receipt_of(nodes[publisher], path, "x")
    assert (nobody["outcome"], nobody["matched"]) == ("complete", 0)


def test_devices_of_a_user_on_all_nodes(nodes, channel):
    path = f"/users/{channel}"
    with subscribe("sse", nodes[0], path) as phone, subscribe("sse", nodes[2], path) as laptop:
        receipt = receipt_of(nodes[1], path, "x")
        assert (receipt["outcome"], receipt["written"]) == ("complete", 2)
        assert phone.take(1) == laptop.take(1) == ["x"]


def test_a_reader_on_another_node_is_behind_until_it_reads(nodes, channel):
    path = f"/channels/{channel}"
    with RawWebSocket(nodes[1], path, receive_buffer_bytes=4096) as reader:
        nodes[1].wait_for_connections(channel, 1)
        for _ in range(400):
            receipt = receipt_of(nodes[0], path, PIECE, "receipt, wait=0.1")
            assert receipt["matched"] == 1
            if receipt["behind"] == 1:
                break
        assert (receipt["outcome"], receipt["unknown"]) == ("timeout", 0)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(receipt_of, nodes[0], path, "last")
            reader.read_until(b"last")
            assert waiting.result()["outcome"] == "complete"


def test_a_node_that_does_not_answer_leaves_a_receipt_partial(nodes, channel):
    path = f"/channels/{channel}"
    with subscribe("sse", nodes[0], path) as here, subscribe("sse", nodes[2], path):
        with nodes[2].frozen():
            receipt = receipt_of(nodes[0], path, "x", "receipt, wait=0.5")
            assert (receipt["partial"], receipt["matched"], receipt["written"]) == (True, 1, 1)
            assert receipt["outcome"] == "unknown"
        assert here.take(1) == ["x"]
