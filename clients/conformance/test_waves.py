"""1,000 clients of each kind lose their server, and do not come back in waves."""

from collections import Counter

import pytest
from conftest import opener
from support.server import Server

CLIENTS = 1_000
# On a busy machine, 1,000 handshakes take their time.
OPTIONS = {"transports": ["websocket"], "open_timeout_ms": 180_000}
# The bound of the first delay of the backoff, and the window that the server spreads clients over.
BACKOFF_MS = 500
DRAIN_MS = 5_000


def check_spread(delays, within_ms):
    """Evenly spread, each tenth of the time has 100 of 1,000; chance adds or takes 10."""
    assert len(delays) == CLIENTS and 0 <= min(delays) <= max(delays) <= within_ms
    tenths = Counter(int(delay * 10 / within_ms) for delay in delays)
    assert max(tenths.values()) < 180 and min(tenths[each] for each in range(10)) > 40, tenths


@pytest.fixture(params=["python-async", "javascript", "go"])
def crowd(request, programs):
    """Opens clients of a kind. Those of Python without asyncio have the connections of the others,
    and a thousand threads more."""
    with opener(programs(request.param)) as start:
        yield start


@pytest.mark.timeout(900)
def test_a_thousand_clients_do_not_come_in_waves(crowd, tmp_path, channel):
    flags = ["--drain-window", f"{DRAIN_MS}ms"]
    server = Server(tmp_path, *flags)
    try:
        clients = [crowd(server.url, **OPTIONS) for _ in range(CLIENTS)]
        for client in clients:
            client.tell("subscribe", channels=[channel])
        for client in clients:
            client.until_state("open")

        for end, within_ms in [(Server.kill, BACKOFF_MS), (Server.stop, DRAIN_MS)]:
            end(server)
            server = Server(tmp_path, *flags, port=server.port)
            delays = [client.until_state("waiting")["delay_ms"] for client in clients]
            check_spread(delays, within_ms)
            for client in clients:
                client.until_state("open")
        server.wait_for_connections(channel, CLIENTS)
    finally:
        server.kill()
