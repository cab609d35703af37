"""What an operator's machine does to a server: clocks that jump, signals at the wrong time, many viewers."""

import os
import re
import resource
import signal
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from support import TIMEOUT_SECONDS
from support.raw import Raw, RawWebSocket
from support.server import BINARY, clean_environment, eventually

VIEWERS = 1000
SCRAPERS = 50
DAY_MS = 24 * 3600 * 1000


def test_a_clock_that_jumps_expires_nothing_and_is_followed(serve, channel, clock):
    move, environment = clock
    # Its messages may take ten intervals, on a busy machine as well.
    server = serve("--canary-interval", "500ms", environment=environment)

    def published_ms():
        (message,) = server.history(channel)["messages"]
        return message["time"]

    def has_moved(first_ms, last_ms):
        return lambda: first_ms < published_ms() - before_ms < last_ms

    with RawWebSocket(server, f"/channels/{channel}") as websocket:
        server.publish(channel, "before")
        assert websocket.read_message() == b"before"
        before_ms = published_ms()
        # History is kept for an hour, and heartbeats and deadlines take seconds.
        move("+1d")
        eventually(has_moved(DAY_MS / 2, DAY_MS * 2), "the time of a day later")
        move("-2d")
        eventually(has_moved(-DAY_MS * 3, -DAY_MS), "the time of two days before")
        server.publish(channel, "after")
        assert websocket.read_message() == b"after"
        assert len(server.history(channel)["messages"]) == 2
    assert server.http.get("/health/live").status_code == 200

    def canary():
        return server.http.get("/status.json").json()["canary"]["websocket"]

    eventually(lambda: canary()["count"] > 0, "a message of the canary")
    assert canary()["failures"] == 0


def test_a_signal_while_the_settings_are_read_ends_the_start(tmp_path):
    settings = tmp_path / "throng.toml"
    os.mkfifo(settings)
    command = [BINARY, "serve", "--config", settings, "--listen", "127.0.0.1:0"]
    child = subprocess.Popen(command, env=clean_environment(), stderr=subprocess.PIPE)
    try:
        # Succeeds once the server has opened the file, which it then waits for.
        with settings.open("w"):
            child.send_signal(signal.SIGTERM)
            assert child.wait(TIMEOUT_SECONDS) == -signal.SIGTERM
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_as_soon_as_the_server_is_ready_stops_it(tmp_path, signals):
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(TIMEOUT_SECONDS)
        flags = ["--drain-delay", "1h"] if signals == 2 else []
        command = [BINARY, "serve", "--listen", "127.0.0.1:0", *flags]
        environment = clean_environment({"NOTIFY_SOCKET": str(path)})
        child = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        try:
            assert manager.recv(100) == b"READY=1"
            child.send_signal(signal.SIGTERM)
            assert manager.recv(100) == b"STOPPING=1"
            if signals == 2:
                child.send_signal(signal.SIGTERM)
            _, log = child.communicate(timeout=TIMEOUT_SECONDS)
        finally:
            child.kill()
            child.wait()
    assert child.returncode == signals - 1, log
    assert re.search(r"SIGTERM: stopping; a second signal ends the server at once\n", log)
    assert ("again: ending at once" in log) == (signals == 2), log


def test_a_thousand_viewers_of_the_status_leave_clients_alone(serve, channel):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4 * VIEWERS:
        pytest.skip("the descriptor limit is too low for a thousand viewers")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4 * VIEWERS), hard))
    server = serve()
    with ExitStack() as viewers, RawWebSocket(server, f"/channels/{channel}") as websocket:
        opened = [viewers.enter_context(Raw(server)) for _ in range(VIEWERS)]
        for viewer in opened:
            viewer.request("GET", "/status/stream")
        for viewer in opened:
            assert viewer.read_head().status == 200
        for number in range(3):
            server.publish(channel, f"message {number}")
            assert websocket.read_message() == f"message {number}".encode()
            for viewer in opened:
                viewer.read_until(b"data: ")
        status = server.http.get("/status.json").json()["connections"]
        assert (status["status"], status["websocket"]) == (VIEWERS, 1)
    eventually(lambda: server.http.get("/status.json").json()["connections"]["status"] == 0, "the viewers' end")


def test_many_scrapes_during_a_fan_out_get_whole_answers_and_lose_no_message(serve, channel):
    server = serve()
    subscribers, messages = 100, 25
    is_over = threading.Event()

    def scrape():
        scrapes = 0
        with httpx.Client(base_url=server.url, timeout=TIMEOUT_SECONDS, trust_env=False) as client:
            while not is_over.is_set() or scrapes == 0:
                response = client.get("/metrics")
                assert response.status_code == 200
                assert "\nthrong_deliveries_total " in response.text
                assert response.text.endswith("\n")
                scrapes += 1
        return scrapes

    with ExitStack() as stack, ThreadPoolExecutor(SCRAPERS) as pool:
        stack.callback(is_over.set)
        path = f"/channels/{channel}"
        followers = [stack.enter_context(RawWebSocket(server, path)) for _ in range(subscribers)]
        scrapers = [pool.submit(scrape) for _ in range(SCRAPERS)]
        for number in range(messages):
            assert server.publish(channel, f"{number}")["subscribers"] == subscribers
        for follower in followers:
            received = [follower.read_message() for _ in range(messages)]
            assert received == [f"{number}".encode() for number in range(messages)]
        is_over.set()
        assert all(scraper.result(TIMEOUT_SECONDS) > 0 for scraper in scrapers)
    # A delivery is counted once it is written.
    eventually(
        lambda: server.metrics()["throng_deliveries_total"] == subscribers * messages, "the count"
    )
