"""Pages in a real Chromium: the chat, messages that contain scripts, and three ways to follow a
channel, each of which must reconnect."""

import json
from contextlib import ExitStack

import pytest

from conftest import HERE, QUICK
from support import TIMEOUT_SECONDS
from support.commands import run
from support.raw import Raw
from support.server import Server, eventually


SCENARIOS = ["together", "lost", "sse", "poll", "back", "offline", "namesakes", "rooms"]
SCENARIOS += ["unread", "tabs", "away", "keyboard"]
# As `make run` starts the server, but nobody stays for long after the last connection.
PRESENCE = ["--presence-members", "user", "--presence-grace", "1s"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with lists of members, shared by the tests of this module."""
    running = Server(tmp_path_factory.mktemp("server"), *QUICK, *PRESENCE)
    yield running
    running.stop()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_chat(server, chromium, scenario):
    chat(server, chromium, scenario)


@pytest.mark.parametrize("scenario", ["together", "tabs"])
def test_chat_with_presence_events(serve, chromium, scenario):
    chat(serve("--presence-events", "--presence-grace", "1s"), chromium, scenario)


def test_chat_on_a_frozen_server(serve, chromium):
    chat(serve(), chromium, "frozen")


@pytest.mark.parametrize(
    "flags, listen",
    [
        (["--admin-listen", "127.0.0.1:0"], "127.0.0.1"),
        (["--allow-anyone", "--demo", "on"], "0.0.0.0"),
    ],
)
def test_the_chat_does_not_link_a_status_page_that_it_may_not_see(serve, chromium, flags, listen):
    chat(serve(*flags, listen=listen), chromium, "elsewhere")


def chat(server, chromium, scenario):
    run("node", HERE / "node" / "chat.mjs", chromium, server.url, scenario, server.process.pid)


# Synchronous, so that its effect is visible when the page has loaded.
SCRIPT = """
document.title = 'ran';
const request = new XMLHttpRequest();
request.open('POST', '/channels/ran', false);
request.send(document.domain);
"""
PAGES = {
    "text/html": f"<title>kept</title><script>{SCRIPT}</script>",
    "image/svg+xml": f"<svg xmlns='http://www.w3.org/2000/svg'><script>{SCRIPT}</script></svg>",
    "application/xhtml+xml": "<html xmlns='http://www.w3.org/1999/xhtml'><head><title>kept</title>"
    f"<script>{SCRIPT}</script></head></html>",
}
POLICY, DISPOSITION = "content-security-policy", "content-disposition"


@pytest.mark.parametrize("stripped", [[], [POLICY], [DISPOSITION], [POLICY, DISPOSITION]])
@pytest.mark.parametrize("content_type", PAGES)
def test_a_published_script_does_not_run_in_the_servers_origin(
    serve, chromium, content_type, stripped
):
    """Either of the two headers suffices; without both the script runs."""
    server = serve()
    server.publish("page", PAGES[content_type], Content_Type=content_type)
    url = f"{server.url}/channels/page?history=1&wait=0"
    page = json.loads(run("node", HERE / "node" / "stored-script.mjs", chromium, url, *stripped))
    ran = [message["data"] for message in server.history("ran")["messages"]]
    is_open = len(stripped) == 2
    assert page["shown"] == (DISPOSITION in stripped)
    assert ran == (["127.0.0.1"] if is_open else []), page
    assert (page["title"] == "ran") == is_open


class Page:
    """A page that follows a channel over each transport of a browser."""

    WAYS = {"EventSource", "WebSocket", "Throng"}

    def __init__(self, node, chromium, server, channel):
        self.channel = channel
        self.child = node("comeback.mjs", chromium, server.url, channel)
        assert json.loads(self.child.stdout.readline())["data"] == "ready"

    def gets(self, server, text):
        """Waits until all are subscribed, publishes, and expects the message on each transport."""
        server.wait_for_connections(self.channel, len(self.WAYS))
        server.publish(self.channel, text)
        got = [json.loads(self.child.stdout.readline()) for _ in self.WAYS]
        assert {it["way"] for it in got} == self.WAYS
        assert {it["data"] for it in got} == {text}

    def close(self):
        """Closes the page."""
        self.child.communicate(timeout=TIMEOUT_SECONDS)


def test_pages_reconnect_when_the_server_has_capacity_again(serve, node, chromium, channel):
    # Places for all, and for connections that the browser opens in advance.
    places = 2 * len(Page.WAYS)
    server = serve("--max-connections", places, "--workers", 1)
    refused = 'throng_refused_total{reason="full"}'
    with ExitStack() as stack:
        for _ in range(places):
            other = stack.enter_context(Raw(server))
            other.request("GET", "/channels/other", {"Accept": "text/event-stream"})
            assert other.read_head().header("Throng-Id")
        page = Page(node, chromium, server, channel)
        eventually(lambda: server.metrics()[refused] >= len(Page.WAYS), "the refusal of all")
    page.gets(server, "there is capacity again")
    page.close()


def test_pages_reconnect_after_a_restart(serve, node, chromium, channel):
    server = serve()
    page = Page(node, chromium, server, channel)
    page.gets(server, "before")
    server.stop()
    again = serve(port=server.port)
    page.gets(again, "after")
    page.close()
