"""Fixtures: the real server, a channel of the test's own, and an event loop in virtual time."""

import asyncio
import itertools
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "clients" / "python" / "src"))
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
os.environ["NO_PROXY"] = "*"

_numbers = itertools.count(1)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which waiting takes no time: its clock moves when nothing else is left."""

    def __init__(self):
        super().__init__()
        self._now = 0.0
        select = self._selector.select

        def advance(timeout=None):
            events = select(0)
            if not events and timeout:
                self._now += timeout
            return events

        self._selector.select = advance

    def time(self):
        return self._now


@pytest.fixture
def virtual():
    """Runs a coroutine in virtual time."""

    def run(work):
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(work)

    return run


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with default settings, shared by the tests of a module."""
    from support.server import Server

    running = Server(tmp_path_factory.mktemp("server"), "--drain-window", "200ms")
    yield running
    running.stop()


@pytest.fixture
def serve(tmp_path):
    """Starts servers with custom settings."""
    from support.server import Server

    started = []

    def start(*flags, **options):
        running = Server(tmp_path, "--drain-window", "200ms", *flags, **options)
        started.append(running)
        return running

    yield start
    for running in started:
        if running.process.poll() is None:
            running.stop()


@pytest.fixture
def channel():
    """A channel name that no other test uses."""
    return f"channel-{next(_numbers)}"
