"""`throng flood --network tunnel`: clients without sockets, against an unmodified server."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from support import TIMEOUT_SECONDS
from support.floods import assert_delivered
from support.server import (
    BINARY,
    clean_environment,
    closed_port,
    eventually,
    limit_descriptors,
    run_throng,
)
from support.tunnel import needs_tunnel, without_rights

# A tunnel is a network device.
pytestmark = pytest.mark.usefixtures("a_network_of_its_own")

TUNNEL = ["--network", "tunnel"]
WHOLE = [
    *["lost == 0", "missed == 0", "duplicated == 0", "reordered == 0"],
    *["failures == 0", "received > 0"],
]


@pytest.fixture
def flood(tmp_path):
    """Runs a flood to its end; returns the completed process and its report, if it made one."""

    def run(url, *arguments, check=True):
        report = tmp_path / "report.json"
        command = ["flood", url, *TUNNEL, *arguments, "--json", report]
        done = run_throng(*command, directory=tmp_path, timeout=3 * TIMEOUT_SECONDS)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        assert "panicked" not in done.stderr
        return done, json.loads(report.read_text()) if report.exists() else None

    return run


def asserting(*assertions):
    return [flag for each in assertions for flag in ("--assert", each)]


def load(clients, hold="1s"):
    return ["--clients", str(clients), "--hold", hold, "--publish", "10", "--threads", "2"]


@needs_tunnel
@pytest.mark.parametrize("transport", ["websocket", "sse", "stream", "long-poll"])
def test_every_transport_loses_nothing(server, flood, transport):
    flags = ["--transport", transport, "--server-pid", "auto"]
    done, report = flood(server.url, *flags, *load(500), *asserting(*WHOLE))
    total = report["total"]
    assert_delivered(total, transport, 5000)
    assert total["connect"]["count"] == 500
    assert report["environment"]["network"] == report["plan"]["network"] == "tunnel"
    assert total["repeated_packets"] is not None
    assert "clients without sockets (network tunnel)" in done.stdout


def sockets(server):
    """The ends of connections that the kernel knows: the server's, and others of 198.18.0.0/15. While
    others come and go, the kernel's list may name a connection twice or leave it out."""
    rows = {tuple(row.split()[1:3]) for row in Path("/proc/net/tcp").read_text().splitlines()[1:]}
    port = f":{int(server.url.rsplit(':', 1)[1]):04X}"
    # As a little-endian machine prints the address.
    is_client = [(own[4:8] in ("12C6", "13C6"), peer[4:8] in ("12C6", "13C6")) for own, peer in rows]
    servers = sum(peer for (own, _), (_, peer) in zip(rows, is_client) if own.endswith(port))
    return servers, sum(own for own, _ in is_client)


def started(server, directory, clients, *arguments):
    """A flood whose clients are connected."""
    command = [BINARY, "flood", server.url, *TUNNEL, *arguments]
    child = subprocess.Popen(command, cwd=directory, env=clean_environment({}))

    def are_connected():
        assert child.poll() is None
        return sockets(server)[0] >= clients

    eventually(are_connected, "all clients")
    return child


@needs_tunnel
def test_no_client_has_a_socket(serve, tmp_path):
    """The kernel has a socket for the server's end of each connection only."""
    server = serve()
    child = started(server, tmp_path, 100, *load(100, "60s"))
    eventually(lambda: sockets(server) == (100, 0), "one end of each connection")
    child.send_signal(signal.SIGINT)
    child.wait(TIMEOUT_SECONDS)


@needs_tunnel
def test_a_message_of_many_packets_arrives_whole(serve, flood):
    # On a busy machine clients may lag by all of the messages.
    server = serve("--max-message-bytes", "1MiB", "--max-lag-bytes", "8MiB")
    flags = ["--clients", "20", "--hold", "1s", "--publish", "5", "--size", "500KiB"]
    _, report = flood(server.url, *flags, *asserting(*WHOLE))
    assert report["total"]["received"] == 100


@needs_tunnel
def test_clients_recover_from_a_storm(server, flood):
    storm = ["--storm", "20s", *asserting("storm.recovered < 20s", "lost == 0", "failures == 0")]
    _, report = flood(server.url, *load(300), *storm)
    assert report["total"]["attempts"] == 600


@needs_tunnel
def test_churn_leaves_no_connection_behind(server, flood):
    _, report = flood(server.url, *load(200, "2s"), "--churn", "200", *asserting(*WHOLE))
    assert report["total"]["attempts"] > 300
    assert report["total"]["active"] == 200


@needs_tunnel
def test_slow_readers_do_not_delay_others(serve, flood):
    """They do not read for a second, while more arrives than their windows hold."""
    server = serve("--max-message-bytes", "1MiB")
    flags = ["--slow", "20%", "--hold", "1s", "--publish", "10", "--size", "20KiB"]
    _, report = flood(server.url, "--clients", "50", *flags, *asserting(*WHOLE))
    assert report["total"]["received"] == 500
    # The slow readers get everything late: a fifth of all deliveries. On a busy machine all do, and they later.
    delivery = report["total"]["delivery"]
    assert delivery["p90"] - delivery["p50"] > 100, delivery


@needs_tunnel
def test_a_server_that_is_killed_closes_all(serve, tmp_path):
    server = serve()
    report = tmp_path / "killed.json"
    child = started(server, tmp_path, 100, *load(100, "3s"), "--json", report)
    server.process.kill()
    server.process.wait()
    child.wait(TIMEOUT_SECONDS)
    total = json.loads(report.read_text())["total"]
    assert total["active"] == 0
    assert sum(total["failures"].values()) == 100, total["failures"]


@needs_tunnel
def test_a_closed_port_is_reported(flood):
    flags = ["--clients", "10", "--hold", "1s"]
    with closed_port() as port:
        done, report = flood(f"http://127.0.0.1:{port}", *flags, check=False)
    assert done.returncode == 1
    assert report["total"]["failures"] == {"refused": 10}


@needs_tunnel
def test_two_floods_have_devices_of_their_own(server, tmp_path):
    command = [BINARY, "flood", server.url, *TUNNEL, *load(50), *asserting(*WHOLE)]
    environment = clean_environment({})
    children = [subprocess.Popen(command, cwd=tmp_path, env=environment) for _ in range(3)]
    assert [child.wait(TIMEOUT_SECONDS) for child in children] == [0, 0, 0]


@needs_tunnel
def test_neither_descriptors_nor_ports_are_needed(tmp_path):
    """A thousand clients on one thread with 256 descriptors: too few for sockets, on any machine."""

    def dry_run(*flags):
        load = ["--clients", "1000", "--threads", "1"]
        command = [BINARY, "flood", "http://127.0.0.1:80", *load, *flags, "--dry-run"]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=clean_environment(),
            preexec_fn=limit_descriptors(256),
            capture_output=True,
            text=True,
            check=False,
        )
        return done, [line for line in done.stdout.splitlines() if line.startswith("#")]

    done, notes = dry_run()
    assert done.returncode == 1 and any("descriptors" in line for line in notes), done.stdout
    done, notes = dry_run(*TUNNEL)
    assert 'network = "tunnel"' in done.stdout
    assert done.returncode == 0 and "connections fit" in notes[0], done.stdout
    assert not any(word in notes[0] for word in ["descriptors", "ports", "addresses"]), notes


@needs_tunnel
@pytest.mark.parametrize("url", ["http://203.0.113.9:80", "http://[::1]:80"])
def test_a_target_elsewhere_is_refused(flood, url):
    done, _ = flood(url, check=False)
    assert done.returncode == 1
    assert "address" in done.stderr and len(done.stderr.splitlines()) == 1


@needs_tunnel
def test_custom_source_addresses_are_refused(flood):
    done, _ = flood("http://127.0.0.1:80", "--source", "127.0.0.2", check=False)
    assert done.returncode == 64
    assert "--source: clients of the network tunnel have addresses" in done.stderr


@needs_tunnel
def test_missing_privileges_are_named(server, tmp_path):
    if shutil.which("setpriv") is None or os.geteuid() != 0:
        pytest.skip("setpriv is missing, or the tests do not run as root")
    command = without_rights([BINARY, "flood", server.url, *TUNNEL, "--dry-run"])
    environment = clean_environment({})
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "CAP_NET_ADMIN" in done.stdout
    done = subprocess.run(
        command[:-1], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "CAP_NET_ADMIN" in done.stderr
