"""A low descriptor limit: more workers than cores, which fill up and fan out group by group."""

import asyncio
import json

import pytest
import websockets

from support import PATIENCE_SECONDS
from support.server import Server, eventually, run_throng

DESCRIPTORS = 512
ROOM = 2_000
MESSAGES = 20


@pytest.fixture
def server(tmp_path):
    settings = ["--workers", 2, "--max-connections", ROOM, "--drain-window", "0ms"]
    server = Server(tmp_path, *settings, descriptors=DESCRIPTORS)
    yield server
    server.kill()


def of_workers(server):
    """The connections of each worker."""
    return server.http.get("/status.json").json()["connections"]["workers"]


def filled(server, count):
    """The connections of each worker, once their sum is `count`."""
    eventually(lambda: sum(of_workers(server)) == count, f"{count} connections")
    return of_workers(server)


def flood(server, clients, directory, *options):
    """Loads the server with the load generator; returns its report."""
    load = ["--clients", clients, "--publish", 20, "--count", MESSAGES, "--hold", "3s"]
    report = directory / "flood.json"
    done = run_throng(
        "flood", server.url, *load, "--json", report, *options, directory=directory
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(report.read_text())


async def follow_all(server, count):
    """Where so many are, and what each of them gets."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        uri = f"{server.ws}/channels/many"
        sockets = [await websockets.connect(uri, proxy=None) for _ in range(count)]
        workers = await asyncio.to_thread(filled, server, count)
        for number in range(MESSAGES):
            await asyncio.to_thread(server.publish, "many", f"message {number}")
        got = [[await socket.recv() for _ in range(MESSAGES)] for socket in sockets]
        await asyncio.gather(*(socket.close() for socket in sockets))
        return workers, got


def test_the_configured_number_of_workers_accepts_until_one_is_full(server):
    each = ROOM // len(of_workers(server))
    workers, got = asyncio.run(follow_all(server, each + each // 4))
    assert all(workers[:2]) and not any(workers[2:]), workers
    expected = [f"message {number}" for number in range(MESSAGES)]
    assert got == [expected] * len(got)


def test_the_next_workers_accept_further_connections(server):
    each = ROOM // len(of_workers(server))
    workers, _ = asyncio.run(follow_all(server, each * 5 // 2))
    assert all(workers[:4]) and not any(workers[4:]), workers
    assert max(workers[:2]) >= each, workers


def test_a_server_at_its_limit_delivers_everything(server, tmp_path):
    # Publishing takes a little room as well.
    clients = ROOM - 20
    total = flood(server, clients, tmp_path)["total"]
    assert total["active"] == total["attempts"] == clients
    assert total["received"] == total["expected"] == clients * MESSAGES
