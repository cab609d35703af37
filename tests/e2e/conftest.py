"""Fixtures: servers with the settings of a test, and a channel that no other test uses."""

import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from support import TIMEOUT_SECONDS  # noqa: E402
from support.nats import brokers_in, connected, nodes_in, user_of_the_guide  # noqa: E402
from support.networks import own_network  # noqa: E402
from support.server import BINARY, Server, clean_environment  # noqa: E402
from support.upgrades import QUIET, UpgradableServer  # noqa: E402

HERE = Path(__file__).parent
# Short drain windows; a test about their length sets its own.
QUICK = ["--drain-window", "200ms", "--drain-timeout", "5s"]
_numbers = itertools.count(1)
# Modules with the longest tests, which begin first: nothing shall wait for one of them in the end.
LONGEST = [
    *("test_docs_site", "test_contracts", "test_bench", "test_bench_cluster", "test_nats_faults"),
    *("test_browser", "test_flood", "test_flood_tls", "test_accessibility", "test_nats_chaos"),
]
# Fixtures of a module that take no time to be made again.
CHEAP = {"a_network_of_its_own"}
# Names of Chromium.
CHROMIUM = ["chromium", "chromium-browser", "google-chrome"]


def pytest_sessionstart():
    """Reports a missing binary once, instead of once per test."""
    if not BINARY.exists():
        pytest.exit(f"{BINARY} does not exist: cargo build -p throng, or set THRONG_BIN", 1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Says which tests run in one process with `--dist loadgroup`: those that share a fixture of their
    module, such as `server`. Any other test runs in whichever process is free.
    """
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))
    for item in items:
        used = item._fixtureinfo.name2fixturedefs.items()
        if any(fixtures[-1].scope == "module" for name, fixtures in used if name not in CHEAP):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def pytest_configure(config):
    """Refuses to begin if xdist cannot tell which tests belong together.

    It writes the group of a test into `_nodeid`. A pytest without it ignores that, and every process starts what
    a module shares for itself: the site of the documentation, three servers of NATS.
    """
    if config.getoption("dist", "no") == "loadgroup" and not hasattr(pytest.Item, "_nodeid"):
        pytest.exit(f"pytest {pytest.__version__} does not keep groups of pytest-xdist together", 1)


@pytest.fixture(scope="module")
def a_network_of_its_own():
    """Keeps the network devices that a module's tests make away from the browsers of others."""
    with own_network():
        yield


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with default settings, shared by the tests of a module."""
    running = Server(tmp_path_factory.mktemp("server"), *QUICK)
    yield running
    running.stop()


@pytest.fixture
def serve(tmp_path):
    """Starts servers with custom settings; stops each and expects a clean exit."""
    started = []

    def start(*flags, **options):
        running = Server(tmp_path, *QUICK, *flags, **options)
        started.append(running)
        return running

    yield start
    for running in started:
        if running.process.poll() is None:
            running.stop()


@pytest.fixture
def upgradable(tmp_path):
    """Starts servers that can be upgraded, and stops them after the test; or kills them."""
    started = []

    def start(*flags, is_killed=False, **options):
        running = UpgradableServer(tmp_path, *QUIET, *flags, **options)
        started.append((running, is_killed))
        return running

    yield start
    for running, is_killed in started:
        running.kill() if is_killed else running.stop()


@pytest.fixture
def brokers(tmp_path):
    """Starts nats-servers."""
    with brokers_in(tmp_path) as begin:
        yield begin


@pytest.fixture
def broker(brokers):
    """A nats-server that the test may kill."""
    return brokers()


@pytest.fixture
def strict_broker(tmp_path, brokers):
    """A nats-server whose user, with the login in a file, has the permissions of the guide, and no others."""
    login = tmp_path / "login"
    login.write_text("node:s3")
    login.chmod(0o600)
    return brokers(f"authorization {{ users: [ {user_of_the_guide()} ] }}")


@pytest.fixture(scope="module")
def lasting_broker(tmp_path_factory):
    """A nats-server that stays up."""
    with brokers_in(tmp_path_factory.mktemp("nats")) as begin:
        yield begin()


@pytest.fixture
def start_node(tmp_path):
    """Starts nodes, which may not be connected yet."""
    with nodes_in(tmp_path) as begin:
        yield begin


@pytest.fixture
def own_node(tmp_path, lasting_broker, start_node):
    """Starts connected nodes of an installation of the test's own."""
    prefix = tmp_path.name[-32:].replace(".", "-")
    return lambda *flags: connected(start_node(lasting_broker, "--nats-prefix", prefix, *flags))


@pytest.fixture
def channel(request):
    """A channel name that no other test uses."""
    name = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name).strip("-")[:60]
    return f"{name}-{next(_numbers)}"


@pytest.fixture
def curl(server):
    """Runs curl against the module's server; returns its output."""

    def run(path, *arguments, check=True):
        command = ["curl", "--silent", "--show-error", "--noproxy", "*"]
        command += ["--max-time", str(TIMEOUT_SECONDS), *arguments, server.url + path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    return run


def find_program(*names):
    """The path of the first of these programs that is there."""
    found = next(filter(None, map(shutil.which, names)), None)
    assert found, f"none of {names} is there: scripts/setup"
    return found


@pytest.fixture(scope="session")
def chromium_program():
    """The path of Chromium, for scripts that start one with flags of their own, or in a network of
    their own."""
    return find_program(*CHROMIUM)


@pytest.fixture(scope="session")
def chromium():
    """The address of a Chromium that the tests of this process share; see node/browser.mjs.

    It is the one without windows, if there is one: that takes about half of the processor time, but ignores
    some flags, such as those about versions of TLS.
    """
    browser = subprocess.Popen(
        ["node", HERE / "node" / "browser.mjs", find_program("chromium-headless-shell", *CHROMIUM)],
        env=clean_environment({"NO_PROXY": "*"}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    address = browser.stdout.readline().strip()
    assert address, "Chromium does not start"
    yield address
    browser.communicate(timeout=TIMEOUT_SECONDS)


@pytest.fixture
def node():
    """Starts a script of tests/e2e/node as a child; ends it with the test."""
    assert shutil.which("node"), "node is missing: scripts/setup"
    children = []

    def start(script, *arguments, options=(), environment=None):
        own = {"NO_PROXY": "*", "HOME": os.environ.get("HOME", "/"), **(environment or {})}
        child = subprocess.Popen(
            ["node", *options, HERE / "node" / script, *arguments],
            env=clean_environment(own),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


@pytest.fixture
def clock(tmp_path):
    """A clock that a test can set; returns how, and the environment of programs that see it."""
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    assert libraries, "libfaketime is missing: scripts/setup"
    offset = tmp_path / "offset"

    def move(text):
        written = tmp_path / "offset.new"
        written.write_text(f"{text}\n")
        written.replace(offset)

    move("+0")
    # Clocks that cannot be set on a machine stay as they are.
    environment = {
        "LD_PRELOAD": libraries[0],
        "FAKETIME_TIMESTAMP_FILE": offset,
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    return move, {name: str(value) for name, value in environment.items()}
