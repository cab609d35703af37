"""Receipts: a publisher that asks learns what became of its message."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from support import TIMEOUT_SECONDS
from support.raw import Raw, RawWebSocket
from support.server import eventually
from support.transports import subscribe

LONG = "receipt, wait=60"
PIECE = "x" * (64 << 10)


def publish(server, path, body, preference=LONG, **headers):
    """Publishes with a receipt; returns it after checking that it adds up."""
    response = httpx.post(
        server.url + path,
        content=body,
        headers={"Prefer": preference, **headers},
        timeout=2 * TIMEOUT_SECONDS,
        trust_env=False,
    )
    assert response.status_code == 201, (response.status_code, response.text)
    assert response.headers["Preference-Applied"].startswith("receipt, wait=")
    receipt = response.json()["receipt"]
    assert receipt["dropped"] == sum(receipt["dropped_by"].values())
    assert receipt["matched"] == receipt["written"] + receipt["behind"] + receipt["dropped"]
    assert receipt["unknown"] <= receipt["behind"]
    assert (receipt["outcome"] == "complete") == (receipt["behind"] == 0)
    return receipt


def complete(matched, written, **dropped_by):
    """The receipt of a message to which nothing is left to happen."""
    reasons = {"lagging": 0, "skipped": 0, "closed": 0, "expired": 0, **dropped_by}
    dropped = sum(reasons.values())
    counts = {"matched": matched, "written": written, "behind": 0, "unknown": 0}
    return {"outcome": "complete", **counts, "dropped": dropped, "dropped_by": reasons}


@contextmanager
def under_way(server, path, body):
    """Publishes and waits for the receipt in another thread, while the block runs."""
    eventually(lambda: open_receipts(server) == 0, "the end of earlier receipts")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(publish, server, path, body)
        eventually(lambda: open_receipts(server) == 1, "a receipt under way")
        yield waiting


def open_receipts(server):
    return server.metrics()["throng_http_receipts_under_way"]


def block(server, path):
    """Publishes until a subscriber that does not read is behind."""

    def takes_no_more():
        listed = server.http.get("/connections", params={"sort": "behind"}).json()
        return any(path.rpartition("/")[2] in each["channels"] for each in listed["connections"])

    for _ in range(1000):
        receipt = publish(server, path, PIECE, "receipt, wait=0.2")
        # Otherwise its turn may not have come.
        if receipt["behind"] > 0 and takes_no_more():
            assert receipt["outcome"] == "timeout"
            return receipt
    raise AssertionError("the kernel takes everything")


def test_each_transport_counts(server, channel):
    path = f"/channels/{channel}"
    with ExitStack() as stack:
        streaming = [
            stack.enter_context(subscribe(transport, server, path))
            for transport in ("stream", "sse", "websocket")
        ]
        poll = stack.enter_context(Raw(server))
        poll.request("GET", f"{path}?wait=60")
        server.wait_for_connections(channel, 4)
        assert publish(server, path, "hello") == complete(4, 4)
        assert [subscriber.take(1) for subscriber in streaming] == [["hello"]] * 3
        assert poll.read_response().body == b"hello"
        assert publish(server, path, "again") == complete(3, 3), "the poll has its answer"


def test_sse_of_several_channels_counts(server, channel):
    with subscribe("sse", server, f"/subscribe?channel={channel}&channel={channel}-2") as events:
        assert publish(server, f"/channels/{channel}-2", "hello") == complete(1, 1)
        assert events.take(1) == ["hello"]


def test_curl_shows_the_receipt(curl, channel):
    shown = curl(f"/channels/{channel}", "-i", "-H", "Prefer: receipt, wait=2", "-d", "hello")
    head, _, body = shown.partition("\n\n") if "\r" not in shown else shown.partition("\r\n\r\n")
    assert "preference-applied: receipt, wait=2" in head.lower()
    assert json.loads(body)["receipt"] == complete(0, 0)


def test_without_the_preference_nothing_changes(server, channel):
    answer = server.http.post(f"/channels/{channel}", content="x", headers={"Prefer": "wait=1"})
    assert set(answer.json()) == {"id", "subscribers"}
    assert "Preference-Applied" not in answer.headers


def test_a_user_with_devices_on_several_workers(serve, channel):
    server = serve("--workers", 4)
    path = f"/users/{channel}"
    with ExitStack() as stack:
        devices = [
            stack.enter_context(subscribe(transport, server, path))
            for transport in ("stream", "sse", "websocket") * 7
        ]
        assert publish(server, path, "ping") == complete(21, 21)
        assert all(device.take(1) == ["ping"] for device in devices)


def test_the_excluded_connection_does_not_count(server, channel):
    path = f"/channels/{channel}"
    with subscribe("websocket", server, path) as one, subscribe("sse", server, path) as other:
        exclude = {"Throng-Exclude": one.connection}
        assert publish(server, path, "hello", **exclude) == complete(1, 1)
        assert other.take(1) == ["hello"]


@pytest.mark.parametrize("slow", ["websocket", "sse"])
def test_a_reader_that_does_not_read_is_behind_until_it_reads(server, channel, slow):
    path = f"/channels/{channel}"
    with ExitStack() as stack:
        reader = stack.enter_context(not_reading(server, path, slow))
        receipt = block(server, path)
        assert (receipt["matched"], receipt["written"], receipt["behind"]) == (1, 0, 1)
        with under_way(server, path, "last") as waiting:
            reader.read_until(b"last")
            assert waiting.result() == complete(1, 1)


@contextmanager
def not_reading(server, path, transport):
    if transport == "websocket":
        with RawWebSocket(server, path, receive_buffer_bytes=4096) as reader:
            yield reader
    else:
        with Raw(server, receive_buffer_bytes=4096) as reader:
            reader.request("GET", path, {"Accept": "text/event-stream"})
            assert reader.read_head().status == 200
            yield reader


def test_a_reader_that_resets_is_closed(server, channel):
    path = f"/channels/{channel}"
    with RawWebSocket(server, path, receive_buffer_bytes=4096) as reader:
        block(server, path)
        with under_way(server, path, "last") as waiting:
            reader.reset()
            assert waiting.result() == complete(1, 0, closed=1)


@pytest.mark.parametrize("policy", ["close", "skip"])
def test_a_reader_that_lags_too_far(serve, channel, policy):
    server = serve("--max-lag-bytes", "256KiB", "--lag-policy", policy)
    path = f"/channels/{channel}"
    with RawWebSocket(server, path, receive_buffer_bytes=4096) as reader:
        block(server, path)
        with under_way(server, path, "lost") as waiting:
            for _ in range(10):
                server.publish(channel, PIECE)
            reader.read_until({"close": b"lag", "skip": b'"gap"'}[policy])
            reason = {"close": "lagging", "skip": "skipped"}[policy]
            assert waiting.result() == complete(1, 0, **{reason: 1})


def test_a_late_subscriber_does_not_count(server, channel):
    path = f"/channels/{channel}"
    with RawWebSocket(server, path, receive_buffer_bytes=4096) as reader:
        block(server, path)
        with under_way(server, path, "last") as waiting:
            with subscribe("sse", server, path, history=1) as late:
                assert late.take(1) == ["last"]
                reader.reset()
                assert waiting.result() == complete(1, 0, closed=1)


def test_a_drain_answers_receipts(serve, channel):
    server = serve()
    path = f"/channels/{channel}"
    with RawWebSocket(server, path, receive_buffer_bytes=4096):
        block(server, path)
        with under_way(server, path, "last") as waiting:
            server.signal()
            receipt = waiting.result()
            assert (receipt["matched"], receipt["written"]) == (1, 0)
        assert server.wait() == 0
