"""`throng drain`: clients leave at a pace while the server serves, and the drain can be cancelled."""

import contextlib
import json
import re
import socket
import subprocess
import threading
from contextlib import ExitStack

import pytest
import websockets.exceptions
import websockets.sync.client

from support import TIMEOUT_SECONDS
from support.raw import Raw
from support.server import BINARY, RUNTIME, clean_environment, eventually, run_throng

RUNTIME_ERROR = 1
CLIENTS = 60


def drain(server, directory, *arguments):
    """Runs the command to its end."""
    address = f"{server.host}:{server.port}"
    return run_throng("drain", *arguments, "--listen", address, directory=directory)


class Draining:
    """The command while it runs, and what it has printed."""

    def __init__(self, server, directory, *arguments):
        words = [BINARY, "drain", *map(str, arguments), "--listen", f"{server.host}:{server.port}"]
        self.process = subprocess.Popen(
            words,
            cwd=directory,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line)

    def wait(self):
        """Waits for the end; returns the exit code and all that was printed."""
        code = self.process.wait(TIMEOUT_SECONDS)
        self._reader.join(TIMEOUT_SECONDS)
        return code, "".join(self.lines)


def connect(server, path="/channels/news", **options):
    return websockets.sync.client.connect(
        server.ws + path, proxy=None, open_timeout=TIMEOUT_SECONDS, **options
    )


def sample(server):
    """The newest sample of the status."""
    return server.http.get("/status.json").json()


def hear(clients, text):
    """Expects a message on each client that is still connected. Returns these."""
    stayed = []
    for client in clients:
        with contextlib.suppress(websockets.exceptions.ConnectionClosed):
            assert client.recv(TIMEOUT_SECONDS) == text
            stayed.append(client)
    assert stayed, "all have left"
    return stayed


def closed(client):
    """The close frame of the server."""
    with pytest.raises(websockets.exceptions.ConnectionClosed) as end:
        while True:
            client.recv(TIMEOUT_SECONDS)
    return end.value.rcvd


def test_clients_of_each_transport_are_told_a_moment_and_then_the_server_ends(serve, tmp_path):
    server = serve()
    with ExitStack() as stack:
        plain = stack.enter_context(connect(server))
        v1 = stack.enter_context(connect(server, "/subscribe?channel=news", subprotocols=["throng.v1"]))
        sse = stack.enter_context(Raw(server))
        sse.request("GET", "/channels/news", {"Accept": "text/event-stream"})
        assert sse.read_head().status == 200
        stream = stack.enter_context(Raw(server))
        stream.request("GET", "/channels/news")
        assert stream.read_head().status == 200
        poll = stack.enter_context(Raw(server))
        poll.request("GET", "/channels/news?wait=60")
        server.wait_for_connections("news", 5)
        done = drain(server, tmp_path, "--return-rate", "100")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.endswith("drained; the server ends\n"), done.stdout
        for one in (plain, v1):
            end = closed(one)
            assert end.code == 1012
            (ms,) = re.fullmatch(r"reconnect in (\d+) ms", end.reason).groups()
            assert int(ms) < 1000, "each comes back soon: the pace spreads them"
        assert re.search(rb"retry: \d{1,3}\n", sse.read_until(b"0\r\n\r\n"))
        assert stream.read_until(b"0\r\n\r\n").endswith(b"0\r\n\r\n")
        head = poll.read_head()
        assert head.status == 204 and int(head.header("retry-after")) <= 1
    assert server.wait() == 0
    assert "throng drain: 5 clients are asked to leave, 100 a second" in server.log()


def test_a_drain_that_is_cancelled_leaves_a_server_that_serves(serve, tmp_path):
    server = serve()
    with ExitStack() as stack:
        sockets = [stack.enter_context(connect(server)) for _ in range(CLIENTS)]
        server.wait_for_connections("news", CLIENTS)
        # It takes a minute: most of them are still there when it is cancelled.
        draining = Draining(server, tmp_path, "--return-rate", 1, "--deadline", "1h")
        eventually(lambda: server.metrics()["throng_draining"] == 1, "the drain")
        ready = server.http.get("/health/ready")
        assert ready.status_code == 503 and ready.json()["status"] == "draining"
        eventually(lambda: "clients were asked" in "".join(draining.lines), "its progress")
        # A sample is made once a second.
        eventually(lambda: sample(server)["departure"], "the drain in the status")
        shown = sample(server)
        assert shown["draining"] and shown["departure"]["clients"] == CLIENTS
        assert shown["departure"]["return_rate"] == 1
        # New subscribers are told to come back, and those who are there get their messages.
        assert server.http.get("/channels/news?wait=5").status_code == 503
        server.publish("news", "during the drain")
        stayed = hear(sockets, "during the drain")
        second = drain(server, tmp_path, "--cancel")
        assert (second.returncode, second.stderr) == (0, "")
        assert "the server serves again" in second.stdout
        code, said = draining.wait()
        assert code == RUNTIME_ERROR and "the drain was cancelled" in said
        assert server.http.get("/health/ready").json()["status"] == "ready"
        assert server.metrics()["throng_draining"] == 0
        eventually(lambda: sample(server)["departure"] is None, "the status without it")
        with connect(server) as new:
            server.publish("news", "after the drain")
            assert new.recv(TIMEOUT_SECONDS) == "after the drain"
        assert hear(stayed, "after the drain")
    none = drain(server, tmp_path, "--cancel")
    assert none.returncode == RUNTIME_ERROR and "no drain is under way" in none.stderr


def test_the_canary_goes_on_after_a_drain_that_was_cancelled(serve, tmp_path):
    # Its messages may take ten intervals, on a busy machine as well.
    server = serve("--canary-interval", "500ms", "--drain-delay", "1h")
    draining = Draining(server, tmp_path)
    # Samples are a second apart, in which the canary has several turns.
    times = set()

    def has_lasted():
        shown = sample(server)
        times.update([shown["time_ms"]] if shown["draining"] else [])
        return len(times) >= 2

    eventually(has_lasted, "two samples of the drain")
    assert drain(server, tmp_path, "--cancel").returncode == 0
    draining.wait()

    def arrived():
        return {name: found["count"] for name, found in sample(server)["canary"].items()}

    before = arrived()
    eventually(lambda: all(arrived()[name] > before[name] for name in before), "the canary")
    assert all(found["failures"] == 0 for found in sample(server)["canary"].values())
    # It would wait an hour before it ends.
    server.kill()


def test_the_deadline_ends_a_drain_that_would_take_longer(serve, tmp_path):
    server = serve()
    with ExitStack() as stack:
        sockets = [stack.enter_context(connect(server)) for _ in range(5)]
        server.wait_for_connections("news", 5)
        done = drain(server, tmp_path, "--return-rate", "1", "--deadline", "500ms")
        assert done.returncode == 0, done.stderr
        assert {closed(each).code for each in sockets} == {1012}
    assert server.wait() == 0


def test_a_second_command_follows_the_drain_that_is_under_way(serve, tmp_path):
    server = serve("--drain-delay", "1h")
    first = Draining(server, tmp_path)
    eventually(lambda: "no longer ready" in "".join(first.lines), "the drain")
    # The command ends, and the drain goes on.
    first.process.terminate()
    first.wait()
    second = Draining(server, tmp_path)
    eventually(lambda: second.lines, "what the second command says")
    assert second.lines[0] == "a drain is under way already\n"
    server.signal()
    code, said = second.wait()
    assert code == 0, said
    assert server.wait() == 0


def test_commands_that_have_gone_keep_nobody_from_cancelling(serve, tmp_path):
    server = serve("--drain-delay", "1h")
    path = f"{RUNTIME}/127.0.0.1:{server.port}.sock"
    for _ in range(20):
        # A server without a place says so, and hangs up before it is asked.
        with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(ConnectionError):
            client.settimeout(TIMEOUT_SECONDS)
            client.connect(path)
            client.sendall(b'{"request":"drain","deadline-ms":3600000}\n')
            client.makefile().readline()

    def is_cancelled():
        done = drain(server, tmp_path, "--cancel")
        assert done.returncode == 0 or "too many commands" in done.stderr, done
        return done.returncode == 0

    eventually(is_cancelled, "a place")
    # It would wait an hour before it ends.
    server.kill()


def test_a_signal_ends_a_drain_at_once(serve, tmp_path):
    server = serve("--drain-delay", "1h")
    with connect(server) as client:
        draining = Draining(server, tmp_path)
        eventually(lambda: "no longer ready" in "".join(draining.lines), "the drain")
        server.signal()
        assert closed(client).code == 1012
    assert draining.wait()[0] == 0
    late = drain(server, tmp_path, "--cancel")
    assert late.returncode == RUNTIME_ERROR
    assert server.wait() == 0


def test_a_request_of_a_newer_command_is_refused(serve):
    server = serve()
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(TIMEOUT_SECONDS)
        client.connect(f"{RUNTIME}/127.0.0.1:{server.port}.sock")
        client.sendall(b'{"request":"drain","deadline-ms":1,"politely":true}\n')
        answer = json.loads(client.makefile().readline())
    assert answer["answer"] == "failed" and "politely" in answer["message"]
    assert server.http.get("/health/ready").json()["status"] == "ready"
