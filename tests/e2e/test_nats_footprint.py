"""What a followed channel takes in a node, also when very many were followed at once."""

import contextlib
import re
from pathlib import Path

from support.nats import connected
from support.raw import Raw
from support.server import eventually

CLIENTS = 200
CHANNELS_OF_CLIENT = 100
CHANNELS = CLIENTS * CHANNELS_OF_CLIENT

# What NATS may add, by issue; buffers that do not depend on the number of channels are spread over
# the 20,000 of this test, too.
BYTES_MAX = 400


def own_bytes(server):
    """Memory that only this process has, and that it has written to."""
    rollup = Path(f"/proc/{server.process.pid}/smaps_rollup").read_text()
    return int(re.search(r"^Private_Dirty: +(\d+) kB", rollup, re.MULTILINE).group(1)) << 10


def asking(server, nth):
    """A connection that has asked to follow its channels."""
    client = Raw(server)
    names = (f"channel=inbox-{nth}-{of}" for of in range(CHANNELS_OF_CLIENT))
    client.send(f"GET /subscribe?{'&'.join(names)} HTTP/1.1\r\nHost: {client.host}\r\n\r\n")
    return client


@contextlib.contextmanager
def followers(server):
    """Connections that follow all channels, and ask for it before any of them is answered."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(asking(server, nth)) for nth in range(CLIENTS)]
        for nth, client in enumerate(clients):
            while (status := client.socket.recv(12)) != b"HTTP/1.1 200":
                # On a busy machine NATS takes longer than the server lets a client wait.
                assert status == b"HTTP/1.1 503"
                client = stack.enter_context(asking(server, nth))
        yield


def bytes_of_channel(server):
    """Tells how much memory a followed channel takes, while all of them are."""
    before = own_bytes(server)
    return lambda: (own_bytes(server) - before) / CHANNELS


def test_a_followed_channel_takes_few_bytes(serve, broker, start_node):
    alone, one = serve("--heartbeat", 0), connected(start_node(broker, "--heartbeat", 0))
    with_memory = bytes_of_channel(alone)
    with followers(alone):
        at_least = with_memory()
    with_nats = bytes_of_channel(one)
    with followers(one):
        assert one.metrics()["throng_nats_followed_channels"] == CHANNELS
        # What was needed until they were followed goes back to the kernel when that is over.
        eventually(
            lambda: with_nats() - at_least <= BYTES_MAX,
            lambda: f"{BYTES_MAX} more than {at_least:.0f} bytes, not {with_nats():.0f}",
        )
