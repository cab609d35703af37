"""Proxies that name their clients: HAProxy, and PROXY headers made by hand."""

import shutil
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

from . import TIMEOUT_SECONDS

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def header_v1(client, port=4711):
    """A PROXY header of version 1 for a client at an IPv4 address."""
    return f"PROXY TCP4 {client} 192.0.2.200 {port} 443\r\n".encode()


def header_v2(client, port=4711, extra=b""):
    """A PROXY header of version 2 for a client at an address; `extra` follows the addresses."""
    family = socket.AF_INET6 if ":" in client else socket.AF_INET
    here = "2001:db8::200" if ":" in client else "192.0.2.200"
    addresses = socket.inet_pton(family, client) + socket.inet_pton(family, here)
    body = addresses + port.to_bytes(2, "big") + (443).to_bytes(2, "big") + extra
    kind = 0x21 if ":" in client else 0x11
    return SIGNATURE + bytes([0x21, kind]) + len(body).to_bytes(2, "big") + body


LOCAL_V2 = SIGNATURE + bytes([0x20, 0x00, 0x00, 0x00])


@contextmanager
def haproxy(directory, server, options):
    """Runs HAProxy in TCP mode in front of a server; gives its address as `host` and `port`."""
    binary = shutil.which("haproxy") or "/usr/sbin/haproxy"
    assert Path(binary).exists(), "HAProxy is missing: scripts/setup"
    probe = socket.create_server(("127.0.0.1", 0))
    listener = Listener("127.0.0.1", probe.getsockname()[1])
    configuration = Path(directory) / "haproxy.cfg"
    configuration.write_text(
        "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n"
        f"frontend clients\n  bind fd@{probe.fileno()}\n  default_backend throng\n"
        f"backend throng\n  server throng {server.host}:{server.port} {options}\n"
    )
    probe.set_inheritable(True)
    process = subprocess.Popen(
        [binary, "-db", "-f", str(configuration)],
        stdin=subprocess.DEVNULL,
        pass_fds=[probe.fileno()],
    )
    try:
        # Connections wait in the backlog of the socket until HAProxy accepts them.
        assert process.poll() is None, "HAProxy has ended: see its words above"
        yield listener
    finally:
        process.terminate()
        process.wait(TIMEOUT_SECONDS)
        probe.close()


class Listener:
    """Where a proxy listens, in the place of a server."""

    def __init__(self, host, port):
        self.host, self.port = host, port
