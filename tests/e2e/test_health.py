"""The probes, and the watchdog of systemd: what they say of a server that is full, leaves, stands still
or has lost a back end."""

import ctypes
import os
import re
import signal
import socket
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from support import TIMEOUT_SECONDS
from support.raw import Raw
from support.server import Server, closed_port, eventually, run_throng

LIVE, READY = "/health/live", "/health/ready"
# Of ptrace(2).
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
WALL = 0x40000000  # __WALL of wait(2): the thread is no child of this process


def probe(client, path, **headers):
    """The status, and the answer's word and reasons."""
    response = client.get(path, headers=headers)
    answer = response.json()
    assert set(answer) == {"status", "reasons"} and response.headers["Cache-Control"] == "no-store"
    for reason in answer["reasons"]:
        assert set(reason) == {"reason", "message"}, reason
    return response.status_code, answer["status"], [reason["reason"] for reason in answer["reasons"]]


def test_everyone_may_probe_both_listeners(serve):
    server = serve("--admin-listen", "127.0.0.1:0")
    with server.admin() as admin:
        for client in (server.http, admin):
            for name in ("10-0-0-7.pod.cluster.local", client.base_url.netloc.decode()):
                assert probe(client, LIVE, Host=name) == (200, "live", [])
                assert probe(client, READY, Host=name) == (200, "ready", [])


def test_a_full_server_is_degraded_and_answers(serve, channel):
    server = serve("--max-connections", 4, "--workers", 1)
    with ExitStack() as stack:
        for _ in range(4):
            connection = stack.enter_context(Raw(server))
            connection.request("GET", f"/channels/{channel}", {"Accept": "text/event-stream"})
            assert connection.read_head().status == 200
        assert probe(server.http, READY) == (200, "degraded", ["full"])
        assert probe(server.http, LIVE) == (200, "live", [])
    eventually(lambda: probe(server.http, READY) == (200, "ready", []), "the places")


def test_a_key_set_that_cannot_be_fetched_degrades(serve):
    with closed_port() as port:
        server = serve("--token-key-urls", f"http://127.0.0.1:{port}/keys")
        degraded = (200, "degraded", ["key_sets"])
        eventually(lambda: probe(server.http, READY) == degraded, "a failed fetch")
        assert probe(server.http, LIVE) == (200, "live", [])


def test_readiness_goes_first_and_a_second_signal_ends_the_wait(tmp_path, channel):
    server = Server(tmp_path, "--drain-delay", "1h")
    server.signal(signal.SIGTERM)
    eventually(lambda: probe(server.http, READY) == (503, "draining", ["draining"]), "the signal")
    assert server.http.get("/health").text == "draining\n"
    assert probe(server.http, LIVE) == (200, "live", [])
    assert server.publish(channel, "still served")["subscribers"] == 0
    with Raw(server) as connection:
        connection.request("GET", f"/channels/{channel}", {"Accept": "text/event-stream"})
        assert connection.read_head().status == 200
    server.signal(signal.SIGTERM)
    assert server.wait() == 1
    assert "ending at once" in server.log()


@contextmanager
def notifications(directory):
    """The socket of a service manager, and the variables that name it."""
    path = str(directory / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(TIMEOUT_SECONDS)
        yield manager, {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "1000000"}


@contextmanager
def standing_still(process, name):
    """Stops one thread of the process for the block, and no other."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    tasks, named = Path(f"/proc/{process.pid}/task"), []
    for task in tasks.iterdir():
        # Other threads of the process come and go.
        with suppress(FileNotFoundError, ProcessLookupError):
            if (task / "comm").read_text().strip() == name:
                named.append(int(task.name))
    (thread,) = named
    if libc.ptrace(PTRACE_SEIZE, thread, None, None) != 0:
        pytest.skip(f"this machine does not allow ptrace: {os.strerror(ctypes.get_errno())}")
    try:
        assert libc.ptrace(PTRACE_INTERRUPT, thread, None, None) == 0
        os.waitpid(thread, WALL)
        yield
    finally:
        libc.ptrace(PTRACE_DETACH, thread, None, None)


def test_the_watchdog_is_fed_only_while_all_loops_turn(tmp_path):
    with notifications(tmp_path) as (manager, environment):
        admin_listen = ["--admin-listen", "127.0.0.1:0"]
        server = Server(tmp_path, "--workers", 2, *admin_listen, environment=environment)
        assert manager.recv(100) == b"READY=1"
        assert manager.recv(100) == b"WATCHDOG=1"
        # Requests at the admin listener pass no worker.
        with server.admin() as admin, standing_still(server.process, "worker-1"):
            eventually(lambda: probe(admin, LIVE) == (503, "stuck", ["stuck"]), "a standstill")
            assert "worker-1" in admin.get(READY).json()["reasons"][0]["message"]
            manager.setblocking(False)
            with pytest.raises(BlockingIOError):
                while manager.recv(100):
                    pass
            manager.settimeout(1.5)
            with pytest.raises(TimeoutError):
                manager.recv(100)
        manager.settimeout(TIMEOUT_SECONDS)
        assert manager.recv(100) == b"WATCHDOG=1"
        server.says("the event loop worker-1 has stalled")
        eventually(lambda: probe(server.http, LIVE) == (200, "live", []), "the loop to go on")
        server.http.close()
        server.signal()
        eventually(lambda: manager.recv(100) == b"STOPPING=1", "the end")
        assert server.wait() == 0, server.log()


CANARY = ["--canary-interval", "100ms"]
TRANSPORTS = {"websocket", "sse", "stream", "poll"}


def canary(client, **headers):
    """What the canary has found."""
    return client.get("/status.json", headers=headers).json()["canary"]


def sings(client, count=3, **headers):
    """Waits until `count` messages have arrived over each transport, and the last ones did."""

    def has_arrived():
        found = canary(client, **headers)
        assert set(found) == TRANSPORTS
        arrived = [each for each in found.values() if each["count"] >= count]
        if len(arrived) < len(found) or any(each["failing"] for each in arrived):
            return False
        for each in arrived:
            assert each["arrived_ms"] > 1e12 and 0 < each["p50_ms"] <= each["p99_ms"]
        return True

    eventually(has_arrived, "messages of the canary")


def test_the_canary_is_no_client(serve):
    # Its messages may take ten intervals, on a busy machine as well.
    server = serve("--canary-interval", "500ms", "--workers", 3, "--log", "debug")
    sings(server.http, count=5)
    # A delivery is counted once it is written.
    delivered = "throng_canary_deliveries_total"
    eventually(lambda: server.metrics()[delivered] >= 20, "what was delivered is counted")
    status, metrics = server.http.get("/status.json").json(), server.metrics()
    for transport in TRANSPORTS:
        assert status["connections"][transport] == 0
        assert metrics[f'throng_connections_subscribed_total{{transport="{transport}"}}'] == 0
        assert metrics[f'throng_canary_duration_seconds_count{{transport="{transport}"}}'] >= 5
        assert metrics[f'throng_canary_failures_total{{transport="{transport}"}}'] == 0
    for name in ("deliveries", "status_deliveries", "log_messages_published"):
        assert metrics[f"throng_{name}_total"] == 0, name
    assert status["channels"] == status["messages_in"]["total"] == status["deliveries"]["total"] == 0
    assert metrics["throng_connections"] == metrics["throng_http_connections"]
    assert not status["closed"] and "GET /channels/canary" not in server.log()


def test_the_canary_sings_on_a_full_server_with_keys_behind_a_proxy(serve, tmp_path):
    key = run_throng("key", "--scopes", "administration", directory=tmp_path)
    (secret,) = re.findall(r"\bthrong_key_\w+", key.stdout + key.stderr)
    (digest,) = re.findall(r"sha256:\w+", key.stdout + key.stderr)
    (tmp_path / "throng.toml").write_text(
        f'[[server-keys]]\nname = "a"\nhash = "{digest}"\nscopes = ["administration"]\n'
    )
    proxies = ["--trusted-proxies", "10.9.8.7", "--proxy-protocol", "always"]
    limits = ["--max-connections-per-address", 1, "--max-connections", 1, "--workers", 1]
    server = serve(*CANARY, *proxies, *limits, "--admin-listen", "127.0.0.1:0")
    with server.admin() as admin:
        sings(admin, Authorization=f"Bearer {secret}")
        assert probe(admin, READY) == (200, "ready", [])


def test_a_canary_that_gets_no_messages_degrades_and_recovers(tmp_path):
    server = Server(tmp_path, *CANARY, "--workers", 2, "--admin-listen", "127.0.0.1:0")
    with server.admin() as admin:
        sings(admin)
        with standing_still(server.process, "worker-0"):
            eventually(lambda: probe(admin, READY)[1:] == ("degraded", ["canary"]), "silence")
            assert probe(admin, LIVE)[0] == 200
        eventually(lambda: probe(admin, READY) == (200, "ready", []), "its song")
    server.stop()
    assert "own messages do not arrive over" in server.log() and "again" in server.log()


def test_without_an_interval_there_is_no_canary(serve):
    server = serve("--canary-interval", "0")
    assert canary(server.http) is None
    assert not [name for name in server.metrics() if name.startswith("throng_canary_duration")]
