"""Where a service ends with its first process, that stays as the parent of the one that serves."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
import websockets.sync.client

from support import TIMEOUT_SECONDS
from support.server import BINARY, Server, eventually, run_throng

CONTAINER = ["unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
# What `docker run --init` does: it waits for its child, and ends with it.
INIT = '"$@" & wait $!'
FLAGS = ["--heartbeat", "1h", "--drain-window", "0ms", "--workers", "1"]


@pytest.fixture(params=["first", "under an init"])
def server(request, tmp_path, monkeypatch):
    """A server in a process namespace of its own, as in a container."""
    if subprocess.run([*CONTAINER, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("this user may not make process namespaces")
    init = "" if request.param == "first" else f"sh -c '{INIT}' init"
    wrapper = tmp_path / "container"
    wrapper.write_text(f'#!/bin/sh\nexec {" ".join(CONTAINER)} {init} {BINARY} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setattr("support.server.BINARY", wrapper)
    server = Server(tmp_path, *FLAGS, "--control", tmp_path / "control")
    server.depth = 1 if request.param == "first" else 2
    yield server
    if server.process.poll() is None:
        server.process.kill()
        server.process.wait()


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
    return words[1] if len(words) > 1 else None


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
