"""Where a service ends with its first process, that stays as the parent of the one that serves."""

import os
import pty
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest
import websockets.sync.client

from support import TIMEOUT_SECONDS
from support.server import BINARY, Server, clean_environment, eventually, run_throng
from support.upgrades import is_running

CONTAINER = ["unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
# What `docker run --init` does: it waits for its child, and ends with it.
INIT = '"$@" & wait $!'
FLAGS = ["--heartbeat", "1h", "--drain-window", "0ms", "--workers", "1"]


UNDER_AN_INIT = "under an init"
KINDS = {
    "first": ("", 1),
    # In the foreground of a terminal, which `docker run -t` has.
    "first, with a terminal": ("", 1),
    UNDER_AN_INIT: (f"sh -c '{INIT}' init", 2),
    # As in a container that passes the socket of the service manager outside on to what is in it.
    "under an init that is not systemd": (f"env NOTIFY_SOCKET=@nobody sh -c '{INIT}' init", 2),
}


@pytest.fixture(params=KINDS)
def server(request, tmp_path, monkeypatch):
    """A server in a process namespace of its own, as in a container."""
    yield from in_a_container(request.param, tmp_path, monkeypatch)


@pytest.fixture
def server_under_init(tmp_path, monkeypatch):
    """One whose first process is not the first of the namespace, and has its default of signals."""
    yield from in_a_container(UNDER_AN_INIT, tmp_path, monkeypatch)


def in_a_container(kind, directory, monkeypatch):
    if subprocess.run([*CONTAINER, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("this user may not make process namespaces")
    init, depth = KINDS[kind]
    primary, terminal = pty.openpty()
    stdin = f"< {os.ttyname(terminal)}" if "terminal" in kind else ""
    wrapper = directory / "container"
    wrapper.write_text(f'#!/bin/sh\nexec {" ".join(CONTAINER)} {init} {BINARY} "$@" {stdin}\n')
    wrapper.chmod(0o755)
    monkeypatch.setattr("support.server.BINARY", wrapper)
    server = Server(directory, *FLAGS, "--control", directory / "control")
    server.depth = depth
    yield server
    if server.process.poll() is None:
        server.process.kill()
        server.process.wait()
    os.close(primary)
    os.close(terminal)


def child(pid):
    """The one child of a process."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    return int(children[0]) if children else None


def first_process(server):
    """The process that the container or its init has started."""
    pid = server.process.pid
    for _ in range(server.depth):
        pid = child(pid)
    return pid


def word(pid):
    """What the process was told to do; `None` once it has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return None
    if len(words) > 1:
        return words[1]
    # One that is executing another program has none for a moment.
    return "" if is_running(pid) else None


def upgrade(server, directory):
    done = run_throng("upgrade", "--control", directory / "control", directory=directory)
    assert done.returncode == 0 and "has taken over" in done.stdout, done.stdout + done.stderr


def test_connections_outlive_upgrades_where_the_first_process_must_stay(server, tmp_path):
    first = first_process(server)
    url = f"{server.ws}/channels/a"
    with websockets.sync.client.connect(url, compression=None, proxy=None, ping_interval=None) as client:
        server.wait_for_connections("a", 1)
        for number in range(3):
            upgrade(server, tmp_path)
            server.publish("a", str(number))
            assert client.recv(TIMEOUT_SECONDS) == str(number)
            # It is the parent of the one that serves, and nothing else: that is its only child.
            eventually(lambda: word(first) == "parent-of", "the end of the old process")
            eventually(lambda: word(child(first)) == "serve", "its child")
        assert first_process(server) == first
        os.kill(first, signal.SIGHUP)
        eventually(lambda: "SIGHUP: the settings were read again" in server.log(), "the reload")
        os.kill(first, signal.SIGTERM)
        eventually(lambda: "SIGTERM: stopping" in server.log(), "the signal")
    assert server.process.wait(TIMEOUT_SECONDS) == 0, server.log()


def test_the_first_process_ends_as_the_one_that_serves_does(server, tmp_path):
    first = first_process(server)
    upgrade(server, tmp_path)
    eventually(lambda: word(first) == "parent-of", "the end of the old process")
    os.kill(child(first), signal.SIGKILL)
    assert server.process.wait(TIMEOUT_SECONDS) == 128 + signal.SIGKILL, server.log()


def test_two_upgrades_in_a_row_leave_a_process_that_serves(server, tmp_path):
    first = first_process(server)
    for _ in range(64):
        server.publish("a", "x" * 30_000)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", server.port))
        slow.sendall(b"GET /channels/a/history?limit=64 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert slow.recv(12) == b"HTTP/1.1 200"
        # The first process waits some seconds for this client: meanwhile the second one is replaced.
        for _ in range(2):
            upgrade(server, tmp_path)
        eventually(lambda: word(first) == "parent-of", "the end of the old process")
    server.publish("a", "x")
    assert first_process(server) == first and word(child(first)) == "serve"
    os.kill(first, signal.SIGTERM)
    assert server.process.wait(TIMEOUT_SECONDS) == 0, server.log()


def test_no_signal_ends_a_process_that_becomes_a_parent(server_under_init, tmp_path):
    server, ended = server_under_init, threading.Event()
    first = first_process(server)

    def hang_up():
        while not ended.wait(0.0005):
            os.kill(first, signal.SIGHUP)

    # Until a process has said what it does with it, the signal would end it.
    hanging_up = threading.Thread(target=hang_up)
    hanging_up.start()
    try:
        upgrade(server, tmp_path)
        eventually(lambda: word(first) in ["parent-of", None], "the end of the old process")
        # It has read signals, and those before, once its child has.
        before = server.log().count("SIGHUP: the settings were read again")
        eventually(
            lambda: server.log().count("SIGHUP: the settings were read again") > before + 1
            or word(first) is None,
            "reloads",
        )
    finally:
        ended.set()
        hanging_up.join()
    assert word(first) == "parent-of", server.log()
    os.kill(first, signal.SIGTERM)
    assert server.process.wait(TIMEOUT_SECONDS) == 0, server.log()


def test_a_parent_passes_on_what_has_come_before_it(tmp_path):
    log = (tmp_path / "log").open("w+", encoding="utf-8")
    # Both are what an upgrade leaves, but for the connections: the server is a child of the parent.
    script = """
import os, signal, sys
binary = sys.argv[1]
server = os.fork()
if server == 0:
    os.execv(binary, [binary, "serve", "--listen", "127.0.0.1:0", "--drain-window", "0ms"])
sys.stdin.readline()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.kill(os.getpid(), signal.SIGTERM)
os.execv(binary, ["throng", "parent-of", str(server)])
"""
    process = subprocess.Popen(
        ["python3", "-c", script, BINARY],
        cwd=tmp_path,
        env=clean_environment(),
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    said = lambda: (tmp_path / "log").read_text(encoding="utf-8")
    try:
        eventually(lambda: "listening on" in said().lower() or process.poll() is not None, "a server")
        process.communicate(b"\n", timeout=TIMEOUT_SECONDS)
        assert process.returncode == 0 and "SIGTERM: stopping" in said(), said()
    finally:
        process.kill()
        log.close()
