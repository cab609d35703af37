"""All clients reconnect, resume and back off alike."""

import asyncio
import json
import random

import pytest
from misbehaving import Fault
from support.server import Server

TRANSPORTS = ["websocket", "sse", "poll"]
# No delays between attempts, so that what takes time is only what a test is about.
EAGER = {"random": 0, "open_timeout_ms": 5_000}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("seed", [1, 2])
def test_cuts_at_random_bytes_lose_double_and_reorder_nothing(
    connect, proxy, server, channel, transport, seed
):
    dice = random.Random(seed)
    # Cuts are in heads, in the first frames, and in the middle of messages.
    faults = [Fault(cut_after=int(dice.random() * dice.choice([250, 1_200]))) for _ in range(10)]
    faults += [Fault(cut_request_after=int(dice.random() * 200)) for _ in range(4)]
    dice.shuffle(faults)
    since = server.publish(channel, "first")["id"]
    through = proxy(lambda number: faults[number] if number < len(faults) else Fault())
    client = connect(through.url, transports=[transport], **EAGER)
    client.tell("subscribe", channels=[channel], since=since)
    count = 0
    while through.connections <= len(faults) or count < 20:
        for _ in range(4):
            server.publish(channel, f"number {count}")
            count += 1
        client.until_all("message", count)
        assert count < 1_000, "the faults do not happen"
    expected = [f"number {number}" for number in range(count)]
    assert [message["data"] for message in client.all("message")] == expected
    assert not client.all("gap") and not client.all("error")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_half_frames_are_put_together(connect, proxy, server, channel, transport):
    through = proxy(lambda number: Fault(piece=7, delay=0.0001))
    client = connect(through.url, transports=[transport], **EAGER)
    since = server.publish(channel, "first")["id"]
    # With what ends a line for some libraries, and for no protocol here.
    texts = [f"ünï-{number} \x85\u2028\x0b\r\n" + "x" * 50 for number in range(10)]
    for text in texts:
        server.publish(channel, text)
    client.tell("subscribe", channels=[channel], since=since)
    messages = client.until_all("message", 10)
    assert [message["data"] for message in messages] == texts
    assert not client.all("gap")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_frozen_server_is_noticed_without_a_request(connect, proxy, server, channel, transport):
    through = proxy()
    options = {"heartbeat_ms": 1_000, "poll_wait_ms": 1_000, "request_timeout_ms": 1_200}
    client = connect(through.url, transports=[transport], **EAGER, **options)
    server.publish(channel, "0")
    client.tell("subscribe", channels=[channel], history=1)
    client.until_all("message", 1)
    through.freeze()
    server.publish(channel, "1")
    client.until_state("waiting")
    through.thaw()
    client.until_all("message", 2)
    assert [message["data"] for message in client.all("message")] == ["0", "1"]
    assert not client.all("gap")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_frozen_server_is_noticed_by_a_request(connect, proxy, server, channel, transport):
    through = proxy()
    # Only the request can tell: heartbeats and polls have an hour.
    options = {"heartbeat_ms": 3_600_000, "poll_wait_ms": 300_000, "request_timeout_ms": 1_200}
    client = connect(through.url, transports=[transport], **EAGER, **options)
    server.publish(channel, "0")
    client.tell("subscribe", channels=[channel], history=1)
    client.until_all("message", 1)
    if client.all("state")[-1]["state"] != "open":
        client.until_state("open")
    through.freeze()
    client.tell("publish", channel=channel, data=1)
    client.until_state("waiting")
    through.thaw()
    client.until_all("published", 1)
    client.until_all("message", 2)
    assert [message["data"] for message in client.all("message")] == ["0", 1]
    kept = [envelope["data"] for envelope in server.history(channel)["messages"]]
    assert kept == ["0", 1], "published once"
    assert not client.all("gap")


def test_heartbeats_do_not_hide_an_unanswered_request(connect, proxy, server, channel):
    """What the client sends does not arrive, and all that the server sends does."""
    through = proxy()
    # The server's heartbeats are more frequent.
    options = {"request_timeout_ms": 2_500}
    client = connect(through.url, transports=["websocket"], **EAGER, **options)
    server.publish(channel, "0")
    client.tell("subscribe", channels=[channel], history=1)
    client.until_all("message", 1)
    through.freeze_requests()
    client.tell("publish", channel=channel, data=1)
    server.publish(channel, "while it waits")
    client.until_all("message", 2)
    assert client.until_state("waiting")["reason"].endswith("the server fell silent")
    through.thaw()
    client.until_all("published", 1)
    client.until_all("message", 3)
    assert [message["data"] for message in client.all("message")] == ["0", "while it waits", 1]
    kept = [envelope["data"] for envelope in server.history(channel)["messages"]]
    assert kept == ["0", "while it waits", 1], "published once"
    assert not client.all("gap")


@pytest.mark.parametrize("transport", ["websocket", "sse"])
def test_a_client_chooses_the_heartbeat_of_its_connections(connect, scripted, transport):
    async def script(request, peer):
        if request.path.startswith("/subscribe"):
            return peer.answer(503, {"error": "busy", "message": "later"})
        peer.answer(200, {"channel": "a", "id": "k-0", "messages": [], "more": False})

    peer = scripted(script)
    client = connect(peer.url, transports=[transport], params={"heartbeat": 60}, **EAGER)
    client.tell("subscribe", channels=["a"])
    client.until_state("waiting")
    asked = [request.path for request in peer.requests if request.path.startswith("/subscribe")]
    assert asked and all("heartbeat=60" in path for path in asked), peer.requests


def test_a_server_that_reads_nothing_is_noticed_while_the_client_subscribes(connect, scripted):
    """What the client sends is more than what the buffers of both sides take."""

    async def script(request, peer):
        peer.accept(request)
        peer.say({"type": "welcome", "connection": "c", "heartbeat": 25, "channels_max": 100_000})
        await asyncio.sleep(3_600)

    options = {"request_timeout_ms": 1_500}
    client = connect(scripted(script).url, transports=["websocket"], **EAGER, **options)
    # JSON has two bytes for each of these quotes.
    client.tell("subscribe", channels=[f"{number}-" + '"' * 240 for number in range(20_000)])
    assert client.until_state("waiting")["reason"].endswith("the server fell silent")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_new_epoch_is_a_gap(connect, proxy, server, tmp_path, channel, transport):
    other = Server(tmp_path, "--drain-window", "200ms")
    try:
        through = proxy(upstream=other)
        client = connect(through.url, transports=[transport], **EAGER)
        other.publish(channel, "before")
        client.tell("subscribe", channels=[channel], history=1)
        client.until_all("message", 1)
        through.upstream = server
        through.cut()
        client.until_all("gap", 1)
        server.publish(channel, "after")
        client.until_all("message", 2)
        order = [each for each in client.heard if each["event"] in ("message", "gap")]
        assert [each.get("data", "gap") for each in order] == ["before", "gap", "after"]
    finally:
        other.stop()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_durable_channel_has_no_gap_over_a_kill(connect, proxy, tmp_path, transport):
    (tmp_path / "throng.toml").write_text('[[channels]]\nmatch = "kept"\ndurable = true\n')
    flags = ["--data", tmp_path / "data", "--drain-window", "200ms"]
    first = Server(tmp_path, *flags)
    through = proxy(upstream=first)
    client = connect(through.url, transports=[transport], **EAGER)
    first.publish("kept", "before")
    client.tell("subscribe", channels=["kept"], history=1)
    client.until_all("message", 1)
    # Meanwhile others may have its port.
    through.freeze()
    first.kill()
    second = Server(tmp_path, *flags)
    try:
        second.publish("kept", "missed")
        through.upstream = second
        through.thaw()
        client.until_all("message", 2)
        second.publish("kept", "after")
        client.until_all("message", 3)
        assert [it["data"] for it in client.all("message")] == ["before", "missed", "after"]
        assert not client.all("gap") and not client.all("error")
    finally:
        second.stop()


@pytest.mark.parametrize(
    ("transport", "volatile"), [*((each, False) for each in TRANSPORTS), ("websocket", True)]
)
def test_a_message_has_the_event_and_the_tags_of_its_publisher(
    connect, server, channel, transport, volatile
):
    client = connect(server.url, transports=[transport], poll_wait_ms=5_000, **EAGER)
    server.publish(channel, "before")
    client.tell("subscribe", channels=[channel], history=1)
    client.until_all("message", 1)
    if client.all("state")[-1]["state"] != "open":
        client.until_state("open")
    labels = {"name": "Größe", "tags": {"symbol": "ACMÉ 😀", "n": 2, "x": 0.5}}
    client.tell("publish", channel=channel, data={"p": 1}, volatile=volatile, **labels)
    client.until_all("published", 1)
    plain, labelled = client.until_all("message", 2)
    assert (plain["name"], plain["tags"], plain["from"]) == (None, {}, None)
    assert (labelled["name"], labelled["tags"]) == (labels["name"], labels["tags"])
    assert (labelled["data"], labelled["from"]) == ({"p": 1}, None)
    kept = server.history(channel)["messages"][1:]
    assert [envelope["event"] for envelope in kept] == ([] if volatile else ["Größe"])
    client.tell("publish", channel=channel, data="x", name="gap")
    refused = client.until_all("unpublished", 1)[0]
    assert refused["code"] in ("bad_parameter", "bad_request"), refused
    assert not client.all("gap")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_erased_messages_are_told_in_their_place(connect, proxy, server, channel, transport):
    since = server.publish(channel, "first")["id"]
    ids = [server.publish(channel, str(number))["id"] for number in range(3)]
    path = f"/channels/{channel}"
    # One that is told when the client resumes, and those that come while it is there.
    notices = [server.http.delete(f"{path}/messages/{ids[1]}").json()]
    client = connect(proxy().url, transports=[transport], **EAGER)
    client.tell("subscribe", channels=[channel], since=since)
    client.until_all("erased", 1)
    notices.append(server.http.delete(f"{path}/messages/{ids[0]}").json())
    client.until_all("erased", 2)
    notices.append(server.http.delete(f"{path}/history").json())
    client.until_all("erased", 3)
    last = server.publish(channel, "last")["id"]
    client.until_all("message", 3)
    server.http.put(f"{path}/messages/{last}", content="in its place")
    client.until_all("message", 4)
    assert client.all("message")[-1]["replaces"] == last
    told = [it for it in client.heard if it["event"] in ("message", "erased")]
    order = [it.get("data", "erased") for it in told]
    assert order == ["0", "2", "erased", "erased", "erased", "last", "in its place"]
    for notice, told in zip(notices, client.all("erased"), strict=True):
        ids = (notice["id"], notice.get("erased"), notice.get("erased_up_to"))
        assert (told["id"], told["erased"], told["erased_up_to"]) == ids
    assert not client.all("gap") and not client.all("unreadable")


def test_a_message_has_the_sender_that_the_server_shows(connect, scripted):
    async def script(request, peer):
        peer.welcome(request)
        frame = await peer.until_subscribe()
        peer.say({"type": "subscribed", "channel": "a", "id": "e-0", "ref": frame["ref"]})
        peer.say({**message("e-1"), "from": "ann"})
        peer.say(message("e-2"))
        await peer.hear()

    client = connect(scripted(script).url, transports=["websocket"], **EAGER)
    client.tell("subscribe", channels=["a"])
    assert [each["from"] for each in client.until_all("message", 2)] == ["ann", None]


def message(id):
    return {"type": "message", "channel": "a", "id": id, "time": 1, "data": id}


def test_doubles_are_dropped_and_gaps_are_told_in_their_place(connect, scripted):
    asked = []

    async def script(request, peer):
        peer.welcome(request)
        frame = await peer.until_subscribe()
        asked.append(frame.get("since"))
        answer = {"type": "subscribed", "channel": "a", "ref": frame["ref"]}
        if len(asked) == 1:
            peer.say({**answer, "id": "e-5"})
            for id in ["e-6", "e-7", "e-7", "e-6"]:
                peer.say(message(id))
            peer.say({"type": "gap", "channel": "a", "missed": 3, "id": "e-10"})
            peer.say(message("e-11"))
            peer.close(4000)
        elif len(asked) == 2:
            # What the client has is sent again, as by a server that lags behind.
            peer.say({**answer, "id": "e-11", "recovered": True})
            peer.say(message("e-11"))
            peer.say(message("e-12"))
            peer.close(1012, "reconnect in 1 ms")
        else:
            peer.say({**answer, "id": "f-0", "recovered": False})
            peer.say(message("f-1"))
        await peer.hear()

    client = connect(scripted(script).url, transports=["websocket"], **EAGER)
    client.tell("subscribe", channels=["a"])
    client.until_all("message", 5)
    order = [each for each in client.heard if each["event"] in ("message", "gap")]
    shown = [(each["event"], each["id"]) for each in order]
    assert shown == [
        ("message", "e-6"),
        ("message", "e-7"),
        ("gap", "e-10"),
        ("message", "e-11"),
        ("message", "e-12"),
        ("gap", "f-0"),
        ("message", "f-1"),
    ]
    assert client.all("gap")[0]["missed"] == 3
    assert asked == [None, "e-11", "e-12"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_who_is_there_is_told_at_once_and_on_each_change(
    connect, proxy, server, channel, transport
):
    def users(count):
        return lambda it: it["event"] == "presence" and len(it["users"]) == count

    through = proxy()
    ann = connect(through.url, transports=[transport], user="ann", poll_wait_ms=5_000, **EAGER)
    ann.tell("subscribe", channels=[channel], presence=True)
    first = ann.until(users(1))
    assert (first["channel"], first["users"], first["connections"]) == (channel, ["ann"], 1)
    bo = connect(server.url, transports=["websocket"], user="bo", **EAGER)
    bo.tell("subscribe", channels=[channel])
    second = ann.until(users(2))
    assert (second["users"], second["joined"], second["left"]) == (["ann", "bo"], ["bo"], [])
    server.publish(channel, "with both")
    ann.until_all("message", 1)
    bo.tell("close")
    third = ann.until(users(1))
    assert (third["users"], third["joined"], third["left"]) == (["ann"], [], ["bo"])
    through.cut()
    if transport != "poll":
        # A poll may go on over another connection.
        ann.until_state("waiting")
        ann.until_state("open")
    bo = connect(server.url, transports=["websocket"], user="bo", **EAGER)
    bo.tell("subscribe", channels=[channel])
    ann.until(users(2))
    server.publish(channel, "after a cut")
    ann.until_all("message", 2)
    assert [each["data"] for each in ann.all("message")] == ["with both", "after a cut"]
    assert not ann.all("gap") and not ann.all("error")


def test_who_is_there_may_be_told_while_a_command_has_no_answer(connect, scripted):
    """Presence events have no id, and are no answer."""

    async def script(request, peer):
        peer.welcome(request)
        first, second = [await peer.until_subscribe() for _ in range(2)]
        peer.say({"type": "subscribed", "channel": "a", "id": "e-0", "ref": first["ref"]})
        here = {"connections": 1, "users": ["ann"], "more": False}
        peer.say({"type": "presence", "channel": "a", "time": 1, **here})
        peer.say({"type": "subscribed", "channel": "b", "id": "e-0", "ref": second["ref"]})
        peer.say(message("e-1"))
        await peer.hear()

    client = connect(scripted(script).url, transports=["websocket"], **EAGER)
    client.tell("subscribe", channels=["a", "b"], presence=True)
    assert client.until(lambda it: it["event"] == "presence")["users"] == ["ann"]
    client.until_all("message", 1)
    assert [it["state"] for it in client.all("state")] == ["connecting", "open"]


CLOSES = [
    (1001, "", 0),
    # Only with an error code of the server: proxies and libraries have these, too.
    (1002, "", 0),
    (1003, "binary frames are not allowed here", 0),
    (1007, "", 0),
    (1008, "policy: no", 0),
    (1002, "bad_request: x", "bad_request"),
    (1003, "bad_request: x", "bad_request"),
    (1007, "bad_utf8: x", "bad_utf8"),
    (1008, "forbidden: x", "forbidden"),
    (1009, "", 0),
    (1011, "", 0),
    (1012, "reconnect in 30 ms", 30),
    (1013, "overloaded; reconnect in 40 ms", 40),
    (3008, "a message must arrive within 60 s", 0),
    (4000, "", 0),
    (4001, "", 0),
    (4002, "", "token_expired"),
    (4003, "", "unauthorized"),
    (4004, "", "token_revoked"),
    (4005, "", "forbidden"),
    (4006, "too many; reconnect in 50 ms", 50),
    (4100, "", 0),
    (4499, "", 0),
    (4500, "", "disconnected"),
    (4999, "", "disconnected"),
]


@pytest.mark.parametrize(("code", "reason", "end"), CLOSES, ids=lambda value: str(value)[:12])
def test_each_close_code(connect, scripted, code, reason, end):
    async def script(request, peer):
        peer.welcome(request)
        frame = await peer.until_subscribe()
        peer.say({"type": "subscribed", "channel": "a", "id": "e-0", "ref": frame["ref"]})
        peer.close(code, reason)
        await peer.hear()

    client = connect(scripted(script).url, transports=["websocket"], token="t", **EAGER)
    client.tell("subscribe", channels=["a"])
    if isinstance(end, str):
        assert client.until(lambda it: it["event"] == "error")["code"] == end
    else:
        assert client.until_state("waiting")["delay_ms"] == end


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("transport", ["sse", "poll"])
def test_the_time_to_retry_of_a_refused_subscription(connect, scripted, transport, status):
    async def script(request, peer):
        code = {429: "too_many_requests", 503: "full"}[status]
        peer.answer(status, {"error": code, "message": "later"}, Retry_After=3)

    client = connect(scripted(script).url, transports=[transport], **EAGER)
    client.tell("subscribe", channels=["a"])
    assert client.until_state("waiting")["delay_ms"] == 3_000


def test_a_publication_keeps_its_key_through_refusals_and_cuts(connect, scripted):
    async def script(request, peer):
        attempt = len(server.requests)
        if attempt == 1:
            peer.answer(503, {"error": "busy", "message": "later"}, Retry_After=0)
        elif attempt == 2:
            peer.answer(429, {"error": "too_many_requests", "message": "later"}, Retry_After=0)
        elif attempt == 3:
            peer.writer.write(b'HTTP/1.1 201 -\r\nContent-Length: 30\r\n\r\n{"id":')
            peer.writer.close()
        else:
            peer.answer(201, {"id": "e-1", "subscribers": 0})

    server = scripted(script)
    client = connect(server.url, transports=TRANSPORTS, **EAGER)
    client.tell("publish", channel="a", data="x")
    assert client.until(lambda it: it["event"].endswith("published"))["id"] == "e-1"
    keys = {request.headers["idempotency-key"] for request in server.requests}
    assert len(keys) == 1 and len(server.requests) == 4


@pytest.mark.parametrize(("answers", "outcome"), [(True, "unpublished"), (False, "unknown")])
def test_a_publication_that_is_given_up_says_its_outcome(connect, scripted, answers, outcome):
    async def script(request, peer):
        if answers:
            # Later than the client waits, so that it gives up between two requests.
            peer.answer(503, {"error": "busy", "message": "later"}, Retry_After="60")
        else:
            peer.writer.close()

    options = {"publish_timeout_ms": 3_000 if answers else 300, "random": 0.2}
    client = connect(scripted(script).url, transports=TRANSPORTS, **options)
    client.tell("publish", channel="a", data="x")
    error = client.until(lambda it: it["event"].endswith("published"))
    assert (error["event"], error["code"], error["outcome"]) == ("unpublished", "timeout", outcome)
    assert error["key"]


def test_the_delays_of_failing_connections(connect, scripted):
    async def script(request, peer):
        peer.accept(request)
        peer.close(1011)

    client = connect(scripted(script).url, transports=["websocket"], random=0.1)
    client.tell("subscribe", channels=["a"])
    delays = [client.until_state("waiting")["delay_ms"] for _ in range(4)]
    assert delays == pytest.approx([50, 100, 200, 400])


@pytest.mark.parametrize("broken", [1, 2])
def test_it_falls_back_while_the_server_answers(connect, scripted, broken):
    """A network without WebSockets, or also without streams."""

    async def script(request, peer):
        if "upgrade" in request.headers:
            peer.answer(403, {"error": "no", "message": "not here"})
            peer.writer.close()
        elif "/history" in request.path:
            peer.answer(200, {"id": "e-0", "messages": [], "more": False}, Throng_Id="e-0")
        elif request.method == "HEAD":
            peer.writer.write(b"HTTP/1.1 200 -\r\nThrong-Id: e-0\r\nContent-Length: 0\r\n\r\n")
        elif "transport=poll" in request.path:
            if "wait=0" not in request.path:
                await peer.reader.read(1)
            peer.answer(200, message("e-1"), Throng_Id="e-1", Throng_Recovered="true")
        elif broken == 2:
            peer.answer(200, b"held back", Content_Type="text/html")
        else:
            head = "HTTP/1.1 200 -\r\nContent-Type: text/event-stream\r\nThrong-Id: e-0\r\n\r\n"
            events = [
                'event: resumed\ndata: {"recovered":true}',
                'event: welcome\ndata: {"id":"e-0"}',
            ]
            events.append(f"id: e-1\ndata: {json.dumps(message('e-1'))}")
            peer.writer.write(head.encode() + "".join(f"{each}\n\n" for each in events).encode())
            await peer.reader.read(1)

    client = connect(scripted(script).url, transports=TRANSPORTS, **EAGER)
    client.tell("subscribe", channels=["a"], since="e-0")
    client.until_all("message", 1)
    assert client.all("state")[-1]["transport"] == TRANSPORTS[broken]


@pytest.mark.parametrize("transport", ["sse", "poll"])
def test_a_refusal_is_final_although_a_head_has_no_body(connect, scripted, transport):
    async def script(request, peer):
        body = {"error": "forbidden", "message": "not here"}
        if request.method == "HEAD":
            peer.writer.write(b"HTTP/1.1 403 -\r\nContent-Length: 0\r\n\r\n")
        else:
            peer.answer(403, body)

    client = connect(scripted(script).url, transports=[transport], **EAGER)
    client.tell("subscribe", channels=["a"], history=1)
    assert client.until(lambda it: it["event"] == "error")["code"] == "forbidden"
