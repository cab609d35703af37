"""Every operation that curl alone can do."""

import json
import subprocess

import pytest

from support import TIMEOUT_SECONDS


class Tail:
    """`curl -N -i` on a path of a channel."""

    def __init__(self, url, arguments):
        command = ["curl", "--silent", "--noproxy", "*", "-N", "-i"]
        command += ["--max-time", str(TIMEOUT_SECONDS), *arguments, url]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.headers = None
        self.is_in_event = False

    def line(self):
        """The next line of the body. curl shows the head only together with the first of them."""
        if self.headers is None:
            assert self.child.stdout.readline().startswith("HTTP/1.1 200")
            self.headers = {}
            while line := self.child.stdout.readline().strip():
                name, _, value = line.partition(":")
                self.headers[name.lower()] = value.strip()
        is_events = self.headers["content-type"].startswith("text/event-stream")
        # An event is a block of lines, so an empty one stands before each but the first.
        heartbeat = [":\n", "\n"] if is_events and not self.is_in_event else ["\n"]
        while (line := self.child.stdout.readline()) in heartbeat and not self.is_in_event:
            pass
        self.is_in_event = is_events and line != "\n"
        return line

    def close(self):
        self.child.kill()
        self.child.communicate()


@pytest.fixture
def tail(server, channel):
    """Starts `curl -N` on the test's channel and waits until the server counts it."""
    started = []

    def start(query="", *arguments):
        it = Tail(f"{server.url}/channels/{channel}{query}", arguments)
        started.append(it)
        server.wait_for_connections(channel, len(started))
        return it

    yield start
    for it in started:
        it.close()


def test_publish_reaches_a_stream(server, curl, tail, channel):
    subscriber = tail()
    answer = json.loads(curl(f"/channels/{channel}", "-d", "hello"))
    assert answer["subscribers"] == 1
    assert subscriber.line() == "hello\n"
    assert subscriber.headers["throng-id"] == answer["id"].rpartition("-")[0] + "-0"
    assert subscriber.headers["throng-connection"]
    assert "throng-recovered" not in subscriber.headers


def test_put_publishes_too(server, curl, tail, channel):
    subscriber = tail()
    out = curl(f"/channels/{channel}", "-X", "PUT", "--data-binary", "one", "-w", "%{http_code}")
    assert out.endswith("201")
    assert subscriber.line() == "one\n"


def test_upload_from_a_pipe_is_chunked(server, channel):
    """`curl -T -` sends a chunked body, and gets `Connection: close`."""
    command = ["curl", "-s", "-i", "--noproxy", "*", "-T", "-", f"{server.url}/channels/{channel}"]
    done = subprocess.run(
        command, input="from a pipe", capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    assert "HTTP/1.1 201" in done.stdout
    assert "connection: close" in done.stdout.lower()
    assert server.history(channel)["messages"][-1]["data"] == "from a pipe"


def test_server_sent_events(server, tail, channel):
    subscriber = tail("", "-H", "Accept: text/event-stream")
    id = server.publish(channel, "two\nlines")["id"]
    lines = []
    while (line := subscriber.line()) != "\n" or not lines:
        lines.append(line.rstrip("\n"))
    assert sorted(lines) == sorted([f"id: {id}", "data: two", "data: lines"])
    assert subscriber.headers["content-type"].startswith("text/event-stream")


def test_long_poll_returns_missed_messages(server, curl, channel):
    start = server.history(channel)["id"]
    ids = [server.publish(channel, f"m{n}")["id"] for n in range(3)]
    out = curl(f"/channels/{channel}?wait=10&since={ids[0]}", "-i")
    head, _, body = out.partition("\n\n")
    assert body == "m1\nm2"
    assert f"throng-id: {ids[2]}" in head.lower()
    assert "throng-recovered: true" in head.lower()
    out = curl(f"/channels/{channel}?since={start}", "-H", "Prefer: wait=10")
    assert out == "m0\nm1\nm2"


def test_long_poll_times_out_with_204(server, curl, channel):
    id = server.publish(channel, "before")["id"]
    out = curl(f"/channels/{channel}?wait=0&since={id}", "-i")
    assert out.startswith("HTTP/1.1 204")
    assert f"throng-id: {id}" in out.lower()
    out = curl(f"/channels/{channel}?wait=1", "-i")
    assert out.startswith("HTTP/1.1 204")


def test_history_is_sent_before_live_messages(server, tail, channel):
    for n in range(5):
        server.publish(channel, f"old {n}")
    subscriber = tail("?history=2")
    server.publish(channel, "new")
    assert [subscriber.line() for _ in range(3)] == ["old 3\n", "old 4\n", "new\n"]


def test_a_batch_is_published(server, curl, channel, tmp_path):
    lines = tmp_path / "batch"
    lines.write_text(
        f'{{"channel":"{channel}","data":"hello"}}\n'
        f'{{"user":"{channel}","data":{{"n":1}},"key":"order-7"}}\n'
        '{"channel":"","data":"x"}\n'
        f'{{"channel":"{channel}","data":"AAEC","encoding":"base64"}}\n'
        f'{{"user":"{channel}","data":{{"n":1}},"key":"order-7"}}\n'
    )
    out = curl("/publish", "--data-binary", f"@{lines}")
    answers = [json.loads(line) for line in out.splitlines()]
    assert len(answers) == 5
    assert answers[0]["subscribers"] == 0
    assert answers[2]["error"] == "bad_name"
    assert answers[4]["id"] == answers[1]["id"] and answers[4]["duplicate"] is True
    messages = server.history(channel)["messages"]
    assert [message["data"] for message in messages] == ["hello", "AAEC"]
    assert [message["id"] for message in messages] == [answers[0]["id"], answers[3]["id"]]
    assert messages[1]["encoding"] == "base64"


@pytest.mark.parametrize("suffix", ["", "/history", "/presence"])
def test_head_has_the_headers_of_get_and_no_body(server, curl, channel, suffix):
    server.publish(channel, "hello")
    head = curl(f"/channels/{channel}{suffix}", "--head")
    assert head.startswith("HTTP/1.1 200")
    assert server.presence(channel)["connections"] == 0
    if suffix:
        whole = curl(f"/channels/{channel}{suffix}", "-i")
        wanted = [line for line in whole.lower().split("\n") if line.startswith("content-")]
        assert wanted and all(line in head.lower() for line in wanted)
    else:
        assert "throng-id:" in head.lower()


@pytest.mark.parametrize(
    "path, methods",
    [
        ("/channels/x", {"GET", "HEAD", "POST", "PUT", "OPTIONS"}),
        ("/users/x", {"GET", "HEAD", "POST", "PUT", "OPTIONS"}),
        ("/subscribe?channel=x", {"GET", "HEAD", "OPTIONS"}),
        ("/channels/x/history", {"GET", "HEAD", "OPTIONS"}),
        ("/channels/x/presence", {"GET", "HEAD", "OPTIONS"}),
        ("/publish", {"POST", "OPTIONS"}),
    ],
)
def test_options_names_the_methods(server, path, methods):
    response = server.http.options(path)
    assert response.status_code in (200, 204)
    assert {method.strip() for method in response.headers["Allow"].split(",")} >= methods


@pytest.mark.parametrize("path", ["/channels/x", "/users/x", "/publish", "/channels/x/history"])
def test_other_methods_are_refused(server, path):
    response = server.http.request("PATCH", path)
    assert response.status_code == 405
    assert response.json()["error"] == "method_not_allowed"
    assert response.headers["Allow"]


def test_pages_are_served(server):
    response = server.http.get("/")
    assert response.is_redirect and response.headers["Location"].endswith("/chat")
    assert "text/html" in server.http.get("/chat").headers["Content-Type"]
    assert "javascript" in server.http.get("/throng.js").headers["Content-Type"]
    assert server.http.get("/health").status_code == 200
    assert server.http.get("/nowhere").json()["error"] == "not_found"


def test_the_javascript_client_is_served_compressed_and_under_its_version(server, curl):
    plain = curl("/throng.js")
    assert curl("/throng.js", "--compressed") == plain
    compressed = server.http.get("/throng.js", headers={"Accept-Encoding": "gzip"})
    assert compressed.headers["Content-Encoding"] == "gzip" and compressed.text == plain
    assert int(compressed.headers["Content-Length"]) < len(plain) / 2
    assert compressed.headers["Vary"] == "Accept-Encoding, Origin"
    etag = {"If-None-Match": compressed.headers["ETag"]}
    assert server.http.get("/throng.js", headers=etag).status_code == 304
    version = server.http.get("/status.json").json()["version"]
    versioned = server.http.get(f"/throng-{version}.js")
    assert versioned.text == plain and "immutable" in versioned.headers["Cache-Control"]
    assert server.http.get("/throng-0.0.0.js").status_code == 404
    name = f"throng-http-{version}.js"
    assert name in plain
    part = server.http.get(f"/{name}?0", headers={"Accept-Encoding": "gzip"})
    assert part.text.startswith("/* Throng") and part.headers["Content-Encoding"] == "gzip"
    assert "immutable" in part.headers["Cache-Control"]
    tabs, kept = (server.http.get(f"/throng-tabs{of}.js") for of in ("", f"-{version}"))
    assert f"./throng-{version}.js" in tabs.text and tabs.headers["Cache-Control"] == "no-cache"
    assert kept.text == tabs.text and "immutable" in kept.headers["Cache-Control"]


def test_the_content_type_decides_the_kind_of_a_message(server, channel):
    server.publish(channel, b'{"a": [1, 2]}', Content_Type="application/json")
    server.publish(channel, b'{"b":1}', Content_Type="application/vnd.x+json")
    server.publish(channel, b"\x00\xff", Content_Type="image/png")
    server.publish(channel, "plain ✓".encode(), Content_Type="application/x-www-form-urlencoded")
    server.publish(channel, b"<b>", Content_Type="text/html")
    found = server.history(channel)["messages"]
    assert [message["data"] for message in found] == [
        {"a": [1, 2]},
        {"b": 1},
        "AP8=",
        "plain ✓",
        "<b>",
    ]
    types = [message.get("content_type") for message in found]
    assert types == [None, "application/vnd.x+json", "image/png", None, "text/html"]
    assert [message.get("encoding") for message in found] == [None, None, "base64", None, None]
    assert all(message["type"] == "message" and message["channel"] == channel for message in found)
