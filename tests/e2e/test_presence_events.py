"""Presence events: who joins and leaves a channel, over every transport."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest
import websockets.sync.client
from httpx_sse import EventSource

from support import NO_TLS, TIMEOUT_SECONDS
from support.access import SECRET, bearer, token
from support.server import Server, eventually
from support.transports import subscribe, target

GRACE_S = 2


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server on which every channel has presence events."""
    directory = tmp_path_factory.mktemp("server")
    flags = ["--presence-events", "--presence-grace", f"{GRACE_S}s", "--presence-max-named", 4]
    running = Server(directory, *flags, "--drain-window", "200ms", "--drain-timeout", "5s")
    yield running
    running.stop()


def connect(url, **options):
    """A WebSocket by a library."""
    options = {"proxy": None, "open_timeout": TIMEOUT_SECONDS, **options}
    return websockets.sync.client.connect(url, **options)


class Watcher:
    """A connection of a user that follows presence events. Its `lines` are all that it gets."""

    def __init__(self, server, transport, channel, **parameters):
        self.stack = ExitStack()
        self.transport = transport
        parameters = {"presence": "true", **parameters}
        self.lines = getattr(self, f"_{transport}")(server, f"/channels/{channel}", parameters)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()

    def next(self):
        """The next presence event."""
        return next(event for event in self.lines if event["type"] == "presence")

    def until(self, condition):
        """The events up to the first one for which this holds."""
        events = [self.next()]
        while not condition(events[-1]):
            events.append(self.next())
        return events

    def _open(self, server, path, headers):
        timeout = httpx.Timeout(TIMEOUT_SECONDS)
        client = httpx.Client(base_url=server.url, timeout=timeout, trust_env=False, verify=NO_TLS)
        self.stack.enter_context(client)
        response = self.stack.enter_context(client.stream("GET", path, headers=headers))
        assert response.status_code == 200, response.read()
        return response

    def _stream(self, server, path, parameters):
        response = self._open(server, target(path, None, {"envelope": "true", **parameters}), {})
        return (json.loads(line) for line in response.iter_lines() if line)

    def _plain(self, server, path, parameters):
        response = self._open(server, target(path, None, parameters), {})
        return (json.loads(line) for line in response.iter_lines() if line)

    def _sse(self, server, path, parameters):
        headers = {"Accept": "text/event-stream"}
        events = EventSource(self._open(server, target(path, None, parameters), headers))
        for event in events.iter_sse():
            if event.event == "presence":
                yield json.loads(event.data)

    def _websocket(self, server, path, parameters, **options):
        url = server.ws + target(path, None, parameters)
        self.socket = self.stack.enter_context(connect(url, **options))
        return (json.loads(self.socket.recv(TIMEOUT_SECONDS)) for _ in iter(int, 1))

    def _v1(self, server, path, parameters):
        return self._websocket(server, path, parameters, subprotocols=["throng.v1"])

    def _poll(self, server, path, parameters):
        """Asks again as soon as it is answered, also while nobody reads: it never goes by its absence."""
        client = httpx.Client(
            base_url=server.url, timeout=TIMEOUT_SECONDS, trust_env=False, verify=NO_TLS
        )
        executor = ThreadPoolExecutor(1)
        self.stack.callback(executor.shutdown, wait=False)
        query = {"envelope": "true", "wait": TIMEOUT_SECONDS // 2, **parameters}

        def poll():
            response = client.get(target(path, None, query))
            assert response.status_code in (200, 204), response.text
            if "Throng-Id" in response.headers:
                query["since"] = response.headers["Throng-Id"]
            events = [json.loads(line) for line in response.text.split("\n") if line]
            for event in events:
                if event["type"] == "presence":
                    query["presence"] = event["time"]
            return events, executor.submit(poll)

        answer = executor.submit(poll)
        while True:
            events, answer = answer.result(TIMEOUT_SECONDS)
            yield from events


TRANSPORTS = ["stream", "plain", "sse", "websocket", "v1", "poll"]


def users_of(event):
    return event["users"], event["connections"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_transport_tells_who_comes_and_goes(server, channel, transport):
    with Watcher(server, transport, channel, user="ann") as watcher:
        first = watcher.next()
        assert users_of(first) == (["ann"], 1) and first["more"] is False
        assert first["channel"] == channel
        with subscribe("sse", server, f"/channels/{channel}", user="bob"):
            # A watcher that polls is counted while it does, so that it may hear of itself, too.
            joined = watcher.until(lambda event: event["connections"] == 2)
            assert [user for event in joined for user in event["joined"]] == ["bob"]
            assert users_of(joined[-1]) == (["ann", "bob"], 2)
            with subscribe("stream", server, f"/channels/{channel}", user="bob"):
                second = watcher.until(lambda event: event["connections"] == 3)
                assert not any(event["joined"] for event in second)
                assert users_of(second[-1]) == (["ann", "bob"], 3)
            fewer = watcher.until(lambda event: event["connections"] == 2)
            assert not any(event["left"] for event in fewer)
            assert users_of(fewer[-1]) == (["ann", "bob"], 2)
        *before, left = watcher.until(lambda event: event["left"])
        is_exact = len(joined) == len(second) == len(fewer) == 1 and not before
        assert is_exact or transport == "poll"
        assert users_of(left) == (["ann"], 1) and left["joined"] == []
        (bob,) = left["left"]
        assert bob["user"] == "bob" and left["time"] - bob["last_seen"] >= GRACE_S * 1000


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_who_comes_later_is_told_at_once(server, channel, transport):
    with Watcher(server, "sse", channel, user="ann") as ann:
        ann.next()
        with Watcher(server, transport, channel) as watcher:
            assert watcher.next()["users"] == ["ann"]


def test_a_reconnect_within_the_grace_is_not_told(serve, channel):
    server = serve("--presence-events", "--presence-grace", "1m")
    with Watcher(server, "sse", channel, user="ann") as ann, ExitStack() as stack:
        ann.next()
        for _ in range(5):
            with subscribe("websocket", server, f"/channels/{channel}", user="bob"):
                server.wait_for_connections(channel, 2)
            server.wait_for_connections(channel, 1)
        stack.enter_context(subscribe("sse", server, f"/channels/{channel}", user="cy"))
        events = ann.until(lambda event: "cy" in event["users"])
        told = [user for event in events for user in event["joined"]]
        assert sorted(told) in (["bob", "cy"], ["cy"])
        assert not any(event["left"] for event in events)


def test_beyond_a_size_events_have_counts_only(server, channel):
    with Watcher(server, "v1", channel, user="ann") as watcher, ExitStack() as stack:
        watcher.next()
        for number in range(5):
            path = f"/channels/{channel}"
            stack.enter_context(subscribe("sse", server, path, user=f"u{number}"))
        (*_, crowded) = watcher.until(lambda event: event["connections"] == 6)
        assert crowded["more"] is True and crowded["users"] == []
        assert "joined" not in crowded and "left" not in crowded
        stack.close()
        (*_, alone) = watcher.until(lambda event: event["connections"] == 1)
        assert alone["users"] == ["ann"] and alone["more"] is False


def test_events_have_no_id_and_are_not_in_the_log(server, channel):
    with Watcher(server, "sse", channel, user="ann") as watcher:
        watcher.next()
    assert server.history(channel)["messages"] == []
    listed = server.http.get("/channels").json()["channels"]
    assert all(channel != each["channel"] or each["messages"] == 0 for each in listed)
    assert server.metrics()["throng_presence_events_total"] >= 1


def test_a_resumed_client_gets_messages_and_who_is_there(server, channel):
    first = server.publish(channel, "one")["id"]
    server.publish(channel, "two")
    with Watcher(server, "stream", channel, since=first) as watcher:
        kinds = {line["type"]: line for line in (next(watcher.lines), next(watcher.lines))}
        assert kinds["message"]["data"] == "two" and kinds["presence"]["connections"] == 1


def test_commands_of_v1(server, channel):
    with Watcher(server, "sse", channel, user="ann") as ann, ExitStack() as stack:
        ann.next()
        url = f"{server.ws}/subscribe"
        socket = stack.enter_context(connect(url, subprotocols=["throng.v1"]))

        def call(**command):
            socket.send(json.dumps(command))

        def receive():
            return json.loads(socket.recv(TIMEOUT_SECONDS))

        assert receive()["type"] == "welcome"
        call(type="subscribe", channel=channel, presence=True)
        assert receive()["type"] == "subscribed"
        state = receive()
        assert state["type"] == "presence" and state["users"] == ["ann"]
        call(type="subscribe", user="bob", ref=1)
        while receive()["type"] != "subscribed":
            pass
        while receive()["users"] != ["ann", "bob"]:
            pass
        call(type="unsubscribe", channel=channel, ref=2)
        while (answer := receive())["type"] == "presence":
            pass
        assert answer["type"] == "unsubscribed"
        *_, left = ann.until(lambda event: event["left"])
        assert left["users"] == ["ann"]
        call(type="ping")
        assert receive()["type"] == "pong", "an unsubscribed client gets no events"
        call(type="subscribe", user="bob2", presence=True)
        assert receive()["code"] == "bad_request"


def test_channels_have_events_by_pattern(tmp_path, serve, channel):
    (tmp_path / "throng.toml").write_text(
        '[[channels]]\nmatch = "rooms/*"\npresence-events = true\n'
    )
    server = serve()
    with Watcher(server, "sse", "rooms%2Fone", user="ann") as watcher:
        assert watcher.next()["channel"] == "rooms/one"
    response = server.http.get(f"/channels/{channel}?presence=true&wait=0")
    assert response.status_code == 400 and "presence-events" in response.json()["message"]


@pytest.mark.parametrize("transport", ["sse", "poll"])
def test_some_channels_of_a_connection_have_events(server, channel, transport):
    plain, query = f"{channel}-plain", {"transport": transport, "envelope": "true"}
    query = {"channel": [plain, channel], "presence": "false,true", "user": "ann", **query}
    if transport == "poll":
        told = server.http.get("/subscribe", params={**query, "wait": TIMEOUT_SECONDS}).json()
        assert (told["channel"], told["users"]) == (channel, ["ann"])
        return
    with server.http.stream("GET", "/subscribe", params=query) as response, ExitStack() as stack:
        events = (json.loads(each.data) for each in EventSource(response).iter_sse())
        told = [next(event for event in events if event.get("type") == "presence")]
        for each in (plain, channel):
            stack.enter_context(subscribe("sse", server, f"/channels/{each}", user="bob"))
        while "bob" not in told[-1]["users"]:
            told.append(next(events))
        assert {event["channel"] for event in told} == {channel}


def test_only_who_may_see_presence_gets_events(tmp_path, serve):
    settings = f"[[token-keys]]\nsecret = '{SECRET}'\n[presence]\nevents = true\ngrace = '100ms'\n"
    (tmp_path / "throng.toml").write_text(settings)
    server = serve()
    blind = token(throng={"subscribe": ["room"]})
    seeing = token(throng={"subscribe": ["room"], "presence": ["room"]})
    path = f"/channels/room?presence=true&user=ann&wait={TIMEOUT_SECONDS}"
    assert server.http.get(path, headers=bearer(blind)).status_code == 403
    assert server.http.get(path, headers=bearer(seeing)).json()["users"] == ["ann"]
    both = token(throng={"subscribe": ["room", "hall"], "presence": ["room"]})
    for presence, status in [("true", 403), ("true,true", 403), ("true,false", 200)]:
        path = f"/subscribe?channel=room&channel=hall&presence={presence}&wait={TIMEOUT_SECONDS}"
        assert server.http.get(path, headers=bearer(both)).status_code == status, presence
    path = f"/channels/room?presence=true&user=ann&wait={TIMEOUT_SECONDS}"
    with ExitStack() as stack:
        url = f"{server.ws}/channels/room?presence=true&user=ann&token={seeing}"
        socket = stack.enter_context(connect(url, subprotocols=["throng.v1"]))
        seen = []
        while not seen or seen[-1]["type"] != "presence":
            seen.append(json.loads(socket.recv(TIMEOUT_SECONDS)))
        socket.send(json.dumps({"type": "auth", "token": blind}))
        while seen[-1]["type"] != "error":
            seen.append(json.loads(socket.recv(TIMEOUT_SECONDS)))
        assert "presence events of room" in seen[-1]["message"]
        socket.send(json.dumps({"type": "ping"}))
        assert json.loads(socket.recv(TIMEOUT_SECONDS))["type"] == "pong"


def test_events_count_as_a_channel(serve, channel):
    limits = ["--max-channels-per-connection", 2, "--max-subscriptions-per-address", 4]
    server = serve("--presence-events", *limits)
    two = server.http.get("/subscribe?channel=a&channel=b&presence=true&wait=0")
    assert two.status_code == 400 and two.json()["error"] == "too_many_channels"
    path = f"/channels/{channel}?presence=true&wait=0"
    with Watcher(server, "sse", channel) as first:
        first.next()
        with Watcher(server, "v1", channel) as second:
            second.next()
            assert server.http.get(path).status_code == 429
        # Its place in the limit is free a moment after it has left the channel.
        eventually(lambda: server.http.get(path).status_code == 200, "the place of the second")


def test_large_events_are_compressed_and_whole(serve, channel):
    server = serve("--presence-events")
    with Watcher(server, "websocket", channel) as plain, Watcher(server, "v1", channel) as v1:
        names = [f"{number}{'x' * 240}" for number in range(8)]
        with ExitStack() as stack:
            for name in names:
                path = f"/channels/{channel}"
                stack.enter_context(subscribe("sse", server, path, user=name))
            for watcher in (plain, v1):
                (*_, last) = watcher.until(lambda event: event["connections"] == 10)
                assert last["users"] == names


def test_a_connection_with_kept_channels_gets_events(server, channel):
    user = f"u-{channel}"
    kept = {"channels": [f"{channel}-kept"]}
    server.http.put(f"/users/{user}/subscriptions", json=kept).raise_for_status()
    with Watcher(server, "v1", channel, user=user) as watcher:
        assert watcher.next()["users"] == [user]
        server.publish(f"{channel}-kept", "one")
        assert next(line for line in watcher.lines if line["type"] == "message")["data"] == "one"
        with subscribe("sse", server, f"/channels/{channel}", user="bob"):
            assert watcher.next()["joined"] == ["bob"]
    # Whoever follows a channel because the server keeps that is in it like all others.
    with Watcher(server, "sse", f"{channel}-kept") as watcher:
        watcher.next()
        with subscribe("websocket", server, f"/users/{user}"):
            assert watcher.until(lambda event: event["joined"])[-1]["joined"] == [user]


def test_a_browser_gets_events(server, node, chromium, channel):
    child = node("presence.mjs", chromium, server.url, channel)

    def receive():
        return json.loads(child.stdout.readline())

    assert receive()["users"] == ["page"]
    message = server.publish(channel, "hello")["id"]
    assert receive()["data"] == "hello"
    with subscribe("websocket", server, f"/channels/{channel}", user="ann"):
        joined = receive()
        assert joined["joined"] == ["ann"]
        # It resumes behind the message, as if the event had not been.
        assert joined["lastEventId"].split(",")[0] == message
    child.communicate(timeout=TIMEOUT_SECONDS)
