"""`throng publish` and `throng tail`, as scripts use them."""

import json
import os
import re
import signal
import socket
import subprocess
import time

import pytest

from support import TIMEOUT_SECONDS
from support.raw import Raw
from support.server import BINARY, Server, clean_environment, run_throng

QUICK = ["--drain-window", "100ms"]


@pytest.fixture
def tail(tmp_path):
    """Starts `throng tail`; its output is read through a pipe."""
    children = []

    def start(url, *arguments):
        child = subprocess.Popen(
            [BINARY, "tail", "--server", url, *arguments],
            cwd=tmp_path,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


def publish(server, directory, *arguments, input=None):
    done = run_throng(
        "publish", "--server", server.url, *arguments, directory=directory, input=input
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_publish_and_tail(server, tmp_path, tail, channel):
    child = tail(server.url, channel, "--user", "ann")
    note = child.stderr.readline()
    assert note == f"note: connected to {server.url}, following {channel} and user ann\n"
    server.wait_for_connections(channel, 1)
    publish(server, tmp_path, channel, "from the command line")
    message = json.loads(child.stdout.readline())
    assert message["data"] == "from the command line"
    assert message["channel"] == channel
    assert message["id"] == server.history(channel)["messages"][0]["id"]


def test_create_makes_a_channel_with_its_first_messages(server, tmp_path, channel):
    def create(*arguments):
        return run_throng("create", "--server", server.url, channel, *arguments, directory=tmp_path)

    properties = ["--json", "--ttl", "1h"]
    done = create(*properties, '{"state":"packed"}', "7")
    created = json.loads(done.stdout)
    assert (created["content_type"], created["ttl"]) == ("application/json", 3600), done.stderr
    messages = server.history(channel)["messages"]
    assert [it["data"] for it in messages] == [{"state": "packed"}, 7]
    assert [it["id"] for it in messages] == created.pop("ids")
    assert json.loads(create(*properties, "8").stdout) == created, "nothing is published again"
    assert len(server.history(channel)["messages"]) == 2
    for arguments, reason in [
        (["--ttl", "1h"], "with another `content_type`"),
        (["--json", "no JSON"], "message 1"),
        (["--ttl", "0"], "`ttl` must be"),
    ]:
        done = create(*arguments)
        assert done.returncode != 0 and reason in done.stderr, done.stderr


def test_tail_begins_with_the_state(server, tmp_path, tail, channel):
    for key, value in [("a", "old"), ("b", "1"), ("a", "2")]:
        publish(server, tmp_path, channel, "--state-key", key, value)
    child = tail(server.url, channel, "--state")
    first, second = (json.loads(child.stdout.readline()) for _ in range(2))
    assert [(it["state_key"], it["data"]) for it in (first, second)] == [("b", "1"), ("a", "2")]
    server.wait_for_connections(channel, 1)
    publish(server, tmp_path, channel, "hello")
    assert json.loads(child.stdout.readline())["data"] == "hello"


def test_publish_reads_standard_input(server, tmp_path, channel):
    publish(server, tmp_path, channel, "-", input="from a pipe")
    assert server.history(channel)["messages"][-1]["data"] == "from a pipe"


def test_tail_exits_when_its_channels_have_ended(server, tail, channel):
    other = f"{channel}-b"
    child = tail(server.url, channel, other)
    for name in (channel, other):
        server.wait_for_connections(name, 1)
    for name, last in ((channel, "the last of a"), (other, "the last of b")):
        assert server.http.post(f"/channels/{name}/end", content=last).status_code == 201
    out, errors = child.communicate(timeout=TIMEOUT_SECONDS)
    assert child.returncode == 0, errors
    assert "the last of a" in out and "the last of b" in out
    assert [line for line in errors.splitlines() if line.endswith("ended")] == [
        f"note: {name} has ended" for name in (channel, other)
    ]
    late = tail(server.url, channel, "--history", "9")
    out, errors = late.communicate(timeout=TIMEOUT_SECONDS)
    assert (late.returncode, json.loads(out)["data"]) == (0, "the last of a")
    assert f"{channel} has ended" in errors
    nothing = tail(server.url, channel)
    out, errors = nothing.communicate(timeout=TIMEOUT_SECONDS)
    assert (nothing.returncode, out) == (0, "")
    assert "has ended" in errors


def test_publish_with_a_receipt(server, tmp_path, tail, channel):
    tail(server.url, channel)
    server.wait_for_connections(channel, 1)
    result = json.loads(publish(server, tmp_path, channel, "--receipt", "30s", "here", "--key", "k"))
    assert result["receipt"]["outcome"] == "complete" and result["receipt"]["written"] == 1
    arguments = ["publish", "--server", server.url, channel, "here", "--receipt", "1", "--key", "k"]
    again = run_throng(*arguments, directory=tmp_path)
    assert again.returncode == 0 and "receipt" not in json.loads(again.stdout)
    assert "there is no receipt" in again.stderr
    for arguments in (["--lines"], ["--receipt", "61s"]):
        done = run_throng("publish", channel, "--receipt", "5", *arguments, directory=tmp_path, input="a\n")
        assert done.returncode == 64, done.stderr


@pytest.mark.parametrize("input", ["", "\n"])
@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_empty_standard_input_publishes_nothing(server, tmp_path, channel, arguments, input):
    command = ["publish", "--server", server.url, channel, *arguments]
    done = run_throng(*command, directory=tmp_path, input=input)
    assert (done.returncode, done.stdout) == (1, "")
    assert "nothing was published" in done.stderr and "--allow-empty" in done.stderr
    assert server.history(channel)["messages"] == []


def test_an_explicit_empty_message_is_published(server, tmp_path, channel):
    publish(server, tmp_path, channel, "")
    publish(server, tmp_path, channel, "--allow-empty", input="")
    assert [message["data"] for message in server.history(channel)["messages"]] == ["", ""]


def test_every_error_starts_with_the_same_prefix(server, tmp_path):
    (tmp_path / "bad.toml").write_text("listen = 127.0.0.1:80\n")
    for arguments in [
        ["dance"],
        ["serve", "--config", "bad.toml"],
        ["check", "--listen", "nowhere"],
        ["publish", "--server", server.url, "a/../b", "x"],
        ["tail", "--server", "http://127.0.0.1:1", "a"],
        ["doctor", "-n", "10", "--addresses", "2"],
        ["flood", "push.example"],
        ["bench", "rooter"],
    ]:
        done = run_throng(*arguments, directory=tmp_path)
        assert done.returncode != 0 and done.stderr.startswith("error: "), (arguments, done.stderr)


@pytest.mark.parametrize("word", ["serve-bond", "sreve", "serve-", "versio"])
def test_suggestions_name_only_commands_of_the_help(tmp_path, word):
    done = run_throng(word, directory=tmp_path)
    assert done.returncode == 64
    assert "bound" not in done.stderr.replace(word, ""), done.stderr


def test_version_is_a_command_and_a_flag(tmp_path):
    command = run_throng("version", directory=tmp_path).stdout.splitlines()
    assert run_throng("--version", directory=tmp_path).stdout == command[0] + "\n"
    assert run_throng("-V", directory=tmp_path).stdout == command[0].split(" (")[0] + "\n"
    assert "linux" in command[0] and "rustc" in command[0]
    assert command[1].startswith("Linux ")


def test_tail_without_a_channel_prints_its_usage(tmp_path):
    done = run_throng("tail", directory=tmp_path)
    assert done.returncode == 64
    assert "throng tail [OPTIONS] --user <USER>" in done.stderr


def test_publish_reports_a_failure_in_one_line(server, tmp_path):
    done = run_throng("publish", "--server", server.url, "a/../b", "x", directory=tmp_path)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    done = run_throng("publish", "--server", "http://127.0.0.1:1", "a", "x", directory=tmp_path)
    assert done.returncode == 1 and "127.0.0.1:1" in done.stderr
    done = run_throng("publish", "--url", "http://none.invalid", "a", "x", directory=tmp_path)
    assert done.stderr == "error: cannot reach http://none.invalid: there is no such host\n"
    assert run_throng("publish", directory=tmp_path).returncode == 64


@pytest.mark.parametrize("flag", ["--listen", "--admin-listen"])
def test_an_occupied_port_is_reported_in_one_sentence(server, tmp_path, flag):
    address = f"{server.host}:{server.port}"
    # The other listener must not fail first.
    other = {"--listen": "--admin-listen", "--admin-listen": "--listen"}[flag]
    done = run_throng("serve", flag, address, other, "127.0.0.1:0", directory=tmp_path)
    assert done.returncode == 1
    reason = f"the address is in use by another program; choose another port with {flag}"
    assert f"error: cannot listen on {address}: {reason}\n" in done.stderr


def test_tail_reconnects_after_a_restart(tmp_path, tail, channel):
    first = Server(tmp_path, *QUICK)
    child = tail(first.url, channel)
    first.wait_for_connections(channel, 1)
    first.publish(channel, "before")
    assert json.loads(child.stdout.readline())["data"] == "before"
    first.stop()
    second = Server(tmp_path, *QUICK, port=first.port)
    second.publish(channel, "after")
    lines = iter(child.stdout.readline, "")
    message = next(found for found in map(json.loads, lines) if found["type"] == "message")
    assert message["data"] == "after"
    second.stop()


AGAIN = r"; trying again( in \d+ s)?\n"
FULL = (
    "note: the server refused: the server accepts no more subscribers for now; "
    "publishing and reading still work"
)


class Proxy:
    """Answers requests with prepared responses, as a proxy in front of a server could."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(TIMEOUT_SECONDS)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def accept(self):
        """Waits for a request; returns its connection, and the request head."""
        connection, _ = self.listener.accept()
        connection.settimeout(TIMEOUT_SECONDS)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            received = connection.recv(4096)
            assert received, head
            head += received
        return connection, head.decode()

    def refuse(self, status, body, *headers):
        """Answers one request with a complete response. Returns when it was sent, or a little earlier."""
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
        connection, _ = self.accept()
        sent_at = time.monotonic()
        with connection:
            connection.sendall(("\r\n".join(lines) + "\r\n\r\n" + body).encode())
        return sent_at

    def close(self):
        """Stops listening."""
        self.listener.close()


@pytest.fixture
def proxy():
    running = Proxy()
    yield running
    running.close()


BUSY = '{"error":"full","message":"no capacity for now"}'
STREAM = (
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nThrong-Id: e-0\r\n\r\n"
    'id: e-1\ndata: {"type":"message","channel":"a","id":"e-1","time":0,"data":"x"}\n\n'
)


@pytest.mark.parametrize("status", ["503 Service Unavailable", "429 Too Many Requests"])
def test_tail_retries_a_temporary_refusal_after_the_time_of_the_server(tail, proxy, status):
    child = tail(proxy.url, "a")
    refused_at = proxy.refuse(status, BUSY, "Retry-After: 2")
    code = status.split()[0]
    expected = f"note: the server refused: no capacity for now ({code}); trying again in 2 s\n"
    assert child.stderr.readline() == expected
    # The same reason is not printed again.
    proxy.refuse(status, BUSY, "Retry-After: 0")
    assert time.monotonic() - refused_at >= 2
    connection, _ = proxy.accept()
    with connection:
        connection.sendall(STREAM.encode())
        assert child.stderr.readline() == f"note: connected to {proxy.url}, following a\n"
        assert json.loads(child.stdout.readline())["data"] == "x"


@pytest.mark.parametrize(
    "body, reason",
    [
        ('{"error":"forbidden","message":"not for you"}', "the server refused: not for you (403)"),
        ("<h1>Forbidden</h1>", "the server answered 403 Forbidden"),
    ],
)
def test_tail_ends_with_the_reason_of_a_permanent_refusal(tail, proxy, body, reason):
    child = tail(proxy.url, "a")
    proxy.refuse("403 Forbidden", body)
    out, errors = child.communicate(timeout=TIMEOUT_SECONDS)
    assert (child.returncode, out, errors) == (1, "", f"error: {reason}\n")


def test_tail_ends_if_access_is_lost_after_a_reconnect(tail, proxy):
    child = tail(proxy.url, "a")
    connection, _ = proxy.accept()
    with connection:
        connection.sendall(STREAM.encode() + b"retry: 0\n\n")
        assert json.loads(child.stdout.readline())["data"] == "x"
    proxy.refuse("403 Forbidden", '{"error":"forbidden","message":"no longer"}')
    _, errors = child.communicate(timeout=TIMEOUT_SECONDS)
    assert child.returncode == 1
    assert errors.endswith("error: the server refused: no longer (403)\n"), errors


def test_tail_waits_during_a_long_drain(tmp_path, tail, channel):
    window_s = 2
    first = Server(tmp_path, "--drain-window", f"{window_s}s", "--drain-timeout", "60s")
    # A client between two polls keeps the server from ending early.
    first.http.get(f"/channels/{channel}", params={"wait": 0})
    child = tail(first.url, channel)
    child.stderr.readline()
    first.wait_for_connections(channel, 1)
    first.publish(channel, "before")
    assert json.loads(child.stdout.readline())["data"] == "before"
    first.signal()
    note = child.stderr.readline()
    found = re.fullmatch("note: the server ended the connection" + AGAIN, note)
    seconds = re.search(r"in (\d+) s", found.group())
    assert seconds is None or int(seconds.group(1)) <= window_s, note
    assert first.wait() == 0, first.log()
    second = Server(tmp_path, *QUICK, port=first.port)
    # Refusals during the drain and after it, each reason once.
    notes = [note]
    while not notes[-1].startswith("note: reconnected; "):
        notes.append(child.stderr.readline())
        assert notes[-1], notes
    reasons = [note.split(";")[0] for note in notes]
    assert len(set(reasons)) == len(reasons), notes
    second.publish(channel, "after")
    assert json.loads(child.stdout.readline())["data"] == "after"
    second.stop()


def test_names_like_patterns_are_refused_with_what_works(serve, tmp_path):
    server = serve()
    url = ["--url", server.url]
    for command, list_command in (
        (["tail", "news", "prices/*", *url], "throng channels 'prices/*'"),
        (["tail", "--user", "*", *url], "throng users '*'"),
        (["publish", "prices/*", "x", *url], "throng channels 'prices/*'"),
        (["publish", "--user", "a*", "x*", *url], "throng users 'a*'"),
    ):
        done = run_throng(*command, directory=tmp_path)
        assert done.returncode == 64, done
        assert "no patterns" in done.stderr and f"`{list_command}`" in done.stderr, done.stderr
    assert run_throng("publish", "news", "a * b", *url, directory=tmp_path).returncode == 0
    # Other clients get a sentence, too.
    for method, path in (
        ("GET", "/channels/prices%2F*"),
        ("GET", "/subscribe?channel=a&channel=b*"),
        ("GET", "/subscribe?user=*"),
        ("POST", "/channels/*"),
        ("POST", "/users/*"),
    ):
        answer = server.http.request(method, path)
        assert answer.status_code == 400 and answer.json()["error"] == "bad_name", (path, answer)
        assert "by its whole name" in answer.json()["message"]
    (line,) = server.publish_batch([{"channel": "a*", "data": 1}])
    assert line["error"] == "bad_name"
    # Whatever such a channel has kept is still read.
    assert server.http.get("/channels/*/history").status_code == 200


def test_a_message_that_is_too_large_is_named_with_its_size(serve, tmp_path):
    server = serve()
    for size in (70_000, 20_000_000):
        done = run_throng("publish", "news", "--url", server.url, directory=tmp_path, input="x" * size)
        assert done.returncode == 1
        assert f"the message is too large, with {size:,} bytes" in done.stderr, done.stderr
        assert "max-message-bytes" in done.stderr
    text = "x" * 60_000
    done = run_throng("publish", "news", "--url", server.url, directory=tmp_path, input=text)
    assert done.returncode == 0, done.stderr
    assert server.history("news")["messages"][-1]["data"] == text


def test_the_short_help_of_serve_has_what_a_newcomer_needs(tmp_path):
    short, long = (run_throng("serve", flag, directory=tmp_path).stdout for flag in ("-h", "--help"))
    for flag in ("--listen", "--dev", "--config", "--history-messages", "--allowed-origins", "--data"):
        assert flag in short and flag in long
    assert "--slow-timeout" in long and "--slow-timeout" not in short
    assert len(short.splitlines()) < len(long.splitlines()) / 4
    assert "`throng serve --help` shows all settings" in short


def test_tail_waits_for_a_full_server(serve, tail, channel):
    server = serve("--max-connections", 1, "--workers", 1)
    with Raw(server) as other:
        other.request("GET", "/channels/other", {"Accept": "text/event-stream"})
        assert other.read_head().status == 200
        child = tail(server.url, channel)
        assert re.fullmatch(FULL + r"; trying again in \d+ s\n", child.stderr.readline())
    # A refusal is printed once; without an earlier connection, no message was missed.
    assert child.stderr.readline() == f"note: connected to {server.url}, following {channel}\n"
    server.publish(channel, "x")
    assert json.loads(child.stdout.readline())["data"] == "x"
    child.terminate()
    assert child.stderr.read() == ""


def test_tail_reports_a_restart_once(tmp_path, tail, channel):
    first = Server(tmp_path, *QUICK)
    child = tail(first.url, channel)
    child.stderr.readline()
    first.wait_for_connections(channel, 1)
    # It sees the end once there is no server any more: until then it would be refused, and say so.
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    first.stop()
    child.send_signal(signal.SIGCONT)
    assert re.fullmatch("note: the server ended the connection" + AGAIN, child.stderr.readline())
    unreachable = child.stderr.readline()
    hint = "connection refused; is `throng serve` running there?"
    assert re.fullmatch(f"note: cannot reach {first.url}: " + re.escape(hint) + AGAIN, unreachable)
    second = Server(tmp_path, *QUICK, port=first.port)
    assert child.stderr.readline().startswith("note: reconnected; ")
    child.terminate()
    assert child.stderr.read() == ""
    second.stop()
