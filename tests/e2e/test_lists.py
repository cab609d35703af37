"""Lists of channels and users, over HTTP and on the command line, against the real binary."""

import contextlib
import json
import os
import pty
import subprocess
import threading

import pytest

from support import TIMEOUT_SECONDS
from support.access import SECRET, bearer, server_key, token
from support.lists import names
from support.raw import Raw
from support.server import BINARY, clean_environment, eventually, run_throng


def test_a_list_counts_subscribers_and_messages(serve):
    server = serve()
    with Raw(server) as client:
        client.request("GET", "/channels/news?user=ann", {"Accept": "text/event-stream"})
        assert client.read_head().status == 200
        id = server.publish("news", "x")["id"]
        news = {"channel": "news", "subscribers": 1, "id": id, "messages": 1}
        assert server.http.get("/channels").json() == {"channels": [news], "more": False}
        (ann,) = server.http.get("/users").json()["users"]
        assert (ann["user"], ann["subscribers"], ann["messages"]) == ("ann", 1, 0)
    eventually(lambda: names(server, "/users") == [], "the end of the connection")


def test_pages_while_channels_come_and_go(serve):
    server = serve("--max-batch-bytes", "64MiB", "--log", "warn")
    lines = [{"channel": f"rooms/{number}", "data": number} for number in range(2000)]
    server.publish_batch(lines)
    expected = sorted(line["channel"] for line in lines)
    done = threading.Event()

    def churn():
        number = 0
        while not done.is_set():
            with Raw(server) as client:
                client.request("GET", f"/channels/gone-{number}")
                client.read_head()
            number += 1

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        assert names(server, "/channels", limit=50, pattern="rooms/*") == expected
    finally:
        done.set()
        thread.join()


@pytest.fixture
def keyed(tmp_path, serve):
    """A server with keys; its listing keys."""
    keys = {
        "rooms": server_key(tmp_path, "rooms", "listing", channels=["rooms/*"]),
        "all": server_key(tmp_path, "all", "listing"),
        "app": server_key(tmp_path, "app", "publish"),
        "operator": server_key(tmp_path, "operator", "administration"),
    }
    tables = "".join(table for _, table in keys.values())
    (tmp_path / "throng.toml").write_text(f"[[token-keys]]\nsecret = '{SECRET}'\n" + tables)
    server = serve()
    server.keys = {name: key for name, (key, _) in keys.items()}
    for path in ("/channels/rooms%2Fa", "/channels/news", "/users/ann"):
        response = server.http.post(path, content="x", headers=bearer(server.keys["app"]))
        assert response.status_code == 201
    return server


def test_only_keys_with_the_scope_list_and_see_what_they_are_for(keyed):
    keys = keyed.keys
    assert names(keyed, "/channels", keys["all"]) == ["news", "rooms/a"]
    assert names(keyed, "/users", keys["all"]) == ["ann"]
    assert names(keyed, "/channels", keys["rooms"]) == ["rooms/a"]
    assert names(keyed, "/channels", keys["rooms"], pattern="news") == []
    assert names(keyed, "/users", keys["rooms"]) == []
    for path in ("/channels", "/users"):
        response = keyed.http.get(path)
        assert (response.status_code, response.json()["error"]) == (401, "unauthorized")
        for credential in (keys["app"], keys["operator"], token(throng={"subscribe": ["*"]})):
            response = keyed.http.get(path, headers=bearer(credential))
            assert (response.status_code, response.json()["error"]) == (403, "forbidden")


def test_the_commands_print_all_pages(keyed, tmp_path):
    def run(*arguments, key="all"):
        environment = {"THRONG_KEY": keyed.keys[key]}
        return run_throng(
            *arguments, "--url", keyed.url, directory=tmp_path, environment=environment
        )

    done = run("channels")
    assert done.returncode == 0, done.stderr
    entries = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(entry["channel"] for entry in entries) == ["news", "rooms/a"]
    assert json.loads(run("channels", "rooms/*").stdout)["channel"] == "rooms/a"
    assert json.loads(run("users").stdout)["user"] == "ann"
    assert len(run("channels", "--limit", "1").stdout.splitlines()) == 1
    refused = run("channels", key="app")
    assert refused.returncode == 1
    assert "does not have the scope `listing` (403)" in refused.stderr
    without = run_throng("channels", "--url", keyed.url, directory=tmp_path)
    assert "set THRONG_KEY to a server key with the scope `listing`" in without.stderr
    assert "THRONG_TOKEN" not in without.stderr


def test_on_a_terminal_a_list_is_a_table(server, channel):
    server.publish(channel, "x")
    ours, theirs = pty.openpty()
    command = [BINARY, "channels", channel, "--url", server.url]
    environment = clean_environment({"NO_COLOR": "1"})
    done = subprocess.run(
        command, stdout=theirs, env=environment, timeout=TIMEOUT_SECONDS, check=False
    )
    os.close(theirs)
    assert done.returncode == 0
    printed = b""
    # The end of what was printed to a terminal is an error: nobody has it open any more.
    with contextlib.suppress(OSError):
        while more := os.read(ours, 4096):
            printed += more
    os.close(ours)
    title, row = printed.decode().splitlines()
    assert title.split() == ["subscribers", "messages", "channel"]
    assert row.split() == ["0", "1", channel]
