"""A new process that fails just before it serves, or just after."""

import os
import re
import shutil
import signal

import pytest
from support import TIMEOUT_SECONDS
from support.floods import finish_flood, flooding
from support.impostor import replace_by_impostor
from support.raw import Raw
from support.server import BINARY, eventually, run_throng
from support.tls_server import stream_request
from support.upgrades import FAILED, UpgradableServer


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a server whose next version is an impostor."""
    copy = tmp_path / "throng"
    shutil.copy(BINARY, copy)
    monkeypatch.setattr("support.server.BINARY", copy)
    started = []

    def start(last, how="ends", **options):
        flags = ["--heartbeat", "1h", "--drain-window", "0ms", "--workers", "2"]
        server = UpgradableServer(tmp_path, *flags, **options)
        started.append(server)
        replace_by_impostor(copy, last, how)
        return server

    yield start
    for server in started:
        server.kill()
        server.process.wait()


def subscribe(server, channel="a"):
    stream = Raw(server)
    stream.send(stream_request(channel).decode())
    stream.read_until(b"\r\n\r\n")
    return stream


def upgrade_fails(server):
    server.signal(signal.SIGUSR2)
    eventually(lambda: FAILED in server.log(), "the failure of the upgrade")
    return server.log().rpartition(FAILED)[2].splitlines()[0]


def test_a_last_word_that_nobody_can_hear_is_taken_back(start, tmp_path):
    server = start("thawed")
    with subscribe(server) as stream:
        assert "this process continues" in upgrade_fails(server)
        server.publish("a", "hello")
        stream.read_until(b"data: hello")
        # Commands reach it as before.
        said = run_throng("upgrade", "--listen", f"127.0.0.1:{server.port}", directory=tmp_path)
        assert said.returncode == 1 and "this process continues" in said.stderr, said.stdout + said.stderr


def test_the_old_process_goes_on_with_the_state_that_another_has_in_memory(start, tmp_path):
    server = start("thawed")
    # State of more than 64 KiB of each worker is in memory that both processes share.
    plan = ("--clients", "5000", "--hold", "5s", "--publish", "20", "--transport", "websocket")
    flood = flooding(tmp_path, server.url, *plan)
    subscribed = lambda: server.http.get("/status.json").json()["connections"]["websocket"]
    eventually(lambda: subscribed() == 5000, "the clients of the flood")
    assert "this process continues" in upgrade_fails(server)
    assert "impostor: memories 2" in server.log()
    eventually(lambda: subscribed() == 5000, "all of them, in a new sample")
    finish_flood(flood)


def test_connections_end_although_another_process_has_copies_of_them(start):
    server = start("copied", "waits")
    with subscribe(server) as staying, subscribe(server) as leaving, subscribe(server, "b") as closed:
        server.signal(signal.SIGUSR2)
        eventually(lambda: "impostor: copied" in server.log(), "the copies")
        assert "impostor: sockets 3" in server.log()
        leaving.close()
        assert server.http.delete("/channels/b/connections").status_code == 200
        closed.read_to_end()
        server.wait_for_connections("a", 1)
        server.wait_for_connections("b", 0)
        with subscribe(server) as coming:
            server.publish("a", "hello")
            staying.read_until(b"data: hello")
            coming.read_until(b"data: hello")
            os.kill(int(re.search(r"process (\d+) starts: ", server.log())[1]), signal.SIGTERM)
            eventually(lambda: FAILED in server.log(), "the failure of the upgrade")
            server.publish("a", "again")
            staying.read_until(b"data: again")
            coming.read_until(b"data: again")


def test_a_process_that_stalls_stops_delivery_for_a_while_only(start):
    # 15 s: the longest pause.
    server = start("ahead", "waits")
    with subscribe(server) as stream:
        assert "did not answer in time" in upgrade_fails(server)
        server.publish("a", "hello")
        stream.read_until(b"data: hello")


def test_a_process_that_ends_after_the_last_word_is_reported_as_a_failure(start):
    server = start("commit")
    assert "has taken over and ended" in upgrade_fails(server)
    assert server.process.wait(TIMEOUT_SECONDS) == 1


def test_a_signal_after_the_last_word_reaches_the_process_that_serves(start):
    server = start("commit", "waits")
    server.signal(signal.SIGUSR2)
    eventually(lambda: "impostor: commit" in server.log(), "the last word")
    server.signal(signal.SIGTERM)
    eventually(lambda: "impostor: ended by SIGTERM" in server.log(), "the signal")


def test_a_reload_after_the_last_word_reaches_the_process_that_serves(start):
    server = start("commit", "waits")
    server.signal(signal.SIGUSR2)
    eventually(lambda: "impostor: commit" in server.log(), "the last word")
    server.signal(signal.SIGHUP)
    eventually(lambda: "impostor: heard SIGHUP" in server.log(), "the signal")
    server.signal(signal.SIGTERM)
    eventually(lambda: "impostor: ended by SIGTERM" in server.log(), "the end")
