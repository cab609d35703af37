"""Members of channels: all clients keep the list with what each shows, and say what they show."""

import pytest

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
