"""Compact messages, many in a frame: all clients tell what others transports would, resume behind
each message, and say when they have handled a frame."""

import json
import random
import threading

import pytest
from conftest import WAIT_SECONDS
from misbehaving import Fault, read_list
from support.server import Server, eventually

# No delays between attempts.
EAGER = {"random": 0, "open_timeout_ms": 5_000, "transports": ["websocket"]}
NUMBERS = {"a": 17, "b": 18}
JSON, TEXT = "application/json", "text/plain; charset=utf-8"


def answer_to(frame, epoch="e", offset=0, refused=()):
    """The answer to a subscription, of one channel or a list, each with its number."""

    def one(entry):
        name = entry["channel"]
        if name in refused:
            return {"channel": name, "error": {"code": "forbidden", "message": "not for you"}}
        since = {"id": entry["since"], "recovered": True} if "since" in entry else {}
        number = NUMBERS.setdefault(name, len(NUMBERS) + 17)
        return {"channel": name, "id": f"{epoch}-{offset}", "number": number, **since}

    entries = read_list(frame)
    named = (
        one(entries[0]) if "channels" not in frame else {"channels": [one(it) for it in entries]}
    )
    return {"type": "subscribed", **named, "ref": frame["ref"]}


def told(client, *names):
    return [it for it in client.heard if it["event"] in names]


def test_a_frame_with_many_tells_what_envelopes_would(connect, scripted):
    requests = []

    async def script(request, peer):
        requests.append(request.path)
        peer.welcome(request)
        peer.say(answer_to(await peer.until_subscribe()))
        more = {"expires": 1_000_000, "position": "~e-9"}
        typed = {"content_type": "text/markdown"}
        peer.say(
            [
                0,
                [17, 6, "x", 1_000],
                [18, 1, {"n": [1, "ü"]}, 1_001, more],
                [18, 2, "# x", 1_001, typed | more],
                [17, 7, "QUI=", 1_002, {"encoding": "base64"}],
                [99, 1, "of a channel that nobody asked for", 1_003],
                [17, None, "typing", 1_004],
                [17, -4],
            ]
        )
        peer.say([0, [17, 12, None, 1_005]])
        await peer.hear()

    client = connect(scripted(script).url, **EAGER)
    client.tell("subscribe", channels=["a", "b"])
    client.until(lambda it: it.get("id") == "e-12")
    fields = ["channel", "id", "data", "time", "content_type"]
    shown = [[it[name] for name in fields] for it in client.all("message")]
    assert shown == [
        ["a", "e-6", "x", 1_000, TEXT],
        ["b", "e-1", {"n": [1, "ü"]}, 1_001, JSON],
        ["b", "e-2", "# x", 1_001, "text/markdown"],
        ["a", "e-7", "AB", 1_002, "application/octet-stream"],
        ["a", None, "typing", 1_004, TEXT],
        ["a", "e-12", None, 1_005, JSON],
    ]
    order = [it["event"] for it in told(client, "message", "conflated", "gap")]
    assert order == ["message"] * 5 + ["conflated", "message"], "it is told in its place"
    assert client.all("conflated")[0]["count"] == 4
    assert not client.all("gap") and not client.all("error")
    assert "envelope=compact" in requests[0] and "time=true" in requests[0]


def test_the_time_may_be_left_out(connect, scripted):
    requests = []

    async def script(request, peer):
        requests.append(request.path)
        peer.welcome(request)
        peer.say(answer_to(await peer.until_subscribe()))
        peer.say([0, [17, 1, "x"], [17, 2, "<svg>", {"content_type": "image/svg+xml"}]])
        await peer.hear()

    client = connect(scripted(script).url, no_time=True, **EAGER)
    client.tell("subscribe", channels=["a"])
    shown = [(it["time"], it["content_type"]) for it in client.until_all("message", 2)]
    assert shown == [(None, TEXT), (None, "image/svg+xml")]
    assert "time" not in requests[0]


def test_a_loss_in_the_middle_of_a_frame_resumes_behind_what_was_told(connect, scripted):
    asked = []

    async def script(request, peer):
        peer.welcome(request)
        frame = await peer.until_subscribe()
        asked.append({it["channel"]: it.get("since") for it in read_list(frame)})
        peer.say(answer_to(frame))
        if len(asked) == 1:
            peer.say([0, [17, 1, "a1", 1], [18, 1, "b1", 1], [17, 2, "a2", 1], [17, None, "v", 1]])
            # Half a frame: nothing of it counts.
            text = json.dumps([0, [18, 2, "b2", 1], [17, 3, "a3", 1]]).encode()
            peer.writer.write(bytes([0x81, len(text)]) + text[: len(text) // 2])
            await peer.writer.drain()
            peer.writer.transport.close()
            return
        # Something that the client has comes again.
        peer.say([0, [17, 2, "a2", 1], [18, 2, "b2", 1], [17, -3], [17, 6, "a6", 1]])
        await peer.hear()

    client = connect(scripted(script).url, **EAGER)
    client.tell("subscribe", channels=["a", "b"])
    client.until(lambda it: it.get("id") == "e-6")
    shown = [
        (it.get("id"), it.get("data", "skipped")) for it in told(client, "message", "conflated")
    ]
    assert shown == [
        ("e-1", "a1"),
        ("e-1", "b1"),
        ("e-2", "a2"),
        (None, "v"),
        ("e-2", "b2"),
        (None, "skipped"),
        ("e-6", "a6"),
    ]
    assert asked == [{"a": None, "b": None}, {"a": "e-2", "b": "e-1"}] or asked[0] == {"a": None}
    assert not client.all("gap")


def test_a_number_may_change_and_be_given_to_another_channel(connect, scripted):
    async def script(request, peer):
        peer.welcome(request)
        peer.say(answer_to(await peer.until_subscribe()))
        peer.say([0, [17, 1, "one", 1], [18, 1, "of b", 1]])
        peer.say({"type": "numbers", "channels": [["b", 17, "f"], ["a", 30, "g"]], "users": []})
        peer.say([0, [17, 1, "of b", 1], [30, 1, "two", 1]])
        peer.say({"type": "numbers", "users": [["ann", 30, "h"]]})
        peer.say([0, [30, 2, "of an inbox", 1], [17, 2, "three", 1]])
        await peer.hear()

    client = connect(scripted(script).url, **EAGER)
    client.tell("subscribe", channels=["a", "b"])
    client.until(lambda it: it.get("id") == "f-2")
    shown = [(it["channel"], it["id"]) for it in client.all("message")]
    assert shown == [("a", "e-1"), ("b", "e-1"), ("b", "f-1"), ("a", "g-1"), ("b", "f-2")]


def test_frames_that_ask_are_acknowledged_once_they_are_handled(connect, scripted):
    acks = []
    done = threading.Event()

    async def script(request, peer):
        peer.welcome(request)
        peer.say(answer_to(await peer.until_subscribe()))
        peer.say([1, [17, 1, "x", 1], [17, 2, "x", 1]])
        peer.say([0, [17, 3, "x", 1]])
        peer.say([1, [17, -5], [17, 9, "x", 1]])
        # All of its messages are of a channel that the client has left.
        peer.say([1, [99, 1, "x", 1]])
        while sum(it["frames"] for it in acks) < 3:
            frame = await peer.hear()
            if frame["type"] == "ack":
                acks.append(frame)
        done.set()
        await peer.hear()

    client = connect(scripted(script).url, **EAGER)
    client.tell("subscribe", channels=["a"])
    client.until_all("message", 4)

    assert done.wait(WAIT_SECONDS), acks
    assert sum(it["frames"] for it in acks) == 3
    assert all(set(it) == {"type", "frames"} for it in acks)


def test_many_channels_take_one_command(connect, scripted):
    names = [f"price:{number}" for number in range(2_000)]
    commands = []

    async def script(request, peer):
        peer.welcome(request, channels_max=10_000)
        frame = await peer.until_subscribe()
        commands.append(frame)
        answer = answer_to(frame, offset=5)
        peer.say(answer)
        numbers = [it["number"] for it in answer["channels"]]
        offset = 5 + len(commands)
        for at in range(0, len(numbers), 100):
            part = numbers[at : at + 100]
            peer.say([0, *([number, offset, "x", 1] for number in part)])
        await peer.drain()
        if len(commands) == 1:
            peer.close(4000)
        await peer.hear()

    client = connect(scripted(script).url, **EAGER)
    client.tell("subscribe", channels=names)
    client.until_all("message", 4_000)
    assert [len(frame["channels"]) for frame in commands] == [2_000, 2_000]
    assert {it["since"] for it in read_list(commands[1])} == {"e-6"}
    ids = {name: [] for name in names}
    for it in client.all("message"):
        ids[it["channel"]].append(it["id"])
    assert all(each == ["e-6", "e-7"] for each in ids.values())
    assert not client.all("gap") and not client.all("error")


def test_a_channel_of_a_list_that_is_refused_is_told(connect, scripted):
    async def script(request, peer):
        peer.welcome(request)
        peer.say(answer_to(await peer.until_subscribe(), refused=["b"]))
        peer.say([0, [NUMBERS["a"], 1, "x", 1]])
        await peer.hear()

    client = connect(scripted(script).url, **EAGER)
    client.tell("subscribe", channels=["a", "b"])
    error = client.until(lambda it: it["event"] == "error")
    assert error["code"] == "forbidden" and "not for you" in error["message"]


@pytest.mark.parametrize("transport", ["websocket", "sse"])
def test_a_pace_is_asked_for(connect, scripted, transport):
    """For the channels of commands, in these; for those of a URL, in that."""
    asked = []

    async def script(request, peer):
        if request.path.startswith("/subscribe") and request.method == "GET":
            if transport == "websocket":
                peer.welcome(request)
                frame = await peer.until_subscribe()
                peer.say(answer_to(frame))
                asked.append(frame["pace"])
                await peer.hear()
            query = request.path.partition("pace=")[2]
            asked.append(int(query.partition("&")[0].removesuffix("ms")))
        peer.answer(200, {"channel": "a", "id": "k-0", "messages": [], "more": False})

    server = scripted(script)
    options = {**EAGER, "transports": [transport]}
    for params, own, wanted in [({"pace": 0.5}, {}, 500), ({}, {"pace_ms": 250}, 250)]:
        client = connect(server.url, params=params, **options)
        client.tell("subscribe", channels=["a"], **own)
        client.until_state("open" if transport == "websocket" else "waiting")
        eventually(lambda wanted=wanted: wanted in asked, lambda: asked)


def test_a_server_without_compact_messages_gets_no_more_of_it(connect, scripted):
    paths = []

    async def script(request, peer):
        if request.path.startswith("/subscribe"):
            paths.append(request.path)
        if "envelope=compact" in request.path:
            sentence = "the parameter `envelope` must be `true` or `false`"
            peer.answer(400, {"error": "bad_parameter", "message": sentence})
            peer.writer.close()
            return
        peer.welcome(request)
        for name in ["a", "b"]:
            frame = await peer.until_subscribe()
            assert frame["channel"] == name
            peer.say({"type": "subscribed", "channel": name, "id": "e-0", "ref": frame["ref"]})
            envelope = {"type": "message", "channel": name, "id": "e-1", "time": 1, "data": "x"}
            peer.say(envelope)
        peer.say({"type": "conflated", "channel": "a", "count": 3})
        peer.say({"type": "message", "channel": "a", "time": 1, "data": "volatile"})
        await peer.hear()

    client = connect(scripted(script).url, **EAGER)
    client.tell("subscribe", channels=["a", "b"])
    messages = client.until_all("message", 3)
    assert [it["id"] for it in messages] == ["e-1", "e-1", None]
    assert client.all("conflated")[0]["count"] == 3
    assert not client.all("error")


# With the real server.


def test_what_is_told_is_what_the_history_has(connect, server, channel):
    client = connect(server.url, **EAGER)
    names = [channel, f"{channel}-b"]
    for name in names:
        server.publish(name, "before")
    client.tell("subscribe", channels=names, history=1)
    client.until_all("message", 2)
    bodies = [
        ("text, ünï \u2028", {}),
        ('{"n":[1,"]"]}', {"Content_Type": "application/json"}),
        ("# x", {"Content_Type": "text/markdown"}),
        ("AB", {"Content_Type": "application/octet-stream"}),
        ("", {}),
        ("of use for a year", {"Throng_Expires_In": "31000000"}),
    ]
    for body, headers in bodies:
        for name in names:
            server.publish(name, body.encode(), **headers)
    client.until_all("message", 2 + 2 * len(bodies))
    for name in names:
        kept = server.history(name)["messages"]
        told = [it for it in client.all("message") if it["channel"] == name]
        assert [(it["id"], it["time"]) for it in told] == [(it["id"], it["time"]) for it in kept]
        assert [it["replayed"] for it in told] == [True] + [False] * len(bodies)
        types = [it.get("content_type") for it in kept]
        assert [it["content_type"] for it in told][2:] == [
            JSON,
            "text/markdown",
            "application/octet-stream",
            TEXT,
            TEXT,
        ], types
        assert [it["data"] for it in told][1:4] == [bodies[0][0], {"n": [1, "]"]}, "# x"]
    assert not client.all("gap") and not client.all("error")


@pytest.mark.parametrize("seed", [1, 2])
def test_cuts_in_frames_with_many_lose_double_and_reorder_nothing(
    connect, proxy, server, channel, seed
):
    dice = random.Random(seed)
    # In the handshake, in the answers, and in the middle of frames with messages of all channels.
    faults = [Fault(cut_after=dice.randrange(200, 3_000)) for _ in range(8)]
    faults += [Fault(piece=dice.choice([1, 7, 30]), cut_after=1_500) for _ in range(2)]
    dice.shuffle(faults)
    through = proxy(lambda number: faults[number] if number < len(faults) else Fault())
    client = connect(through.url, **EAGER)
    names = [f"{channel}-{number}" for number in range(5)]
    for name in names:
        server.publish(name, "0")
    client.tell("subscribe", channels=names, history=1)
    client.until_all("message", len(names))
    count = 1
    while through.connections <= len(faults) or count < 20:
        batch = [{"channel": name, "data": str(count + at)} for at in range(4) for name in names]
        server.publish_batch(batch)
        count += 4
        client.until_all("message", count * len(names))
        assert count < 400, "the faults do not happen"
    for name in names:
        told = [it["data"] for it in client.all("message") if it["channel"] == name]
        assert told == [str(number) for number in range(count)]
    assert not client.all("gap") and not client.all("error")


def test_two_thousand_channels_resume_in_one_round_trip(connect, proxy, tmp_path):
    settings = "max-channels-per-connection = 3000\n"
    (tmp_path / "throng.toml").write_text(settings)
    many = Server(tmp_path, "--drain-window", "200ms")
    try:
        through = proxy(upstream=many)
        client = connect(through.url, **EAGER)
        names = [f"price:{number}" for number in range(2_000)]
        client.tell("subscribe", channels=names)
        many.wait_for_connections(names[-1], 1)
        for round in ["a", "b"]:
            for at in range(0, len(names), 500):
                lines = [{"channel": name, "data": round} for name in names[at : at + 500]]
                many.publish_batch(lines)
            client.until_all("message", 2_000 if round == "a" else 4_000)
            if round == "a":
                through.cut()
        told = {name: [] for name in names}
        for it in client.all("message"):
            told[it["channel"]].append(it["data"])
        assert all(each == ["a", "b"] for each in told.values())
        assert not client.all("gap") and not client.all("error")
    finally:
        many.stop()


LATEST = '[[channels]]\nmatch = "prices:*"\nlag-policy = "latest"\n'
# Some of these fill all buffers between server and client.
PADDING = " " + "x" * 50_000


def test_a_client_that_is_behind_gets_the_newest_and_the_count_of_the_rest(
    connect, proxy, tmp_path
):
    (tmp_path / "throng.toml").write_text(LATEST)
    latest = Server(tmp_path, "--drain-window", "200ms")
    try:
        through = proxy(upstream=latest)
        client = connect(through.url, **EAGER)
        client.tell("subscribe", channels=["prices:a", "prices:b"])
        latest.wait_for_connections("prices:a", 1)

        def publish(number):
            latest.publish("prices:a", f"{number}{PADDING}")

        def until(number):
            client.until(lambda it: it.get("data") == f"{number}{PADDING}")

        publish(0)
        until(0)
        through.freeze()
        for number in range(1, 150):
            publish(number)
        through.thaw()
        until(149)
        numbers = [int(it["data"].split()[0]) for it in client.all("message")]
        assert numbers == sorted(set(numbers)), "each once, and in order"
        skipped = [it["count"] for it in client.all("conflated")]
        assert sum(skipped) + len(numbers) == 150 and sum(skipped) > 50, (skipped, numbers)
        # It has caught up: nothing more is skipped.
        for number in range(150, 160):
            publish(number)
            until(number)
        assert not client.all("gap") and not client.all("error")
        assert [it["state"] for it in client.all("state")] == ["connecting", "open"]
    finally:
        latest.stop()


def test_a_pace_joins_what_comes_within_it(connect, server, channel):
    client = connect(server.url, **EAGER)
    other = f"{channel}-other"
    client.tell("subscribe", channels=[channel], pace_ms=3_000)
    client.tell("subscribe", channels=[other])
    for name in [channel, other]:
        server.wait_for_connections(name, 1)
    server.publish(channel, "0")
    client.until_all("message", 1)
    for number in range(1, 10):
        server.publish(channel, str(number))
    server.publish(other, "later")
    client.until_all("message", 11)
    # It passes what the pace of the other channel holds.
    received = ["0", "later", *map(str, range(1, 10))]
    assert [it["data"] for it in client.all("message")] == received
    assert not client.all("gap") and not client.all("conflated")


@pytest.mark.parametrize("transport", ["websocket", "sse", "poll"])
def test_a_volatile_message_has_no_id_and_moves_no_position(
    connect, proxy, server, channel, transport
):
    through = proxy()
    client = connect(through.url, **{**EAGER, "transports": [transport]})
    publisher = connect(server.url, **EAGER)
    server.publish(channel, "0")
    client.tell("subscribe", channels=[channel, f"{channel}-b"], history=1)
    client.until_all("message", 1)
    if client.all("state")[-1]["state"] != "open":
        client.until_state("open")
    head = server.http.get(f"/channels/{channel}/history").json()["id"]
    for number in range(1, 4):
        server.wait_for_connections(channel, 1)
        publisher.tell("publish", channel=channel, data="typing", volatile=True)
        client.until_all("message", 2 * number)
        server.publish(channel, str(number))
        client.until_all("message", 2 * number + 1)
    through.cut()
    server.publish(channel, "4")
    client.until_all("message", 8)
    told = [(it["data"], it["id"] is None, it["replayed"]) for it in client.all("message")]
    typing = ("typing", True, False)
    kept = [(str(number), False, number == 0) for number in range(5)]
    assert told == [kept[0], typing, kept[1], typing, kept[2], typing, kept[3], kept[4]]
    assert not client.all("gap") and not client.all("error")
    published = publisher.until_all("published", 3)
    assert [(it["id"], it["duplicate"]) for it in published] == [(None, False)] * 3
    # Nothing remembers it.
    page = server.http.get(f"/channels/{channel}/history").json()
    assert [it["data"] for it in page["messages"]] == ["0", "1", "2", "3", "4"]
    assert int(page["id"].rpartition("-")[2]) == int(head.rpartition("-")[2]) + 4
