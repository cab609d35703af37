"""The old or the new process is killed at any moment of an upgrade: one of them serves, or nobody, and
nothing in between."""

import os
import random
import re
import signal
import threading
import time

import httpx
import pytest

from support import TIMEOUT_SECONDS
from support.raw import Raw
from support.server import eventually
from support.tls_server import stream_request
from support.upgrades import FAILED, TAKEN_OVER, UpgradableServer, is_running

# More take longer: `make test-long` has some.
ROUNDS = int(os.environ.get("THRONG_UPGRADE_KILLS", "6"))
FLAGS = ["--heartbeat", "1h", "--drain-window", "0ms", "--workers", "2", "--history-messages", "100000"]
STARTS = re.compile(r"process (\d+) starts: ")


class Publisher(threading.Thread):
    """Publishes numbers until it is stopped, or until the server has gone."""

    def __init__(self, server):
        super().__init__()
        self.path, self.count, self.error = f"{server.url}/channels/a", 0, None
        self._end = threading.Event()
        self.start()

    def run(self):
        try:
            with httpx.Client(timeout=TIMEOUT_SECONDS, trust_env=False) as client:
                while not self._end.is_set():
                    answer = client.post(self.path, content=f"<{self.count}>")
                    assert answer.status_code == 201, (answer.status_code, answer.text)
                    self.count += 1
        except Exception as error:  # The test looks whether it may be.
            self.error = error

    def stop(self):
        self._end.set()
        self.join(TIMEOUT_SECONDS)


class Running:
    """A server with a subscriber and a publisher."""

    def __init__(self, directory):
        self.server = UpgradableServer(directory, *FLAGS)
        self.stream = Raw(self.server)
        self.stream.send(stream_request("a").decode())
        self.stream.read_until(b"\r\n\r\n")
        self.publisher, self.heard = Publisher(self.server), 0

    def upgrade(self, moment, victim):
        """Upgrades, and kills a process so long after the new one has started. Returns the id of
        that."""
        log = self.server.log
        count = len(STARTS.findall(log()))
        self.server.signal(signal.SIGUSR2)
        eventually(lambda: len(STARTS.findall(log())) > count, "the new process")
        new = int(STARTS.findall(log())[count])
        time.sleep(moment)
        try:
            os.kill(new if victim == "new" else self.server.pid, signal.SIGKILL)
        except ProcessLookupError:
            assert victim == "new" and FAILED in log(), log()
        return new

    def goes_on(self):
        """Publisher and subscriber have noticed nothing."""
        before = self.publisher.count
        eventually(lambda: self.publisher.error or self.publisher.count > before + 5, "messages")
        assert self.publisher.error is None, self.publisher.error
        while self.heard < before:
            self.stream.read_until(b"data: <%d>" % self.heard)
            self.heard += 1

    def end(self):
        """The subscriber has had everything that was accepted, if the server has not gone."""
        self.publisher.stop()
        is_alive = is_running(self.server.pid)
        if is_alive:
            assert self.publisher.error is None, self.publisher.error
            while self.heard < self.publisher.count:
                self.stream.read_until(b"data: <%d>" % self.heard)
                self.heard += 1
        self.stream.close()
        self.server.stop() if is_alive else self.server.kill()


@pytest.fixture
def moments():
    """Moments that may be within an upgrade, in seconds; printed if the test fails."""
    seed = int(os.environ.get("THRONG_SEED", random.randrange(1 << 32)))
    print(f"THRONG_SEED={seed}")
    numbers = random.Random(seed)
    return lambda longest: numbers.random() * longest


def duration(running):
    """How long an upgrade takes here, from the start of the new process on."""
    log = running.server.log
    running.server.signal(signal.SIGUSR2)
    eventually(lambda: STARTS.search(log()), "the new process")
    began = time.monotonic()
    running.server.upgraded(0)
    took = time.monotonic() - began
    running.goes_on()
    return took


def test_a_new_process_that_is_killed_leaves_the_old_one_or_has_served(tmp_path, moments):
    running = Running(tmp_path)
    took, failed = duration(running), 0
    for _ in range(ROUNDS):
        failures = running.server.log().count(FAILED)
        taken = len(TAKEN_OVER.findall(running.server.log()))
        running.upgrade(moments(took), "new")
        log = running.server.log
        eventually(
            lambda failures=failures, taken=taken: log().count(FAILED) > failures
            or len(TAKEN_OVER.findall(log())) > taken,
            "the outcome",
        )
        if "this process continues" in log().rpartition(FAILED)[2] and log().count(FAILED) > failures:
            failed += 1
            running.goes_on()
            continue
        # It was the server already, or about to be: then the old process has ended, too.
        eventually(lambda: not is_running(running.server.pid), "the end of the old process")
        running.end()
        running = Running(tmp_path)
        took = duration(running)
    running.end()
    print(f"{failed} of {ROUNDS} were killed before the last word")


def test_a_new_process_serves_or_ends_if_the_old_one_is_killed(tmp_path, moments):
    running = Running(tmp_path)
    took = duration(running)
    for _ in range(ROUNDS):
        new = running.upgrade(moments(took), "old")
        serves = f"process {new} has taken over"

        def answers():
            try:
                return httpx.get(f"{running.server.url}/health", timeout=TIMEOUT_SECONDS, trust_env=False)
            except httpx.TransportError:
                return None

        eventually(lambda: not is_running(new) or answers(), "an end, or somebody who serves")
        assert not is_running(running.server.pid)
        if is_running(new):
            # What it does not have is what the old process was doing: a request, at most.
            running.server.pid = new
            before = running.publisher.count
            running.publisher.stop()
            with httpx.Client(base_url=running.server.url, timeout=TIMEOUT_SECONDS, trust_env=False) as client:
                assert client.post("/channels/a", content="<last>").status_code == 201
            received = running.stream.read_until(b"data: <last>")
            assert all(b"data: <%d>" % number in received for number in range(running.heard, before)), serves
            running.stream.close()
            running.server.stop()
        else:
            running.end()
        running = Running(tmp_path)
        took = duration(running)
    running.end()
