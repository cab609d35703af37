"""Settings that are replaced while the server runs, and those that wait for an upgrade or a restart."""

import json
import re
import signal
import socket
import ssl
import threading

import pytest
import websockets.exceptions
import websockets.sync.client
from cryptography import x509

from support import TIMEOUT_SECONDS
from support.access import SECRET, bearer, server_key, token
from support.application import LONGEST_DEADLINE, NEW, OLD, Application
from support.certificates import make_certificate
from support.raw import Raw
from support.server import Server, eventually
from support.tls_server import read_until, stream_request

TOKEN_KEY = f"[[token-keys]]\nsecret = '{SECRET}'\n"
GRANTS = {"subscribe": ["rooms/*"], "publish": ["rooms/*"]}


class Reloaded:
    """A server whose settings are replaced."""

    def __init__(self, directory, text, *flags):
        self.path = directory / "throng.toml"
        self.path.write_text(text)
        self.server = Server(directory, *flags)

    def reload(self, text, expected="the settings were read again"):
        """Replaces the settings. Returns what the server says of them."""
        self.path.write_text(text)
        return self.hang_up(expected)

    def hang_up(self, expected):
        def lines():
            return [line for line in self.server.log().splitlines() if "SIGHUP: " in line]

        count = len(lines())
        self.server.signal(signal.SIGHUP)
        eventually(lambda: len(lines()) > count, "what came of the reload")
        said = lines()[-1]
        assert expected in said, said
        return said


@pytest.fixture
def start(tmp_path):
    """Starts a server with settings, and stops it after the test."""
    started = []

    def start(text, *flags):
        started.append(Reloaded(tmp_path, text, "--drain-window", "0ms", *flags))
        return started[-1]

    yield start
    for one in started:
        one.server.stop()
        assert SECRET not in one.server.log()


def follow(server, path, credential, *subprotocols):
    """A WebSocket by a library."""
    return websockets.sync.client.connect(
        server.ws + path,
        subprotocols=subprotocols or None,
        additional_headers=bearer(credential),
        proxy=None,
        open_timeout=TIMEOUT_SECONDS,
    )


def close_code(socket):
    """The code with which the server closes a WebSocket."""
    with pytest.raises(websockets.exceptions.ConnectionClosed) as closed:
        socket.recv(TIMEOUT_SECONDS)
    return closed.value.rcvd.code


def of_page(server):
    """A WebSocket of a page."""
    address = server.ws + "/channels/a"
    return websockets.sync.client.connect(
        address, origin="https://page.example", proxy=None, open_timeout=TIMEOUT_SECONDS
    )


def hear(socket, kind):
    """The next message of this type."""
    while True:
        message = json.loads(socket.recv(TIMEOUT_SECONDS))
        if message["type"] == kind:
            return message


def status(server, credential, channel="rooms%2Fa"):
    path = f"/channels/{channel}?wait=0"
    return server.http.get(path, headers=bearer(credential)).status_code


def test_rules_that_became_stricter_end_subscriptions(start):
    one = start(TOKEN_KEY + "[access]\nsubscribe = 'user'\n")
    server, shown = one.server, token(throng=GRANTS)
    with (
        follow(server, "/subscribe?channel=rooms/a&channel=news", shown, "throng.v1") as both,
        follow(server, "/channels/news", shown) as news,
        follow(server, "/channels/rooms%2Fa", shown) as rooms,
        Raw(server) as stream,
    ):
        stream.request("GET", "/channels/news", {**bearer(shown), "Accept": "text/event-stream"})
        assert stream.read_head().status == 200
        one.reload(TOKEN_KEY, "replaced: rules of access")
        ended = hear(both, "unsubscribed")
        assert ended["channel"] == "news", ended
        assert close_code(news) == 1008
        assert b"event: closed" in stream.read_until(b"closed")
        # What the token grants goes on, and nothing of it was lost.
        answer = server.http.post("/channels/rooms%2Fa", content="on", headers=bearer(shown))
        assert answer.json()["subscribers"] == 2
        assert hear(both, "message")["data"] == "on"
        assert rooms.recv(TIMEOUT_SECONDS) == "on"
    assert status(server, shown, "news") == 403


def test_what_waits_for_a_callout_goes_by_the_new_rules(start):
    application = Application()
    asked, decided = threading.Semaphore(0), threading.Event()

    def decide(_request, _headers):
        asked.release()
        assert decided.wait(TIMEOUT_SECONDS)
        return {"allow": True}

    application.decide = decide
    callout = (
        f"[[callouts]]\nurl = '{application.url}'\nsecrets = ['{OLD}', '{NEW}']\n"
        f"{LONGEST_DEADLINE}\ndecides = ['subscribe', 'publish']\nmatch = '*'\n"
    )
    one = start(TOKEN_KEY + callout + "[access]\nsubscribe = 'user'\npublish = 'user'\n")
    server, shown = one.server, token(throng=GRANTS)
    try:
        with (
            follow(server, "/subscribe", shown, "throng.v1") as socket,
            Raw(server) as stream,
            Raw(server) as publisher,
        ):
            socket.send(json.dumps({"type": "subscribe", "channel": "news"}))
            stream.request("GET", "/channels/news", bearer(shown))
            publisher.request("POST", "/channels/news", bearer(shown), b"x")
            for _ in range(3):
                assert asked.acquire(timeout=TIMEOUT_SECONDS)
            one.reload(TOKEN_KEY + callout, "replaced: rules of access")
            decided.set()
            assert hear(socket, "error")["code"] == "forbidden"
            assert stream.read_head().status == 403
            assert publisher.read_head().status == 403
    finally:
        decided.set()
        application.close()


def test_what_the_server_keeps_for_a_user_is_granted(start, tmp_path):
    key, table = server_key(tmp_path, "app", "subscriptions", "publish")
    one = start(TOKEN_KEY + table)
    server, app = one.server, bearer(key)
    kept = server.http.put("/users/ann/subscriptions", json={"channels": ["kept"]}, headers=app)
    assert kept.status_code == 200, kept.text
    shown = token(throng={"subscribe": ["rooms/*"]})

    def publish(text):
        for channel in ("kept", "rooms%2Fa"):
            answer = server.http.post(f"/channels/{channel}", content=text, headers=app)
            assert answer.status_code == 201, answer.text

    with (
        follow(server, "/subscribe?channel=rooms/a&user=ann", shown, "throng.v1") as both,
        follow(server, "/users/ann", shown) as inbox,
    ):
        # A newer token that grants less, and then rules that allow less.
        both.send(json.dumps({"type": "auth", "token": token(throng={"subscribe": ["other"]})}))
        assert hear(both, "unsubscribed")["channel"] == "rooms/a"
        publish("after the token")
        assert hear(both, "message")["channel"] == "kept"
        one.reload(TOKEN_KEY + table + "[access]\nsubscribe = 'nobody'\n", "rules of access")
        publish("after the rules")
        assert hear(both, "message")["data"] == "after the rules"
        heard = [inbox.recv(TIMEOUT_SECONDS) for _ in range(2)]
        assert heard == ["after the token", "after the rules"]


def test_another_audience_and_issuer_hold_for_tokens_that_were_verified_before(start):
    settings = "token-audience = ['{}']\ntoken-issuer = ['{}']\n" + TOKEN_KEY
    one = start(settings.format("one", "own"))
    server, (first, second) = one.server, [token(throng=GRANTS, aud=aud, iss="own") for aud in ("one", "two")]
    # Twice, so that it is known.
    assert [status(server, shown) for shown in (first, first, second)] == [204, 204, 401]
    with follow(server, "/channels/rooms%2Fa", first) as client:
        one.reload(settings.format("two", "own"), "replaced: audience and issuer of tokens")
        assert [status(server, shown) for shown in (first, second)] == [401, 204]
        one.reload(settings.format("two", "other"), "replaced: audience and issuer of tokens")
        assert status(server, second) == 401
        # Who was there stays.
        one.reload(settings.format("one", "own"), "replaced: audience and issuer of tokens")
        sent = server.http.post("/channels/rooms%2Fa", content="hello", headers=bearer(first))
        assert sent.status_code == 201, sent.text
        assert client.recv(TIMEOUT_SECONDS) == "hello"


def test_a_server_key_that_is_gone_ends_its_connections(start, tmp_path):
    old, old_table = server_key(tmp_path, "old", "subscribe", "publish")
    new, new_table = server_key(tmp_path, "new", "subscribe", "publish")
    one = start(old_table)
    server = one.server
    assert (status(server, old), status(server, new)) == (204, 401)
    one.reload(old_table + new_table, "replaced: server keys")
    assert (status(server, old), status(server, new)) == (204, 204)
    with (
        follow(server, "/channels/a", old) as leaving,
        follow(server, "/channels/a", new) as staying,
    ):
        one.reload(new_table, "replaced: server keys")
        assert close_code(leaving) == 4004
        assert status(server, old) == 401
        assert server.http.post("/channels/a", content="x", headers=bearer(new)).status_code == 201
        assert staying.recv(TIMEOUT_SECONDS) == "x"


def test_viewers_of_the_status_go_with_their_key(start, tmp_path):
    old, old_table = server_key(tmp_path, "old", "administration")
    _, new_table = server_key(tmp_path, "new", "administration")
    one = start(old_table + new_table)
    with Raw(one.server) as viewer:
        viewer.request("GET", "/status/stream", {**bearer(old), "Accept": "text/event-stream"})
        assert viewer.read_head().status == 200
        one.reload(new_table, "replaced: server keys")
        viewer.read_until(b"event: closed")
    answer = one.server.http.get("/status/stream", headers=bearer(old))
    assert answer.status_code == 401


def test_the_last_key_stays_until_a_restart(start, tmp_path):
    key, table = server_key(tmp_path, "app", "subscribe", "publish")
    one = start(table)
    said = one.reload("", "server-keys")
    assert "wait" in said and "replaced: server keys" not in said
    assert status(one.server, key) == 204
    assert one.server.http.get("/channels/a?wait=0").status_code == 401


def test_pages_limits_and_the_level_of_the_log(start):
    text = "[per-address]\npublish-rate = 2\n"
    one = start(text)
    server = one.server
    page = {"Origin": "https://page.example"}
    assert server.http.get("/health", headers=page).status_code == 403
    with pytest.raises(websockets.exceptions.InvalidStatus), of_page(server):
        pass
    changed = "allowed-origins = ['https://page.example']\nlog = 'debug'\n"
    changed += "[per-address]\npublish-rate = 1000\n"
    said = one.reload(changed, "replaced: origins and hosts, limits, log level")
    assert "restart" not in said
    assert server.http.get("/health", headers=page).status_code == 200
    with of_page(server):
        pass
    assert {server.http.post("/channels/a", content="x").status_code for _ in range(20)} == {201}
    eventually(lambda: "DEBUG" in server.log(), "a request in the log")


def test_what_waits_for_an_upgrade_or_a_restart_is_named(start):
    one = start("workers = 4\n[per-address]\npublish-rate = 9\n")
    text = (
        "workers = 3\nheartbeat = '20s'\n[history]\nmessages = 3\n"
        "[per-address]\nmax-connections = 9\n"
        "[[channels]]\nmatch = 'a'\nmessages = 5\n"
    )
    for _ in range(2):
        said = one.reload(text, "; waits for a restart: workers")
        upgrade = "; wait for `throng upgrade` or a restart: "
        pending = said.split(upgrade)[1].split("; ")[0].split(", ")
        assert pending == [
            "channels (history and lag)",
            "heartbeat",
            "history.messages",
            "per-address.max-connections",
            "per-address.publish-rate",
        ]
    one.reload("[per-address]\npublish-rate = 9\n", "nothing that a reload can replace has changed")


def test_certificates_are_replaced_and_added(start, tmp_path):
    one_pem, one_key = make_certificate(tmp_path, "one", "one.example")
    make_certificate(tmp_path, "two", "two.example")
    old = f"tls-listen = '127.0.0.1:0'\ntls-cert = '{one_pem}'\ntls-key = '{one_key}'\n"
    one = start(old)
    eventually(lambda: "TLS listener on https://" in one.server.log(), "the TLS listener")
    place = re.search(r"TLS listener on https://(\S+):(\d+)", one.server.log())
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def connect(name):
        stream = socket.create_connection(("127.0.0.1", int(place[2])), TIMEOUT_SECONDS)
        return context.wrap_socket(stream, server_hostname=name)

    def shown(name):
        with connect(name) as stream:
            return x509.load_der_x509_certificate(stream.getpeercert(True)).subject.rfc4514_string()

    with connect("one.example") as stays:
        stays.sendall(stream_request("a"))
        read_until(lambda: stays.recv(4096), b"\r\n\r\n")
        assert shown("two.example") == "CN=one.example", "it is the only one"
        table = "[[certificates]]\ncert = 'two.pem'\nkey = 'two.key'\n"
        missing = table.replace("two.key", "three.key")
        said = one.reload(old + missing, "everything stays as it was")
        assert "three.key" in said and shown("two.example") == "CN=one.example", said
        assert one.server.http.get("/health/ready").json()["status"] == "ready"
        one.reload(old + table, "replaced: certificates")
        assert [shown(f"{name}.example") for name in ("one", "two")] == ["CN=one.example", "CN=two.example"]
        one.reload("tls-listen = '127.0.0.1:0'\n" + table, "replaced: certificates")
        assert shown("one.example") == "CN=two.example"
        one.server.publish("a", "still here")
        read_until(lambda: stays.recv(4096), b"data: still here")


def test_rules_stay_with_the_keys(start):
    text = TOKEN_KEY + "[[channels]]\nmatch = 'secret/*'\nhistory = 'nobody'\n"
    one = start(text)
    shown = bearer(token(throng={"history": ["*"]}))

    def read():
        return one.server.http.get("/channels/secret%2Fx/history", headers=shown).status_code

    assert read() == 403
    said = one.reload("", "nothing that a reload can replace has changed")
    assert "channels" in said and "token-keys" in said
    assert read() == 403


BROKEN = {
    "no TOML": ("log = \n", "line 2"),
    "an unknown key": (TOKEN_KEY + "lock = 'debug'\n", "lock"),
    "a bad rule": (TOKEN_KEY + "[access]\nsubscribe = 'all'\n", '"all" is not one of'),
    "a bad key": (TOKEN_KEY + "[[server-keys]]\nname = 'a'\n", "has no hash"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_bad_file_changes_nothing_and_says_where(start, case):
    one = start(TOKEN_KEY)
    shown = token(throng=GRANTS)
    text, expected = BROKEN[case]
    said = one.reload("allowed-origins = ['https://page.example']\n" + text, "stays as it was")
    assert "throng.toml" in said and expected in said, said
    assert status(one.server, shown) == 204
    page = {"Origin": "https://page.example"}
    assert one.server.http.get("/health", headers=page).status_code == 403


def test_a_file_that_is_gone_changes_nothing(start):
    one = start(TOKEN_KEY)
    one.path.unlink()
    # Without a file the server would have no keys, and be open.
    said = one.hang_up("wait")
    assert "token-keys" in said and "rules of access" not in said
    assert status(one.server, token(throng=GRANTS)) == 204
    assert one.server.http.get("/channels/a?wait=0").status_code == 401
