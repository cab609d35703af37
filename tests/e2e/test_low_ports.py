"""Ports below 1024, by a server that is not root, in a network namespace of its own."""

import os
import shutil
import socket
import ssl
import subprocess
import tempfile
from contextlib import contextmanager

import pytest
from support import TIMEOUT_SECONDS
from support.networks import in_a_network, needs_networks
from support.server import BINARY, clean_environment

NOBODY = 65534
CAPABILITY = "net_bind_service"
FLAGS = ["--dev-tls", "--listen", "127.0.0.1:8080", "--tls-listen", "127.0.0.1:443"]


@contextmanager
def serving_as_nobody(*flags, capabilities=()):
    """Starts `throng serve` as another user, with these capabilities only."""
    home = tempfile.mkdtemp(prefix="throng-low-ports-", dir="/tmp")
    os.chown(home, NOBODY, NOBODY)
    only = ",".join(["-all", *(f"+{name}" for name in capabilities)])
    user = ["--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    rights = [f"--bounding-set={only}", f"--inh-caps={only}", f"--ambient-caps={only}"]
    # This user may have no way to the directory of the binary.
    binary = os.open(BINARY, os.O_RDONLY)
    process = subprocess.Popen(
        ["setpriv", *user, *rights, "--no-new-privs", f"/proc/self/fd/{binary}", "serve", *flags],
        cwd=home,
        env=clean_environment({"HOME": home, "RUNTIME_DIRECTORY": home}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=[binary],
    )
    try:
        yield process
    finally:
        os.close(binary)
        process.kill()
        process.wait()
        process.stdout.close()
        shutil.rmtree(home)


def first_line(peer):
    peer.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
    with peer.makefile("rb") as answer:
        return answer.readline()


@needs_networks
def test_a_server_without_the_capability_says_how_to_grant_it():
    def body(_cable):
        with serving_as_nobody(*FLAGS) as process:
            output = process.communicate(timeout=TIMEOUT_SECONDS)[0]
        assert process.returncode == 1, output
        line = next(line for line in output.splitlines() if line.startswith("error: "))
        assert line == (
            "error: cannot listen on 127.0.0.1:443: ports below 1024 need the capability "
            "CAP_NET_BIND_SERVICE, which this process lacks; add "
            "AmbientCapabilities=CAP_NET_BIND_SERVICE to its systemd unit, or run "
            f"`setcap cap_net_bind_service=+ep {BINARY}`, or choose a higher port with --tls-listen"
        )

    in_a_network(body)


@needs_networks
def test_the_capability_is_all_that_ports_443_and_80_need():
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def body(_cable):
        flags = [*FLAGS, "--redirect-http", "127.0.0.1:80"]
        with serving_as_nobody(*flags, capabilities=[CAPABILITY]) as process:
            said = []
            for line in process.stdout:
                said.append(line)
                if "TLS listener on https://127.0.0.1:443" in line:
                    break
            else:
                pytest.fail("".join(said))
            with socket.create_connection(("127.0.0.1", 443), TIMEOUT_SECONDS) as plain:
                with context.wrap_socket(plain, server_hostname="localhost") as peer:
                    assert first_line(peer) == b"HTTP/1.1 200 OK\r\n"
            with socket.create_connection(("127.0.0.1", 80), TIMEOUT_SECONDS) as peer:
                assert first_line(peer).split()[1] in (b"301", b"307", b"308")

    in_a_network(body)
