"""A new process has more workers than the one that it takes over from."""

import signal
from contextlib import ExitStack

import pytest
import websockets.sync.client

from support import TIMEOUT_SECONDS
from support.certificates import make_certificate
from support.raw import Raw
from support.server import eventually, run_throng
from support.tls_server import stream_request
from support.upgrades import FAILED


def reload(server, directory):
    """Reloads the settings by command; returns what it prints."""
    done = run_throng("reload", "--listen", f"127.0.0.1:{server.port}", directory=directory)
    assert done.returncode == 0, done.stderr
    return done.stdout


def status(server, name):
    return server.http.get("/status.json").json()["connections"][name]


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_an_upgrade_adds_workers_which_take_connections(upgradable, tmp_path, tls):
    path = tmp_path / "throng.toml"
    settings = "workers = 2\n"
    if tls:
        certificate, key = make_certificate(tmp_path, "own")
        settings += f"tls-listen = '127.0.0.1:0'\ntls-cert = '{certificate}'\ntls-key = '{key}'\n"
    path.write_text(settings)
    server = upgradable("--config", path)
    follow = websockets.sync.client.connect
    with follow(f"{server.ws}/channels/a", compression=None, proxy=None, ping_interval=None) as first:
        server.wait_for_connections("a", 1)
        for workers in [4, 5]:
            path.write_text(settings.replace("2", str(workers), 1))
            assert "waits for `throng upgrade` or a restart: workers" in reload(server, tmp_path)
            server.upgrade()
            # The kernel gives connections to all of them.
            with ExitStack() as clients:
                for _ in range(64):
                    client = clients.enter_context(Raw(server))
                    client.send(stream_request("a").decode())
                    client.read_until(b"\r\n\r\n")

                def each_has_some(workers=workers):
                    of_workers = status(server, "workers")
                    return len(of_workers) == workers and all(of_workers)

                eventually(each_has_some, "connections of all workers")
                server.publish("a", str(workers))
                assert first.recv(TIMEOUT_SECONDS) == str(workers)
                client.read_until(f"data: {workers}\n".encode())
        path.write_text(settings.replace("2", "3", 1))
        assert "waits for a restart: workers" in reload(server, tmp_path)
        server.signal(signal.SIGUSR2)
        eventually(lambda: FAILED in server.log(), "the failure of the upgrade")
        assert "it has 5 workers" in server.log().rpartition(FAILED)[2]


def test_a_larger_number_of_connections_comes_with_an_upgrade(upgradable, tmp_path):
    path = tmp_path / "throng.toml"
    path.write_text("workers = 1\nmax-connections = 100\n")
    server = upgradable("--config", path, descriptors=1024)
    for limit, answer in [("3000", "`throng upgrade` or a restart"), ("2000", "a restart")]:
        path.write_text(f"workers = 1\nmax-connections = {limit}\n")
        assert f"waits for {answer}: max-connections" in reload(server, tmp_path)
        if limit == "3000":
            server.upgrade()
    eventually(lambda: status(server, "capacity") == 3000, "a sample")
