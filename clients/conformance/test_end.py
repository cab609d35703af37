"""Channels that end: all clients get all messages, then the end, once, and ask for no more."""

import pytest
from misbehaving import Fault, read_list

TRANSPORTS = ["websocket", "sse", "poll"]
# No delays between attempts.
EAGER = {"random": 0, "open_timeout_ms": 5_000, "poll_wait_ms": 1_000}


def end(server, channel, last=None):
    answer = server.http.post(f"/channels/{channel}/end", content=last or b"")
    assert answer.status_code == 201, answer.text
    return answer.json()["ended"]


def told(client):
    """The messages, gaps and ends of the client's channels, in their order."""
    told = []
    for event in client.heard:
        if event["event"] == "message":
            told.append(event["data"])
        elif event["event"] in ("gap", "error"):
            told.append(event)
        elif event["event"] == "ended":
            told.append(("ended", event["channel"], event["id"]))
    return told


def until_ended(client, count=1):
    client.until_all("ended", count)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_subscribers_get_the_last_message_and_the_end(connect, server, channel, transport):
    client = connect(server.url, **EAGER, transports=[transport])
    client.tell("subscribe", channels=[channel])
    client.until_state("open")
    server.wait_for_connections(channel, 1)
    server.publish(channel, "first")
    client.until_all("message", 1)
    last = end(server, channel, "last")
    until_ended(client)
    assert told(client) == ["first", "last", ("ended", channel, last)]
    server.wait_for_connections(channel, 0)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_whoever_comes_late_gets_the_log_and_the_end(connect, server, channel, transport):
    since = server.publish(channel, "first")["id"]
    last = end(server, channel, "last")
    ended = ("ended", channel, last)
    for begin, expected in [
        ({"history": 9}, ["first", "last"]),
        ({"since": since}, ["last"]),
        ({"since": last}, []),
        ({}, []),
    ]:
        client = connect(server.url, **EAGER, transports=[transport])
        client.tell("subscribe", channels=[channel], **begin)
        until_ended(client)
        assert told(client) == [*expected, ended], begin


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_one_of_several_channels_ends_alone(connect, server, channel, transport):
    other = f"{channel}-b"
    client = connect(server.url, **EAGER, transports=[transport])
    client.tell("subscribe", channels=[channel, other])
    server.wait_for_connections(channel, 1)
    server.wait_for_connections(other, 1)
    last = end(server, channel, "last")
    until_ended(client)
    assert told(client) == ["last", ("ended", channel, last)]
    server.wait_for_connections(other, 1)
    server.publish(other, "more")
    client.until(lambda it: it.get("data") == "more")
    end(server, other)
    until_ended(client, 2)
    assert [it["channel"] for it in client.all("ended")] == [channel, other]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_end_that_is_cut_off_comes_once(connect, proxy, server, channel, transport):
    since = server.publish(channel, "0")["id"]
    for number in range(1, 30):
        server.publish(channel, str(number) + "x" * 500)
    last = end(server, channel, "last")
    cuts = [2_000, 9_000, 14_000]
    through = proxy(lambda number: Fault(cuts[number]) if number < len(cuts) else Fault())
    client = connect(through.url, **EAGER, transports=[transport])
    client.tell("subscribe", channels=[channel], since=since)
    until_ended(client)
    numbers = [it.split("x")[0] for it in told(client)[:-1]]
    assert numbers == [*map(str, range(1, 30)), "last"]
    assert told(client)[-1] == ("ended", channel, last)


def test_an_end_is_not_resumed_after_a_loss(connect, scripted):
    """On the next connection the client asks for what has not ended, and for nothing else."""
    asked = []

    async def script(request, peer):
        peer.welcome(request)
        names = []
        while len(names) < (1 if asked else 2):
            frame = await peer.until_subscribe()
            for each in read_list(frame):
                names.append(each["channel"])
            number = len(asked) * 10 + len(names)
            channels = [
                {"channel": each["channel"], "id": "e-5", "number": number + index}
                for index, each in enumerate(read_list(frame))
            ]
            answer = {"channels": channels} if "channels" in frame else channels[0]
            peer.say({"type": "subscribed", **answer, "ref": frame["ref"]})
        asked.append(names)
        if len(asked) == 1:
            peer.say({"type": "ended", "channel": "a", "id": "e-5"})
            await peer.drain()
            peer.close(1001, "going away; reconnect in 1 ms")
        else:
            peer.say({"type": "message", "channel": "b", "id": "e-6", "time": 1, "data": "more"})
        while True:
            await peer.hear()

    server = scripted(script)
    client = connect(server.url, **EAGER, transports=["websocket"])
    client.tell("subscribe", channels=["a", "b"])
    client.until_all("message", 1)
    assert [it["channel"] for it in client.all("ended")] == ["a"]
    assert asked[0] == ["a", "b"] and asked[1] == ["b"], asked


@pytest.mark.parametrize("transport", ["websocket", "sse"])
def test_clients_end_and_open_channels(connect, server, channel, transport):
    client = connect(server.url, **EAGER, transports=[transport])

    def ask(command, **fields):
        client.tell(command, channel=channel, **fields)
        return client.until(lambda it: it["event"] in ("published", "unpublished"))

    client.tell("subscribe", channels=[channel])
    server.wait_for_connections(channel, 1)
    first = ask("end", data={"n": 1})
    until_ended(client)
    assert told(client) == [{"n": 1}, ("ended", channel, first["id"])]
    for refused in (ask("end"), ask("publish", data="late")):
        assert (refused["event"], refused["code"]) == ("unpublished", "closed")
    assert refused["outcome"] == "unpublished"
    assert ask("reopen")["event"] == "published"
    assert ask("reopen")["code"] == "not_found"
    assert ask("publish", data="again")["event"] == "published"
    assert ask("end")["event"] == "published"
    assert len(client.all("ended")) == 1, "it follows the channel no more"
