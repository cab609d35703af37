"""Members of channels: all clients keep the list with what each shows, and say what they show."""

import threading

import pytest
from conftest import WAIT_SECONDS
from support.server import eventually

TRANSPORTS = ["websocket", "sse", "poll"]
# No delays between attempts.
EAGER = {"random": 0, "open_timeout_ms": 5_000, "poll_wait_ms": 1_000}


def shows(**members):
    """Whether an event is one of these members."""
    return lambda it: it["event"] == "presence" and it["members"] == members


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_all_keep_the_list_and_tell_each_change(connect, server, channel, transport):
    channel = f"members-{channel}"
    ann = connect(server.url, transports=[transport], user="ann", **EAGER)
    ann.tell("subscribe", channels=[channel], presence=True)
    first = ann.until(shows(ann=None))
    assert (first["users"], first["connections"], first["partial"]) == (["ann"], 1, False)
    assert (first["joined"], first["updated"], first["left"]) == ([], [], [])
    bo = connect(server.url, transports=["websocket"], user="bo", **EAGER)
    bo.tell("subscribe", channels=[channel], info={"n": 1})
    joined = ann.until(shows(ann=None, bo={"n": 1}))
    assert (joined["joined"], joined["connections"]) == (["bo"], 2)
    bo.tell("update", info={"n": 2})
    updated = ann.until(shows(ann=None, bo={"n": 2}))
    assert (updated["joined"], updated["updated"], updated["left"]) == ([], ["bo"], [])
    bo.tell("close")
    left = ann.until(shows(ann=None))
    assert (left["joined"], left["left"]) == ([], ["bo"])
    assert not ann.all("error") and not bo.all("error")


def test_what_a_client_shows_it_shows_after_a_loss(connect, proxy, server, channel):
    channel = f"members-{channel}"
    through = proxy()
    bo = connect(through.url, transports=["websocket"], user="bo", **EAGER)
    bo.tell("subscribe", channels=[channel], presence=True, info={"n": 1})
    bo.until(shows(bo={"n": 1}))
    bo.tell("update", info={"n": 2})
    bo.until(shows(bo={"n": 2}))
    through.cut()
    bo.until_state("waiting")
    bo.until_state("open")
    ann = connect(server.url, transports=["websocket"], user="ann", **EAGER)
    ann.tell("subscribe", channels=[channel], presence=True)
    ann.until(shows(ann=None, bo={"n": 2}))


def test_what_a_client_shows_before_it_is_confirmed_is_shown(connect, scripted):
    asked, heard = threading.Event(), threading.Event()
    told = []

    async def script(request, peer):
        peer.welcome(request)
        frame = await peer.until_subscribe()
        told.append(frame["info"])
        asked.set()
        while (frame := await peer.hear())["type"] != "update":
            pass
        told.append(frame["info"])
        heard.set()
        await peer.hear()

    client = connect(scripted(script).url, transports=["websocket"], **EAGER)
    client.tell("subscribe", channels=["a"], info={"n": 1})
    assert asked.wait(WAIT_SECONDS)
    client.tell("update", info={"n": 2})
    assert heard.wait(WAIT_SECONDS)
    assert told == [{"n": 1}, {"n": 2}]


def test_what_the_server_does_not_take_ends_no_subscription(connect, server, channel):
    channel = f"members-{channel}"
    bo = connect(server.url, transports=["websocket"], user="bo", **EAGER)
    bo.tell("subscribe", channels=[channel], presence=True, info={"n": 1})
    bo.until(shows(bo={"n": 1}))
    bo.tell("update", info={"text": "x" * 2_000})
    bo.tell("update", info={"n": 3})
    bo.until(shows(bo={"n": 3}))
    server.publish(channel, "still there")
    bo.until_all("message", 1)
    assert not bo.all("error")


def test_what_was_refused_ends_no_later_subscription(connect, scripted):
    told = []

    async def script(request, peer):
        peer.welcome(request)
        frame = await peer.until_subscribe()
        told.append(frame["info"])
        peer.say({"type": "subscribed", "channel": "a", "id": "e-0", "ref": frame["ref"]})
        for code in [None, "bad_request"] if len(told) == 1 else []:
            while (frame := await peer.hear())["type"] != "update":
                pass
            told.append(frame["info"])
            kind = "error" if code else "updated"
            answer = {"type": kind, "code": code, "message": "no", "ref": frame["ref"]}
            peer.say(answer | {"channel": "a"})
        if len(told) == 3:
            peer.close(1012)
        await peer.hear()

    client = connect(scripted(script).url, transports=["websocket"], **EAGER)
    client.tell("subscribe", channels=["a"], info={"n": 1})
    eventually(lambda: len(told) == 1, "it subscribes")
    client.tell("update", info={"n": 2})
    eventually(lambda: len(told) == 2, "it updates")
    client.tell("update", info={"n": 3})
    eventually(lambda: len(told) == 4, "it subscribes again")
    assert told == [{"n": 1}, {"n": 2}, {"n": 3}, {"n": 2}]
    assert not client.all("error")


def test_a_list_that_becomes_partial_or_whole_is_told(connect, scripted):
    async def script(request, peer):
        peer.welcome(request)
        frame = await peer.until_subscribe()
        peer.say({"type": "subscribed", "channel": "a", "id": "e-0", "ref": frame["ref"]})

        def tell(event, offset, user=None, **fields):
            more = {"member": {"user": user}} if user else {}
            peer.say(
                {"type": "presence", "channel": "a", "event": event, "id": f"m-{offset}", "time": 1}
                | more
                | fields
            )

        tell("join", 1, "ann")
        tell("join", 2, "bo")
        tell("state", 2, members=2)
        tell("partial", 3, partial=True)
        tell("join", 4, "cy")
        tell("leave", 5, "bo")
        tell("whole", 6)
        tell("join", 7, "dee")
        await peer.hear()

    client = connect(scripted(script).url, transports=["websocket"], **EAGER)
    client.tell("subscribe", channels=["a"], presence=True)
    client.until(shows(ann=None, cy=None, dee=None))
    told = [
        (it["partial"], it["joined"], it["left"], sorted(it["members"]))
        for it in client.all("presence")
    ]
    assert told == [
        (False, [], [], ["ann", "bo"]),
        (True, [], [], ["ann", "bo"]),
        (True, ["cy"], [], ["ann", "bo", "cy"]),
        (True, [], ["bo"], ["ann", "cy"]),
        (False, [], [], ["ann", "cy"]),
        (False, ["dee"], [], ["ann", "cy", "dee"]),
    ]
    assert not client.all("error")
