"""Callouts: the application decides and is notified, over real sockets.

The application here is an HTTP server that verifies each request with a library of others.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from socket import create_connection

import jwt
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from support import TIMEOUT_SECONDS
from support.application import (
    LONGEST_DEADLINE,
    MISBEHAVIOUR,
    NEW,
    OLD,
    Application,
    deadline,
    metric,
    with_deadline,
)
from support.server import eventually, run_throng

TESTS = Path(__file__).resolve().parents[1]
GUIDE = Path(__file__).resolve().parents[2] / "docs/guides/callouts.md"


@pytest.fixture
def application():
    running = Application()
    yield running
    running.close()


@pytest.fixture
def configured(serve, tmp_path, application):
    """Starts a server with one callout to the application."""

    def start(keys, *flags):
        table = f"[[callouts]]\nurl = '{application.url}'\nsecrets = ['{OLD}', '{NEW}']\n{with_deadline(keys)}"
        (tmp_path / "throng.toml").write_text(table)
        return serve(*flags)

    return start


def subscribe(server, channel, **parameters):
    """The status of a long-poll that does not wait, and its answer."""
    response = server.http.get(f"/channels/{channel}", params={"wait": 0, **parameters})
    return response.status_code, response


def test_the_application_decides_about_subscribers(configured, application):
    server = configured("decides = ['subscribe']\nmatch = '*'")
    application.decide = lambda request, _: {
        "allow": request["data"]["claimed_user"] == "ann",
        "message": "not you",
    }
    assert subscribe(server, "lobby", user="ann")[0] == 204
    status, response = subscribe(server, "lobby", user="bob")
    assert (status, response.json()["error"]) == (403, "forbidden")
    assert "not you" in response.json()["message"]
    first = application.requests[0]
    assert first["type"] == "subscribe"
    assert first["data"] == {"channel": "lobby", "claimed_user": "ann"}
    assert metric(server, "callout_decisions_total", outcome="allowed") == 1
    assert metric(server, "callout_decisions_total", outcome="denied") == 1
    # What it does not decide is not asked.
    server.publish("lobby", "hello")
    assert len(application.requests) == 2


def test_a_denied_publisher_on_a_plain_websocket_is_closed_as_usual(configured, application):
    server = configured("decides = ['publish']\nmatch = 'rooms/*'")
    application.decide = lambda request, _: {"allow": request["data"]["channel"] == "rooms/a"}
    with connect(f"{server.ws}/channels/rooms%2Fa") as socket:
        socket.send("hello")
        assert socket.recv(TIMEOUT_SECONDS) == "hello"
    with connect(f"{server.ws}/channels/rooms%2Fb") as socket:
        socket.send("hello")
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(TIMEOUT_SECONDS)
    assert closed.value.rcvd.code == 1008
    assert [request["data"]["channel"] for request in application.requests] == [
        "rooms/a",
        "rooms/b",
    ]


@pytest.mark.parametrize("misbehaviour", MISBEHAVIOUR)
def test_an_application_that_misbehaves_allows_nothing(configured, application, misbehaviour):
    server = configured(f"decides = ['subscribe']\n{deadline(misbehaviour)}")
    with connect(f"{server.ws}/channels/lobby") as before:
        application.decide = MISBEHAVIOUR[misbehaviour]
        status, response = subscribe(server, "lobby")
        assert (status, response.json()["error"]) == (503, "busy")
        assert int(response.headers["Retry-After"]) >= 1
        outcome = misbehaviour.split()[0]
        assert metric(server, "callout_decisions_total", outcome=outcome) == 1
        server.publish("lobby", "still here")
        assert before.recv(TIMEOUT_SECONDS) == "still here"


def test_a_dead_application_costs_no_more_than_a_refusal(configured, application):
    server = configured("decides = ['subscribe']")
    application.close()
    for _ in range(20):
        assert subscribe(server, "lobby")[0] == 503
    assert metric(server, "callout_breakers_open") == 1
    assert metric(server, "callout_decisions_total", outcome="connect") <= 6
    assert metric(server, "callout_decisions_total", outcome="breaker_open") >= 14


def test_others_are_answered_while_many_wait_for_a_decision(configured, application):
    keys = "decides = ['subscribe']\nmatch = 'slow'\nmax-in-flight = 100\ntimeout = '4s'"
    server = configured(keys)
    release = threading.Event()

    def decide(_request, _handler):
        release.wait(TIMEOUT_SECONDS)
        return {"allow": True}

    application.decide = decide
    request = b"GET /channels/slow?wait=0 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with ExitStack() as stack:
        address, sockets = (server.host, server.port), []
        for _ in range(30):
            sockets.append(stack.enter_context(create_connection(address, TIMEOUT_SECONDS)))
        # From the first question on, the answer has to come within the deadline.
        for socket in sockets:
            socket.sendall(request)
        eventually(lambda: len(application.requests) == 30, "all decisions are asked for")
        assert subscribe(server, "quick")[0] == 204
        release.set()
        for socket in sockets:
            assert socket.recv(4096).startswith(b"HTTP/1.1 204 ")


def test_an_answer_is_cached(configured, application):
    server = configured("decides = ['subscribe']")
    application.decide = lambda *_: {"allow": True, "cache": 60}
    for _ in range(2):
        assert subscribe(server, "lobby")[0] == 204
    assert len(application.requests) == 1
    assert metric(server, "callout_decisions_total", outcome="cached") == 1


def test_an_answer_ends_with_what_it_allows(configured, application):
    server = configured("decides = ['subscribe']")
    ends = []

    def allow(*_):
        # Some seconds for a busy machine, between this answer and the subscription.
        ends.append(int(time.time()) + 5)
        return {"allow": True, "cache": 60, "expires": ends[-1]}

    application.decide = allow
    with connect(f"{server.ws}/channels/lobby") as socket:
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(TIMEOUT_SECONDS)
    assert closed.value.rcvd.code == 4002
    # What has ended is not allowed any more, by the cache or by the application.
    application.decide = lambda *_: {"allow": False}
    eventually(lambda: subscribe(server, "lobby")[0] == 403, "the end by the machine's clock")
    application.decide = lambda *_: {"allow": True, "expires": ends[0]}
    assert subscribe(server, "lobby")[0] == 503


def test_a_cookie_of_a_foreign_page_does_not_reach_the_application(configured, application):
    server = configured("decides = ['subscribe', 'publish']\nheaders = ['cookie']\n", "--allowed-origins", "*")
    application.decide = lambda request, _: {"allow": "headers" in request["data"]}
    foreign = {"Cookie": "id=7", "Origin": "https://evil.example"}
    with pytest.raises((ConnectionClosed, InvalidStatus)):
        with connect(f"{server.ws}/channels/a", additional_headers=foreign) as socket:
            socket.recv(TIMEOUT_SECONDS)
    assert server.http.post("/channels/a", headers=foreign, content="x").status_code == 403
    own = {"Cookie": "id=7", "Sec-Fetch-Site": "same-origin"}
    assert server.http.get("/channels/a?wait=0", headers=own).status_code == 204
    assert [request["data"].get("headers") for request in application.requests] == [
        None, None, {"cookie": "id=7"}
    ]


def test_the_application_is_notified_of_connections_and_channels(configured, application):
    notifies = "['connected', 'disconnected', 'occupied', 'vacated']"
    server = configured(f"notifies = {notifies}")
    with connect(f"{server.ws}/channels/lobby?user=ann") as socket:
        connection = socket.response.headers["Throng-Connection"]
        with connect(f"{server.ws}/channels/lobby"):
            pass
    # The first connection also follows the user's inbox.
    eventually(lambda: len(application.events()) == 8, "eight events")
    events = application.events()
    of_ann = [event for event in events if event.get("connection") == connection]
    kinds = [event["type"] for event in of_ann]
    assert kinds == ["connected", "disconnected"]
    assert (of_ann[0]["claimed_user"], of_ann[0]["transport"]) == ("ann", "websocket")
    assert of_ann[1]["reason"] == "peer"
    for key, name in [("channel", "lobby"), ("inbox", "ann")]:
        kinds = [event["type"] for event in events if event.get(key) == name]
        assert kinds == ["occupied", "vacated"]
    assert all(abs(event["time"] / 1000 - time.time()) < 60 for event in events)


def test_events_arrive_although_the_application_was_down_and_the_server_stops(
    configured, application
):
    server = configured("notifies = ['disconnected']")
    failures = iter([500, 503])

    def fail_twice(_request, handler):
        status = next(failures, None)
        if status is None:
            return {}
        return handler.answer(status, "")

    application.decide = fail_twice
    with connect(f"{server.ws}/channels/lobby"):
        server.stop()
    reasons = [event["reason"] for event in application.events()]
    # The same batch, sent again until it was taken.
    assert reasons == ["draining"] * 3


def test_events_beyond_the_queue_are_dropped_and_the_application_hears_of_it(
    configured, application
):
    # The first batch is held back for all of the test.
    server = configured("notifies = ['connected']\nmax-queued = 1\ntimeout = '4s'")
    release = threading.Event()

    def decide(_request, _handler):
        release.wait(TIMEOUT_SECONDS)
        return {}

    application.decide = decide
    with ExitStack() as sockets:

        def open_socket():
            sockets.enter_context(connect(f"{server.ws}/channels/lobby"))

        open_socket()
        eventually(lambda: len(application.requests) == 1, "the first batch is under way")
        for _ in range(5):
            open_socket()
        overflow = lambda: metric(server, "callout_events_total", outcome="overflow")
        eventually(lambda: overflow() == 4, "what has no place")
        release.set()
        eventually(lambda: len(application.requests) == 2, "the second batch")
        assert application.requests[1]["data"]["dropped"] == 4


def receiver_in(language, directory):
    """The receiver of the guide: the command that runs it, and what it prints before its port."""
    source = re.search(rf"```{language}\n(.*?)```", GUIDE.read_text(), re.DOTALL).group(1)
    if language == "python":
        (directory / "receiver.py").write_text(source)
        command = [sys.executable, "-m", "flask", "--app", "receiver", "run", "--port", "0"]
        return command, r"Running on http://127\.0\.0\.1:"
    listen = 'app.listen(5000, "127.0.0.1");'
    assert listen in source
    port = 'console.log("port", this.address().port);'
    any_port = f'app.listen(0, "127.0.0.1", function () {{ {port} }});'
    (directory / "receiver.mjs").write_text(source.replace(listen, any_port))
    (directory / "node_modules").symlink_to(TESTS / "node_modules")
    assert shutil.which("node"), "node is missing: scripts/setup"
    return ["node", "receiver.mjs"], "port "


@pytest.mark.parametrize("language", ["python", "js"])
def test_the_receiver_of_the_guide(serve, tmp_path, language):
    command, before_port = receiver_in(language, tmp_path)
    receiver = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "THRONG_SECRET": NEW, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(receiver.stdout), daemon=True)
    reader.start()
    running = re.compile(before_port + r"(\d+)")
    try:
        eventually(lambda: running.search("".join(lines)), "the receiver")
        port = running.search("".join(lines)).group(1)
        (tmp_path / "secrets").write_text(f"{OLD}\n{NEW}\n")
        (tmp_path / "secrets").chmod(0o600)
        table = f"url = 'http://127.0.0.1:{port}/throng'\nsecrets-file = 'secrets'"
        keys = "[[token-keys]]\nsecret = '0123456789abcdef0123456789abcdef'"
        rules = "[access]\nsubscribe = 'user'"
        asks = f"{LONGEST_DEADLINE}\ndecides = ['subscribe']\nnotifies = ['connected', 'disconnected']"
        text = f"[[callouts]]\n{table}\n{asks}\n{keys}\n{rules}"
        (tmp_path / "throng.toml").write_text(text)
        server = serve()

        def headers(user):
            claims = {"sub": user, "exp": int(time.time()) + 600}
            token = jwt.encode(claims, "0123456789abcdef0123456789abcdef", algorithm="HS256")
            return {"Authorization": f"Bearer {token}"}

        rooms = f"{server.ws}/channels/rooms%2Fa"
        with connect(rooms, additional_headers=headers("ann")) as socket:
            connection = socket.response.headers["Throng-Connection"]
        refused = server.http.get("/channels/rooms%2Fa?wait=0", headers=headers("eve"))
        assert (refused.status_code, refused.json()["message"]) == (403, "you are not a member")
        absent = "None" if language == "python" else "undefined"
        begun, ended = f"connected {connection} ann {absent}", f"disconnected {connection} {absent} peer"
        for event in (begun, ended):
            eventually(lambda event=event: f"{event}\n" in lines, event)
    finally:
        receiver.kill()
        receiver.wait()


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("decides = ['subscribe']", "has no url"),
        ("url = 'http://app.example.com/'\ndecides = ['publish']", "`http` is for loopback only"),
        ("url = 'https://app.example.com/'", "is for nothing"),
        ("url = 'https://app.example.com/'\ndecides = ['read']", 'unknown word "read"'),
        ("url = 'https://app.example.com/'\nnotifies = ['connected']", "needs one or two `secrets`"),
        (
            "url = 'https://app.example.com/'\nnotifies = ['connected']\nsecrets = ['hunter2']",
            "a secret is `whsec_`",
        ),
        (
            "url = 'https://app.example.com/'\nnotifies = ['connected']\nsecrets-file = 'missing'",
            "cannot be read",
        ),
        (
            "url = 'https://app.example.com/'\nnotifies = ['connected']\nsecrets-variable = 'NOT_SET'",
            "there is no such variable",
        ),
        (
            "url = 'https://app.example.com/'\nnotifies = ['connected']\nsecrets = ['hunter2']\n"
            "secrets-variable = 'HOME'",
            "more than one of",
        ),
        (
            f"url = 'https://app.example.com/'\nsecrets = ['{NEW}']\ndecides = ['connect']\n"
            "match = 'rooms/*'",
            "is about no channel",
        ),
        (
            f"url = 'https://app.example.com/'\nsecrets = ['{NEW}']\ndecides = ['connect']\n"
            "headers = ['a b']",
            "no name of a header",
        ),
    ],
)
def test_a_callout_that_cannot_work_is_refused(tmp_path, table, expected):
    (tmp_path / "throng.toml").write_text(f"[[callouts]]\n{table}")
    done = run_throng("check", directory=tmp_path)
    assert done.returncode == 78
    assert expected in done.stderr
    assert "hunter2" not in done.stderr


def test_the_application_edits_what_is_published(configured, application):
    server = configured("decides = ['publish']\nmax-content = '40B'")

    def decide(request, _):
        content = request["data"]["content"]
        if content.get("data") == "spam":
            return {"allow": False, "message": "no spam"}
        if content.get("data") == {"rude": True}:
            return {"allow": True, "data": {"rude": False}, "content_type": "application/x+json"}
        if content.get("data") == "huge":
            return {"allow": True, "data": "x" * 70_000}
        return {"allow": True}

    application.decide = decide
    with connect(f"{server.ws}/channels/a?envelope=true") as reader:
        receive = lambda: json.loads(reader.recv(TIMEOUT_SECONDS))
        edited = {"content_type": "application/x+json", "data": {"rude": False}}
        # Over HTTP.
        rude = {"json": {"rude": True}, "headers": {"Idempotency-Key": "k"}}
        assert server.http.post("/channels/a", **rude).status_code == 201
        message = receive()
        assert {name: message[name] for name in edited} == edited
        repeated = server.http.post("/channels/a", **rude).json()
        assert (repeated["id"], repeated["duplicate"]) == (message["id"], True)
        refused = server.http.post("/channels/a", content="spam")
        assert (refused.status_code, refused.json()["message"]) == (403, "no spam")
        # Larger content is left out, and its size said.
        assert server.http.post("/channels/a", content="y" * 41).status_code == 201
        assert receive()["data"] == "y" * 41
        assert application.requests[-1]["data"]["content"] == {"bytes": 41}
        # Content that cannot be published is no answer.
        assert server.http.post("/channels/a", content="huge").status_code == 503
        # In a batch.
        lines = [{"channel": "a", "data": data} for data in [{"rude": True}, "spam", "fine"]]
        answers = server.http.post("/publish", json=lines).json()
        assert [answer.get("error") for answer in answers] == [None, "forbidden", None]
        assert [receive()["data"] for _ in range(2)] == [{"rude": False}, "fine"]
        # On throng.v1, also bytes.
        with connect(f"{server.ws}/subscribe", subprotocols=["throng.v1"]) as socket:
            socket.recv(TIMEOUT_SECONDS)
            image = {"data": "aGk=", "encoding": "base64", "content_type": "image/png"}
            for content in [{"data": {"rude": True}}, image]:
                socket.send(json.dumps({"type": "publish", "channel": "a", **content}))
                assert json.loads(socket.recv(TIMEOUT_SECONDS))["type"] == "published"
            assert receive()["data"] == {"rude": False}
            assert receive()["data"] == "aGk="
            assert application.requests[-1]["data"]["content"] == {"bytes": 2, **image}
        # A plain frame.
        with connect(f"{server.ws}/channels/a") as socket:
            socket.send('fine')
            assert socket.recv(TIMEOUT_SECONDS) == receive()["data"] == "fine"
            socket.send("spam")
            with pytest.raises(ConnectionClosed):
                socket.recv(TIMEOUT_SECONDS)
