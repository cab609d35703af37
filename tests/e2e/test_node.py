"""Node's `ws` and `eventsource`, in Node processes."""

import json
import signal

from support.server import Server

QUICK = ["--drain-window", "100ms"]


def next_event(child, name=None):
    """The next line of a program; with a name, the next event of that name."""
    while True:
        line = child.stdout.readline()
        assert line, "the program has ended"
        event = json.loads(line)
        if name is None or event["event"] == name:
            return event


def say(child, text):
    child.stdin.write(text + "\n")
    child.stdin.flush()


def test_ws_plain(server, node, channel):
    child = node("ws.mjs", f"{server.ws}/channels/{channel}")
    assert next_event(child)["event"] == "upgrade"
    assert next_event(child) == {"event": "open", "protocol": ""}
    say(child, "from node ✓")
    assert next_event(child) == {"event": "text", "data": "from node ✓"}
    server.publish(channel, b"\x00\xfe", Content_Type="application/octet-stream")
    assert next_event(child) == {"event": "binary", "data": "00fe"}


def test_ws_v1_on_several_channels(server, node, channel):
    child = node("ws.mjs", f"{server.ws}/subscribe?channel={channel}-a", "throng.v1")
    assert next_event(child, "open")["protocol"] == "throng.v1"
    frames = [json.loads(next_event(child, "text")["data"]) for _ in range(2)]
    assert [frame["type"] for frame in frames] == ["welcome", "subscribed"]
    say(child, json.dumps({"type": "subscribe", "channel": f"{channel}-b"}))
    assert json.loads(next_event(child, "text")["data"])["type"] == "subscribed"
    server.publish(f"{channel}-b", "b")
    server.publish(f"{channel}-a", "a")
    found = [json.loads(next_event(child, "text")["data"]) for _ in range(2)]
    assert {(m["channel"], m["data"]) for m in found} == {
        (f"{channel}-a", "a"),
        (f"{channel}-b", "b"),
    }


def test_ws_gets_the_time_to_reconnect(serve, node, channel):
    server = serve()
    child = node("ws.mjs", f"{server.ws}/channels/{channel}")
    next_event(child, "open")
    server.stop()
    closed = next_event(child, "close")
    assert closed["code"] == 1012 and closed["reason"].startswith("reconnect in ")


def test_ws_answers_pings_and_stays_open(serve, node, channel):
    server = serve("--heartbeat", "1s", "--ping-interval", "1s")
    child = node("ws.mjs", f"{server.ws}/channels/{channel}")
    for _ in range(4):
        next_event(child, "ping")
    server.publish(channel, "still here")
    assert next_event(child, "text")["data"] == "still here"


def test_eventsource_on_several_channels(server, node, channel):
    url = f"{server.url}/subscribe?channel={channel}-a&channel={channel}-b&envelope=true"
    child = node("sse.mjs", url)
    assert next_event(child)["event"] == "open"
    server.publish(f"{channel}-a", "a")
    server.publish(f"{channel}-b", "b")
    events = [next_event(child) for _ in range(2)]
    assert {json.loads(event["data"])["channel"] for event in events} == {
        f"{channel}-a",
        f"{channel}-b",
    }
    assert all(len(event["id"].split(",")) == 2 for event in events)


def test_eventsource_resumes_after_a_cut(serve, node, channel):
    """The program does not read until the server closes the connection."""
    server = serve("--max-lag-messages", 50, "--history-messages", 10000, "--history-bytes", "64MiB")
    child = node("sse.mjs", f"{server.url}/channels/{channel}")
    assert next_event(child)["event"] == "open"
    child.send_signal(signal.SIGSTOP)
    # Far more than the socket's buffers hold.
    total, size = 64 * 16, 16 * 1024
    for first in range(0, total, 16):
        server.publish_batch(
            {"channel": channel, "data": f"{n}:".ljust(size, "x")} for n in range(first, first + 16)
        )
    server.wait_for_connections(channel, 0)
    child.send_signal(signal.SIGCONT)
    numbers, resumed = [], []
    while len(numbers) < total:
        event = next_event(child)
        if event["event"] == "message":
            numbers.append(int(event["data"].partition(":")[0]))
        elif event["event"] == "resumed":
            resumed.append(json.loads(event["data"])["recovered"])
    assert numbers == list(range(total))
    assert resumed and all(resumed)


def test_eventsource_reconnects_after_a_restart(tmp_path, node, channel):
    first = Server(tmp_path, *QUICK)
    child = node("sse.mjs", f"{first.url}/channels/{channel}")
    assert next_event(child)["event"] == "open"
    first.publish(channel, "before")
    assert next_event(child)["data"] == "before"
    first.stop()
    second = Server(tmp_path, *QUICK, port=first.port)
    resumed = next_event(child, "resumed")
    assert json.loads(resumed["data"]) == {"recovered": False}, "the new log is another one"
    second.publish(channel, "after")
    assert next_event(child, "message")["data"] == "after"
    second.stop()
