"""States of channels: all clients get, keep and change them alike, over each transport."""

import pytest
from misbehaving import Fault
from support.server import Server

TRANSPORTS = ["websocket", "sse", "poll"]
QUIET = ["--drain-window", "200ms", "--heartbeat", "1s"]
# No delays between attempts.
EAGER = {"random": 0, "open_timeout_ms": 5_000, "poll_wait_ms": 1_000}


def set_key(server, channel, key, value):
    answer = server.http.put(f"/channels/{channel}/state/{key}", content=value)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def remove(server, channel, key):
    assert server.http.delete(f"/channels/{channel}/state/{key}").status_code == 201


def make(directory):
    directory.mkdir()
    return directory


def shown(client):
    """Keys with their values, other messages, and the ends of states, in their order."""
    shown = []
    for event in client.heard:
        if event["event"] == "complete":
            shown.append("complete")
        elif event["event"] == "message":
            key = event["state_key"]
            value = None if event["tombstone"] else event["data"]
            shown.append(event["data"] if key is None else (key, value))
    return shown


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_state_comes_first_and_then_all_changes(connect, server, channel, transport):
    for key, value in [("a", "old"), ("b", "1"), ("gone", "x"), ("a", "2")]:
        set_key(server, channel, key, value)
    remove(server, channel, "gone")
    server.publish(channel, "before")
    client = connect(server.url, **EAGER, transports=[transport])
    client.tell("subscribe", channels=[channel], state=True)
    client.until(lambda it: it["event"] == "complete")
    server.wait_for_connections(channel, 1)
    set_key(server, channel, "b", "3")
    server.publish(channel, "hello")
    remove(server, channel, "a")
    client.until(lambda it: it.get("tombstone"))
    assert shown(client) == [("b", "1"), ("a", "2"), "complete", ("b", "3"), "hello", ("a", None)]
    assert client.all("gap") == []


def until_kept(client, values):
    return client.until(
        lambda it: it["event"] == "kept" and it["values"] == values and it["is_complete"]
    )


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_kept_state_follows_sets_removals_and_erasures(connect, server, channel, transport):
    set_key(server, channel, "a", "1")
    client = connect(server.url, **EAGER, transports=[transport])
    client.tell("keep", channel=channel)
    until_kept(client, {"a": "1"})
    server.wait_for_connections(channel, 1)
    erased = set_key(server, channel, "b", "2")
    until_kept(client, {"a": "1", "b": "2"})
    remove(server, channel, "a")
    until_kept(client, {"b": "2"})
    answer = server.http.request("DELETE", f"/channels/{channel}/messages/{erased}")
    assert answer.status_code == 200, answer.text
    until_kept(client, {})


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_empty_state_is_complete(connect, server, channel, transport):
    client = connect(server.url, **EAGER, transports=[transport])
    client.tell("subscribe", channels=[channel], state=True)
    client.until(lambda it: it["event"] == "complete")
    server.wait_for_connections(channel, 1)
    set_key(server, channel, "a", "1")
    client.until_all("message", 1)
    assert shown(client) == ["complete", ("a", "1")]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_state_begins_anew_on_another_server(connect, proxy, tmp_path, channel, transport):
    first, second = [Server(make(tmp_path / name), *QUIET) for name in ("first", "second")]
    try:
        for key in "ab":
            set_key(first, channel, key, "1")
        set_key(second, channel, "c", "3")
        through = proxy(upstream=first)
        client = connect(through.url, **EAGER, transports=[transport])
        client.tell("keep", channel=channel)
        until_kept(client, {"a": "1", "b": "1"})
        through.upstream = second
        through.cut()
        until_kept(client, {"c": "3"})
        second.wait_for_connections(channel, 1)
        set_key(second, channel, "d", "4")
        until_kept(client, {"c": "3", "d": "4"})
    finally:
        first.stop()
        second.stop()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_state_that_is_cut_comes_whole(connect, proxy, server, channel, transport):
    values = {f"key {number}": "x" * 1_000 for number in range(50)}
    lines = [{"channel": channel, "state_key": key, "data": data} for key, data in values.items()]
    server.publish_batch(lines)
    cuts = [3_000, 20_000, 40_000]
    through = proxy(lambda number: Fault(cuts[number]) if number < len(cuts) else Fault())
    client = connect(through.url, **EAGER, transports=[transport])
    client.tell("keep", channel=channel)
    until_kept(client, values)
    server.wait_for_connections(channel, 1)
    remove(server, channel, "key 7")
    del values["key 7"]
    until_kept(client, values)


def test_a_key_is_set_and_removed_under_conditions(connect, server, channel):
    client = connect(server.url, **EAGER, transports=["websocket"])

    def ask(command, **fields):
        client.tell(command, channel=channel, **fields)
        return client.until(lambda it: it["event"] in ("published", "unpublished"))

    first = ask("set", key="k", data="1")
    assert first["event"] == "published"
    assert server.http.get(f"/channels/{channel}/state/k").json()["id"] == first["id"]
    assert ask("set", key="k", data="2", if_match=None)["code"] == "conflict"
    second = ask("set", key="k", data={"n": 2}, if_match=first["id"])
    assert second["event"] == "published"
    assert ask("set", key="k", data="3", if_match=first["id"])["code"] == "conflict"
    assert ask("remove", key="k", if_match=first["id"])["code"] == "conflict"
    assert server.http.get(f"/channels/{channel}/state/k").json()["data"] == {"n": 2}
    assert ask("remove", key="k", if_match=second["id"])["event"] == "published"
    assert ask("remove", key="k")["code"] == "not_found"
    assert ask("set", key="ü b/%", data="4", if_match=None)["event"] == "published"
    page = server.http.get(f"/channels/{channel}/state").json()
    assert [it["state_key"] for it in page["messages"]] == ["ü b/%"]
    assert ask("set", key="ü b/%", data="5")["event"] == "published"


def test_history_may_begin_at_a_time_or_with_the_newest(connect, server, channel):
    ids = [server.publish(channel, str(number))["id"] for number in range(5)]
    client = connect(server.url, **EAGER, transports=["websocket"])

    def page(**fields):
        client.tell("history", channel=channel, **fields)
        return client.until(lambda it: it["event"] == "history")["data"]

    assert page(limit=3, order="newest") == ["4", "3", "2"]
    time = server.history(channel, after=ids[1])["messages"][0]["time"]
    everything = server.history(channel, since_time=time)["messages"]
    assert page(since_time=time) == [it["data"] for it in everything]
    assert page(since_time=time + 3_600_000) == []
