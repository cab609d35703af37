"""Tabs of one browser that share a connection, in Chromium."""

import pytest

from conftest import HERE, QUICK
from support.bundles import bundle, run_node
from support.server import Server

SCENARIOS = ["three", "closed", "asleep", "stopped", "lost", "users", "presence"]
PART = "@throng-push/client/tabs"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with presence events, shared by the tests of this module."""
    flags = [*QUICK, "--presence-events", "--presence-grace", "1s"]
    running = Server(tmp_path_factory.mktemp("server"), *flags)
    yield running
    running.stop()


def run(server, script, chromium_program, scenario):
    run_node(HERE / "node" / "tabs.mjs", chromium_program, server.url, script, scenario)


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The page's script, as a bundler makes it."""
    built = tmp_path_factory.mktemp("tabs") / "page.js"
    bundle("tests/tabs/page.js", built)
    return built


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_tabs(server, script, chromium_program, scenario):
    run(server, script, chromium_program, scenario)


def test_the_part_that_the_server_serves(server, chromium_program, tmp_path):
    bundle("tests/tabs/page.js", tmp_path / "page.js", f"--external:{PART}")
    assert PART in (tmp_path / "page.js").read_text()
    run(server, tmp_path / "page.js", chromium_program, "closed")
