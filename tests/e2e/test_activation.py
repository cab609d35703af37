"""A listening socket that the service manager passes, as systemd does for a socket unit."""

import socket
import subprocess

import httpx
import pytest

from support import TIMEOUT_SECONDS
from support.raw import Raw, RawWebSocket
from support.server import BINARY, clean_environment, eventually

# The first descriptor that is passed is 3, and LISTEN_PID is the process that it is for (sd_listen_fds(3)).
PASS = 'exec 3<&{}; export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@"'


class Activated:
    """A server with a socket that outlives it."""

    def __init__(self, listener, *flags, listen=None):
        self.host, self.port = listener.getsockname()
        self.url = f"http://{self.host}:{self.port}"
        wrapped = ["bash", "-c", PASS.format(listener.fileno()), "bash", BINARY, "serve"]
        self.process = subprocess.Popen(
            [*wrapped, "--listen", listen or f"{self.host}:{self.port}", *map(str, flags)],
            env=clean_environment(),
            pass_fds=[listener.fileno()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def get(self, path):
        return httpx.get(f"{self.url}{path}", timeout=TIMEOUT_SECONDS, trust_env=False)

    def publish(self, channel, body):
        url = f"{self.url}/channels/{channel}"
        return httpx.post(url, content=body, timeout=TIMEOUT_SECONDS, trust_env=False).json()

    def stop(self):
        """Stops the server, and returns its exit code and its log."""
        self.process.terminate()
        return self.end()

    def end(self):
        try:
            _, log = self.process.communicate(timeout=TIMEOUT_SECONDS)
        finally:
            self.process.kill()
            self.process.wait()
        return self.process.returncode, log


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as opened:
        yield opened


@pytest.fixture
def activate(listener):
    """Starts servers with the socket; ends those that still run."""
    started = []

    def start(*flags, **options):
        started.append(Activated(listener, *flags, "--drain-window", 0, **options))
        return started[-1]

    yield start
    for server in started:
        server.process.kill()
        server.end()


def test_a_connection_from_before_the_start_is_served(listener, activate, channel):
    with socket.create_connection(listener.getsockname(), TIMEOUT_SECONDS) as early:
        early.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        server = activate()
        received = b"".join(iter(lambda: early.recv(1 << 16), b""))
    assert received.startswith(b"HTTP/1.1 200 ")
    code, log = server.stop()
    assert code == 0 and "panicked" not in log, log


def test_all_workers_get_connections(activate, channel):
    server = activate("--workers", 3)
    sockets = [RawWebSocket(server, f"/channels/{channel}") for _ in range(30)]
    assert server.publish(channel, "to all")["subscribers"] == 30
    for each in sockets:
        assert each.read_message() == b"to all"

    def held():
        lines = server.get("/metrics").text.splitlines()
        return [int(line.split()[1]) for line in lines if line.startswith("throng_worker_connections{")]

    # Requests and scrapes come and go.
    eventually(lambda: sorted(held()) == [10, 10, 10], "ten connections for each worker")
    code, log = server.stop()
    assert code == 0, log
    for each in sockets:
        each.close()


def test_connections_wait_from_one_server_to_the_next(listener, activate):
    first = activate()
    assert first.get("/health").status_code == 200
    code, log = first.stop()
    assert code == 0, log
    with Raw(first) as waiting:
        waiting.request("GET", "/health")
        second = activate()
        assert waiting.read_response().status == 200
    assert second.stop()[0] == 0


def test_a_server_that_expects_another_address_does_not_start(listener, activate):
    server = activate(listen="127.0.0.1:1")
    code, log = server.end()
    assert code == 78
    assert f"systemd listens on {server.host}:{server.port}, and the setting `listen` says 127.0.0.1:1" in log
