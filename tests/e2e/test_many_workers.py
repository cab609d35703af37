"""A low descriptor limit: more workers than cores, which fill up and fan out group by group."""

import asyncio
import json

import pytest
import websockets

from support import TIMEOUT_SECONDS
from support.server import Server, eventually, run_throng

DESCRIPTORS = 512
CONNECTIONS_MAX = 2_000
MESSAGES = 20
# Connections of the server itself, one for each transport, which are not among those it shows: the
# worker that has one takes that many clients less.
CANARIES = 4
# Hundreds of connects and thousands of deliveries, which take a loaded machine longer than the
# single events that `TIMEOUT_SECONDS` is for.
LOAD_SECONDS_MAX = 9 * TIMEOUT_SECONDS


@pytest.fixture
def server(tmp_path):
    settings = ["--workers", 2, "--max-connections", CONNECTIONS_MAX, "--drain-window", "0ms"]
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
    command = ["flood", server.url, *load, "--json", report, *options]
    done = run_throng(*command, directory=directory, timeout=LOAD_SECONDS_MAX)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(report.read_text())


async def follow_all(server, count):
    """Connects clients; returns the connections of each worker, and what each client received."""
    async with asyncio.timeout(LOAD_SECONDS_MAX):
        uri = f"{server.ws}/channels/many"
        # Without pings: what a client has not read hides the answers.
        options = {"proxy": None, "open_timeout": TIMEOUT_SECONDS, "ping_interval": None}
        sockets = [await websockets.connect(uri, **options) for _ in range(count)]
        workers = await asyncio.to_thread(filled, server, count)
        for number in range(MESSAGES):
            await asyncio.to_thread(server.publish, "many", f"message {number}")
        got = [[await socket.recv() for _ in range(MESSAGES)] for socket in sockets]
        await asyncio.gather(*(socket.close() for socket in sockets))
        return workers, got


def test_the_configured_number_of_workers_accepts_until_one_is_full(server):
    each = CONNECTIONS_MAX // len(of_workers(server))
    workers, got = asyncio.run(follow_all(server, each + each // 4))
    assert all(workers[:2]) and not any(workers[2:]), workers
    expected = [f"message {number}" for number in range(MESSAGES)]
    assert got == [expected] * len(got)


def test_the_next_workers_accept_further_connections(server):
    each = CONNECTIONS_MAX // len(of_workers(server))
    workers, _ = asyncio.run(follow_all(server, each * 5 // 2))
    assert all(workers[:4]) and not any(workers[4:]), workers
    assert max(workers[:2]) >= each - CANARIES, workers


def test_a_server_at_its_limit_delivers_everything(server, tmp_path):
    # Publishing takes connections, too.
    clients = CONNECTIONS_MAX - 20
    total = flood(server, clients, tmp_path)["total"]
    assert total["active"] == total["attempts"] == clients
    # On a loaded machine fewer messages are published within the hold time.
    assert total["published"] > 0
    assert total["received"] == total["expected"] == clients * total["published"]
