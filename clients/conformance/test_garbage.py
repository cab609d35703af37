"""All clients survive what no Throng server sends, and lose nothing because of it.

A message that a client cannot read is reported and passed over, and its connection stays. What has
not even an id ends the connection, and comes right the next time. `THRONG_GARBAGE_SEEDS=100` draws
more messages, `THRONG_GARBAGE_SEED=17` only those of one seed.
"""

import json
import os

import pytest
from conftest import opener
from garbage import UNREADABLE, Kept, LogServer, check_told, envelope, log_of

# No delays between attempts.
EAGER = {"random": 0, "open_timeout_ms": 5_000}
GARBAGE = [
    "null",
    "5",
    "[]",
    "{",
    '{"type":"message","channel":"a"}',
    '{"type":"message","channel":"a","id":5,"data":1}',
    '{"type":"message","channel":"a","id":"e-1","time":1,"data":"%","encoding":"base64"}',
    '{"type":"gap","channel":"a","id":7,"missed":"x"}',
    '{"type":"error","ref":{}}',
    '{"type":"welcome","connection":3,"heartbeat":"x","channels_max":-1}',
]


# "frames" is a WebSocket with many messages in a frame.
TRANSPORTS = ["websocket", "frames", "sse", "poll"]
DAMAGED_FRAMES = [
    "[0,5]",
    "[0,[7]]",
    '[0,[7,"x",1]]',
    "[0,[7,1,2],",
    '["0",[7,-1.5]]',
]


def started(connect, scripted, transport, log, between=None):
    """A client of a server that keeps the log, over one transport; and the script of the server."""
    script = LogServer(log, between, is_compact=transport == "frames")
    name = "websocket" if transport == "frames" else transport
    return connect(scripted(script).url, transports=[name], **EAGER), script


def seeds():
    if "THRONG_GARBAGE_SEED" in os.environ:
        return [int(os.environ["THRONG_GARBAGE_SEED"])]
    return range(1, 1 + int(os.environ.get("THRONG_GARBAGE_SEEDS", "3")))


def follow_log(client, log, **begin):
    """Follows the log until its last message, and checks what the client has told."""
    client.tell("subscribe", channels=["a"], **begin)
    client.until(lambda it: it["event"] in ("message", "unreadable") and it["id"] == log[-1].id)
    check_told(client, log)


@pytest.mark.parametrize("begin", [{"since": "e-0"}, {"history": 100}], ids=["since", "history"])
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("seed", seeds())
def test_messages_that_cannot_be_read_are_passed_over(connect, scripted, transport, seed, begin):
    log = log_of(seed)
    client, script = started(connect, scripted, transport, log)
    follow_log(client, log, **begin)
    assert "waiting" not in [it["state"] for it in client.all("state")], "the connection stays"
    assert script.subscriptions <= 1, "no connection was lost"


def named_kinds():
    """One message of each kind, which a client meets alone."""
    extremes = {
        "12,000 levels": "[" * 12_000 + "]" * 12_000,
        "20,000 levels": '{"a":' * 20_000 + "1" + "}" * 20_000,
        "5,000 digits": '{"n":' + "9" * 5_000 + "}",
        "100,000 digits": "1" * 100_000,
        "half a pair": r'"party \ud83d"',
        "half a pair as a name": r'{"\ud83d":1}',
    }
    for name, data in extremes.items():
        yield pytest.param(Kept("e-2", envelope("e-2", data)), id=name)
    for number, make in enumerate(UNREADABLE):
        yield pytest.param(Kept("e-2", make("e-2"), is_unreadable=True), id=f"unreadable {number}")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kept", list(named_kinds()))
def test_one_that_cannot_be_read_hides_nothing(connect, scripted, transport, kept):
    first, last = (Kept(f"e-{n}", envelope(f"e-{n}", '"x"'), data="x") for n in (1, 3))
    log = [first, kept, last]
    client, _ = started(connect, scripted, transport, log)
    follow_log(client, log, history=10)


# Frames without a readable id: damage on the way, which a retry does not meet again.
DAMAGED = [
    *(each.encode() for each in GARBAGE if '"id":"e-1"' not in each),
    *(each.encode() for each in DAMAGED_FRAMES),
    b'{"type":"message","channel":"a","id":"e-',
    b'{"type":"mess\xff\xfe',
    b"\xed\xa0\xbd",
    b"[" * 20_000,
    b'{"type":"message","channel":"a","id":' + b"9" * 5_000 + b',"time":1,"data":1}',
    b'{"type":"message","channel":"a","id":"e-' + b"9" * 5_000 + b'","time":1,"data":1}',
    b'{"type":"message","channel":{"a":1},"id":"e-1","time":1,"data":1}',
]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("begin", [{"since": "e-0"}, {"history": 100}], ids=["since", "history"])
@pytest.mark.parametrize("damaged", DAMAGED, ids=lambda each: repr(each[:40]))
def test_damage_on_the_way_loses_nothing(connect, scripted, transport, damaged, begin):
    def damage(number, say):
        if number == 1:
            say(damaged)

    log = [Kept(f"e-{n}", envelope(f"e-{n}", f'"{n}"'), data=str(n)) for n in range(1, 6)]
    client, script = started(connect, scripted, transport, log, damage)
    follow_log(client, log, **begin)
    assert script.subscriptions <= 3, "it does not go round in circles"


NEWER = [
    b'{"type":"newer","channel":"a","id":7}',
    b'{"type":"newer"}',
    b'{"type":"newer","ref":{}}',
]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("newer", NEWER, ids=lambda each: each.decode())
def test_events_of_a_newer_server_are_ignored(connect, scripted, transport, newer):
    log = [Kept(f"e-{n}", envelope(f"e-{n}", f'"{n}"', newer=[1]), data=str(n)) for n in (1, 2, 3)]
    client, _ = started(connect, scripted, transport, log, lambda number, say: say(newer))
    follow_log(client, log, since="e-0")
    assert "waiting" not in [it["state"] for it in client.all("state")], "the connection stays"


def message(id):
    return {"type": "message", "channel": "a", "id": id, "time": 1, "data": f"data of {id}"}


def first_of(client, id):
    """Waits for this message; it is there once, and no error is."""
    client.until(lambda it: it["event"] == "message" and it["id"] == id)
    assert [it["id"] for it in client.all("message")].count(id) == 1
    assert not client.all("error")


@pytest.mark.parametrize("garbage", GARBAGE)
def test_frames(connect, scripted, garbage):
    async def script(request, peer):
        peer.welcome(request)
        frame = await peer.until_subscribe()
        answer = {"type": "subscribed", "channel": "a", "ref": frame["ref"], "id": "e-0"}
        peer.say(answer)
        if len(server.requests) == 1:
            peer.text(garbage)
            peer.close(1011)
        else:
            peer.say(message("e-2"))
        await peer.hear()

    server = scripted(script)
    client = connect(server.url, transports=["websocket"], **EAGER)
    client.tell("subscribe", channels=["a"])
    first_of(client, "e-2")


def stream(*events):
    head = "HTTP/1.1 200 -\r\nContent-Type: text/event-stream\r\nThrong-Id: e-0\r\n\r\n"
    start = ['event: resumed\ndata: {"recovered":true}', 'event: welcome\ndata: {"id":"e-0"}']
    return (head + "".join(f"{each}\n\n" for each in [*start, *events])).encode()


@pytest.mark.parametrize("garbage", GARBAGE)
def test_events_of_a_stream(connect, scripted, garbage):
    streams = []

    async def script(request, peer):
        if request.method == "HEAD":
            peer.writer.write(b"HTTP/1.1 200 -\r\nThrong-Id: e-0\r\nContent-Length: 0\r\n\r\n")
        elif "/history" in request.path:
            peer.answer(200, {"id": "e-0", "messages": [], "more": False}, Throng_Id="e-0")
        else:
            streams.append(request)
            data = garbage if len(streams) == 1 else json.dumps(message("e-2"))
            peer.writer.write(stream(f"data: {data}"))
            if len(streams) == 1:
                peer.writer.close()
            else:
                await peer.reader.read(1)

    client = connect(scripted(script).url, transports=["sse"], **EAGER)
    client.tell("subscribe", channels=["a"], since="e-0")
    first_of(client, "e-2")


@pytest.mark.parametrize("garbage", GARBAGE)
def test_lines_of_a_poll(connect, scripted, garbage):
    """What comes before the garbage counts, and what comes after it is not lost."""
    polls, later = [], []

    async def script(request, peer):
        if request.method == "HEAD":
            peer.writer.write(b"HTTP/1.1 200 -\r\nThrong-Id: e-0\r\nContent-Length: 0\r\n\r\n")
        elif "/history" in request.path:
            peer.answer(200, {"id": "e-0", "messages": [], "more": False}, Throng_Id="e-0")
        elif "since=e-0" in request.path:
            polls.append(request)
            lines = [json.dumps(message("e-1")), garbage] if len(polls) == 2 else []
            end = "e-9" if lines else "e-0"
            peer.answer(200, "\n".join(lines).encode(), Throng_Id=end, Throng_Recovered="true")
        elif not later:
            # After e-1, or after e-9 if the client ignores such a line.
            later.append(request)
            line = json.dumps(message("e-2")).encode()
            peer.answer(200, line, Throng_Id="e-2", Throng_Recovered="true")
        elif "wait=0" in request.path:
            peer.answer(200, b"", Throng_Id="e-2", Throng_Recovered="true")
        else:
            await peer.reader.read(1)

    client = connect(scripted(script).url, transports=["poll"], **EAGER)
    client.tell("subscribe", channels=["a"], since="e-0")
    first_of(client, "e-2")
    assert [it["id"] for it in client.all("message")] == ["e-1", "e-2"]


@pytest.mark.parametrize("garbage", ["<html>", "", "null", "{}", "[]", '{"id":null}'])
def test_an_answer_that_nobody_can_read_is_no_confirmation(connect, scripted, garbage):
    async def script(request, peer):
        if len(server.requests) == 1:
            peer.answer(200, garbage.encode())
        else:
            peer.answer(201, {"id": "e-1", "subscribers": 0})

    server = scripted(script)
    client = connect(server.url, transports=["poll"], **EAGER)
    client.tell("publish", channel="a", data="x")
    assert client.until(lambda it: it["event"].endswith("published"))["id"] == "e-1"
    keys = {request.headers["idempotency-key"] for request in server.requests}
    assert len(keys) == 1 and len(server.requests) == 2


def test_an_unreadable_answer_leaves_the_outcome_unknown(connect, scripted):
    async def script(request, peer):
        peer.answer(200, b"<html>")

    options = {"publish_timeout_ms": 300, "random": 0.2}
    client = connect(scripted(script).url, transports=["poll"], **options)
    client.tell("publish", channel="a", data="x")
    end = client.until(lambda it: it["event"].endswith("published"))
    assert (end["event"], end["code"], end["outcome"]) == ("unpublished", "timeout", "unknown")


@pytest.mark.parametrize("transport", ["websocket", "sse", "poll"])
def test_what_is_no_id_ends_its_channel_only(programs, server, channel, transport):
    """Of the JavaScript client, whose connections have channels of several subscriptions."""
    with opener(programs("javascript")) as open_client:
        client = open_client(server.url, transports=[transport], **EAGER)
        client.tell("subscribe", channels=[f"{channel}-bad"], since="no id")
        client.tell("subscribe", channels=[channel], since=server.publish(channel, "first")["id"])
        assert client.until(lambda it: it["event"] == "error")["code"] in ("bad_id", "bad_request")
        server.publish(channel, "second")
        assert client.until(lambda it: it["event"] == "message")["data"] == "second"
        assert len(client.all("error")) == 1
