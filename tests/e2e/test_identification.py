"""One table of cases, through every way into the server: the same fault has the same answer everywhere.

The table is `identification.json` of `throng-access`, whose unit tests read it, too. A case shows credentials in places. It is tried in
each way that has these places: each transport, the commands of `throng.v1`, the HTTP API, and the admin listener.
"""

import contextlib
import itertools
import json
import re
import struct
from functools import cache
from urllib.parse import quote

import pytest
from conftest import QUICK
from support.access import SECRET, bearer, server_key, token
from support.application import LONGEST_DEADLINE, NEW, OLD, Application
from support.certificates import Authority, make_certificate, trusting
from support.issuer import FIXTURES, Issuer
from support.raw import CLOSE, PING, PONG, TEXT, Raw, frame, handshake_headers
from support.server import Server as Process
from support.server import eventually

TABLE = json.loads((FIXTURES / "identification.json").read_text())
PAGES = {"listed": "https://page.example", "other": "https://other.example", "none": None}
GRANTS = {name: ["*"] for name in ("subscribe", "publish", "history", "presence")}
LINE = b'{"channel":"a","data":1}\n'
NEVER_BEFORE = itertools.count(1)


@cache
def credential(name):
    """A credential of the table that is the same for all servers."""
    good = {"sub": "ann", "throng": GRANTS}
    return {
        "good": lambda: token(**good),
        "of bob": lambda: token(**{**good, "sub": "bob"}),
        "locked out": lambda: token(**good, jti="locked out"),
        "forged": lambda: token(SECRET[::-1], **good),
        "of an unknown key": lambda: token(SECRET[::-1], headers={"kid": "unknown"}, **good),
        "of a late key": lambda: token(SECRET[::-1], headers={"kid": "late"}, **good),
        "malformed": lambda: "a.b",
        "long": lambda: "x" * 8193,
        "expired": lambda: token(**good, iat=1_700_000_000, exp=1_700_000_600),
        "early": lambda: token(**good, nbf=4_000_000_000, exp=4_000_000_600),
        "revoked": lambda: token(**good, jti="revoked"),
        "mistyped key": lambda: "throng_key_x",
        "session": lambda: "session",
        "stranger": lambda: "stranger",
        "certificate": lambda: "",
    }[name]()


def decide(request, _handler):
    """Lets in clients with a session, and everybody with a token but the one that is locked out."""
    data = request["data"]
    if "claims" in data:
        is_locked = data["claims"].get("jti") == "locked out"
        return {"allow": not is_locked, **({"message": "you are locked out"} if is_locked else {})}
    if data.get("headers", {}).get("x-session") == "session":
        return {"allow": True, "user": "ann", "grants": GRANTS, "cache": 60}
    return {"allow": False, "message": "log in first"}


class Way:
    """A way into the server: a request, or a command on a connection."""

    has_places = frozenset({"", "header", "schemeless", "query", "cookie", "session", "certificate"})
    is_read = True
    is_admin = False

    def __init__(self, method="GET", path="/channels/a", body=b"", **headers):
        self.method, self.path, self.body, self.headers = method, path, body, headers

    def has(self, case, places):
        """Whether the case means something here."""
        parts = set(places.split(" "))
        # Without an origin a cookie counts for what reads only.
        counts = self.is_read or "cookie" not in parts or case.get("page") != "none"
        return parts <= self.has_places and counts

    def send(self, client, shown, page):
        """Sends the request, which shows credentials in places."""
        path, lines = self.path, [f"{name}: {value}" for name, value in self.headers.items()]
        cookies = []
        protocols = []
        for place, text in shown:
            if place == "query":
                path += ("&" if "?" in path else "?") + f"token={quote(text)}"
            elif place == "cookie":
                cookies.append(f"t={text}")
            elif place == "login":
                cookies.append(f"throng-status={text}")
            elif place == "subprotocol":
                protocols.append(f"throng.token.{text}")
            elif place and place != "certificate":
                scheme = {"header": "Bearer "}.get(place, "")
                name = "X-Session" if place == "session" else "Authorization"
                lines.append(f"{name}: {scheme}{text}")
        if cookies:
            lines.append(f"Cookie: {'; '.join(cookies)}")
        if page:
            lines.append(f"Origin: {page}")
        if self.body:
            lines.append(f"Content-Length: {len(self.body)}")
        lines += self.more_lines(protocols)
        head = [f"{self.method} {path} HTTP/1.1", f"Host: {client.host}", *lines, "", ""]
        client.send("\r\n".join(head).encode() + self.body)

    def more_lines(self, _protocols):
        """Lines of the head that depend on the way."""
        return ["Connection: close"]

    def outcome(self, client):
        """None if the request was accepted, or its status, its error and the sentence."""
        head = client.read_head()
        if head.status < 300:
            return None
        body = json.loads(client.read(int(head.header("content-length"))))
        assert (head.header("retry-after") is None) == (head.status not in (429, 503))
        return head.status, body["error"], body["message"]

    def expected(self, error, says):
        """The outcome of a case that is refused."""
        return TABLE["errors"][error]["status"], error, says

    def attempt(self, server, shown, page, source):
        """Tries a case once."""
        with server.connect(self.is_admin, source) as client:
            self.send(client, shown, page)
            return self.outcome(client)


class Head(Way):
    """A `HEAD` has no body."""

    def outcome(self, client):
        status = client.read_head().status
        return None if status < 300 else (status, None, None)

    def expected(self, error, says):
        return TABLE["errors"][error]["status"], None, None


class Events(Way):
    """An event stream that the client may ask for again has status 200, a comment, and its end."""

    def outcome(self, client):
        head = client.read_head()
        if head.status != 200:
            body = json.loads(client.read(int(head.header("content-length"))))
            return head.status, body["error"], body["message"]
        if head.header("content-length") is None:
            return None
        comment, retry = client.read(int(head.header("content-length"))).decode().split("\n")[:2]
        assert retry.startswith("retry: ")
        code, _, message = comment.removeprefix(": ").partition(": ")
        return TABLE["errors"][code]["status"], code, message


class WebSocket(Way):
    """A WebSocket is opened to say why its client is refused, unless its page is."""

    has_places = Way.has_places | {"subprotocol"}
    is_read = False

    def __init__(self, protocol):
        super().__init__()
        self.protocol = protocol

    def more_lines(self, protocols):
        offered = handshake_headers(Sec_WebSocket_Protocol=", ".join([self.protocol, *protocols]))
        return [f"{name}: {value}" for name, value in offered.items()]

    def outcome(self, client):
        head = client.read_head()
        if head.status != 101:
            body = json.loads(client.read(int(head.header("content-length"))))
            return head.status, body["error"], body["message"]
        client.send_anyway(frame(PING, "still there?"))
        while True:
            opcode, size = (byte & 0x7F for byte in client.read(2))
            size = struct.unpack(">H", client.read(2))[0] if size == 126 else size
            payload = client.read(size)
            if opcode & 0x0F == PONG:
                return None
            if opcode & 0x0F == CLOSE:
                code, reason = struct.unpack(">H", payload[:2])[0], payload[2:].decode()
                return code, None, "reconnect" if reason.startswith("reconnect in ") else reason

    def expected(self, error, says):
        known = TABLE["errors"][error]
        if "close" not in known:
            return known["status"], error, says
        is_retried = known["status"] in (429, 503)
        return known["close"], None, "reconnect" if is_retried else says


class Command(WebSocket):
    """The command that shows a newer token, on a connection with a token of the same user."""

    has_places = frozenset({"command", "certificate"})

    def has(self, case, places):
        return "command" in places.split(" ") and super().has(case, places)

    def __init__(self):
        super().__init__("throng.v1")

    def attempt(self, server, shown, page, source):
        with server.connect(self.is_admin, source) as client:
            self.send(client, [("header", credential("good"))], page)
            assert client.read_head().status == 101
            command = {"type": "auth", "token": dict(shown)["command"], "ref": 1}
            client.send(frame(TEXT, json.dumps(command)))
            while (answer := self.read_answer(client)).get("ref") != 1:
                pass
            if answer["type"] == "authenticated":
                return None
            return answer["code"], answer["message"]

    def read_answer(self, client):
        """The next frame, as JSON."""
        opcode, size = (byte & 0x7F for byte in client.read(2))
        size = struct.unpack(">H", client.read(2))[0] if size == 126 else size
        payload = client.read(size)
        assert opcode & 0x0F == TEXT, payload
        return json.loads(payload)

    def expected(self, error, says):
        return error, says


class Write(Way):
    """A request that changes something has its credential in a header or a cookie."""

    has_places = frozenset({"", "header", "schemeless", "cookie", "session", "certificate"})
    is_read = False


class Read(Write):
    """A request of the API that only reads."""

    is_read = True


class Operator(Way):
    """A request of an operator to the public listener."""

    has_places = frozenset({"", "header", "schemeless", "cookie"})

    def __init__(self, path, accepts_login=False, is_admin=False):
        super().__init__(path=path)
        self.is_admin = is_admin
        if accepts_login:
            self.has_places = self.has_places | {"login"}

    def has(self, case, places):
        # Pages of the admin listener are its own.
        is_foreign = self.is_admin and case.get("page") == "listed"
        return not is_foreign and super().has(case, places)


class Admin(Write):
    """A request to the admin listener, whose pages are its own."""

    has_places = frozenset({"", "header", "schemeless"})
    is_admin = True

    def has(self, case, places):
        return case.get("page") in (None, "none") and super().has(case, places)


WAYS = {
    "stream": Way(),
    "poll": Way(path="/channels/a?wait=0"),
    "sse": Events(Accept="text/event-stream"),
    "several": Events(path="/subscribe?channel=a&channel=b", Accept="text/event-stream"),
    "websocket": WebSocket("throng.plain"),
    "throng.v1": WebSocket("throng.v1"),
    "auth": Command(),
    "head": Head("HEAD"),
    "publish": Write("POST", body=b"x"),
    "batch": Write("POST", "/publish", LINE),
    "history": Read(path="/channels/a/history"),
    "presence": Read(path="/channels/a/presence"),
    "admin publish": Admin("POST", body=b"x"),
    "admin batch": Admin("POST", "/publish", LINE),
    "admin history": Admin(path="/channels/a/history"),
}
OPERATIONS = {
    f"{listener} {path}": Operator(path, accepts_login, listener == "admin")
    for listener in ("public", "admin")
    for path, accepts_login in [
        ("/metrics", True),
        ("/status/stream", True),
        ("/users/ann/connections", False),
        ("/revocations", False),
    ]
}
TLS = re.compile(r"TLS listener on https://[\d.]+:(\d+)")
USERS = "[[channels]]\nmatch = '*'\n" + "".join(f"{action} = 'user'\n" for action in GRANTS)
KEYS = f"[[token-keys]]\nsecret = '{SECRET}'\n"
CALLOUT = f"""
[[callouts]]
{LONGEST_DEADLINE}
url = '{{url}}'
secrets-variable = 'HOOK'
decides = ['connect']
tokens = true
headers = ['X-Session']
"""


class Server:
    """A server of the table."""

    def __init__(self, start, directory, name, application, issuer):
        self.tls = None
        self.key, table = server_key(directory, "app", *GRANTS)
        self.unknown_key, _ = server_key(directory, "other", "publish")
        self.operator, operator = server_key(directory, "operator", "administration")
        lines = [f"allowed-origins = ['{PAGES['listed']}', '*']"]
        tables = table + operator
        if name != "server keys":
            lines += ["token-cookie = 't'", "revocations-file = 'revoked'"]
            tables += KEYS
        if name in ("application", "limited"):
            tables += CALLOUT.format(url=application.url)
        flags = [] if name == "operators" else ["--admin-listen", "127.0.0.1:0"]
        if name == "limited":
            flags += ["--bad-token-rate-per-address", 2]
        if name == "late keys":
            issuer.answer = lambda handler: handler.send(500, "")
            flags += ["--token-key-urls", issuer.url]
        if name == "certificates":
            flags += self.certify(directory)
            tables += USERS
        (directory / "throng.toml").write_text("\n".join(lines) + "\n" + tables)
        self.server = start(*flags, environment={"HOOK": f"{OLD} {NEW}"})
        operators = self.server.http if name == "operators" else self.server.admin()
        self.admin = operators.base_url
        if self.tls:
            eventually(lambda: TLS.search(self.server.log()), "the TLS listener")
        if name == "late keys":
            eventually(lambda: "cannot use the key set" in self.server.log(), "the failed fetch")
        if name != "server keys":
            revoked = operators.post("/revocations/tokens/revoked", headers=bearer(self.operator))
            assert revoked.is_success
        form = {"headers": {"Origin": f"http://{self.admin.host}:{self.admin.port}"}}
        answer = operators.post("/status/login", data={"key": self.operator}, **form)
        self.login = answer.headers["Set-Cookie"].split(";")[0].partition("=")[2]

    def certify(self, directory):
        """The flags of a server that takes users from certificates; its clients show one of ann."""
        certificate, key = make_certificate(directory, "own", "localhost")
        authority = Authority(directory)
        self.tls = trusting(certificate, authority.sign("ann"))
        flags = ["--tls-listen", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key]
        flags += ["--tls-client-ca", authority.certificate, "--tls-client-auth", "optional"]
        return [*flags, "--tls-client-user", "cn"]

    def credential(self, name, place):
        """The text of a credential of the table."""
        if (name, place) == ("operator", "login"):
            return self.login
        own = {"key": self.key, "unknown key": self.unknown_key, "operator": self.operator}
        return own[name] if name in own else credential(name)

    def connect(self, is_admin, source):
        """A connection to one of the listeners."""
        at = self.admin if is_admin else self.server
        self.host, self.port = at.host, at.port
        if not self.tls or is_admin:
            return Raw(self, source=source)
        self.port = int(TLS.search(self.server.log()).group(1))
        client = Raw(self, source=source)
        client.socket = self.tls.wrap_socket(client.socket, server_hostname="localhost")
        return client


@contextlib.contextmanager
def running(directory, name):
    """A server of the table, with its application and its issuer of keys."""
    application, issuer = Application(), Issuer()
    application.decide = decide
    processes = []

    def start(*flags, **options):
        processes.append(Process(directory, *QUICK, *flags, **options))
        return processes[0]

    try:
        yield Server(start, directory, name, application, issuer)
    finally:
        for process in processes:
            process.stop()
        application.close()
        issuer.close()


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """The servers of the table by name; each starts when it is first asked for."""
    with contextlib.ExitStack() as stack:

        @cache
        def world_of(name):
            directory = tmp_path_factory.mktemp("identification")
            return stack.enter_context(running(directory, name))

        yield world_of


@pytest.fixture
def world(request, worlds):
    """A server of the table. pytest would start a parametrized one for each pair of a server and a way."""
    return worlds(request.param)


def cases_of(name, way):
    """The cases of a server that mean something in a way, each with the places of its credentials."""
    return [(case, places) for case in TABLE[name] for places in case["in"] if way.has(case, places)]


def outcomes_of(way, server, case, places):
    """What became of a case, each time that it was tried."""
    names = places.split(" ")
    shown = [(place, server.credential(name, place)) for name, place in zip(case["shows"], names, strict=False)]
    # Browsers send cookies for a page.
    default = "listed" if "cookie" in names else "none"
    # Each has an address of its own, so that the limits of others do not count.
    number = next(NEVER_BEFORE)
    source = f"127.{1 + number // 60_000}.{number // 250 % 240}.{1 + number % 250}"
    tries = range(case.get("times", 1))
    return [way.attempt(server, shown, PAGES[case.get("page", default)], source) for _ in tries]


def check(way, server, case, places):
    """Expects the answer of the table."""
    outcomes = outcomes_of(way, server, case, places)
    about = (case["shows"], places, case.get("page"))
    if "error" not in case:
        assert set(outcomes) == {None}, about
        return
    expected = way.expected(case["error"], case.get("says"))
    if "says" not in case:
        outcomes = [outcome and (*outcome[:-1], None) for outcome in outcomes]
    # On a slow machine a limit has room again now and then.
    is_limit = case["error"] == "too_many_requests"
    assert expected in outcomes if is_limit else set(outcomes) == {expected}, (about, outcomes[-1])


# The admin listener asks no application about its clients, limits no addresses, and has no TLS here.
OF_THE_PUBLIC = {"application", "limited", "certificates"}
PAIRS = [
    (name, way)
    for name in TABLE
    if name not in ("errors", "operators")
    for way in WAYS
    if cases_of(name, WAYS[way]) and not (WAYS[way].is_admin and name in OF_THE_PUBLIC)
]


@pytest.mark.parametrize(("world", "way"), PAIRS, indirect=["world"])
def test_the_same_fault_has_the_same_answer(request, world, way):
    name = request.node.callspec.params["world"]
    for case, places in cases_of(name, WAYS[way]):
        check(WAYS[way], world, case, places)


OPERATOR_PAIRS = [
    ("keys" if operation.is_admin else "operators", name) for name, operation in OPERATIONS.items()
]


@pytest.mark.parametrize(("world", "operation"), OPERATOR_PAIRS, indirect=["world"])
def test_an_operator_is_known_by_a_key_or_a_login(world, operation):
    for case, places in cases_of("operators", OPERATIONS[operation]):
        check(OPERATIONS[operation], world, case, places)


@pytest.mark.parametrize("world", ["keys"], indirect=True)
def test_no_log_has_a_credential(world):
    for name in ("forged", "unknown key", "operator"):
        attempt = {"shows": [name], "in": ["header"]}
        outcomes_of(WAYS["publish"], world, attempt, "header")
        assert world.credential(name, "header") not in world.server.log()
