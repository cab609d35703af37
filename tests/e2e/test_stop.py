"""Stopping: accepted messages are delivered, clients get a retry time, new ones are refused."""

import os
import re
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from support import TIMEOUT_SECONDS
from support.raw import Closed, Raw, RawWebSocket
from support.server import BINARY, LISTENING, Server, clean_environment, eventually

BURST = [f"last words {n}" for n in range(200)]
WINDOW_MS = 5000
# How much each client adds to the window, up to that.
EACH_MS = 10
# Connections of the server to itself, and what tests ask beside their clients.
OTHERS = 20
CLIENTS = 40


@pytest.fixture
def stopping(tmp_path):
    """A server that these tests stop themselves."""
    server = Server(tmp_path, "--drain-window", f"{WINDOW_MS}ms", "--drain-timeout", "10s")
    yield server
    if server.process.poll() is None:
        server.kill()


def open_http(server, channel, accept):
    connection = Raw(server)
    connection.request("GET", f"/channels/{channel}", {"Accept": accept})
    assert connection.read_head().status == 200
    return connection


def body_to_the_end(connection):
    """The rest of a chunked body, which must end with its last chunk."""
    body = b""
    while chunk := connection.read_chunk():
        body += chunk
    return body.decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_burst_just_before_the_end_is_delivered(stopping, channel, number):
    server = stopping
    id = server.history(channel)["id"]
    stream = open_http(server, channel, "*/*")
    sse = open_http(server, channel, "text/event-stream")
    websocket = RawWebSocket(server, f"/channels/{channel}")
    poll = Raw(server)
    poll.request("GET", f"/channels/{channel}-poll?wait=60")
    server.wait_for_connections(f"{channel}-poll", 1)

    lines = [{"channel": channel, "data": line} for line in BURST]
    answers = server.publish_batch([*lines, {"channel": f"{channel}-poll", "data": "answered"}])
    assert all(answer["subscribers"] == 3 for answer in answers[:-1]), id
    server.signal(number)

    got = [websocket.read_message().decode() for _ in BURST]
    assert got == BURST
    code, reason = websocket.read_close()
    assert code == 1012 and re.fullmatch(r"reconnect in \d+ ms", reason)

    assert [line for line in body_to_the_end(stream).split("\n") if line] == BURST
    events = body_to_the_end(sse)
    assert re.findall(r"^data: (.*)$", events, re.MULTILINE) == BURST
    (retry,) = re.findall(r"^retry: (\d+)$", events, re.MULTILINE)
    assert 0 <= int(retry) <= WINDOW_MS
    assert poll.read_response().body == b"answered"
    assert server.wait() == 0, server.log()


def test_a_waiting_poll_is_answered(stopping, channel):
    with Raw(stopping) as poll:
        poll.request("GET", f"/channels/{channel}?wait=60")
        stopping.wait_for_connections(channel, 1)
        stopping.signal()
        response = poll.read_response()
        assert response.status == 204 and response.header("Throng-Id")
        assert 1 <= int(response.header("Retry-After")) <= WINDOW_MS / 1000
    assert stopping.wait() == 0, stopping.log()


class Poller:
    """A client that follows channels with one long-poll after the other."""

    def __init__(self, server, channels, keeps, wait=60):
        self.server, self.keeps, self.wait = server, keeps, wait
        self.path = "/subscribe?" + "&".join(f"channel={name}" for name in channels)
        self.connection, self.since, self.got = None, None, []

    def ask(self, wait=None):
        """Sends the next poll."""
        if self.connection is None or not self.keeps:
            self.close()
            self.connection = Raw(self.server)
        path = f"{self.path}&wait={self.wait if wait is None else wait}"
        path += f"&since={self.since}" if self.since else ""
        self.connection.request("GET", path, {"Connection": "keep-alive" if self.keeps else "close"})

    def answer(self):
        """Reads the response; returns its `Retry-After` in seconds, if it has one."""
        response = self.connection.read_response()
        assert response.status in (200, 204, 503), response
        assert response.header("Throng-Recovered") != "false"
        if response.status == 200:
            self.got += response.body.decode().split("\n")
        self.since = response.header("Throng-Id") or self.since
        retry = response.header("Retry-After")
        assert (response.status != 503) or retry
        return retry and int(retry)

    def close(self):
        """Closes the connection, if there is one."""
        if self.connection:
            self.connection.close()
        self.connection = None


@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "closed"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_client_between_two_polls_gets_what_was_accepted(tmp_path, channel, keeps, count):
    window_s = 60
    window = ["--drain-window", f"{window_s}s", "--drain-timeout", f"{window_s}s"]
    server = Server(tmp_path, "--workers", "1", *window)
    channels = [f"{channel}-{nth}" for nth in range(count)]
    poller = Poller(server, channels, keeps)
    poller.ask(wait=0)
    assert poller.answer() is None
    with RawWebSocket(server, f"/channels/{channel}") as witness:
        server.publish_batch([{"channel": name, "data": f"for {name}"} for name in channels])
        server.signal()
        # From here on the server closes its clients and accepts no message.
        assert witness.read_close()[0] == 1012
    poller.ask()
    assert poller.answer() is None
    assert poller.got == [f"for {name}" for name in channels]
    poller.ask()
    assert 1 <= poller.answer() <= window_s
    assert len(poller.got) == count
    poller.close()
    if not keeps:
        # The server cannot know that no other client will come: this ends it at once.
        server.signal()
    assert server.wait() == (0 if keeps else 1), server.log()


def test_a_stop_does_not_wait_for_polls_if_there_were_none(tmp_path, channel):
    """A server that waits would end after ten minutes."""
    server = Server(tmp_path, "--drain-window", "10m", "--drain-timeout", "10m")
    with RawWebSocket(server, f"/channels/{channel}"):
        server.signal()
        assert server.wait() == 0, server.log()


def test_polls_under_load_lose_nothing(tmp_path, channel):
    """Many clients are between two polls when the server gets the signal to stop."""
    # A history so long that no client lags behind it.
    history = ["--history-messages", "1M", "--history-bytes", "1G", "--max-lag-messages", "1M"]
    server = Server(tmp_path, "--drain-window", "5s", "--drain-timeout", "20s", *history)
    accepted, retries, losses, followed = [], [], [], []

    def follow(nth):
        poller = Poller(server, [channel], keeps=nth % 2 == 0)
        poller.since = start
        try:
            retry = None
            while retry is None:
                poller.ask()
                retry = poller.answer()
            retries.append(retry)
        except Exception as error:  # reported by the main thread
            losses.append(repr(error))
        poller.close()
        followed.append(poller.got)

    def publish():
        connection = Raw(server)
        while True:
            text = f"message {len(accepted)}"
            try:
                connection.request("POST", f"/channels/{channel}", {}, text.encode())
                if connection.read_response().status != 201:
                    return
            except (Closed, OSError):
                return
            accepted.append(text)
            if len(accepted) == 200:
                server.signal()

    start = server.history(channel)["id"]
    followers = [threading.Thread(target=follow, args=(nth,)) for nth in range(20)]
    publisher = threading.Thread(target=publish)
    for thread in (*followers, publisher):
        thread.start()
    publisher.join()
    for thread in followers:
        thread.join()
    # A client may have a message before its publisher has read that it is accepted.
    for got in followed:
        assert got == accepted, f"{len(got)} of {len(accepted)}: {accepted[len(got):][:3]}"
    assert not losses
    # So few clients may all come back within the first second.
    assert len(accepted) >= 200 and set(retries) == {1}, retries
    assert server.wait() == 0, server.log()


def test_clients_are_spread_over_a_window_by_their_number(stopping, channel):
    sockets = [RawWebSocket(stopping, f"/channels/{channel}") for _ in range(CLIENTS)]
    streams = [open_http(stopping, channel, "text/event-stream") for _ in range(CLIENTS)]
    stopping.signal()
    delays = []
    for websocket in sockets:
        code, reason = websocket.read_close()
        assert code == 1012
        delays.append(int(re.fullmatch(r"reconnect in (\d+) ms", reason).group(1)))
    retries = []
    for stream in streams:
        (retry,) = re.findall(r"^retry: (\d+)$", body_to_the_end(stream), re.MULTILINE)
        retries.append(int(retry))
    window_ms = EACH_MS * 2 * CLIENTS
    assert window_ms + EACH_MS * OTHERS < WINDOW_MS
    for found in (delays, retries):
        assert all(0 <= delay <= window_ms + EACH_MS * OTHERS for delay in found), found
        # By chance, all forty fall into one half once in five hundred thousand million runs.
        assert min(found) < window_ms / 2 < max(found), found
    assert stopping.wait() == 0, stopping.log()


def test_a_single_client_is_told_to_come_back_at_once(stopping, channel):
    with RawWebSocket(stopping, f"/channels/{channel}") as websocket:
        stopping.signal()
        code, reason = websocket.read_close()
    assert code == 1012
    assert int(re.fullmatch(r"reconnect in (\d+) ms", reason).group(1)) <= EACH_MS * OTHERS


def test_a_client_that_does_not_read_does_not_hold_up_the_stop(tmp_path, channel):
    server = Server(tmp_path, "--drain-window", "0ms", "--drain-timeout", "1s")
    with RawWebSocket(server, f"/channels/{channel}", receive_buffer_bytes=4096):
        for _ in range(8):
            server.publish_batch([{"channel": channel, "data": "x" * 60000} for _ in range(16)])
        server.signal()
        assert server.wait() == 0, server.log()


def test_new_connections_are_refused_once_stopped(stopping, channel):
    with RawWebSocket(stopping, f"/channels/{channel}") as websocket:
        stopping.signal()
        assert websocket.read_close()[0] == 1012
    assert stopping.wait() == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((stopping.host, stopping.port), timeout=5)


def test_a_request_in_flight_is_answered(stopping, channel):
    """A publish whose head has been read when the body and the signal arrive."""
    with Raw(stopping) as publisher:
        publisher.send(
            f"POST /channels/{channel} HTTP/1.1\r\nHost: {publisher.host}\r\n"
            "Expect: 100-continue\r\nContent-Length: 4\r\n\r\n"
        )
        assert publisher.read_head().status == 100
        publisher.send("last")
        stopping.signal()
        assert publisher.read_response().status == 201
    assert stopping.wait() == 0


def test_an_unfinished_request_is_refused(stopping, channel):
    with Raw(stopping) as publisher:
        publisher.send(
            f"POST /channels/{channel} HTTP/1.1\r\nHost: {publisher.host}\r\n"
            "Expect: 100-continue\r\nContent-Length: 4\r\n\r\n"
        )
        assert publisher.read_head().status == 100
        stopping.signal()
        response = publisher.read_response()
        assert response.status == 503 and response.json()["error"] == "draining"
        assert 1 <= int(response.header("Retry-After")) <= WINDOW_MS / 1000
    assert stopping.wait() == 0


def test_a_second_server_takes_the_port_at_once(tmp_path, channel):
    first = Server(tmp_path, "--drain-window", "0ms")
    with RawWebSocket(first, f"/channels/{channel}") as websocket:
        first.signal()
        websocket.read_close()
    assert first.wait() == 0
    second = Server(tmp_path, "--drain-window", "0ms", port=first.port)
    assert second.publish(channel, "x")["subscribers"] == 0
    second.stop()


HANGUP = "SIGHUP: the settings were read again; nothing that a reload can replace has changed"


def hang_up(server, count):
    """Sends SIGHUP and waits until the server has logged it for the `count`th time."""
    server.signal(signal.SIGHUP)
    eventually(lambda: server.log().count(HANGUP) == count, f"SIGHUP in the log, {count} times")


def test_a_hangup_does_not_end_the_server(stopping, channel):
    with RawWebSocket(stopping, f"/channels/{channel}") as websocket:
        for nth in (1, 2):
            hang_up(stopping, nth)
            stopping.publish(channel, f"message {nth}")
            assert websocket.read_message().decode() == f"message {nth}"


def test_a_hangup_does_not_cut_the_drain_short(tmp_path, channel):
    server = Server(tmp_path, "--drain-window", "200ms", "--drain-timeout", "5m")
    # A client that is within its lag limit keeps the drain going until it reads.
    with RawWebSocket(server, f"/channels/{channel}", receive_buffer_bytes=4096) as slow:
        server.publish_batch([{"channel": channel, "data": "x" * 60000} for _ in range(16)])
        server.signal()
        eventually(lambda: "SIGTERM: stopping" in server.log(), "the drain")
        hang_up(server, 1)
        assert [len(slow.read_message()) for _ in range(16)] == [60000] * 16
        assert slow.read_close()[0] == 1012
    assert server.wait() == 0, server.log()
    assert "stopped:" in server.log()


def is_caught(process, number):
    """Whether a process has a handler for a signal."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = int(re.search(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE).group(1), 16)
    return bool(caught >> (number - 1) & 1)


@pytest.mark.parametrize("disposition", [signal.SIG_DFL, signal.SIG_IGN], ids=["default", "nohup"])
def test_a_hangup_during_the_start_does_not_end_it(tmp_path, disposition):
    settings = tmp_path / "throng.toml"
    os.mkfifo(settings)
    process = subprocess.Popen(
        [BINARY, "serve", "--config", settings],
        cwd=tmp_path,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, disposition),
    )
    watchdog = threading.Timer(TIMEOUT_SECONDS, process.kill)
    watchdog.start()
    try:
        # It cannot continue before it has read its settings.
        eventually(lambda: is_caught(process, signal.SIGHUP), "a handler for SIGHUP")
        process.send_signal(signal.SIGHUP)
        text = "listen = '127.0.0.1:0'\ndrain-window = 0\n"
        settings.write_text(text)
        lines = []
        for line in process.stdout:
            lines.append(line)
            if LISTENING.search(line):
                # It reads them again because of the signal.
                settings.write_text(text)
            if HANGUP in line:
                break
        # A reload that waits for its file does not hold up the end.
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 0, "".join(lines) + rest
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()


def threads(process):
    """How many threads a process has."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"^Threads:\s*(\d+)$", status, re.MULTILINE).group(1))


@pytest.mark.parametrize("attempt", range(3))
def test_hangups_from_the_first_thread_on_do_not_end_it(tmp_path, attempt):
    """The handler must stand before the program does anything else, such as starting threads."""
    process = subprocess.Popen(
        [BINARY, "serve", "--listen", "127.0.0.1:0", "--drain-window", "0"],
        cwd=tmp_path,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    watchdog = threading.Timer(TIMEOUT_SECONDS, process.kill)
    watchdog.start()
    try:
        while process.poll() is None and threads(process) < 2:
            pass
        is_up = threading.Event()

        def hang_up_until_it_is_up():
            while process.poll() is None and not is_up.is_set():
                process.send_signal(signal.SIGHUP)

        sender = threading.Thread(target=hang_up_until_it_is_up)
        sender.start()
        lines = iter(process.stdout.readline, "")
        has_started = any("listening on" in line for line in lines)
        is_up.set()
        sender.join()
        process.terminate()
        rest = "".join(lines)
        assert has_started and process.wait() == 0, rest
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        process.stdout.close()
