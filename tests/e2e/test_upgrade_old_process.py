"""What the old process still does once another one serves: it finishes what it has begun."""

import os
import signal
import socket

import pytest

from support import TIMEOUT_SECONDS, tls_server
from support.server import eventually
from support.tls_server import start_tls
from support.upgrades import TAKEN_OVER, UpgradableServer, is_running


class Half:
    """A connection to the listener that redirects, with a request of which half has come."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS)
        self.socket.sendall(b"GET /a HTTP/1.1\r\nHo")

    def finish(self):
        """Sends the rest; returns the answer, all that comes before the end."""
        answer = b""
        try:
            self.socket.sendall(b"st: localhost\r\n\r\n")
            while piece := self.socket.recv(4096):
                answer += piece
        except ConnectionError:
            # Its process has ended.
            pass
        self.socket.close()
        return answer


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server that redirects to https and can be upgraded; it is stopped after the test."""
    monkeypatch.setattr(tls_server, "Server", UpgradableServer)
    # So that nothing but the old process's patience ends a request of which half has come.
    flags = ["--heartbeat", "1h", "--drain-window", "0ms", "--head-timeout", "5m"]
    server = start_tls(tmp_path, *flags, "--redirect-http", "127.0.0.1:0").plain
    yield server
    server.stop()


def redirect_port(server):
    line = next(line for line in server.log().splitlines() if "redirecting to https from" in line)
    return int(line.rpartition(":")[2])


def begin_upgrade(server):
    """Upgrades, and returns the ids of both processes while the old one may still run."""
    count = len(TAKEN_OVER.findall(server.log()))
    server.signal(signal.SIGUSR2)
    eventually(lambda: len(TAKEN_OVER.findall(server.log())) > count, "a process that takes over")
    return server.pid, int(TAKEN_OVER.findall(server.log())[count][0])


def test_redirects_are_finished_by_the_process_that_has_begun_them(server):
    port = redirect_port(server)
    # It waits 5 s for the rest, which may be over before that comes: then the next one shows it.
    for _ in range(5):
        begun = Half(port)
        # It comes behind the other one in the queue: the server has that, too.
        assert b"308 " in Half(port).finish()
        old, server.pid = begin_upgrade(server)
        # Meanwhile it takes no further ones.
        later = [Half(port) for _ in range(8)]
        has_answered = b"308 " in begun.finish()
        eventually(lambda old=old: not is_running(old), "the end of the old process")
        for half in later:
            assert b"308 " in half.finish()
        if has_answered:
            break
    assert has_answered
    assert server.process.wait(TIMEOUT_SECONDS) == 0


def test_a_signal_to_a_process_that_ends_is_for_the_one_that_serves(server):
    port = redirect_port(server)
    # It has 5 s, which may be over before the signal comes: then the next upgrade shows it.
    for _ in range(5):
        begun = Half(port)
        assert b"308 " in Half(port).finish()
        old, server.pid = begin_upgrade(server)
        if is_running(old):
            os.kill(old, signal.SIGTERM)
            eventually(lambda old=old: not is_running(old), "the end of the old process")
            if "SIGTERM: passed on to process" in server.log():
                break
        begun.socket.close()
    eventually(lambda: not is_running(server.pid), "the end of the new process")
    assert server.process.wait(TIMEOUT_SECONDS) == 0
    assert "SIGTERM: stopping" in server.log()
