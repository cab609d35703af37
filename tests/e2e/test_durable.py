"""Durable channels: what was acknowledged is there after the end of the process, under its id."""

import itertools
import json
import os
import threading

import httpx
import pytest
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from support import NO_TLS, TIMEOUT_SECONDS
from support.durable import SETTINGS
from support.lists import names
from support.server import Server, eventually, run_throng
from support.transports import TRANSPORTS, subscribe

# `THRONG_KILLS=1000` for a long run.
KILLS = int(os.environ.get("THRONG_KILLS", "20"))


@pytest.fixture
def start(tmp_path):
    """Starts servers on one data directory and one port, one after the other."""
    (tmp_path / "throng.toml").write_text(SETTINGS)
    servers = []

    def start_next(*flags, port=None):
        if port is None:
            port = servers[-1].port if servers else 0
        flags = ["--data", tmp_path / "data", "--drain-window", "0ms", *flags]
        servers.append(Server(tmp_path, *flags, port=port))
        return servers[-1]

    yield start_next
    if servers[-1].process.poll() is None:
        servers[-1].stop()


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ids_resume_over_a_restart(start, transport, is_killed):
    first = start()
    with subscribe(transport, first, "/channels/kept") as subscriber:
        first.publish("kept", "heard")
        id, data = subscriber.next()
        assert data == "heard"
    missed = [first.publish("kept", f"missed {n}")["id"] for n in range(3)]
    (first.kill if is_killed else first.stop)()
    second = start()
    with subscribe(transport, second, "/channels/kept", since=id) as subscriber:
        assert subscriber.recovered is True
        live = second.publish("kept", "live")["id"]
        got = [subscriber.next() for _ in range(4)]
    assert [id for id, _ in got] == [*missed, live]
    assert [data for _, data in got] == ["missed 0", "missed 1", "missed 2", "live"]
    page = second.http.get("/channels/kept/history").json()
    assert [message["data"] for message in page["messages"]][0] == "heard"


def test_an_inbox_and_read_markers_outlive_the_process(start):
    first = start()
    ids = [first.http.post("/users/ann", content=f"letter {n}").json()["id"] for n in range(3)]
    read = first.http.put("/users/ann/read", params={"id": ids[1]}).json()
    assert (read["read"], read["unread"]) == (ids[1], 1)
    last = [first.publish("kept", str(number))["id"] for number in range(3)][1]
    marked = first.http.put("/channels/kept/read", params={"reader": "ann", "id": last}).json()
    assert marked == {"channel": "kept", "read": last, "unread": 1}
    first.stop()
    second = start()
    assert second.http.get("/channels/kept/read", params={"reader": "ann"}).json() == marked
    read = second.http.get("/users/ann/read").json()
    assert (read["read"], read["unread"]) == (ids[1], 1)
    with subscribe("websocket", second, "/users/ann", since=ids[1]) as subscriber:
        assert (subscriber.recovered, subscriber.take(1)) == (True, ["letter 2"])
    assert names(second, "/users") == ["ann"]


def test_pages_in_a_browser_get_what_they_missed(start, node, chromium):
    first = start()
    page = node("comeback.mjs", chromium, first.url, "kept")

    def read(count):
        lines = [json.loads(page.stdout.readline()) for _ in range(count)]
        return {(line["way"], line["data"]) for line in lines}

    assert read(1) == {("page", "ready")}
    first.wait_for_connections("kept", 3)
    first.publish("kept", "before")
    ways = ["EventSource", "WebSocket", "Throng"]
    assert read(3) == {(way, "before") for way in ways}
    first.kill()
    # Where the page does not look.
    other = start(port=0)
    other.publish("kept", "missed")
    other.stop()
    second = start(port=first.port)
    # A plain WebSocket of a page knows no id after which it could go on.
    assert read(2) == {("EventSource", "missed"), ("Throng", "missed")}
    second.wait_for_connections("kept", 3)
    second.publish("kept", "after")
    assert read(3) == {(way, "after") for way in ways}
    page.communicate(timeout=TIMEOUT_SECONDS)


def test_a_user_of_kept_channels_resumes_over_a_restart(start):
    first = start()
    channels = {"channels": ["kept:a", "kept:b", "brief"]}
    assert first.http.put("/users/ann/subscriptions", json=channels).status_code == 200
    with subscribe("sse", first, "/users/ann") as subscriber:
        first.publish("kept:a", "heard")
        id, data = subscriber.next()
        assert data == "heard" and id.startswith("~")
    first.publish("kept:b", "missed")
    first.http.post("/users/ann", content="letter")
    first.kill()
    second = start()
    for transport in TRANSPORTS:
        # All but the channel that is not kept on disk, whose messages are lost with the process.
        with subscribe(transport, second, "/users/ann", since=id) as subscriber:
            assert subscriber.take(2) == ["missed", "letter"]
            # A channel that begins to be kept is followed at once.
            added = {"add": [f"kept:{transport}"]}
            assert second.http.post("/users/ann/subscriptions", json=added).status_code == 200
            if transport != "poll":
                second.publish(f"kept:{transport}", "added")
                assert subscriber.take(1) == ["added"]


# Of each key the newest stays, and of the others five messages.
STATES = """
[[channels]]
match = "states"
durable = true
messages = 5
max-lag-messages = 100000
max-lag-bytes = "64MiB"
"""


class Setter(threading.Thread):
    """Sets and removes a key until it is acknowledged, one change after the other."""

    def __init__(self, server, key):
        super().__init__(daemon=True)
        self.path, self.key = f"{server.url}/channels/states/state/{key}", key
        self.value, self.count, self.error = None, 0, None
        self.ending = threading.Event()

    def change(self, client, number):
        value = None if number % 7 == 6 else str(number)
        while True:
            try:
                answer = client.delete(self.path) if value is None else client.put(self.path, content=value)
            except httpx.HTTPError:
                continue
            # One that was removed before the server was killed is not there the second time.
            if answer.status_code == 201 or (value is None and answer.status_code == 404):
                return value
            assert answer.status_code in (503, 504), answer.text

    def run(self):
        try:
            with httpx.Client(timeout=TIMEOUT_SECONDS, trust_env=False) as client:
                while not self.ending.is_set():
                    self.value = self.change(client, self.count)
                    self.count += 1
        except Exception as error:  # the test reports it
            self.error = error


def test_a_state_is_as_it_was_acknowledged_after_kills(start, tmp_path):
    (tmp_path / "throng.toml").write_text(STATES)
    server = start()
    kept = server.http.put("/channels/states/state/kept", content="from the beginning").json()["id"]
    setters = [Setter(server, f"key {number}") for number in range(6)]
    for setter in setters:
        setter.start()
    for _ in range(max(3, KILLS // 4)):
        counts = [setter.count for setter in setters]
        more = lambda: all(it.error or it.count > count + 8 for it, count in zip(setters, counts, strict=True))  # noqa: B023, E731
        eventually(more, "changes")
        server.kill()
        server = start()
    for setter in setters:
        setter.ending.set()
        setter.join(TIMEOUT_SECONDS)
        assert setter.error is None, setter.error
    expected = {setter.key: setter.value for setter in setters if setter.value is not None}
    expected["kept"] = "from the beginning"
    for end in ("kill", "stop", None):
        page = server.http.get("/channels/states/state").json()["messages"]
        assert {it["state_key"]: it["data"] for it in page} == expected
        with subscribe("stream", server, "/channels/states", since=kept, state="true") as subscriber:
            assert subscriber.recovered is True, "all that is gone is superseded"
            seen, count = {}, len(setters)
            while len(seen) < count:
                message = subscriber.next_line()
                if message["type"] == "message":
                    seen[message["state_key"]] = message["data"]
            assert {key: value for key, value in seen.items() if value is not None} | {
                "kept": "from the beginning"
            } == expected
        if end is not None:
            getattr(server, end)()
            server = start()
    server.stop()
    checked = run_throng("data", "check", tmp_path / "data", directory=tmp_path)
    assert checked.returncode == 0, checked.stdout


def test_an_idempotency_key_holds_over_a_restart(start):
    first = start()
    publish = {"url": "/channels/kept", "content": "once", "headers": {"Idempotency-Key": "1"}}
    id = first.http.post(**publish).json()["id"]
    first.kill()
    second = start()
    again = second.http.post(**publish).json()
    assert (again["id"], again["duplicate"]) == (id, True)


def test_other_channels_are_forgotten_as_before(start):
    first = start()
    id = first.publish("brief", "gone")["id"]
    first.stop()
    second = start()
    with subscribe("sse", second, "/channels/brief", since=id) as subscriber:
        assert subscriber.recovered is False
        second.publish("brief", "new")
        assert subscriber.take(1) == ["new"]


def kept_messages(server):
    page = server.http.get("/channels/kept/history").json()
    return [message["data"] for message in page["messages"]]


def test_limits_that_are_lower_after_a_restart_hold_for_a_quiet_channel(start, tmp_path):
    first = start()
    for n in range(5):
        first.publish("kept", f"{n}")
    assert kept_messages(first) == ["0", "1", "2", "3", "4"]
    first.stop()
    lower = SETTINGS.replace("messages = 100000\nbytes", "messages = 2\nbytes")
    assert lower != SETTINGS
    (tmp_path / "throng.toml").write_text(lower)
    second = start()
    eventually(lambda: kept_messages(second) == ["3", "4"], "the limit")


def test_messages_are_back_when_a_channel_is_durable_again(start, tmp_path):
    first = start()
    id = first.publish("kept", "first")["id"]
    first.stop()
    (tmp_path / "throng.toml").write_text("")
    second = start()
    assert kept_messages(second) == []
    assert second.publish("kept", "in memory")["id"] != id
    second.stop()
    (tmp_path / "throng.toml").write_text(SETTINGS)
    third = start()
    with subscribe("sse", third, "/channels/kept", since=id) as subscriber:
        assert subscriber.recovered is True
        third.publish("kept", "third")
        assert subscriber.take(1) == ["third"]
    assert kept_messages(third) == ["first", "third"]


def test_a_name_that_nobody_uses_is_forgotten_and_its_ids_are_not_repeated(start, tmp_path):
    (tmp_path / "throng.toml").write_text(
        SETTINGS + '[[channels]]\nmatch = "quick*"\ndurable = true\nage = "1s"\n'
    )
    first = start()
    ids = [first.publish("quick", f"{n}")["id"] for n in range(3)]
    first.publish("quick followed", "gone")
    kept = first.publish("kept", "stays")["id"]
    with subscribe("sse", first, "/channels/quick%20followed") as follower:
        forgotten = "throng_data_channels_forgotten_total"
        eventually(lambda: first.metrics()[forgotten] == 1, "the name is forgotten")
        first.publish("quick followed", "live")
        assert follower.take(1) == ["live"]
    first.kill()
    second = start()
    eventually(lambda: second.metrics()["throng_data_channels"] == 2, "the names are counted")
    with subscribe("sse", second, "/channels/quick", since=ids[0]) as subscriber:
        assert subscriber.recovered is False
        ids.append(second.publish("quick", "new")["id"])
        assert subscriber.next() == (ids[-1], "new")
    offsets = [int(id.rpartition("-")[2]) for id in ids]
    assert offsets == sorted(set(offsets))
    assert len({id.rpartition("-")[0] for id in [*ids, kept]}) == 1
    with subscribe("sse", second, "/channels/quick", since=ids[-1]) as subscriber:
        assert subscriber.recovered is True
    assert kept_messages(second) == ["stays"]


def test_the_status_has_what_the_directory_takes_and_does(start):
    server = start("--data-max-bytes", "1GiB")
    for n in range(3):
        server.publish("kept", f"{n}")
    server.publish("brief", "this")
    data = {}

    def is_counted():
        data.update(server.http.get("/status.json").json()["data"])
        return data["messages"]["total"] == 3 and data["disk_bytes"] > 0

    eventually(is_counted, "three messages")
    assert data["message_bytes"]["total"] == 3
    assert 1 <= data["commits"]["minute"]["count"] <= 3
    assert data["commits"]["minute"]["p99_ms"] > 0
    assert (data["limit_bytes"], data["refuses"]) == (1 << 30, None)


def test_beyond_the_limit_of_the_directory_only_durable_publications_are_refused(start, tmp_path):
    first = start()
    id = first.publish("kept", "before")["id"]
    first.stop()
    limited = start("--data-max-bytes", "256MiB")
    # What counts is what the disk has given, whoever has asked for it.
    filler = tmp_path / "data/store/filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 256 << 20)

    def publish():
        return limited.http.post("/channels/kept", content="x")

    eventually(lambda: publish().status_code == 507, "a refusal")
    answer = publish()
    assert answer.json()["error"] == "not_stored"
    assert "beyond `data-max-bytes`" in answer.json()["message"]
    ready = limited.http.get("/health/ready").json()
    assert [reason["reason"] for reason in ready["reasons"]] == ["data_over_limit"]
    eventually(lambda: "is beyond `data-max-bytes`" in limited.log(), "a line in the log")

    def refuses():
        return limited.http.get("/status.json").json()["data"]["refuses"]

    eventually(lambda: refuses() == "limit", "the reason in the status")
    assert limited.http.post("/channels/brief", content="x").status_code == 201
    with subscribe("sse", limited, "/channels/kept", since=id) as subscriber:
        assert subscriber.recovered is True
    filler.unlink()
    eventually(lambda: publish().status_code == 201, "room")


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_directory_that_is_moved_is_not_begun_anew(start, tmp_path, is_replaced):
    server = start("--canary-interval", "0")
    ids = [server.publish("kept", f"{n}")["id"] for n in range(3)]
    data, aside = tmp_path / "data", tmp_path / "aside"
    data.rename(aside)
    if is_replaced:
        (data / "store").mkdir(parents=True)

    def publish():
        return server.http.post("/channels/kept", content="again").status_code

    def is_degraded():
        reasons = server.http.get("/health/ready").json()["reasons"]
        return [reason["reason"] for reason in reasons] == ["data_failed"]

    # What is open is still written, until the server looks at the path.
    eventually(lambda: publish() in (503, 504), "a refusal")
    eventually(is_degraded, "a server that says so")
    assert server.http.post("/channels/other", content="x").status_code == 201
    assert not any(path.is_file() for path in data.rglob("*"))
    why = "its directory has been replaced" if is_replaced else "its directory is not there"
    eventually(lambda: why in server.log(), server.log)
    if is_replaced:
        (data / "store").rmdir()
        data.rmdir()
    aside.rename(data)
    eventually(lambda: publish() == 201, "a server that goes on by itself")
    messages = server.http.get("/channels/kept/history").json()["messages"]
    assert [message["id"] for message in messages][:3] == ids
    found = [message["id"] for message in messages]
    assert len(set(found)) == len(found)
    server.stop()
    checked = run_throng("data", "check", data, directory=tmp_path)
    assert checked.returncode == 0, checked.stdout


def test_a_limit_that_the_empty_directory_reaches_is_refused(tmp_path):
    flags = ["--data", tmp_path / "data", "--data-max-bytes", "10MiB"]
    done = run_throng("serve", "--listen", "127.0.0.1:0", *flags, directory=tmp_path)
    assert done.returncode == 78
    assert "data-max-bytes (10MiB) is less than 256MiB" in done.stderr


def test_durable_channels_need_a_directory(tmp_path):
    (tmp_path / "throng.toml").write_text(SETTINGS)
    done = run_throng("serve", "--listen", "127.0.0.1:0", directory=tmp_path)
    assert done.returncode == 78
    assert "set `data`" in done.stderr


class Publisher(threading.Thread):
    """Publishes numbered messages, each with a key, until it is acknowledged."""

    def __init__(self, url, name, send):
        super().__init__(daemon=True)
        self.url, self.prefix, self.send = url, name, send
        self.acknowledged = []
        self.ending = threading.Event()
        self.error = None

    def run(self):
        try:
            for number in itertools.count():
                text = f"{self.prefix} {number}"
                while (id := self.send(self.url, text)) is None:
                    pass
                self.acknowledged.append((id, text))
                if self.ending.is_set():
                    return
        except Exception as error:  # the test reports it
            self.error = error


def over_http(url, text):
    """Publishes over HTTP; returns the id, or None if it is not known what became of it."""
    try:
        headers = {"Idempotency-Key": text}
        answer = httpx.post(
            f"{url}/channels/kept",
            content=text,
            headers=headers,
            timeout=TIMEOUT_SECONDS,
            trust_env=False,
            verify=NO_TLS,
        )
    except httpx.HTTPError:
        return None
    if answer.status_code in (503, 504):
        return None
    assert answer.status_code in (200, 201), answer.text
    return answer.json()["id"]


def over_websocket(url, text):
    """The same with `throng.v1`."""
    command = {"type": "publish", "channel": "kept", "data": text, "key": text}
    try:
        with connect(
            url.replace("http", "ws", 1) + "/subscribe",
            subprotocols=["throng.v1"],
            proxy=None,
            open_timeout=TIMEOUT_SECONDS,
        ) as socket:
            socket.send(json.dumps(command))
            while True:
                answer = json.loads(socket.recv(timeout=TIMEOUT_SECONDS))
                if answer["type"] in ("published", "error"):
                    break
    except (OSError, EOFError, TimeoutError, WebSocketException):
        return None
    if answer["type"] == "error":
        assert answer["error"] in ("unavailable", "outcome_unknown", "draining", "busy"), answer
        return None
    return answer["id"]


class Reader(threading.Thread):
    """Follows the channel, and resumes after its last id whenever the server was killed."""

    def __init__(self, server, transport, id):
        super().__init__(daemon=True)
        self.server, self.transport, self.id = server, transport, id
        self.got = []
        self.ending = threading.Event()
        self.error = None

    def run(self):
        while not self.ending.is_set() and self.error is None:
            try:
                with subscribe(self.transport, self.server, "/channels/kept", self.id) as reader:
                    if reader.recovered is not True:
                        raise ValueError(f"{self.transport}: not recovered after {self.id}")
                    while not self.ending.is_set():
                        self.id, data = reader.next()
                        self.got.append((self.id, data))
            except ValueError as error:
                self.error = error
            except (httpx.HTTPError, OSError, EOFError, StopIteration, RuntimeError):
                pass
            except (WebSocketException, AssertionError, TimeoutError):
                pass


# A start takes longer on a machine that does other things, and there may be a thousand.
@pytest.mark.timeout(300 + 10 * KILLS)
def test_kills_lose_nothing_and_repeat_nothing(start):
    server = start()
    first = server.publish("kept", "first")["id"]
    publishers = [
        Publisher(server.url, f"{send.__name__} {n}", send)
        for n, send in itertools.product(range(2), (over_http, over_websocket))
    ]
    readers = [Reader(server, transport, first) for transport in TRANSPORTS]
    for thread in [*publishers, *readers]:
        thread.start()
    for _ in range(KILLS):
        counts = [len(publisher.acknowledged) for publisher in publishers]
        more = lambda: all(  # noqa: E731
            publisher.error or len(publisher.acknowledged) > count + 1
            for publisher, count in zip(publishers, counts, strict=True)
        )
        eventually(more, "acknowledgements")  # noqa: B023
        server.kill()
        server = start()
    for publisher in publishers:
        publisher.ending.set()
        publisher.join(TIMEOUT_SECONDS)
        assert publisher.error is None and not publisher.is_alive(), publisher.error
    last = server.publish("kept", "last")["id"]
    for reader in readers:
        eventually(lambda: reader.error or reader.id == last, "the last message")  # noqa: B023
        reader.ending.set()
        assert reader.error is None, reader.error
    server.publish("kept", "so that each reader sees that it ends")
    acknowledged = {id: text for publisher in publishers for id, text in publisher.acknowledged}
    for reader in readers:
        got = [(id, text) for id, text in reader.got if id in acknowledged or text == "last"]
        texts = [text for _, text in reader.got]
        assert len(texts) == len(set(texts)), f"{reader.transport} got a message twice"
        offsets = [int(id.rpartition("-")[2]) for id, _ in reader.got]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets))), reader.transport
        assert dict(got).items() >= acknowledged.items(), reader.transport
    for publisher in publishers:
        texts = [text for _, text in readers[0].got if text.startswith(publisher.prefix)]
        assert texts == [text for _, text in publisher.acknowledged]
