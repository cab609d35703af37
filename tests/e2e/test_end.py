"""Channels that end, over real sockets and with clients that know nothing of ours."""

import json
import subprocess
import threading

import pytest
from support import TIMEOUT_SECONDS
from support.durable import SETTINGS
from support.server import Server, eventually
from support.transports import subscribe
from websockets.exceptions import ConnectionClosedOK
from websockets.sync.client import connect


def end(server, channel, last=None):
    answer = server.http.post(f"/channels/{channel}/end", content=last or b"")
    assert answer.status_code == 201, answer.text
    return answer.json()


def refused(answer):
    return answer.status_code, answer.json()["error"]


def test_curl_gets_all_and_returns(serve, channel):
    server = serve()
    url = f"{server.url}/channels/{channel}"
    followers = [
        subprocess.Popen(["curl", "-sN", *flags, url], stdout=subprocess.PIPE, text=True)
        for flags in ([], ["-H", "Accept: text/event-stream"])
    ]
    server.wait_for_connections(channel, len(followers))
    server.publish(channel, "first")
    ids = end(server, channel, "last")
    lines, events = [it.communicate(timeout=TIMEOUT_SECONDS)[0] for it in followers]
    assert [it.returncode for it in followers] == [0, 0], "both responses are complete"
    assert lines == "first\nlast\n"
    ended = {"type": "ended", "channel": channel, "id": ids["ended"]}
    assert events.endswith(f"event: ended\ndata: {json.dumps(ended, separators=(',', ':'))}\n\n")


def test_a_browser_gives_up_for_good(serve, node, chromium, channel):
    server = serve()
    child = node("ended.mjs", chromium, server.url, channel)
    assert json.loads(child.stdout.readline())["data"] == "ready"
    server.wait_for_connections(channel, 1)
    ids = end(server, channel, "last")
    told = [json.loads(line) for line in child.communicate(timeout=TIMEOUT_SECONDS)[0].splitlines()]
    assert [(it["what"], it["data"]) for it in told[::2]] == [("message", "last"), ("page", "closed")]
    assert json.loads(told[1]["data"])["id"] == ids["ended"]


def test_a_websocket_is_closed_as_complete(serve, channel):
    server = serve()
    with connect(f"{server.ws}/channels/{channel}") as socket:
        end(server, channel, "last")
        assert socket.recv(TIMEOUT_SECONDS) == "last"
        with pytest.raises(ConnectionClosedOK) as closed:
            socket.recv(TIMEOUT_SECONDS)
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1000, "the channel has ended")


def test_a_poll_says_that_nothing_more_comes(serve, channel):
    server = serve()
    first = server.publish(channel, "first")["id"]
    end(server, channel, "last")
    poll = {"wait": 30, "since": first}
    answer = server.http.get(f"/channels/{channel}", params=poll)
    assert (answer.text, answer.headers["throng-ended"]) == ("last", "true")
    poll["since"] = answer.headers["throng-id"]
    answer = server.http.get(f"/channels/{channel}", params=poll)
    assert (answer.status_code, answer.headers["throng-ended"]) == (204, "true")


def test_an_end_outlives_upgrades_and_can_be_taken_back(upgradable, channel):
    server = upgradable()
    ids = [server.publish(channel, "first")["id"]]
    end(server, channel)
    server.upgrade()
    late = server.http.post(f"/channels/{channel}", content="late")
    assert refused(late) == (409, "closed")
    with subscribe("sse", server, f"/channels/{channel}", history=9) as events:
        assert [event.event for event in events.events] == ["message", "ended"]
    assert server.http.delete(f"/channels/{channel}/end").status_code == 200
    server.publish(channel, "again")
    with subscribe("stream", server, f"/channels/{channel}", since=ids[0]) as lines:
        assert (lines.recovered, lines.take(1)) == (True, ["again"])


def test_the_end_of_a_durable_channel_outlives_the_process(tmp_path):
    (tmp_path / "throng.toml").write_text(SETTINGS)
    flags = ["--config", tmp_path / "throng.toml", "--data", tmp_path / "data"]
    server = Server(tmp_path, *flags)
    first = server.publish("kept/a", "first")["id"]
    with subscribe("websocket", server, "/channels/kept%2Fa") as follower:
        end(server, "kept%2Fa", "last")
        assert follower.take(1) == ["last"]
    server.kill()
    server = Server(tmp_path, *flags)
    late = server.http.post("/channels/kept%2Fa", content="late")
    assert refused(late) == (409, "closed")
    again = server.http.post("/channels/kept%2Fa/end")
    assert refused(again) == (409, "closed")
    assert server.history("kept/a")["ended"] is True
    with subscribe("sse", server, "/channels/kept%2Fa", since=first) as events:
        assert [event.event for event in events.events] == ["message", "ended"]
    opened = server.http.delete("/channels/kept%2Fa/end")
    assert opened.status_code == 200, opened.text
    server.publish("kept/a", "again")
    data = [message["data"] for message in server.history("kept/a")["messages"]]
    assert data == ["first", "last", "again"]
    server.stop()


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_ends_are_in_no_page_of_history(serve, tmp_path, place):
    flags = []
    if place == "disk":
        (tmp_path / "throng.toml").write_text(SETTINGS)
        flags = ["--config", tmp_path / "throng.toml", "--data", tmp_path / "data"]
    server = serve(*flags)
    channel = "kept%2Fpages"
    ids = [server.publish("kept/pages", str(n))["id"] for n in range(3)]
    for _ in range(120):
        end(server, channel)
        assert server.http.delete(f"/channels/{channel}/end").status_code == 200
    end(server, channel)
    for limit, first in [(1, 2), (2, 1), (100, 0)]:
        page = server.history("kept/pages", limit=limit)
        assert [it["id"] for it in page["messages"]] == ids[first:]
        assert (page["more"], page["ended"]) == (first > 0, True)
    page = server.history("kept/pages", limit=1, after=ids[1])
    assert ([it["id"] for it in page["messages"]], page["more"]) == (ids[2:], False)
    # Nor are they counted as erased.
    for expected in [3, 0]:
        answer = server.http.delete(f"/channels/{channel}/history")
        assert answer.json()["messages"] == expected


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_channel_ends_under_a_storm_of_publications(serve, tmp_path, place):
    flags = []
    if place == "disk":
        (tmp_path / "throng.toml").write_text(SETTINGS)
        flags = ["--config", tmp_path / "throng.toml", "--data", tmp_path / "data"]
    server = serve(*flags)
    path = "/channels/kept%2Fstorm"
    accepted, refusals, is_over = [[] for _ in range(4)], [0] * 4, threading.Event()

    def storm(at):
        number = 0
        # Each goes on until it was refused often, so that all were after the end.
        while not (is_over.is_set() and refusals[at] > 20):
            number += 1
            answer = server.http.post(path, content=f"{at} {number}")
            if answer.status_code == 201:
                accepted[at].append(f"{at} {number}")
            else:
                assert refused(answer) == (409, "closed")
                refusals[at] += 1

    with subscribe("stream", server, path) as follower:
        threads = [threading.Thread(target=storm, args=[at]) for at in range(4)]
        for thread in threads:
            thread.start()
        eventually(lambda: all(len(some) > 20 for some in accepted), "publications of all")
        end(server, "kept%2Fstorm", "last")
        is_over.set()
        for thread in threads:
            thread.join()
        found = [json.loads(line)["data"] for line in follower.lines if line]
    assert found[-1] == "last"
    assert sorted(found[:-1]) == sorted(sum(accepted, [])), "each accepted one, once"
    for at in range(4):
        own = [text for text in found if text.startswith(f"{at} ")]
        assert own == accepted[at], "in the order of each publisher"
