"""A new process takes over from a running server, and no client notices."""

import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import threading

import httpx
import pytest
import websockets.sync.client

from support import TIMEOUT_SECONDS, tls_server
from support.access import SECRET, bearer, server_key, token
from support.certificates import Authority, make_certificate
from support.floods import finish_flood, flooding
from support.raw import TEXT, Raw, RawWebSocket, frame
from support.server import BINARY, clean_environment, eventually, run_throng
from support.tls_server import read_until, start_tls, stream_request
from support.upgrades import FAILED, PROTOCOL, QUIET, UpgradableServer

RUNTIME_ERROR = 1
# `make test-long` has more.
UPGRADES = int(os.environ.get("THRONG_UPGRADES", "20"))
# Kinds of messages between two processes.
HELLO, WELCOME, READY = 1, 2, 3
LOAD = ["--clients", "60", "--hold", "8s", "--publish", "100"]


def follow(server, path, **options):
    """A WebSocket by a library. It sends no pings: what it has not read hides the answers."""
    options = {"proxy": None, "open_timeout": TIMEOUT_SECONDS, "ping_interval": None, **options}
    return websockets.sync.client.connect(server.ws + path, compression=None, **options)


class Publisher(threading.Thread):
    """Publishes numbers over one kept-alive connection until it is stopped."""

    def __init__(self, url, channel, verify=True):
        super().__init__()
        self.http = httpx.Client(base_url=url, verify=verify, timeout=TIMEOUT_SECONDS, trust_env=False)
        self.path, self.count, self.error, self.ports = f"/channels/{channel}", 0, None, set()
        self._end = threading.Event()
        self.start()

    def run(self):
        try:
            while not self._end.is_set():
                answer = self.http.post(self.path, content=str(self.count))
                assert answer.status_code == 201, (answer.status_code, answer.text)
                self.ports.add(answer.extensions["network_stream"].get_extra_info("client_addr"))
                self.count += 1
        except Exception as error:  # The test reports it.
            self.error = error

    def finish(self):
        """Stops, and returns how many it has published."""
        self._end.set()
        self.join(TIMEOUT_SECONDS)
        self.http.close()
        assert self.error is None, self.error
        return self.count


def numbers(stream, count):
    """Reads `count` messages of an SSE stream; returns them and their ids."""
    messages, ids = [], []
    for line in stream:
        if line.startswith("id: "):
            ids.append(line[4:])
        if line.startswith("data: "):
            messages.append(int(line[6:]))
            if len(messages) == count:
                return messages, ids
    raise AssertionError(f"the stream has ended after {len(messages)} messages")


def test_a_publisher_and_its_subscribers_notice_nothing(upgradable):
    server = upgradable("--admin-listen", "127.0.0.1:0", "--history-messages", "100000")
    admin = str(server.admin().base_url).rstrip("/")
    with (
        httpx.Client(base_url=server.url, timeout=TIMEOUT_SECONDS, trust_env=False) as client,
        client.stream("GET", "/channels/a", headers={"Accept": "text/event-stream"}) as sse,
        follow(server, "/channels/a") as websocket,
    ):
        server.wait_for_connections("a", 2)
        publishers = [Publisher(server.url, "a"), Publisher(admin, "b")]
        for _ in range(3):
            eventually(lambda before=publishers[0].count: publishers[0].count > before + 20, "messages")
            server.upgrade()
        eventually(lambda before=publishers[0].count: publishers[0].count > before + 20, "messages")
        count, _ = [publisher.finish() for publisher in publishers]
        for publisher in publishers:
            assert len(publisher.ports) == 1, "its connection was closed"
        assert numbers(sse.iter_lines(), count)[0] == list(range(count))
        received = [int(websocket.recv(TIMEOUT_SECONDS)) for _ in range(count)]
        assert received == list(range(count))
    epochs = {message["id"].partition("-")[0] for message in server.history("a")["messages"]}
    assert len(epochs) == 1


@pytest.mark.parametrize("transport", ["websocket", "sse", "stream", "long-poll"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_flood_over_each_transport_is_whole(upgradable, scheme, transport, tmp_path):
    authority = Authority(tmp_path)
    names = ["DNS:localhost", "IP:127.0.0.1"]
    certificate, key = authority.sign("own", *names, usage="serverAuth")
    listener = ["--tls-listen", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key]
    server = upgradable("--history-messages", "1000", *listener)
    place = [server.url]
    if scheme == "https":
        eventually(lambda: "TLS listener on https://" in server.log(), "the TLS listener")
        place = [re.search(r"TLS listener on (\S+)", server.log())[1], "--ca", authority.certificate]
    flood = flooding(tmp_path, *place, "--transport", transport, *LOAD)
    for _ in range(5):
        eventually(lambda: server.metrics()["throng_http_messages_published_total"] > 0, "load")
        server.upgrade()
    finish_flood(flood)


def test_many_upgrades_in_a_row(upgradable):
    server = upgradable("--history-messages", "100000", "--workers", "2")
    with (
        httpx.Client(base_url=server.url, timeout=TIMEOUT_SECONDS, trust_env=False) as client,
        client.stream("GET", "/channels/a", headers={"Accept": "text/event-stream"}) as sse,
    ):
        server.wait_for_connections("a", 1)
        publisher = Publisher(server.url, "a")
        for _ in range(UPGRADES):
            server.upgrade()
        count = publisher.finish()
        messages, ids = numbers(sse.iter_lines(), count)
    assert messages == list(range(count)) and len({id.partition("-")[0] for id in ids}) == 1
    assert len(server.pauses()) == UPGRADES


def test_connections_go_on_in_the_middle_of_anything(upgradable):
    server = upgradable()
    with Raw(server) as half_head, Raw(server) as poll, RawWebSocket(server, "/subscribe?channel=a", "throng.v1") as half_frame:
        half_head.send("GET /channels/a HTTP/1.1\r\nHo")
        poll.send(get("/channels/a?wait=60"))
        command = frame(TEXT, b'{"type":"publish","channel":"b","data":"x"}')
        half_frame.send(command[:9])
        server.wait_for_connections("a", 2)
        server.upgrade()
        half_head.send("st: localhost\r\nAccept: text/event-stream\r\n\r\n")
        assert b"200 OK" in half_head.read_until(b"\r\n\r\n")
        half_frame.send(command[9:])
        half_frame.read_until(b"published")
        server.wait_for_connections("a", 3)
        server.publish("a", "hello")
        for connection in [half_head, poll, half_frame]:
            connection.read_until(b"hello")


def test_a_retry_is_recognized_by_the_new_process(upgradable):
    server = upgradable("--history-messages", "10")
    first = server.publish("a", "once", **{"Idempotency-Key": "k1"})
    server.upgrade()
    again = server.publish("a", "once", **{"Idempotency-Key": "k1"})
    assert again["id"] == first["id"] and len(server.history("a")["messages"]) == 1


def test_tls_goes_on_with_its_keys(tmp_path, monkeypatch):
    monkeypatch.setattr(tls_server, "Server", UpgradableServer)
    server = start_tls(tmp_path, *QUIET)
    try:
        stream = server.connect()
        stream.sendall(stream_request("a"))
        read_until(lambda: stream.recv(4096), b"\r\n\r\n")
        publisher = Publisher(server.url, "a", server.context)
        for _ in range(3):
            eventually(lambda before=publisher.count: publisher.count > before + 5, "messages")
            server.plain.upgrade()
        count = publisher.finish()
        assert len(publisher.ports) == 1, "its connection was closed"
        last = f"data: {count - 1}\n".encode()
        received = read_until(lambda: stream.recv(65536), last)
        found = [line[6:] for line in received.decode().splitlines() if line.startswith("data: ")]
        assert found == [str(number) for number in range(count)]
        stream.close()
    finally:
        server.plain.stop()


def test_what_the_server_keeps_and_who_clients_are_goes_along(upgradable, tmp_path):
    key, table = server_key(tmp_path, "app", "publish", "subscriptions", "administration")
    path = tmp_path / "throng.toml"
    path.write_text(f"[[token-keys]]\nsecret = '{SECRET}'\n{table}")
    server = upgradable("--config", path)
    app = bearer(key)
    put = server.http.put("/users/ann/subscriptions", headers=app, json={"channels": ["rooms/1"]})
    assert put.status_code == 200, put.text
    with follow(server, "/users/ann", additional_headers=bearer(token())) as inbox:
        server.upgrade()
        kept = server.http.get("/users/ann/subscriptions", headers=app)
        assert kept.json()["channels"] == ["rooms/1"], kept.text
        sent = server.http.post("/users/ann", headers=app, content="hello")
        assert sent.json()["subscribers"] == 1, sent.text
        assert inbox.recv(TIMEOUT_SECONDS) == "hello"
        # Who the client is has come along: it is found, and can be closed.
        closed = server.http.delete("/users/ann/connections", headers=app)
        assert closed.json() == {"disconnected": 1}, closed.text


def test_a_replaced_binary_is_the_one_that_starts(upgradable, tmp_path, monkeypatch):
    copy = tmp_path / "throng"
    shutil.copy(BINARY, copy)
    monkeypatch.setattr("support.server.BINARY", copy)
    server = upgradable()
    # A new version: another file at the same path.
    replacement = tmp_path / "new"
    shutil.copy(BINARY, replacement)
    os.replace(replacement, copy)
    score = oom_score_adj(server.pid)
    server.upgrade()
    assert os.path.samefile(f"/proc/{server.pid}/exe", copy)
    assert oom_score_adj(server.pid) == score


@pytest.mark.parametrize(
    "script, reason",
    [
        ("#!/bin/sh\nexit 3\n", "the new process has ended"),
        ("#!/bin/sh\necho nonsense >&0\nsleep 1\n", "a message is not valid"),
    ],
)
def test_a_binary_that_does_not_work_changes_nothing(upgradable, tmp_path, monkeypatch, script, reason):
    copy = tmp_path / "throng"
    shutil.copy(BINARY, copy)
    monkeypatch.setattr("support.server.BINARY", copy)
    server = upgradable()
    with httpx.Client(base_url=server.url, timeout=TIMEOUT_SECONDS, trust_env=False) as client:
        server.publish("a", "before")
        broken = tmp_path / "broken"
        broken.write_text(script)
        broken.chmod(0o755)
        os.replace(broken, copy)
        assert reason in refused(server)
        assert client.post("/channels/a", content="after").status_code == 201
    # And a whole one is taken the next time.
    whole = tmp_path / "whole"
    shutil.copy(BINARY, whole)
    os.replace(whole, copy)
    server.upgrade()


# A new process that says what is expected of it, up to a message, and then ends.
IMPOSTOR = """#!/usr/bin/env python3
import socket, struct, sys
channel = socket.socket(fileno=0)

def say(kind, content=b""):
    channel.sendall(struct.pack("<IBH", len(content), kind, 0) + content)

def hear(count):
    while count > 0:
        piece = channel.recv(min(count, 4096))
        if not piece:
            sys.exit(1)
        count -= len(piece)

def hear_message():
    head = channel.recv(7, socket.MSG_WAITALL)
    if len(head) < 7:
        sys.exit(1)
    length, _, descriptors = struct.unpack("<IBH", head)
    hear(length)
    return length, descriptors

say(1, b"throng" + struct.pack("<HHI", {protocol}, 65535, 0))
hear_message()
last = "{last}"
if last == "welcome":
    sys.exit(1)
say(3)
if last == "ready":
    sys.exit(1)
# The workers' channels come ahead, then segments of logs; the last message has neither.
while (message := hear_message()) != (0, 0):
    if message == (0, 1) and last == "segment":
        sys.exit(1)
if last == "segment":
    say(4, struct.pack("<I", 10) + b"no segment")
say(10)
if last == "ahead":
    sys.exit(1)
hear(100)
if last == "refused":
    say(4, struct.pack("<I", 2) + b"no")
"""


@pytest.mark.parametrize("last", ["welcome", "ready", "segment", "ahead", "state", "refused"])
def test_a_new_process_that_ends_at_any_step_changes_nothing(upgradable, tmp_path, monkeypatch, last):
    copy = tmp_path / "throng"
    shutil.copy(BINARY, copy)
    monkeypatch.setattr("support.server.BINARY", copy)
    server = upgradable("--admin-listen", "127.0.0.1:0", "--history-messages", "100000")
    admin = str(server.admin().base_url).rstrip("/")
    with (
        httpx.Client(base_url=server.url, timeout=TIMEOUT_SECONDS, trust_env=False) as client,
        client.stream("GET", "/channels/a", headers={"Accept": "text/event-stream"}) as sse,
    ):
        server.wait_for_connections("a", 1)
        publishers = [Publisher(server.url, "a"), Publisher(admin, "b")]
        impostor = tmp_path / "impostor"
        impostor.write_text(IMPOSTOR.replace("{last}", last).replace("{protocol}", str(PROTOCOL)))
        impostor.chmod(0o755)
        os.replace(impostor, copy)
        # So that there are logs to send ahead.
        eventually(lambda: publishers[0].count > 20, "messages")
        for _ in range(2):
            reason = refused(server)
            assert "this process continues" in reason, reason
            assert "protocol" not in reason and "no segment" not in reason, reason
        # And a whole one is taken the next time.
        whole = tmp_path / "whole"
        shutil.copy(BINARY, whole)
        os.replace(whole, copy)
        server.upgrade()
        before = publishers[0].count
        eventually(lambda: publishers[0].count > before + 20, "messages")
        count, _ = [publisher.finish() for publisher in publishers]
        for publisher in publishers:
            assert len(publisher.ports) == 1, "its connection was closed"
        assert numbers(sse.iter_lines(), count)[0] == list(range(count))


def upgrade_by_command(server, directory):
    """Runs `throng upgrade` to its end."""
    address = f"127.0.0.1:{server.port}"
    return run_throng("upgrade", "--listen", address, directory=directory)


def get(path):
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"


def refused(server):
    """Upgrades in vain; returns what the server says."""
    count = server.log().count(FAILED)
    server.signal(signal.SIGUSR2)
    eventually(lambda: server.log().count(FAILED) > count, "the failure of the upgrade")
    return server.log().rpartition(FAILED)[2].splitlines()[0]


def test_bad_settings_and_others_that_cannot_change_keep_the_old_process(upgradable, tmp_path):
    path = tmp_path / "throng.toml"
    path.write_text("workers = 2\n")
    server = upgradable("--config", path)
    stream = Raw(server)
    stream.send(stream_request("a").decode())
    stream.read_until(b"\r\n\r\n")
    for text, reason in [("workers = 'many'\n", "workers"), ("workers = 1\n", "it has 2 workers")]:
        path.write_text(text)
        said = refused(server)
        assert "the new process refuses" in said and reason in said, said
    server.publish("a", "hello")
    stream.read_until(b"data: hello")
    path.write_text("workers = 2\n")
    server.upgrade()
    server.publish("a", "again")
    stream.read_until(b"data: again")
    stream.close()


def test_the_command_says_how_it_goes_on(upgradable, tmp_path):
    server = upgradable("--control", tmp_path / "sockets" / "throng")
    command = ["upgrade", "--control", tmp_path / "sockets" / "throng"]
    for count in range(2):
        done = run_throng(*command, directory=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "starts: " in done.stdout and "has taken over after a pause" in done.stdout
        server.upgraded(count)


@pytest.fixture
def start_waiting(upgradable, tmp_path, monkeypatch):
    """Starts a server whose next version begins once a file is there; returns both."""
    copy, go = tmp_path / "throng", tmp_path / "go"
    shutil.copy(BINARY, copy)
    monkeypatch.setattr("support.server.BINARY", copy)

    def start_waiting(*flags):
        server = upgradable(*flags)
        script = tmp_path / "waiting"
        # The process with this id is what the server has started.
        script.write_text(f'#!/bin/sh\nuntil [ -e "{go}" ]; do sleep 0.05; done\nexec {BINARY} "$@"\n')
        script.chmod(0o755)
        os.replace(script, copy)
        return server, go

    return start_waiting


def test_a_reload_during_an_upgrade_reaches_both_processes_or_is_refused(start_waiting, tmp_path):
    server, go = start_waiting()
    server.signal(signal.SIGUSR2)
    eventually(lambda: " starts: " in server.log(), "the new process")
    said = run_throng("reload", "--listen", f"127.0.0.1:{server.port}", directory=tmp_path)
    assert said.returncode == RUNTIME_ERROR and "an upgrade is under way" in said.stderr, said.stderr
    done = "SIGHUP: the settings were read again"
    server.signal(signal.SIGHUP)
    eventually(lambda: server.log().count(done) == 1, "the reload of the old process")
    go.touch()
    server.upgraded(0)
    eventually(lambda: server.log().count(done) == 2, "the reload of the new process")
    said = run_throng("reload", "--listen", f"127.0.0.1:{server.port}", directory=tmp_path)
    assert said.returncode == 0, said.stderr


def test_a_second_command_hears_that_the_first_has_upgraded_the_server(start_waiting, tmp_path):
    server, go = start_waiting()

    def upgrading(line):
        command = subprocess.Popen(
            [BINARY, "upgrade", "--listen", f"127.0.0.1:{server.port}"],
            cwd=tmp_path,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        said = command.stdout.readline()
        assert line in said, said
        return command

    first, second = upgrading(" starts: "), upgrading("an upgrade is under way")
    go.touch()
    said = first.communicate(timeout=TIMEOUT_SECONDS)
    assert first.returncode == 0 and "has taken over" in said[0], said
    _, said = second.communicate(timeout=TIMEOUT_SECONDS)
    assert second.returncode == RUNTIME_ERROR and "another command has upgraded the server" in said, said
    server.upgraded(0)


def test_the_keys_of_dev_hold_on(upgradable, tmp_path):
    server = upgradable("--dev")
    shown, key = (re.search(rf"{name}=(\S+)", server.log())[1] for name in ["THRONG_TOKEN", "DEV_KEY"])
    with follow(server, "/channels/a", additional_headers=bearer(shown)) as client:
        for count in range(2):
            done = upgrade_by_command(server, tmp_path)
            assert done.returncode == 0, done.stdout + done.stderr
            server.upgraded(count)
            for credential in [key, shown]:
                sent = server.http.post("/channels/a", content=str(count), headers=bearer(credential))
                assert sent.status_code == 201, sent.text
                assert client.recv(TIMEOUT_SECONDS) == str(count)
            assert server.http.post("/channels/a", content="x").status_code == 401
    assert server.log().count("DEV_KEY=") == 1


def test_a_server_that_drains_is_upgraded_once_the_drain_is_taken_back(upgradable, tmp_path):
    # Until then nobody is asked to leave.
    server = upgradable("--drain-delay", "1h")
    listen = ["--listen", f"127.0.0.1:{server.port}"]
    with follow(server, "/channels/a") as client:
        server.wait_for_connections("a", 1)
        draining = subprocess.Popen(
            [BINARY, "drain", "--deadline", "2h", *listen],
            cwd=tmp_path,
            env=clean_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        eventually(lambda: server.metrics()["throng_draining"] == 1, "the drain")
        said = upgrade_by_command(server, tmp_path)
        assert said.returncode == RUNTIME_ERROR and "throng drain --cancel" in said.stderr, said.stderr
        cancelled = run_throng("drain", "--cancel", *listen, directory=tmp_path)
        assert cancelled.returncode == 0, cancelled.stderr
        assert draining.wait(TIMEOUT_SECONDS) == RUNTIME_ERROR
        server.upgrade()
        server.publish("a", "hello")
        assert client.recv(TIMEOUT_SECONDS) == "hello"
        # The new process drains, as the old one would have done.
        drained = run_throng("drain", "--deadline", "0s", *listen, directory=tmp_path)
        assert drained.returncode == 0, drained.stdout + drained.stderr


@pytest.mark.parametrize("last", ["hello", "welcome", "ready"])
def test_a_new_process_ends_if_the_old_one_dies_before_the_last_word(tmp_path, last):
    near, far = socket.socketpair()
    port = socket.socket()
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    port.bind(("127.0.0.1", 0))
    listen = "{}:{}".format(*port.getsockname())
    with near, port:
        near.settimeout(TIMEOUT_SECONDS)
        process = subprocess.Popen(
            [BINARY, "serve", "--listen", listen, "--workers", "1"],
            cwd=tmp_path,
            env=clean_environment({"TAKE_OVER_FROM_THRONG": f"throng/{PROTOCOL}"}),
            stdin=far,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        far.close()
        assert hear(near)[0] == HELLO
        # If memory is short, it is this one that the kernel ends.
        assert oom_score_adj(process.pid) == 1000
        if last != "hello":
            content = struct.pack("<I16sIBI", 1, bytes(16), 1, 1, 0)
            message = struct.pack("<IBH", len(content), WELCOME, 1) + content
            socket.send_fds(near, [message], [port.fileno()])
        if last == "ready":
            assert hear(near)[0] == READY
        near.close()
        said, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == RUNTIME_ERROR and "error: " in said, said
        # It has not printed that it listens.
        assert "http://" not in said, said


def test_a_new_process_redirects_nobody_before_the_last_word(tmp_path):
    certificate, key = make_certificate(tmp_path, "own", "localhost")
    near, far = socket.socketpair()
    ports = [socket.socket() for _ in range(3)]
    for port in ports:
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        port.bind(("127.0.0.1", 0))
    ports[2].listen()
    plain, tls, redirect = ["{}:{}".format(*port.getsockname()) for port in ports]
    flags = ["--tls-listen", tls, "--tls-cert", certificate, "--tls-key", key, "--redirect-http", redirect]
    with near, ports[0], ports[1], ports[2]:
        near.settimeout(TIMEOUT_SECONDS)
        process = subprocess.Popen(
            [BINARY, "serve", "--listen", plain, "--workers", "1", *flags],
            cwd=tmp_path,
            env=clean_environment({"TAKE_OVER_FROM_THRONG": f"throng/{PROTOCOL}"}),
            stdin=far,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        far.close()
        assert hear(near)[0] == HELLO
        content = struct.pack("<I16sIBBBI", 1, bytes(16), 3, 1, 2, 5, 0)
        message = struct.pack("<IBH", len(content), WELCOME, 3) + content
        socket.send_fds(near, [message], [port.fileno() for port in ports])
        assert hear(near)[0] == READY
        near.close()
        # Its log is whole: it has ended.
        said, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == RUNTIME_ERROR and "redirecting to https" not in said, said


def oom_score_adj(pid):
    with open(f"/proc/{pid}/oom_score_adj", encoding="utf-8") as score:
        return int(score.read())


def hear(channel):
    """Reads one message without descriptors; returns its kind and its content."""
    head = read_until_count(channel, 7)
    length, kind, _ = struct.unpack("<IBH", head)
    return kind, read_until_count(channel, length)


def read_until_count(channel, count):
    data = b""
    while len(data) < count:
        piece = channel.recv(count - len(data))
        assert piece, "the new process has ended"
        data += piece
    return data
