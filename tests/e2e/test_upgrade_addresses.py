"""A new process listens at other addresses than the one that it takes over from."""

import re
import signal
import socket
from contextlib import ExitStack

import pytest
import websockets.sync.client

from support import TIMEOUT_SECONDS
from support.certificates import make_certificate, trusting
from support.raw import Raw
from support.server import eventually, run_throng
from support.tls_server import read_until, stream_request
from support.upgrades import FAILED

STARTED = re.compile(" started version=")
PLAIN = re.compile(r" listen=([\d.]+):(\d+)")
TLS = re.compile(r" tls_listen=([\d.]+):(\d+)")


def newest(pattern, server):
    """The address that the newest process has logged."""
    count = len(server.pauses()) + 1
    eventually(lambda: len(STARTED.findall(server.log())) >= count, "the start of the newest process")
    host, port = pattern.findall(server.log())[-1]
    return host, int(port)


def use(server, address):
    """Asks the server at another address from now on."""
    server.host, server.port = address
    server.http.base_url = server.url


def refuses(server, reason):
    """Expects that the next upgrade fails for this reason."""
    count = server.log().count(FAILED)
    server.signal(signal.SIGUSR2)
    eventually(lambda: server.log().count(FAILED) > count, "the failure of the upgrade")
    assert reason in server.log().rpartition(FAILED)[2]


def test_addresses_change_and_no_connection_ends(upgradable, tmp_path):
    certificate, key = make_certificate(tmp_path, "own", "localhost")
    path = tmp_path / "throng.toml"
    path.write_text("workers = 2\nlisten = '127.0.0.1:0'\n")
    server = upgradable("--config", path, port=None)
    follow = websockets.sync.client.connect(
        f"{server.ws}/channels/a", compression=None, proxy=None, ping_interval=None
    )
    with follow as first:
        server.wait_for_connections("a", 1)
        former = server.host, server.port
        settings = "workers = 3\nlisten = '127.0.0.2:0'\ntls-listen = '127.0.0.3:0'\n"
        path.write_text(f"{settings}tls-cert = '{certificate}'\ntls-key = '{key}'\n")
        reloaded = run_throng("reload", "--config", path, directory=tmp_path)
        assert reloaded.returncode == 0, reloaded.stderr
        waits = "for `throng upgrade` or a restart: "
        assert re.search(waits + r".*\blisten\b.*\btls-listen\b", reloaded.stdout), reloaded.stdout
        server.upgrade()
        use(server, newest(PLAIN, server))
        assert server.host == "127.0.0.2"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(former, TIMEOUT_SECONDS)
        # One more that changes nothing passes the new listeners on.
        for _ in range(2):
            with ExitStack() as clients:
                for _ in range(64):
                    client = clients.enter_context(Raw(server))
                    client.send(stream_request("a").decode())
                    client.read_until(b"\r\n\r\n")

                def each_has_some():
                    of_workers = server.http.get("/status.json").json()["connections"]["workers"]
                    return len(of_workers) == 3 and all(of_workers)

                eventually(each_has_some, "connections of all workers")
                plain = socket.create_connection(newest(TLS, server), TIMEOUT_SECONDS)
                secure = clients.enter_context(
                    trusting(certificate).wrap_socket(plain, server_hostname="localhost")
                )
                secure.sendall(stream_request("a"))
                read_until(lambda secure=secure: secure.recv(4096), b"\r\n\r\n")
                server.publish("a", "news")
                assert first.recv(TIMEOUT_SECONDS) == "news"
                client.read_until(b"data: news\n")
                read_until(lambda secure=secure: secure.recv(4096), b"data: news\n")
            server.upgrade()


def test_an_address_that_cannot_be_had_changes_nothing(upgradable, tmp_path):
    certificate, key = make_certificate(tmp_path, "own", "localhost")
    path = tmp_path / "throng.toml"
    secure = f"tls-listen = '127.0.0.1:0'\ntls-cert = '{certificate}'\ntls-key = '{key}'\n"
    path.write_text(f"listen = '127.0.0.1:0'\n{secure}")
    server = upgradable("--config", path, port=None)
    with socket.create_server(("127.0.0.1", 0)) as other, Raw(server) as client:
        client.send(stream_request("a").decode())
        client.read_until(b"\r\n\r\n")
        path.write_text(f"listen = '127.0.0.1:{other.getsockname()[1]}'\n{secure}")
        refuses(server, "the address is in use by another program")
        # Connections over TLS would end.
        path.write_text("listen = '127.0.0.1:0'\n")
        refuses(server, "the settings have no `tls-listen`")
        server.publish("a", "news")
        client.read_until(b"data: news\n")
