"""Two cookies of one name, as browsers send them after a change of its domain or path."""

import json
import threading
from contextlib import contextmanager

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from support import TIMEOUT_SECONDS
from support.access import SECRET, bearer, now, server_key, token
from support.issuer import Issuer
from support.server import eventually

PAGE = "https://app.example"
GRANTS = {"subscribe": ["*"], "publish": ["*"], "history": ["*"]}
OLD = {"iat": now() - 7200, "exp": now() - 3600}


def good(user="ann", **claims):
    return token(sub=user, throng=GRANTS, **claims)


def expired():
    return good(**OLD)


def forged():
    return token(SECRET[::-1], throng=GRANTS)


class Cookies:
    """A server that takes tokens from the cookie `t`, and its operator."""

    def __init__(self, start, directory, *flags):
        self.operator, table = server_key(directory, "operator", "administration")
        settings = f"token-cookie = 't'\nallowed-origins = ['{PAGE}']\n"
        keys = f"[[token-keys]]\nsecret = '{SECRET}'\n"
        (directory / "throng.toml").write_text(settings + keys + table)
        self.server = start("--config", "throng.toml", *flags)

    def request(self, method, path, *tokens, **headers):
        cookie = "; ".join(f"t={one}" for one in tokens)
        with httpx.Client(trust_env=False, timeout=TIMEOUT_SECONDS) as client:
            headers = {"Origin": PAGE, "Cookie": cookie, **headers}
            content = b"x" if method == "POST" else None
            url = self.server.url + path
            with client.stream(method, url, headers=headers, content=content) as answer:
                if answer.is_success:
                    return answer.status_code, None
                body = answer.read()
                return answer.status_code, json.loads(body)["error"] if body else None

    def waited(self):
        """How many requests have waited for an answer."""
        text = self.server.http.get("/metrics", headers=bearer(self.operator)).text
        lines = [line for line in text.splitlines() if line.startswith("throng_waits_total")]
        return sum(float(line.split()[-1]) for line in lines)


@pytest.fixture
def cookies(serve, tmp_path):
    return Cookies(serve, tmp_path)


def by_http(method, path, **headers):
    def attempt(cookies, *tokens):
        status, code = cookies.request(method, path, *tokens, **headers)
        return "accepted" if status < 300 else (status, code)

    return attempt


def by_websocket(cookies, *tokens):
    headers = {"Cookie": "; ".join(f"t={one}" for one in tokens)}
    url = cookies.server.ws + "/channels/a"
    try:
        with connect(url, origin=PAGE, additional_headers=headers,
                     subprotocols=["throng.v1"]) as client:
            first = json.loads(client.recv(TIMEOUT_SECONDS))
            assert first["type"] == "welcome", first
            return "accepted"
    except ConnectionClosed as closed:
        codes = {4003: (401, "invalid_token"), 4002: (401, "token_expired")}
        return codes[closed.rcvd.code]


SSE = by_http("GET", "/channels/a", Accept="text/event-stream")
WAYS = {
    "sse": SSE,
    "long-poll": by_http("GET", "/channels/a?wait=0"),
    "websocket": by_websocket,
    "history": by_http("GET", "/channels/a/history"),
    "publish": by_http("POST", "/channels/a"),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_valid_cookie_counts(cookies, way):
    def attempt(*tokens):
        return WAYS[way](cookies, *tokens)

    for bad in ["x", "x y", '"', "throng_key_x", expired(), forged()]:
        assert attempt(bad, good()) == "accepted", bad
        assert attempt(good(), bad) == "accepted", bad
    assert attempt(good(jti="one"), good(jti="other")) == "accepted"
    for bad in [forged(), "x"]:
        assert attempt(expired(), bad) == (401, "token_expired")
        assert attempt(bad, expired()) == (401, "token_expired")
    assert attempt("x", forged()) == (401, "invalid_token")


@pytest.mark.parametrize("way", [way for way in WAYS if way != "websocket"])
def test_two_users_and_three_cookies_are_refused(cookies, way):
    assert WAYS[way](cookies, good(), good("bo")) == (400, "bad_request")
    assert WAYS[way](cookies, good(), "x", "y") == (401, "invalid_token")


def test_a_head_tells_what_its_get_would(cookies):
    head = by_http("HEAD", "/channels/a", Accept="text/event-stream")
    assert head(cookies, forged(), good()) == "accepted"
    assert head(cookies, forged(), expired()) == (401, None)


def test_a_credential_elsewhere_and_another_cookie_are_refused(cookies):
    shown = good()
    for tokens in [(expired(),), (shown, expired())]:
        status = cookies.request("GET", "/channels/a/history", *tokens, **bearer(shown))
        assert status == (400, "bad_request")
    assert cookies.request("GET", "/channels/a/history", shown, **bearer(shown)) == (200, None)


@pytest.mark.parametrize("way", ["long-poll", "history"])
def test_forged_cookies_count_against_their_address(serve, tmp_path, way):
    cookies = Cookies(serve, tmp_path, "--bad-token-rate-per-address", 2)
    known = good()
    assert WAYS[way](cookies, known) == "accepted"
    # A token that was verified lately counts beyond the limit.
    outcomes = [WAYS[way](cookies, forged(), "x") for _ in range(40)]
    assert outcomes[0] == (401, "invalid_token")
    assert (429, "too_many_requests") in outcomes
    assert WAYS[way](cookies, forged(), known) == "accepted"


def test_a_login_beside_an_old_one_counts(cookies):
    server = cookies.server
    form = {"key": cookies.operator}
    answer = server.http.post("/status/login", data=form, headers={"Origin": server.url})
    name, _, login = answer.headers["Set-Cookie"].split(";")[0].partition("=")
    for pair in [(login, "old"), ("old", login)]:
        cookie = "; ".join(f"{name}={one}" for one in pair)
        assert server.http.get("/status.json", headers={"Cookie": cookie}).status_code == 200
    old = {"Cookie": f"{name}=old; {name}=older"}
    assert server.http.get("/status.json", headers=old).status_code == 401


@pytest.fixture
def issuer():
    """An issuer whose key set has two keys, and is served once it is released."""
    issuer = Issuer()
    issuer.release = threading.Event()
    issuer.keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("one", "two")}
    algorithm = jwt.algorithms.ECAlgorithm(jwt.algorithms.ECAlgorithm.SHA256)
    public = [
        {**algorithm.to_jwk(key.public_key(), as_dict=True), "kid": name, "use": "sig"}
        for name, key in issuer.keys.items()
    ]

    def answer(handler):
        issuer.release.wait(TIMEOUT_SECONDS)
        handler.send(200, json.dumps({"keys": public}))

    issuer.answer = answer
    yield issuer
    issuer.release.set()
    issuer.close()


@contextmanager
def released(cookies, issuer):
    """Releases the key set once the request that the block makes waits for it."""
    before = cookies.waited()

    def release():
        try:
            eventually(lambda: cookies.waited() > before, "a request that waits")
        finally:
            issuer.release.set()

    thread = threading.Thread(target=release)
    thread.start()
    yield
    thread.join()


@pytest.mark.parametrize(("names", "expected"), [
    (("late", "good"), "accepted"),
    (("good", "late"), "accepted"),
    (("late", "other late"), "accepted"),
    (("late", "garbage"), "accepted"),
    (("garbage", "late"), "accepted"),
    (("unknown", "good"), "accepted"),
    (("good", "unknown"), "accepted"),
    (("unknown", "late"), "accepted"),
    (("late", "bo"), (400, "bad_request")),
    (("bo", "late"), (400, "bad_request")),
    (("unknown", "expired"), (401, "token_expired")),
    (("late expired", "garbage"), (401, "token_expired")),
    (("unknown", "garbage"), (401, "invalid_token")),
])
def test_a_cookie_whose_key_is_fetched_is_awaited(serve, tmp_path, issuer, names, expected):
    def late(name, key=None, **claims):
        key = issuer.keys[key or name]
        return good(secret=key, algorithm="ES256", headers={"kid": name}, **claims)

    make = {
        "late": lambda: late("one"),
        "other late": lambda: late("two"),
        "late expired": lambda: late("one", **OLD),
        "unknown": lambda: late("none", "one"),
        "good": good,
        "bo": lambda: good("bo"),
        "expired": expired,
        "garbage": lambda: "x",
    }
    cookies = Cookies(serve, tmp_path, "--token-key-urls", issuer.url)
    with released(cookies, issuer):
        assert SSE(cookies, *(make[name]() for name in names)) == expected


def test_a_request_that_waits_for_a_key_goes_on_after_an_upgrade(upgradable, tmp_path, issuer):
    cookies = Cookies(upgradable, tmp_path, "--token-key-urls", issuer.url)
    key = issuer.keys["one"]
    late = good(secret=key, algorithm="ES256", headers={"kid": "one"})
    outcomes = []
    asking = threading.Thread(target=lambda: outcomes.append(SSE(cookies, "x", late)))
    asking.start()
    eventually(lambda: cookies.waited() > 0, "a request that waits")
    cookies.server.upgrade()
    issuer.release.set()
    asking.join(TIMEOUT_SECONDS)
    assert outcomes == ["accepted"]
