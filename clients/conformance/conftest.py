"""Fixtures: each client in a process, the real server, and servers that misbehave."""

import itertools
import json
import os
import queue
import resource
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
sys.path.insert(0, str(ROOT / "clients" / "python" / "src"))

from misbehaving import Loop, Proxy, Scripted  # noqa: E402
from support.server import Server, clean_environment  # noqa: E402
from throng_client.decoding import read_object  # noqa: E402

# Limits failures only: a test that passes does not wait for it. Beside the other steps of
# `scripts/test`, two cores have let a process wait for more than a minute.
WAIT_SECONDS = 180
COMMANDS = {
    "python-async": [sys.executable, HERE / "programs" / "client.py", "async"],
    "python": [sys.executable, HERE / "programs" / "client.py", "blocking"],
    "javascript": ["node", HERE / "programs" / "client.mjs"],
    "go": [ROOT / ".cache" / "go" / "conformance"],
}
CHROMIUM = next(filter(None, map(shutil.which, ["chromium", "chromium-browser"])), "chromium")
BROWSER = {"chromium": ["node", HERE / "programs" / "browser.mjs", CHROMIUM]}
_numbers = itertools.count(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Says which tests run in one process, one after another: those in Chromium, so that there is
    one Chromium and not one for each process, and those with a thousand clients.
    """
    for item in items:
        if item.path.stem == "test_waves":
            item.add_marker(pytest.mark.xdist_group("waves"))
        elif "chromium" in item.name:
            item.add_marker(pytest.mark.xdist_group("chromium"))


def allow_many_descriptors():
    """Raises the limit of this process to what it may be: 1,000 clients need more than most get."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Program:
    """One process, in which tests open clients."""

    def __init__(self, command):
        source = ROOT / "clients" / "python" / "src"
        environment = {"PYTHONPATH": str(source), "NO_PROXY": "*", "PYTHONDONTWRITEBYTECODE": "1"}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment({**environment, "HOME": os.environ.get("HOME", "/")}),
            preexec_fn=allow_many_descriptors,
        )
        self.events = {}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            # A client may print data that `json` cannot read.
            event = read_object(line)
            self.events[event["client"]].put(event)

    def tell(self, command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()


class Client:
    """One client in a program, and the events that it has printed."""

    def __init__(self, program, url, **options):
        self.name = f"client-{next(_numbers)}"
        self.program = program
        self.heard = []
        self._events = program.events[self.name] = queue.Queue()
        self.tell("open", url=url, options=options)

    def tell(self, command, **fields):
        self.program.tell({"command": command, "client": self.name, **fields})

    def until(self, matches):
        """Reads on until an event matches; returns that one."""
        if event := self.within(WAIT_SECONDS, matches):
            return event
        ended = self.program.process.poll()
        state = "" if ended is None else f"; the program has ended with {ended}"
        raise AssertionError(f"nothing more after {self.heard[-20:]}{state}")

    def within(self, seconds, matches):
        """The same, for so long at most; None if no event has matched."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                event = self._events.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                return None
            self.heard.append(event)
            if matches(event):
                return event

    def until_state(self, name):
        return self.until(lambda it: it["event"] == "state" and it["state"] == name)

    def until_all(self, name, count):
        while len(self.all(name)) < count:
            self.until(lambda it: it["event"] == name)
        return self.all(name)

    def all(self, name):
        return [event for event in self.heard if event["event"] == name]


@pytest.fixture(scope="session")
def programs():
    started = {}

    def get(kind):
        if kind not in started:
            started[kind] = Program({**COMMANDS, **BROWSER}[kind])
        return started[kind]

    yield get
    for program in started.values():
        program.process.stdin.close()
        program.process.kill()
        program.process.wait()


@contextmanager
def opener(program):
    """Opens clients in a program; closes them after the block."""
    opened = []

    def start(url, **options):
        opened.append(Client(program, url, **options))
        return opened[-1]

    yield start
    for client in opened:
        client.tell("close")


@pytest.fixture(params=COMMANDS)
def connect(request, programs):
    """Opens a client of each kind; closes it after the test."""
    with opener(programs(request.param)) as start:
        yield start


@pytest.fixture(params=[*COMMANDS, *BROWSER])
def any_client(request, programs):
    """The same, also in a browser."""
    with opener(programs(request.param)) as start:
        yield start


@pytest.fixture(scope="session")
def loop():
    made = Loop()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The real server, with a short heartbeat, and presence events."""
    flags = ["--drain-window", "200ms", "--heartbeat", "1s", "--presence-events"]
    directory = tmp_path_factory.mktemp("server")
    (directory / "throng.toml").write_text(
        '[[channels]]\nmatch = "marked-*"\nread-markers = true\n'
        '[[channels]]\nmatch = "members-*"\nmembers = "user"\n'
    )
    running = Server(directory, *flags, "--presence-grace", "1s")
    yield running
    running.stop()


@pytest.fixture
def proxy(loop, server):
    """A proxy before the real server, with a plan."""
    made = []

    def start(*plan, upstream=server):
        made.append(Proxy(loop, upstream, *plan))
        return made[-1]

    yield start
    for each in made:
        each.thaw()
        each.close()


@pytest.fixture
def scripted(loop):
    """A server that says what a script says."""
    made = []

    def start(script):
        made.append(Scripted(loop, script))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.fixture
def channel():
    return f"channel-{next(_numbers)}"
