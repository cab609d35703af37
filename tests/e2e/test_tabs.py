"""Tabs of one browser that share a connection, in Chromium."""

import pytest

from conftest import HERE, QUICK
from support.bundles import bundle, run_node
from support.server import Server

SCENARIOS = ["three", "closed", "asleep", "stopped", "lost", "users", "presence"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with presence events, shared by the tests of this module."""
    flags = [*QUICK, "--presence-events", "--presence-grace", "1s"]
    running = Server(tmp_path_factory.mktemp("server"), *flags)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The page's script, as a bundler makes it."""
    built = tmp_path_factory.mktemp("tabs") / "page.js"
    bundle("tests/tabs/page.js", built)
    return built


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_tabs(server, script, chromium, scenario):
    run_node(HERE / "node" / "tabs.mjs", chromium, server.url, script, scenario)
