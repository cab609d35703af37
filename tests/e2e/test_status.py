"""The status: /status.json, its stream, and the page in Chromium.

The page's scenarios are in node/status.mjs.
"""

import asyncio
import json
import socket
import subprocess

import aiohttp
import httpx
import pytest

from conftest import HERE, QUICK
from support import TIMEOUT_SECONDS
from support.raw import Raw
from support.server import Server, clean_environment, eventually
from support.transports import TRANSPORTS, subscribe

PATHS = ["/status", "/status.json", "/status/stream"]
VIEWERS = 200
SAMPLES = 3


def status(server, **parameters):
    """The newest sample."""
    response = server.http.get("/status.json", params=parameters)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_connections_are_counted_by_transport(serve, channel, transport):
    server = serve()

    def counted(count):
        sample = status(server)
        return sample["connections"][transport] == count

    if transport == "poll":
        with socket.create_connection((server.host, server.port), TIMEOUT_SECONDS) as waiting:
            head = f"GET /channels/{channel}?wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n"
            waiting.sendall(head.encode())
            eventually(lambda: counted(1), "a long-poll that waits")
            name = 'throng_subscribed_connections{transport="poll"}'
            assert server.metrics()[name] == 1
    else:
        with subscribe(transport, server, f"/channels/{channel}"):
            eventually(lambda: counted(1), f"a connection over {transport}")
            name = f'throng_subscribed_connections{{transport="{transport}"}}'
            assert server.metrics()[name] == 1
    eventually(lambda: counted(0), f"no connection over {transport}")


def test_messages_and_their_durations_are_counted(serve, channel):
    server = serve()
    with (
        subscribe("websocket", server, f"/channels/{channel}") as one,
        subscribe("stream", server, f"/channels/{channel}") as other,
    ):
        for number in range(5):
            server.publish(channel, f"message {number}")
        assert one.take(5) == other.take(5)
        server.publish("nobody-follows", "this")
        sample = {}

        def is_counted():
            sample.update(status(server))
            counts = (sample["messages_in"]["total"], sample["deliveries"]["total"])
            # Durations are recorded after the client has its message or response.
            is_timed = sample["latency"]["minute"]["count"] >= 5
            return counts == (6, 10) and is_timed and sample["http"]["minute"]["count"] >= 6

        eventually(is_counted, "six messages, ten deliveries and all durations")
    times = sample["latency"]["minute"]
    assert times["count"] == 5, "one duration for each message that has subscribers"
    assert 0 < times["p50_ms"] <= times["p99_ms"]
    answers = sample["http"]["minute"]
    assert 0 < answers["p50_ms"] <= answers["p99_ms"]
    assert 0 < answers["mean_ms"]


def test_refusals_are_counted_by_reason(serve):
    server = serve("--max-message-bytes", "100")
    assert server.http.post("/channels/a", content="x" * 101).status_code == 413
    assert server.http.get("/nowhere").status_code == 404
    assert server.http.get("/channels/a?history=x").status_code == 400
    expected = {"too_large": 1, "not_found": 1, "subscribe": 1}
    eventually(lambda: status(server)["refused"] == expected, "three refusals")


def test_memory_processor_and_kernel_values_are_present(server):
    sample = status(server)
    assert sample["version"] and sample["started_ms"] <= sample["time_ms"]
    assert sample["memory"]["resident_bytes"] > sample["memory"]["private_bytes"] > 0
    assert sample["memory"]["per_connection_bytes"] is None, "too few connections"
    assert sample["kernel"]["tcp_sockets"] > 0
    assert len(sample["cpu"]["workers"]) == len(sample["connections"]["workers"])
    assert sample["connections"]["capacity"] > 0
    assert sample["data"] is None, "a server without --data"


def test_the_history_has_one_array_for_each_column(serve):
    server = serve()
    eventually(lambda: len(status(server, history=900)["history"]["time_ms"]) >= 3, "3 samples")
    sample = status(server, history=2)
    history = sample.pop("history")
    assert {len(column) for column in history.values()} == {2}
    assert history["time_ms"][-1] == sample["time_ms"]
    assert history["time_ms"] == sorted(history["time_ms"])
    assert "history" not in status(server)
    for wrong in ("901", "-1", "x"):
        response = server.http.get("/status.json", params={"history": wrong})
        assert (response.status_code, response.json()["error"]) == (400, "bad_parameter")


def test_clients_cannot_publish_to_the_stream(server):
    assert server.http.post("/status/stream", content="x").status_code == 405
    with Raw(server) as client:
        client.send(
            "GET /status/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        head = client.read_until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ") and b"text/event-stream" in head
    # A channel called "status" is not the internal log.
    server.publish("status", "x")
    assert server.http.head("/status/stream").status_code == 200


async def view(session, url):
    """The events of one viewer, until it has enough, one of them from a time with all viewers."""
    async with session.get(f"{url}/status/stream") as response:
        assert response.status == 200, await response.text()
        events, found, has_all_viewers = {}, {}, False
        async for line in response.content:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name in ("id", "data"):
                found[name] = value
            elif not line.strip() and "data" in found:
                events[found["id"]] = found["data"]
                has_all_viewers |= json.loads(found["data"])["connections"]["status"] == VIEWERS
                found = {}
                if has_all_viewers and len(events) >= SAMPLES:
                    return events
    raise AssertionError("the stream has ended")


def test_all_viewers_get_the_same_sample_once_a_second(serve):
    server = serve()

    async def all_of_them():
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            views = (view(session, server.url) for _ in range(VIEWERS))
            return await asyncio.gather(*views)

    seen = asyncio.run(all_of_them())
    known = {}
    for events in seen:
        offsets = [int(id.rpartition("-")[2]) for id in events]
        assert offsets == list(range(offsets[0], offsets[0] + len(events))), "consecutive samples"
        for id, data in events.items():
            assert known.setdefault(id, data) == data, "all viewers get the same"
    for id, data in known.items():
        sample, number = json.loads(data), int(id.rpartition("-")[2])
        age_ms = sample["time_ms"] - sample["started_ms"]
        # Late samples are skipped, so there is at most one each second.
        assert age_ms >= number * 1000 - 10, f"sample {number} after {age_ms} ms"
    last = status(server)
    assert last["deliveries"]["total"] == last["messages_in"]["total"] == 0, "viewers do not count"
    assert last["latency"]["minute"]["count"] == 0
    # A delivery is counted once it is written.
    delivered = lambda: server.metrics()["throng_status_deliveries_total"]
    eventually(lambda: delivered() >= VIEWERS * SAMPLES, lambda: f"the count, now {delivered()}")


def test_a_server_that_is_not_on_loopback_does_not_serve_the_status(serve):
    server = serve("--allow-anyone", listen="0.0.0.0")
    url = f"http://127.0.0.1:{server.port}"
    with httpx.Client(base_url=url, timeout=TIMEOUT_SECONDS, trust_env=False) as http:
        for path in PATHS:
            response = http.get(path)
            assert (response.status_code, response.json()["error"]) == (403, "forbidden"), path
        assert http.head("/status/stream").is_error
        response = http.get("/status.css")
        assert response.status_code == 200, "the files of the page reveal nothing"


@pytest.mark.parametrize("path", PATHS)
def test_pages_of_other_origins_cannot_read_the_status(server, path):
    # After DNS rebinding a page requests its own host, without an `Origin`.
    response = server.http.get(path, headers={"Host": f"evil.example:{server.port}"})
    assert (response.status_code, response.json()["error"]) == (403, "host_refused")
    response = server.http.get(path, headers={"Origin": "http://evil.example"})
    assert (response.status_code, response.json()["error"]) == (403, "origin_refused")


@pytest.mark.parametrize("scenario", ["moves", "phone", "dark", "plain", "keyboard", "canary"])
def test_page(serve, chromium, scenario):
    server = serve()
    done = subprocess.run(
        ["node", HERE / "node" / "status.mjs", chromium, server.url, scenario],
        env=clean_environment({"NO_PROXY": "*"}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS * 6,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def expect_success(child):
    """Waits until a scenario ends, and expects that it succeeded."""
    assert child.wait(TIMEOUT_SECONDS * 3) == 0


def go_on(child):
    """Tells a scenario to continue."""
    child.stdin.write("\n")
    child.stdin.flush()


def test_page_shows_the_history(serve, node, chromium, channel):
    server = serve()
    server.publish(channel, "x")
    child = node("status.mjs", chromium, server.url, "history")
    assert child.stdout.readline() == "published\n"
    go_on(child)
    expect_success(child)


def test_page_reconnects_after_a_restart(serve, node, chromium, tmp_path):
    server = serve()
    child = node("status.mjs", chromium, server.url, "lost")
    assert child.stdout.readline() == "live\n"
    server.stop()
    go_on(child)
    assert child.stdout.readline() == "lost\n"
    again = Server(tmp_path, *QUICK, port=server.port)
    try:
        go_on(child)
        expect_success(child)
    finally:
        again.stop()
