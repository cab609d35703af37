"""The connect callout: the application says who a client is that shows no token."""

import json
import threading
import time

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from support import TIMEOUT_SECONDS
from support.access import SECRET, bearer, now, server_key, token
from support.application import MISBEHAVIOUR, NEW, OLD, Application, deadline, metric, with_deadline
from support.raw import Raw
from support.server import eventually, run_throng

GRANTS = {"subscribe": ["rooms/*"], "publish": ["rooms/*"], "history": ["rooms/*"]}


def session(name):
    """The header by which the application knows a client."""
    return {"X-Session": f"session of {name}"}


def log_in(request, _handler):
    """Lets in whoever shows a session."""
    shown = request["data"].get("headers", {}).get("x-session", "")
    if not shown.startswith("session of "):
        return {"allow": False, "message": "log in first"}
    return {"allow": True, "user": shown.removeprefix("session of "), "grants": GRANTS}


class World:
    """A server whose application says who its clients are."""

    def __init__(self, directory, serve, application, keys):
        self.application = application
        self.key, operator = server_key(directory, "operator", "administration")
        (directory / "throng.toml").write_text(
            f"allowed-origins = ['https://app.example.com']\nrevocations-file = 'revoked'\n"
            f"{operator}\n[[callouts]]\nurl = '{application.url}'\nsecrets-variable = 'HOOK'\n"
            f"{with_deadline(keys)}"
        )
        self.server = serve(environment={"HOOK": f"{OLD} {NEW}"})
        self.http = self.server.http

    def poll(self, channel="rooms%2Fa", **headers):
        return self.http.get(f"/channels/{channel}?wait=0", headers=headers)

    def asked(self, kind="connect"):
        return [one["data"] for one in self.application.requests if one["type"] == kind]


@pytest.fixture
def application():
    running = Application()
    running.decide = log_in
    yield running
    running.close()


@pytest.fixture
def world(tmp_path, serve, application):
    def start(keys="decides = ['connect']\nheaders = ['X-Session']"):
        return World(tmp_path, serve, application, keys)

    return start


def test_the_application_says_who_clients_are_on_every_transport(world):
    world = world()
    ann = session("ann")
    inbox, room = "/users/ann", "/channels/rooms%2Fa"
    with connect(f"{world.server.ws}{inbox}", additional_headers=ann) as socket:
        with world.http.stream("GET", inbox, headers={**ann, "Accept": "text/event-stream"}) as sse:
            assert sse.status_code == 200
            listed = world.http.get(f"{inbox}/connections", headers=bearer(world.key)).json()
            transports = {one["transport"] for one in listed["connections"]}
            assert transports == {"websocket", "sse"}
    assert world.http.get(f"{inbox}?wait=0", headers=ann).status_code == 204
    assert world.http.get(f"{inbox}?wait=0", headers=session("bob")).status_code == 403
    for method, path in [("POST", room), ("GET", f"{room}/history"), ("HEAD", f"{room}?wait=0")]:
        body = {"content": "x"} if method == "POST" else {}
        other = path.replace("rooms", "halls")
        assert world.http.request(method, path, headers=ann, **body).is_success, method
        assert world.http.request(method, path, **body).status_code == 401, method
        assert world.http.request(method, other, headers=ann, **body).status_code == 403, method
    refused = world.poll()
    assert (refused.status_code, refused.json()["message"]) == (401, "log in first")
    with pytest.raises(ConnectionClosed) as closed:
        with connect(f"{world.server.ws}{room}") as socket:
            socket.recv(TIMEOUT_SECONDS)
    assert closed.value.rcvd.code == 4003
    transports = {data["transport"] for data in world.asked()}
    assert transports == {"websocket", "sse", "long-poll", "http"}
    # A server key is nobody whom the application does not know.
    before = len(world.asked())
    assert world.http.get(f"{room}/connections", headers=bearer(world.key)).status_code == 200
    assert len(world.asked()) == before


def test_only_listed_headers_and_a_wanted_address_reach_the_application(world):
    keys = "decides = ['connect', 'subscribe', 'publish']\naddress = true\nheaders = ['x-session']"
    world = world(keys)
    allow = world.application.decide
    world.application.decide = lambda request, handler: (
        allow(request, handler) if request["type"] == "connect" else {"allow": True}
    )
    headers = {**session("ann"), "Cookie": "secret", "Authorization": "Basic c2VjcmV0"}
    assert world.poll(**headers).status_code == 204
    assert world.http.post("/channels/rooms%2Fa", headers=headers, content="x").is_success
    passed = {"address": "127.0.0.1", "headers": {"x-session": "session of ann"}}
    about = {"channel": "rooms/a", "user": "ann", **passed}
    assert world.asked("connect") == [{"transport": t, **passed} for t in ("long-poll", "http")]
    assert world.asked("subscribe") == world.asked("publish") == [about]
    assert world.poll(**{"X-Session": "x" * 9000}).status_code == 431
    assert len(world.asked()) == 2


def test_a_message_on_a_websocket_has_the_user_who_follows_no_inbox(world):
    world = world("decides = ['connect', 'publish']\nheaders = ['x-session']")
    allow = world.application.decide
    world.application.decide = lambda request, handler: (
        allow(request, handler) if request["type"] == "connect" else {"allow": True}
    )
    room = f"{world.server.ws}/channels/rooms%2Fa"
    with connect(room, additional_headers=session("ann")) as ann:
        with connect(room, additional_headers=session("bob")) as bob:
            for socket in (ann, bob):
                socket.send("hello")
                assert socket.recv(TIMEOUT_SECONDS) == "hello"
            eventually(lambda: len(world.asked("publish")) == 2, "both messages")
    assert [data["user"] for data in world.asked("publish")] == ["ann", "bob"]


def test_answers_are_cached_and_never_for_another_client(world):
    world = world()
    world.application.decide = lambda *arguments: {**log_in(*arguments), "cache": 60}
    for _ in range(3):
        for user in ("ann", "bob"):
            path = f"/users/{user}?wait=0"
            assert world.http.get(path, headers=session(user)).status_code == 204
            assert world.http.get("/users/eve?wait=0", headers=session(user)).status_code == 403
    assert len(world.asked()) == 2
    outcome = {"operator": world.key, "outcome": "cached"}
    assert metric(world.server, "callout_decisions_total", **outcome) == 10


@pytest.mark.parametrize("misbehaviour", MISBEHAVIOUR)
def test_an_application_that_misbehaves_lets_nobody_in(world, misbehaviour):
    world = world(f"decides = ['connect']\nheaders = ['x-session']\n{deadline(misbehaviour)}")
    ann, room = session("ann"), "/channels/rooms%2Fa"
    with connect(f"{world.server.ws}{room}", additional_headers=ann) as before:
        world.application.decide = MISBEHAVIOUR[misbehaviour]
        for response in (world.poll(**ann), world.http.post(room, headers=ann, content="x")):
            assert (response.status_code, response.json()["error"]) == (503, "busy")
            assert int(response.headers["Retry-After"]) >= 1
        with world.http.stream("GET", room, headers={**ann, "Accept": "text/event-stream"}) as sse:
            # An EventSource gives up after any other status.
            told = sse.read().decode()
            assert sse.status_code == 200 and "retry:" in told and "busy" in told, told
        with pytest.raises(ConnectionClosed) as closed:
            with connect(f"{world.server.ws}{room}", additional_headers=ann) as socket:
                socket.recv(TIMEOUT_SECONDS)
        assert closed.value.rcvd.code == 1013
        before.send("still here")
        assert before.recv(TIMEOUT_SECONDS) == "still here"


def test_an_answer_ends_and_a_revoked_user_is_asked_about_again(world):
    world = world()
    answers = []

    def decide(*arguments):
        answers.append({**log_in(*arguments), "cache": 60, "expires": int(time.time()) + 3600})
        return answers[-1]

    world.application.decide = decide
    room, ann = f"{world.server.ws}/channels/rooms%2Fa", session("ann")
    with connect(room, additional_headers=ann) as socket:
        made = world.http.post("/revocations/users/ann", headers=bearer(world.key))
        assert made.status_code == 201
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(TIMEOUT_SECONDS)
    assert closed.value.rcvd.code == 4004
    # The cached answer does not hold any more. Times of issue are whole seconds.
    eventually(lambda: world.poll(**ann).status_code == 204, "an answer after the revocation")
    assert len(answers) > 1
    world.application.decide = lambda *arguments: {
        **log_in(*arguments),
        # Some seconds for a busy machine, between this answer and the connection.
        "expires": int(time.time()) + 5,
    }
    with connect(room, additional_headers=session("bob")) as socket:
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(TIMEOUT_SECONDS)
    assert closed.value.rcvd.code == 4002


def test_a_neighbour_who_is_not_let_in_locks_out_nobody_who_is(world):
    keys = "decides = ['connect']\nheaders = ['X-Session']\n[per-address]\nbad-token-rate = 2"
    world = world(keys)
    world.application.decide = lambda *arguments: {**log_in(*arguments), "cache": 60}
    ann, room = session("ann"), "/channels/rooms%2Fa"

    def attempts():
        strangers = world.poll().status_code
        published = world.http.post(room, headers=ann, content="x").status_code
        return strangers, world.poll(**ann).status_code, published

    def is_refused():
        """Whether the stranger is beyond the limit; the others are let in all the same."""
        stranger, *others = attempts()
        assert stranger in (401, 429) and others == [204, 201]
        return stranger == 429

    assert not is_refused()
    eventually(is_refused, "the limit")


def test_one_address_cannot_fill_the_queue(world):
    keys = "decides = ['connect']\nheaders = ['x-session']\ntimeout = '4s'\nmax-queued = 100"
    world = world(f"{keys}\n[per-address]\nmax-questions = 3")
    decided = threading.Event()
    log_in_now = world.application.decide

    def decide(request, handler):
        decided.wait(TIMEOUT_SECONDS)
        return log_in_now(request, handler)

    world.application.decide = decide
    head = f"Host: 127.0.0.1:{world.server.port}\r\nX-Session: session of ann\r\n"
    poll = f"GET /channels/rooms%2Fa?wait=0 HTTP/1.1\r\n{head}\r\n"

    def begin(source):
        raw = Raw(world.server, source=source)
        raw.send(poll)
        return raw

    here, elsewhere = "127.0.0.2", "127.0.0.3"
    waiting = [begin(here) for _ in range(3)]
    eventually(lambda: len(world.asked()) == 3, "the questions of the first three")
    with begin(here) as beyond:
        refused = beyond.read_response()
    assert (refused.status, refused.json()["error"]) == (429, "too_many_requests")
    assert int(refused.header("Retry-After")) >= 1
    room = "/channels/rooms%2Fa"
    with Raw(world.server, source=here) as publisher:
        publisher.send(f"POST {room} HTTP/1.1\r\n{head}Content-Length: 1\r\n\r\nx")
        assert publisher.read_response().status == 429
    waiting.append(begin(elsewhere))
    eventually(lambda: len(world.asked()) == 4, "the question of another address")
    decided.set()
    for raw in waiting:
        assert raw.read_response().status == 204
        raw.close()
    with begin(here) as again:
        assert again.read_response().status == 204
    labels = {"operator": world.key, "per": "address", "limit": "questions"}
    assert metric(world.server, "limits_refused_total", **labels) == 2


def test_a_token_that_is_revoked_while_the_application_decides_publishes_nothing(world):
    keys = f"decides = ['publish']\ntimeout = '4s'\n[[token-keys]]\nsecret = '{SECRET}'"
    world = world(keys)
    decided, answers = threading.Event(), []

    def decide(*_):
        decided.wait(TIMEOUT_SECONDS)
        return {"allow": True}

    world.application.decide = decide
    headers, room = bearer(of_plan("paid", jti="t1")), "/channels/rooms%2Fa"

    def publish():
        answers.append(world.http.post(room, headers=headers, content="x"))

    publisher = threading.Thread(target=publish)
    publisher.start()
    eventually(lambda: world.asked("publish"), "the question")
    assert world.http.post("/revocations/tokens/t1", headers=bearer(world.key)).is_success
    decided.set()
    publisher.join()
    assert (answers[0].status_code, answers[0].json()["error"]) == (401, "token_revoked")


def test_pages_may_send_the_headers_that_are_passed_on(world):
    world = world("decides = ['connect']\nheaders = ['X-Session', 'cookie']")
    asked = {"Origin": "https://app.example.com", "Access-Control-Request-Method": "POST"}
    answer = world.http.options("/channels/rooms%2Fa", headers=asked)
    allowed = answer.headers["Access-Control-Allow-Headers"].split(", ")
    assert "x-session" in allowed and "cookie" not in allowed


def test_a_cookie_counts_for_pages_of_listed_origins_only(world):
    world = world("decides = ['connect']\nheaders = ['cookie']")
    world.application.decide = lambda request, _: {
        "allow": request["data"].get("headers") == {"cookie": "id=7"},
        "user": "ann",
        "grants": GRANTS,
    }
    room, cookie = f"{world.server.ws}/channels/rooms%2Fa", {"Cookie": "id=7"}
    listed, foreign = "https://app.example.com", "https://evil.example"
    with connect(room, origin=listed, additional_headers=cookie) as socket:
        socket.send("hello")
        assert socket.recv(TIMEOUT_SECONDS) == "hello"
    seen = world.http.get("/channels/rooms%2Fa?wait=0", headers={**cookie, "Origin": listed})
    assert seen.headers["Access-Control-Allow-Credentials"] == "true"
    before = len(world.asked())
    for origin in (foreign, None):
        with pytest.raises((ConnectionClosed, InvalidStatus)):
            with connect(room, origin=origin, additional_headers=cookie) as socket:
                socket.recv(TIMEOUT_SECONDS)
        headers = {**cookie, **({"Origin": origin} if origin else {})}
        response = world.http.post("/channels/rooms%2Fa", headers=headers, content="x")
        assert (response.status_code, response.json()["error"]) == (403, "origin_refused")
    assert len(world.asked()) == before


def narrow(request, _handler):
    """Lets in tokens of the plan `paid`, to rooms of their team."""
    claims = request["data"]["claims"]
    if claims.get("plan") != "paid":
        return {"allow": False, "message": "the trial is over"}
    return {"allow": True, "grants": {"subscribe": [f"*/{claims['team']}"]}}


def with_tokens(world, more=""):
    keys = f"decides = ['connect']\ntokens = true\n{more}\n[[token-keys]]\nsecret = '{SECRET}'"
    world = world(keys)
    world.application.decide = narrow
    return world


def of_plan(plan, **claims):
    grants = {"subscribe": ["rooms/*"], "publish": ["rooms/*"], "history": ["rooms/*"]}
    return token(sub="ann", plan=plan, team="a", throng=grants, exp=now() + 600, **claims)


def test_tokens_are_asked_about_where_the_application_wants_it(world):
    world = with_tokens(world)
    paid, trial = bearer(of_plan("paid")), bearer(of_plan("trial"))
    room, other = "/channels/rooms%2Fa", "/channels/rooms%2Fb"
    assert world.http.get(f"{room}?wait=0", headers=paid).status_code == 204
    for path in (other, "/channels/halls%2Fa"):
        assert world.http.get(f"{path}?wait=0", headers=paid).status_code == 403
    assert world.http.post(room, headers=paid, content="x").status_code == 403
    for response in (
        world.http.get(f"{room}?wait=0", headers=trial),
        world.http.post(room, headers=trial, content="x"),
        world.http.get(f"{room}/history", headers=trial),
    ):
        assert (response.status_code, response.json()["message"]) == (403, "the trial is over")
    asked = world.asked()[0]
    assert (asked["user"], asked["transport"]) == ("ann", "long-poll")
    assert asked["claims"]["team"] == "a" and asked["claims"]["sub"] == "ann"
    # Nobody asks about a token that is bad, or about a server key.
    before = len(world.asked())
    assert world.http.get(f"{room}?wait=0", headers=bearer("a.b.c")).status_code == 401
    listed = world.http.get(f"{room}/connections", headers=bearer(world.key))
    assert listed.status_code == 200 and len(world.asked()) == before
    world.application.decide = lambda *_: {"allow": True, "user": "bob"}
    response = world.http.get(f"{room}?wait=0", headers=paid)
    assert (response.status_code, response.json()["error"]) == (403, "forbidden")
    world.application.decide = lambda *_: {"allow": True}
    with connect(f"{world.server.ws}{room}", additional_headers=paid) as socket:
        socket.send("hello")
        assert socket.recv(TIMEOUT_SECONDS) == "hello"
    # Some seconds for a busy machine, between this answer and the connection.
    world.application.decide = lambda *_: {"allow": True, "expires": now() + 5}
    with connect(f"{world.server.ws}{room}", additional_headers=paid) as socket:
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(TIMEOUT_SECONDS)
    assert closed.value.rcvd.code == 4002


def test_a_newer_token_does_not_get_around_the_application(world):
    world = with_tokens(world)
    room = f"{world.server.ws}/channels/rooms%2Fa"
    headers = bearer(of_plan("paid"))

    def answer(socket, **command):
        socket.send(json.dumps(command))
        while True:
            event = json.loads(socket.recv(TIMEOUT_SECONDS))
            if event["type"] not in ("welcome", "subscribed"):
                return event

    with connect(room, additional_headers=headers, subprotocols=["throng.v1"]) as socket:
        refused = answer(socket, type="auth", token=of_plan("trial"))
        assert (refused["type"], refused["code"]) == ("error", "forbidden")
        shown = answer(socket, type="auth", token=of_plan("paid"))
        assert (shown["type"], shown["user"]) == ("authenticated", "ann")
        refused = answer(socket, type="subscribe", channel="rooms/b")
        assert (refused["type"], refused["code"]) == ("error", "forbidden")
        refused = answer(socket, type="publish", channel="rooms/a", data="x")
        assert (refused["type"], refused["code"]) == ("error", "forbidden")


def test_a_user_beyond_a_limit_is_refused_before_the_application_is_asked(world):
    world = with_tokens(world, "[per-user]\nconnect-rate = 2")
    room, paid = "/channels/rooms%2Fa?wait=0", bearer(of_plan("paid"))
    statuses = []

    def is_refused():
        statuses.append(world.http.get(room, headers=paid).status_code)
        return statuses[-1] == 429

    eventually(is_refused, "the limit")
    assert set(statuses) == {204, 429}
    assert len(world.asked()) == statuses.count(204)


def test_a_server_that_asks_may_listen_where_others_reach_it(tmp_path):
    table = f"[[callouts]]\nurl = 'https://app.example.com/'\nsecrets = ['{NEW}']\n"
    for decides, code in [("connect", 0), ("subscribe", 78)]:
        (tmp_path / "throng.toml").write_text(f"{table}decides = ['{decides}']")
        done = run_throng("check", "--listen", "0.0.0.0:8080", directory=tmp_path)
        assert done.returncode == code, done.stderr


MEMBERS = """decides = ['connect', 'subscribe']
headers = ['X-Session']
[[channels]]
match = 'rooms/*'
members = 'user'
"""


def test_members_show_what_the_application_says(world, application):
    shown = {"connect": {}, "subscribe": {}}

    def decide(request, handler):
        kind = request["type"]
        if kind == "connect":
            answer = log_in(request, handler)
            answer["grants"] = {**GRANTS, "presence": ["rooms/*"]}
            name = answer["user"]
        else:
            answer, name = {"allow": True}, request["data"]["user"]
        return answer | ({"info": shown[kind][name]} if name in shown[kind] else {})

    application.decide = decide
    here = world(MEMBERS)
    shown["connect"] = {"ann": {"name": "Ann"}, "bob": {"name": "Bob"}, "eve": {"x": "x" * (1 << 16)}, "joe": []}
    shown["subscribe"] = {"bob": {"name": "Bob", "in": "a"}, "mo": {"x": "x" * 1_025}}
    for refused in ("eve", "joe", "mo"):
        answer = here.poll(**session(refused))
        assert answer.status_code == 503, (refused, answer.status_code, answer.text)
    options = {"proxy": None, "open_timeout": TIMEOUT_SECONDS}
    url = f"{here.server.ws}/channels/rooms%2Fa"
    with (
        connect(url, additional_headers=session("ann"), **options),
        connect(url, additional_headers=session("bob"), **options),
    ):
        page = here.http.get("/channels/rooms%2Fa/presence", headers=session("ann")).json()
        assert page["members"] == [
            {"user": "ann", "info": {"name": "Ann"}},
            {"user": "bob", "info": {"name": "Bob", "in": "a"}},
        ]
