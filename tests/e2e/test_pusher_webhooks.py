"""Webhooks of applications that speak the Pusher protocol, as the libraries for applications read them."""

import json
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import pusher
from conftest import QUICK
from support.access import bearer, server_key
from support.pusher import APP, OTHER, OTHER_PREFIX, PREFIX, Peer, settings, table
from support.server import Server, eventually

ALL = (
    "channel_occupied channel_vacated member_added member_removed client_event cache_miss subscription_count".split()
)


class Receiver:
    """An application's endpoint for webhooks. A test says how many requests fail first."""

    def __init__(self):
        self.requests, self.failures = [], 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                receiver.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
                is_failure = receiver.failures > 0
                receiver.failures -= is_failure
                self.send_response(500 if is_failure else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def events(self):
        """All events of requests that were answered with a success, in their order, each checked by the library."""
        library = pusher.Pusher(app_id=APP["id"], key=APP["key"], secret=APP["secret"])
        read = []
        for headers, body in list(self.requests):
            own = library.validate_webhook(headers["x-pusher-key"], headers["x-pusher-signature"], body)
            assert own, (headers, body)
            read.extend(own["events"])
        return read

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def receiver():
    running = Receiver()
    yield running
    running.close()


@pytest.fixture
def start(tmp_path, receiver):
    """Starts a server whose application has a webhook for these events."""
    started = []

    def start(events=ALL, *more):
        settings(tmp_path)
        watch, watch_table = server_key(tmp_path, "watch", "administration")
        path = tmp_path / "throng.toml"
        hook = (f'webhook = "{receiver.url}"', f"webhook-events = {json.dumps(list(events))}", *more)
        tables = [watch_table, table(APP, PREFIX, *hook), table(OTHER, OTHER_PREFIX)]
        path.write_text(path.read_text().split("[[apps]]")[0] + "\n".join(tables))
        started.append(Server(tmp_path, *QUICK))
        started[-1].http.headers.update(bearer(watch))
        return started[-1]

    yield start
    for server in started:
        server.stop()


def expect(receiver, *events):
    """Waits for events, in this order, and for no others."""
    eventually(lambda: len(receiver.events()) >= len(events), lambda: receiver.events())
    assert receiver.events() == list(events)


def hook(name, channel, **more):
    return {"name": name, "channel": channel, **more}


def test_an_application_is_told_what_happens(start, receiver):
    server = start([name for name in ALL if name != "subscription_count"])
    ann, other = Peer(server), Peer(server, app=OTHER)
    other.subscribe("news")
    ann.subscribe("presence-r", {"user_id": "ann"})
    ann.next()
    expected = [hook("channel_occupied", "presence-r"), hook("member_added", "presence-r", user_id="ann")]
    eventually(lambda: len(receiver.events()) == 2, receiver.events)
    # Whichever of both the server knows first.
    assert sorted(receiver.events(), key=str) == sorted(expected, key=str)
    ann.say("client-t", {"t": 1}, "presence-r")
    ann.subscribe("cache-c")
    for _ in range(2):
        ann.next()
    ann.close()
    eventually(lambda: len(receiver.events()) == 8, receiver.events)
    events = receiver.events()[2:]
    # Those of public channels have an order of their own.
    first, *gone = [event for event in events if event["channel"] == "presence-r"]
    own = {"event": "client-t", "socket_id": ann.socket_id, "user_id": "ann"}
    assert first == hook("client_event", "presence-r", data=first["data"], **own)
    assert json.loads(first["data"]) == {"t": 1}, "a text, as it is of all events"
    expected = [hook("channel_vacated", "presence-r"), hook("member_removed", "presence-r", user_id="ann")]
    assert sorted(gone, key=str) == sorted(expected, key=str)
    names = [event["name"] for event in events if event["channel"] == "cache-c"]
    assert (sorted(names[:2]), names[2:]) == (["cache_miss", "channel_occupied"], ["channel_vacated"])
    assert server.metrics()['throng_webhook_events_total{outcome="delivered"}'] == 8


def test_whoever_comes_back_was_not_away(start, receiver):
    server = start()
    peer = Peer(server)
    for event in ("subscribe", "unsubscribe", "subscribe", "unsubscribe", "subscribe"):
        peer.say(f"pusher:{event}", {"channel": "news"})
    peer.subscribe("later")
    for _ in range(4):
        peer.next()

    def names(channel):
        return [event["name"] for event in receiver.events() if event["channel"] == channel]

    eventually(lambda: "channel_occupied" in names("later"), receiver.events)
    numbers = [event for event in receiver.events() if event["name"] == "subscription_count"]
    counts = [event["subscription_count"] for event in numbers if event["channel"] == "news"]
    # The newest of those that wait together.
    assert counts[-1] == 1 and len(counts) <= 5, counts
    peer.close()
    eventually(lambda: "channel_vacated" in names("news"), receiver.events)
    assert [name for name in names("news") if name != "subscription_count"] == ["channel_occupied", "channel_vacated"]


def test_a_request_that_fails_comes_again_before_later_ones(start, receiver):
    receiver.failures = 2
    server = start(["cache_miss"])
    peer = Peer(server)
    for at in range(5):
        peer.subscribe(f"cache-{at}")
        assert [peer.next()["event"] for _ in range(2)][1] == "pusher:cache_miss"
    # The third is the first that is answered with a success.
    eventually(lambda: any("cache-4" in body for _, body in receiver.requests[2:]), lambda: receiver.requests)
    bodies = [body for _, body in receiver.requests]
    assert bodies[0] == bodies[1] == bodies[2], "the same request"
    later = [event["channel"] for body in bodies[2:] for event in json.loads(body)["events"]]
    assert later == [f"cache-{at}" for at in range(5)]


def test_the_library_for_node_validates_webhooks(start, receiver, node):
    server = start(["client_event", "channel_occupied"])
    peer = Peer(server)
    peer.subscribe("private-a")
    peer.next()
    peer.say("client-t", "a text", "private-a")
    eventually(lambda: len(receiver.events()) == 2, receiver.events)
    library, read = node("pusher-webhook.mjs", json.dumps(APP)), []
    for headers, body in receiver.requests:
        for text, is_valid in ((body, True), (body + " ", False)):
            library.stdin.write(json.dumps({"headers": headers, "rawBody": text}) + "\n")
            library.stdin.flush()
            answer = json.loads(library.stdout.readline())
            assert (answer["events"] is not None) == is_valid
            read.extend(answer["events"] or [])
    assert [event["name"] for event in read] == ["channel_occupied", "client_event"]
    assert (read[1]["data"], read[1]["socket_id"]) == ("a text", peer.socket_id)


def test_a_cache_is_missed_by_those_who_ask_for_history_too(start, receiver):
    server = start(["cache_miss"], "history = true")
    peer = Peer(server)
    # A channel that is no cache has no event to miss.
    for channel, history, frames in (("news", 1, 1), ("cache-a", 1, 2), ("cache-b", 5, 2)):
        peer.subscribe(channel, history=history)
        events = [peer.next()["event"] for _ in range(frames)]
        assert events[1:] == ["pusher:cache_miss"] * (frames - 1)
    expect(receiver, hook("cache_miss", "cache-a"), hook("cache_miss", "cache-b"))


def test_a_webhook_is_signed_with_the_key_of_a_reload(start, receiver, tmp_path):
    server = start(["channel_occupied"])
    path = tmp_path / "throng.toml"
    path.write_text(path.read_text().replace(APP["secret"], "a-newer-secret-of-24-byt"))
    count = server.log().count("SIGHUP: ")
    server.signal(signal.SIGHUP)
    eventually(lambda: server.log().count("SIGHUP: ") > count, "the reload")
    peer = Peer(server)
    peer.subscribe("news")
    eventually(lambda: receiver.requests, "the webhook")
    headers, body = receiver.requests[0]
    library = pusher.Pusher(app_id=APP["id"], key=APP["key"], secret="a-newer-secret-of-24-byt")
    assert library.validate_webhook(headers["x-pusher-key"], headers["x-pusher-signature"], body)
    assert headers["content-type"] == "application/json"


def test_what_waits_is_delivered_before_the_server_ends(start, receiver):
    server = start(["channel_occupied", "channel_vacated"])
    peer = Peer(server)
    peer.subscribe("news")
    peer.next()
    server.stop()
    # Nobody comes back to a server that has ended.
    expect(receiver, hook("channel_occupied", "news"), hook("channel_vacated", "news"))
