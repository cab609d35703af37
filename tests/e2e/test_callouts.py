"""Callouts: the application decides and is notified, over real sockets.

The application here is an HTTP server that verifies each request with a library of others.
"""

import base64
import json
import os
import re
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import create_connection

import jwt
import pytest
from standardwebhooks.webhooks import Webhook
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from support import TIMEOUT_SECONDS
from support.server import eventually, run_throng

OLD, NEW = ("whsec_" + base64.b64encode(os.urandom(32)).decode() for _ in range(2))


GUIDE = Path(__file__).resolve().parents[2] / "docs/guides/callouts.md"


class Application:
    """An HTTP server whose answers a test sets."""

    def __init__(self):
        self.requests = []
        # Returns the body of the answer, or writes an answer of its own and returns None.
        self.decide = lambda request, handler: {"allow": True}
        application = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                for secret in (OLD, NEW):
                    Webhook(secret).verify(body, dict(self.headers.items()))
                request = json.loads(body)
                application.requests.append(request)
                answer = application.decide(request, self)
                if answer is not None:
                    self.answer(200, json.dumps(answer))

            def answer(self, status, text, **headers):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            # Connections that wait to be accepted: by default there are few.
            request_queue_size = 128

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/throng"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def events(self):
        """All events so far, in the order of their arrival."""
        batches = [request for request in self.requests if request["type"] == "events"]
        return [event for batch in batches for event in batch["data"]["events"]]


@pytest.fixture
def application():
    running = Application()
    yield running
    running.close()


@pytest.fixture
def configured(serve, tmp_path, application):
    """Starts a server with one callout to the application."""

    def start(keys, *flags):
        table = f"[[callouts]]\nurl = '{application.url}'\nsecrets = ['{OLD}', '{NEW}']\n{keys}"
        (tmp_path / "throng.toml").write_text(table)
        return serve(*flags)

    return start


def metric(server, name, **labels):
    """The value of a metric."""
    label = ",".join(f'{key}="{value}"' for key, value in labels.items())
    sample = f"throng_{name}{{{label}}} " if labels else f"throng_{name} "
    lines = server.http.get("/metrics").text.splitlines()
    return int(next(line for line in lines if line.startswith(sample)).rpartition(" ")[2])


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


def hang(_request, handler):
    handler.connection.settimeout(TIMEOUT_SECONDS)
    # Until the server has given up.
    handler.rfile.read(1)
    handler.close_connection = True


def redirect(_request, handler):
    handler.answer(307, '{"allow": true}', Location="/elsewhere")


def close_early(_request, handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{\"allow\": true}")
    handler.close_connection = True


MISBEHAVIOUR = {
    "timeout": hang,
    "status": lambda _, handler: handler.answer(500, '{"allow": true}'),
    "status redirect": redirect,
    "bad_answer": lambda _, handler: handler.answer(200, "<html>"),
    "bad_answer lie": lambda *_: {"allow": "yes"},
    "too_large": lambda *_: {"allow": True, "message": "x" * 100_000},
    "protocol": close_early,
}


@pytest.mark.parametrize("misbehaviour", MISBEHAVIOUR)
def test_an_application_that_misbehaves_allows_nothing(configured, application, misbehaviour):
    server = configured("decides = ['subscribe']\ntimeout = '300ms'")
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
            sockets[-1].sendall(request)
        eventually(lambda: len(application.requests) == 30, "all decisions are asked for")
        assert subscribe(server, "quick")[0] == 204
        release.set()
        for socket in sockets:
            assert socket.recv(4096).startswith(b"HTTP/1.1 204 ")


def test_an_answer_is_cached_and_may_expire(configured, application):
    server = configured("decides = ['subscribe']")
    until = int(time.time()) + 2
    application.decide = lambda *_: {"allow": True, "cache": 60, "expires": until}
    with connect(f"{server.ws}/channels/lobby") as socket:
        assert subscribe(server, "lobby")[0] == 204
        assert len(application.requests) == 1
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(TIMEOUT_SECONDS)
    assert closed.value.rcvd.code == 4002
    assert metric(server, "callout_decisions_total", outcome="cached") == 1


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
    server = configured("notifies = ['connected']\nmax-queued = 1")
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
        assert metric(server, "callout_events_total", outcome="overflow") == 4
        release.set()
        eventually(lambda: len(application.requests) == 2, "the second batch")
        assert application.requests[1]["data"]["dropped"] == 4


def test_the_receiver_of_the_guide(serve, tmp_path):
    source = re.search(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL).group(1)
    (tmp_path / "receiver.py").write_text(source)
    command = [sys.executable, "-m", "flask", "--app", "receiver", "run", "--port", "0"]
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
    running = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")
    try:
        eventually(lambda: running.search("".join(lines)), "the receiver")
        url = running.search("".join(lines)).group(1)
        table = f"url = '{url}/throng'\nsecrets = ['{NEW}']\ndecides = ['subscribe']"
        keys = "[[token-keys]]\nsecret = '0123456789abcdef0123456789abcdef'"
        rules = "[access]\nsubscribe = 'user'"
        notifies = "notifies = ['connected', 'disconnected']"
        text = f"[[callouts]]\n{table}\n{notifies}\n{keys}\n{rules}"
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
        for event in (f"connected {connection} ann None", f"disconnected {connection} None peer"):
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
    ],
)
def test_a_callout_that_cannot_work_is_refused(tmp_path, table, expected):
    (tmp_path / "throng.toml").write_text(f"[[callouts]]\n{table}")
    done = run_throng("check", directory=tmp_path)
    assert done.returncode == 78
    assert expected in done.stderr
    assert "hunter2" not in done.stderr
