"""State by key: the newest message of each key, over real sockets and by clients of other projects."""

import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest
from websockets.sync.client import connect

from support import TIMEOUT_SECONDS
from support.nats import NatsServer, connected
from support.raw import RawWebSocket
from support.server import Server
from support.transports import Stream, subscribe

TRANSPORTS = ["stream", "sse", "websocket"]

# Where the state is.
PLACES = ["memory", "disk"]


def flags_of(place, directory):
    """The flags of a server whose channels are there."""
    if place == "memory":
        return []
    (directory / "durable.toml").write_text("[[channels]]\nmatch = '*'\ndurable = true\n")
    return ["--config", directory / "durable.toml", "--data", directory / "data"]


@pytest.fixture(scope="module", params=[*PLACES, "nats"])
def server(request, tmp_path_factory):
    """A server in whose memory, on whose disk, or in whose stream the states are."""
    directory = tmp_path_factory.mktemp("server")
    quick = ["--drain-window", "200ms", "--drain-timeout", "5s"]
    with contextlib.ExitStack() as stack:
        if request.param == "nats":
            (directory / "nats").mkdir()
            broker = NatsServer(directory / "nats")
            stack.callback(broker.stop)
            (directory / "keys.toml").write_text("[[channels]]\nmatch = '*'\nkeys = 10_000\n")
            flags = ["--config", directory / "keys.toml", "--engine", "nats", "--nats", broker.url]
            running = connected(Server(directory, *quick, *flags))
        else:
            running = Server(directory, *quick, *flags_of(request.param, directory))
        stack.callback(running.stop)
        yield running


def at(channel, key=None):
    """The path of a channel's state, or of one of its keys."""
    return f"/channels/{channel}/state" + ("" if key is None else f"/{quote(key, safe='')}")


def put(server, channel, key, value, **headers):
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return server.http.put(at(channel, key), content=value, headers=named)


def set_key(server, channel, key, value, **headers):
    """Sets a key; returns the id of its message."""
    answer = put(server, channel, key, value, **headers)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def remove(server, channel, key, **headers):
    answer = server.http.delete(at(channel, key), headers=headers)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def refused(answer):
    return answer.status_code, answer.json()["error"]


def short(envelope):
    """An envelope as a test compares it: a key and its value, a removed key, a text, or a notice."""
    if envelope["type"] == "conflated":
        return ("conflated", envelope["count"])
    if envelope["type"] != "message":
        return (envelope["type"],)
    if envelope.get("tombstone"):
        assert envelope["data"] is None, envelope
        return (envelope["state_key"], None)
    return (envelope["state_key"], envelope["data"]) if "state_key" in envelope else envelope["data"]


class Follower:
    """A subscription over one of the transports that shows all envelopes, notices among them."""

    def __init__(self, transport, server, channel, since=None, **parameters):
        path = f"/channels/{channel}"
        self.transport = transport
        self.subscriber = subscribe(transport, server, path, since, **parameters)
        self.recovered = self.subscriber.recovered

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.subscriber.close()

    def next(self):
        """The next envelope."""
        if self.transport == "stream":
            return self.subscriber.next_line()
        if self.transport == "websocket":
            return json.loads(self.subscriber.socket.recv(timeout=TIMEOUT_SECONDS))
        event = next(event for event in self.subscriber.events if event.data)
        body = json.loads(event.data)
        return body if event.event == "message" else {**body, "type": event.event}

    def take(self, count):
        return [short(self.next()) for _ in range(count)]

    def state(self):
        """The keys up to the end of the state; those that are gone may be among them, as such."""
        values = iter(lambda: short(self.next()), ("state",))
        return [(key, value) for key, value in values if value is not None]


def test_a_key_is_set_read_and_removed(server, channel):
    id = set_key(server, channel, "ACME", "187.4")
    answer = server.http.get(at(channel, "ACME"))
    assert answer.headers["ETag"] == f'"{id}"'
    assert answer.headers["Throng-Id"] == id
    envelope = answer.json()
    assert envelope.pop("time") > 0
    message = {"type": "message", "channel": channel, "id": id, "state_key": "ACME", "data": "187.4"}
    assert envelope == message
    newer = set_key(server, channel, "ACME", '{"bid":1}', Content_Type="application/json")
    assert server.http.get(at(channel, "ACME")).json()["data"] == {"bid": 1}
    gone = remove(server, channel, "ACME")
    assert refused(server.http.get(at(channel, "ACME"))) == (404, "not_found")
    assert refused(server.http.delete(at(channel, "ACME"))) == (404, "not_found")
    # They are messages like any other.
    messages = server.history(channel)["messages"]
    assert [it["id"] for it in messages] == [id, newer, gone]
    assert (messages[-1]["tombstone"], messages[-1]["state_key"]) == (True, "ACME")


def test_curl_sets_a_key_and_follows_the_state(server, channel, curl):
    answer = json.loads(curl(at(channel, "ACME"), "-X", "PUT", "-d", "187.4"))
    assert answer["subscribers"] == 0
    value, end = curl(f"/channels/{channel}?state=true&wait=0").splitlines(), answer["id"]
    assert [json.loads(line)["id"] for line in value] == [end]
    named = json.loads(curl(f"/state?channel={channel}&key=ACME"))
    assert (named["id"], named["data"]) == (end, "187.4")
    assert "id" in json.loads(curl(at(channel, "ACME"), "-X", "DELETE"))


def test_a_page_has_keys_by_prefix_in_their_order(server, channel):
    lines = [f"eu/{number:03}" for number in range(250)] + ["us/a", "é", "a b%"]
    published = server.publish_batch(
        [{"channel": channel, "state_key": key, "data": key.upper()} for key in reversed(lines)]
    )
    last = published[-1]["id"]

    def page(**parameters):
        body = server.http.get(at(channel), params=parameters).json()
        assert body["id"] == last
        return [message["state_key"] for message in body["messages"]], body.get("next")

    got, next = page(prefix="eu/")
    assert (got, next) == (lines[:100], lines[99])
    pages = list(got)
    while next is not None:
        got, next = page(prefix="eu/", after=next)
        pages += got
    assert pages == lines[:250]
    everything, next = page(limit=1000)
    assert (everything, next) == (sorted(lines, key=str.encode), None)
    assert page(prefix="nobody") == ([], None)
    assert page(after="us/a") == (["é"], None)
    assert server.http.get(at(channel, "a b%")).json()["data"] == "A B%"
    for wrong in ({"limit": 1001}, {"limit": "x"}, {"prefx": "a"}, {"key": "é", "prefix": "e"}):
        assert server.http.get(at(channel), params=wrong).status_code == 400, wrong


def test_if_match_lets_one_of_two_writers_win(server, channel):
    first = put(server, channel, "turn", "ann", If_None_Match="*")
    assert first.status_code == 201, first.text
    assert refused(put(server, channel, "turn", "bob", If_None_Match="*")) == (412, "conflict")
    id = first.json()["id"]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(20):
            write = lambda name: put(server, channel, "turn", name, If_Match=f'"{id}"')
            answers = list(threads.map(write, "abcdefgh"))
            won = [answer for answer in answers if answer.status_code == 201]
            lost = [refused(answer) for answer in answers if answer.status_code != 201]
            assert (len(won), lost) == (1, [(412, "conflict")] * 7)
            id = won[0].json()["id"]
            assert server.http.get(at(channel, "turn")).headers["ETag"] == f'"{id}"'
    # The newest message is named, so that the next attempt needs no further request.
    lost = server.http.delete(at(channel, "turn"), headers={"If-Match": f'"{first.json()["id"]}"'})
    assert refused(lost) == (412, "conflict") and id in lost.json()["message"]
    assert server.http.delete(at(channel, "turn"), headers={"If-Match": f'"{id}"'}).status_code == 201


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_state_comes_first_and_ends_with_a_notice(server, channel, transport):
    for key, value in [("a", "old"), ("b", "1"), ("gone", "x"), ("a", "2")]:
        set_key(server, channel, key, value)
    remove(server, channel, "gone")
    server.publish(channel, "no key")
    with Follower(transport, server, channel, state="true") as follower:
        assert follower.take(2) == [("b", "1"), ("a", "2")]
        notice = follower.next()
        assert notice == {"type": "state", "channel": channel, "id": notice["id"]}
        assert notice["id"] == server.history(channel)["id"]
        set_key(server, channel, "b", "3")
        server.publish(channel, "hello")
        remove(server, channel, "a")
        assert follower.take(3) == [("b", "3"), "hello", ("a", None)]


def test_a_state_comes_over_throng_v1(server, channel):
    other = f"{channel}-other"
    set_key(server, channel, "a", "1")
    with connect(f"{server.ws}/subscribe", subprotocols=["throng.v1"], proxy=None) as socket:

        def ask(**command):
            socket.send(json.dumps(command))

        def frames(count):
            return [json.loads(socket.recv(timeout=TIMEOUT_SECONDS)) for _ in range(count)]

        assert frames(1)[0]["type"] == "welcome"
        ask(type="subscribe", channel=channel, state=True)
        subscribed, *state = frames(3)
        assert subscribed["type"] == "subscribed"
        assert [short(frame) for frame in state] == [("a", "1"), ("state",)]
        # An empty one has a notice all the same, also in a list.
        ask(type="subscribe", channels=[{"channel": other, "state": True}])
        subscribed, notice = frames(2)
        assert (subscribed["type"], notice["type"], notice["channel"]) == ("subscribed", "state", other)
        ask(type="publish", channel=other, state_key="k", data=[1], echo=True)
        both = sorted(frames(2), key=lambda frame: frame["type"])
        assert [both[0]["type"], both[1]["type"]] == ["message", "published"]
        assert short(both[0]) == ("k", [1])
        ask(type="publish", channel=other, state_key="k", tombstone=True)
        both = sorted(frames(2), key=lambda frame: frame["type"])
        assert short(both[0]) == ("k", None)


def test_a_long_poll_says_when_it_has_the_whole_state(server, channel):
    value = "x" * 60_000
    for n in range(40):
        set_key(server, channel, f"key {n}", value)
    keys, poll, told = set(), {"wait": 0, "state": "true"}, []
    while "whole" not in told:
        answer = server.http.get(f"/channels/{channel}", params=poll)
        assert answer.status_code == 200, answer.text
        keys |= {json.loads(line)["state_key"] for line in answer.text.splitlines()}
        told.append(answer.headers["throng-state"])
        poll["since"] = answer.headers["throng-id"]
    assert told == ["part", "part", "whole"] and len(keys) == 40
    answer = server.http.get(f"/channels/{channel}", params=poll)
    assert (answer.status_code, answer.headers["throng-state"]) == (204, "whole")
    other = server.http.get(f"/channels/{channel}", params={"wait": 0, "history": 1})
    assert "throng-state" not in other.headers


def test_a_long_poll_answers_with_the_values(server, channel):
    set_key(server, channel, "a", "1")
    server.publish(channel, "no key")

    def poll(**parameters):
        return server.http.get(f"/channels/{channel}", params={"wait": 30, "state": "true", **parameters})

    answer = poll()
    assert [short(json.loads(line)) for line in answer.text.splitlines()] == [("a", "1")]
    id = set_key(server, channel, "a", "2")
    answer = poll(since=answer.headers["Throng-Id"])
    assert [short(json.loads(line)) for line in answer.text.splitlines()] == [("a", "2")]
    assert (answer.headers["Throng-Id"], answer.headers["Throng-Recovered"]) == (id, "true")
    # A channel without a key has an answer, too.
    answer = server.http.get(f"/channels/{channel}-empty", params={"wait": 30, "state": "true"})
    assert answer.status_code in (200, 204) and answer.text == ""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_resume_brings_the_newest_of_what_has_changed(server, channel, transport):
    set_key(server, channel, "same", "0")
    since = set_key(server, channel, "a", "1")
    # Far more than the history keeps.
    lines = [{"channel": channel, "state_key": key, "data": str(n)} for n in range(500) for key in "abc"]
    server.publish_batch(lines)
    remove(server, channel, "c")
    with Follower(transport, server, channel, since=since, state="true") as follower:
        assert follower.recovered is True
        seen = [first := follower.next()]
        if first["type"] not in ("message",):
            seen = []
        while not seen or short(seen[-1]) != ("c", None):
            seen.append(follower.next())
        assert [short(it) for it in seen if it.get("state_key")] == [("a", "499"), ("b", "499"), ("c", None)]
    foreign = f"zzzzzz-{since.rpartition('-')[2]}"
    with Follower(transport, server, channel, since=foreign, state="true") as follower:
        assert follower.recovered is False
        assert follower.state() == [("same", "0"), ("a", "499"), ("b", "499")]


def test_an_erased_value_is_gone_from_the_state(server, channel):
    with Follower("sse", server, channel, state="true") as follower:
        assert follower.take(1) == [("state",)]
        id = set_key(server, channel, "ann", "secret")
        assert follower.take(1) == [("ann", "secret")]
        erased = server.http.delete(f"/channels/{channel}/messages/{id}")
        assert erased.status_code == 200, erased.text
        assert follower.take(2) == [("erased",), ("ann", None)]
    assert server.http.get(at(channel)).json()["messages"] == []


def test_an_erased_tombstone_leaves_another_one(server, channel):
    before = set_key(server, channel, "ann", "here")
    id = remove(server, channel, "ann")
    with Follower("sse", server, channel, state="true") as follower:
        assert follower.state() in ([], [("ann", None)])
        erased = server.http.delete(f"/channels/{channel}/messages/{id}")
        assert erased.status_code == 200, erased.text
        assert sorted(map(str, follower.take(2))) == sorted(map(str, [("erased",), ("ann", None)]))
    # So who was away learns of it.
    with Follower("sse", server, channel, since=before, state="true") as follower:
        assert follower.recovered is True
        told = []
        while not told or not told[-1].get("tombstone"):
            told.append(follower.next())
        assert short(told[-1]) == ("ann", None) and told[-1]["id"] != id, told


def test_a_tombstone_does_not_expire(server, channel):
    """Who comes back after that would not learn that the key is gone."""
    set_key(server, channel, "ann", "here")
    with_expiry = server.http.delete(at(channel, "ann"), headers={"Throng-Expires-In": "1"})
    assert refused(with_expiry) == (400, "bad_parameter")
    line = {"channel": channel, "state_key": "ann", "tombstone": True, "expires_in": 1}
    assert server.publish_batch([line])[0]["error"] == "bad_request"
    assert server.http.get(at(channel, "ann")).json()["data"] == "here"


def test_a_value_that_expires_removes_its_key(server, channel):
    with Follower("sse", server, channel, state="true") as follower:
        assert follower.take(1) == [("state",)]
        set_key(server, channel, "ann", "typing", Throng_Expires_In="1")
        set_key(server, channel, "bob", "typing", Throng_Expires_In="1")
        # A newer value puts it off.
        set_key(server, channel, "bob", "here")
        assert follower.take(4) == [("ann", "typing"), ("bob", "typing"), ("bob", "here"), ("ann", None)]
    page = server.http.get(at(channel)).json()
    assert [message["state_key"] for message in page["messages"]] == ["bob"]


def test_keys_have_limits(server, channel):
    longest = "é" * 127 + "k"
    assert len(longest.encode()) == 255
    set_key(server, channel, longest, "1")
    assert server.http.get(at(channel, longest)).json()["state_key"] == longest
    for key in ("x" * 256, "x" * 10_000, "a\nb", "\x7f"):
        assert refused(put(server, channel, key, "1")) == (400, "bad_parameter"), key[:300]
        by_query = server.http.put(at(channel), params={"key": key}, content="1")
        assert refused(by_query) == (400, "bad_parameter"), key[:300]
        line = {"channel": channel, "state_key": key, "data": "1"}
        assert server.publish_batch([line])[0]["error"] == "bad_request", key[:300]
    for path in (f"{at(channel)}?key=", f"{at(channel)}/", at(channel)):
        answer = server.http.put(path, content="1")
        assert answer.status_code in (400, 404), (path, answer.status_code, answer.text)
    assert server.publish_batch([{"channel": channel, "state_key": "", "data": "1"}])[0]["error"] == "bad_request"
    volatile = {"channel": channel, "state_key": "k", "data": "1", "volatile": True}
    assert "error" in server.publish_batch([volatile])[0]


# How many keys are tried.
MANY, BATCH = 1_000_000, 10_000


def test_a_million_keys_end_at_the_limit(serve, channel):
    server = serve("--history-keys", 500, "--history-messages", 10)
    kept = 0
    for first in range(0, MANY, BATCH):
        keys = range(first, first + BATCH)
        body = "".join(f'{{"channel":"{channel}","state_key":"{key}","data":"x"}}\n' for key in keys)
        answer = server.http.post("/publish", content=body)
        assert answer.status_code == 200, answer.text
        refusals = answer.text.count('"not_stored"')
        kept += BATCH - refusals
    assert kept == 500
    assert refused(put(server, channel, "one more", "x")) == (507, "not_stored")
    # Other messages, known keys and other channels are not affected.
    server.publish(channel, "no key")
    set_key(server, channel, "7", "newer")
    set_key(server, f"{channel}-other", "a", "x")
    remove(server, channel, "8")
    set_key(server, channel, "one more", "x")
    page = server.http.get(at(channel), params={"limit": 1000}).json()
    assert len(page["messages"]) == 500


def test_values_end_at_the_limit_of_bytes(serve, channel):
    server = serve("--history-key-bytes", "64KiB")
    answers = [put(server, channel, f"{n}", "x" * 10_000).status_code for n in range(10)]
    assert answers == [201] * answers.count(201) + [507] * answers.count(507)
    assert 5 <= answers.count(201) <= 6, answers


def test_a_channel_may_keep_no_state(serve, tmp_path):
    (tmp_path / "throng.toml").write_text("[[channels]]\nmatch = 'plain/*'\nkeys = 0\n")
    server = serve("--config", tmp_path / "throng.toml")
    assert refused(put(server, "plain%2Fa", "k", "1")) == (400, "bad_request")
    line = {"channel": "plain/a", "state_key": "k", "data": "1"}
    assert server.publish_batch([line])[0]["error"] == "bad_request"
    server.publish("plain/a", "no key")
    set_key(server, "other", "k", "1")
    page = server.http.get(at("plain%2Fa"))
    assert (page.status_code, page.json()["messages"]) == (200, [])
    with Follower("stream", server, "plain%2Fa", state="true") as follower:
        assert follower.take(1) == [("state",)]


@pytest.mark.parametrize("place", PLACES)
def test_a_state_goes_on_over_an_upgrade(upgradable, channel, tmp_path, place):
    server = upgradable(*flags_of(place, tmp_path))
    for key in "abc":
        set_key(server, channel, key, f"{key}1")
    id = server.http.get(at(channel, "a")).headers["ETag"]
    set_key(server, channel, "short", "x", Throng_Expires_In="3")
    with Follower("websocket", server, channel, state="true") as follower:
        assert follower.take(5)[-1] == ("state",)
        server.upgrade()
        page = server.http.get(at(channel)).json()
        assert [it["data"] for it in page["messages"]][:3] == ["a1", "b1", "c1"]
        assert put(server, channel, "a", "a2", If_Match=id).status_code == 201
        got = [follower.take(1)[0], follower.take(1)[0]]
        assert sorted(got) == sorted([("a", "a2"), ("short", None)]), "the key expires in the new process"
    with Follower("sse", server, channel, state="true") as follower:
        assert follower.state() == [("b", "b1"), ("c", "c1"), ("a", "a2")]


@contextlib.contextmanager
def slow_reader(server, channel, keys, rounds, value_bytes):
    """A reader that has read nothing of many changes while one that keeps up has got all, and the newest values."""
    path = f"/channels/{channel}?state=true"
    with RawWebSocket(server, path, receive_buffer_bytes=4096) as slow, Stream(
        server, f"/channels/{channel}", None, {"state": "true"}
    ) as quick:
        server.wait_for_connections(channel, 2)
        assert quick.next_line()["type"] == "state"
        newest = {}
        for round in range(rounds):
            newest = {f"key {n}": f"{round}:{n}:".ljust(value_bytes, "x") for n in range(keys)}
            lines = [{"channel": channel, "state_key": key, "data": data} for key, data in newest.items()]
            assert all("id" in answer for answer in server.publish_batch(lines))
            got = [short(quick.next_line()) for _ in range(keys)]
            assert got == list(newest.items()), "one that keeps up gets all"
        yield slow, newest


def read_newest(slow, newest):
    """Reads until all values are the newest. Returns how many came, and what was told of those passed over."""
    seen, values, notices = {}, 0, []
    while seen != newest:
        envelope = json.loads(slow.read_message())
        if envelope["type"] == "conflated":
            notices.append(envelope)
        elif envelope["type"] != "state":
            key, value = short(envelope)
            seen[key] = value
            values += 1
    return values, notices


@pytest.mark.parametrize("place", PLACES)
def test_a_slow_reader_gets_each_newest_value(serve, channel, tmp_path, place):
    """It does not read while 24 MB are published, more than the kernel takes for it."""
    durable = flags_of(place, tmp_path)
    server = serve(*durable, "--max-lag-messages", 100, "--max-lag-bytes", "256KiB", "--heartbeat", "1h")
    with slow_reader(server, channel, 200, 60, 2_000) as (slow, newest):
        values, notices = read_newest(slow, newest)
        skipped = sum(notice["count"] for notice in notices)
        assert skipped + values == 200 * 60
        assert skipped > 0, "it was slow"
        # It is still there.
        set_key(server, channel, "key 0", "last")
        assert short(json.loads(slow.read_message())) == ("key 0", "last")
    samples = server.metrics()
    assert samples['throng_disconnects_total{reason="lag"}'] == 0
    assert samples["throng_messages_conflated_total"] == skipped
    assert samples["throng_state_keys"] == 200
    assert samples["throng_state_bytes"] > 199 * 2_000


def test_states_have_their_room_after_upgrades(upgradable, channel):
    """What all states take is counted on, whoever has counted it first."""
    server = upgradable("--history-total-bytes", "2MiB", "--history-keys", 1_000)
    half = [f"key {number}" for number in range(45)]
    lines = [{"channel": channel, "state_key": key, "data": "x" * 10_000} for key in half]
    assert all("id" in answer for answer in server.publish_batch(lines))
    for _ in range(2):
        server.upgrade()
        assert put(server, f"{channel}-other", "k", "x" * 50_000).status_code == 201
        assert refused(put(server, channel, "more", "x" * 60_000)) == (507, "not_stored")
        for key in half:
            set_key(server, channel, key, "short")
        set_key(server, channel, "more", "x" * 60_000)
        server.publish_batch(lines[:30])
        remove(server, channel, "more")
        remove(server, f"{channel}-other", "k")
        server.publish_batch(lines)
        samples = server.metrics()
        assert samples["throng_state_keys"] == len(half)
        assert len(half) * 10_000 < samples["throng_state_bytes"] < len(half) * 10_500
