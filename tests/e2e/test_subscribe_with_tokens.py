"""Subscribing with tokens that PyJWT makes, over real sockets."""

import base64
import json
import time
from contextlib import ExitStack, closing, contextmanager
from urllib.parse import quote

import jwt
import pytest
import websockets.exceptions
import websockets.sync.client
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from support import TIMEOUT_SECONDS
from support.access import payload, signed
from support.raw import TEXT, Closed, Raw, RawWebSocket, frame
from support.server import Server

SECRET = "0123456789abcdef0123456789abcdef"
EC = ec.generate_private_key(ec.SECP256R1())
PUBLIC = EC.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)
SETTINGS = f"""
token-leeway = "0s"
token-audience = ["app"]
[[token-keys]]
id = "hmac"
secret = "{SECRET}"
[[token-keys]]
id = "ec"
public-key-file = "ec.pem"
[[channels]]
match = "news"
subscribe = "anyone"
publish = "user"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with a secret and a public key, and one channel for anyone."""
    directory = tmp_path_factory.mktemp("server")
    (directory / "ec.pem").write_bytes(PUBLIC)
    (directory / "throng.toml").write_text(SETTINGS)
    running = Server(directory, "--drain-window", "200ms", "--drain-timeout", "5s")
    yield running
    running.stop()
    assert SECRET not in running.log()


def token(key=SECRET, algorithm="HS256", kid="hmac", header=None, **changes):
    """A token of ann for the rooms, valid for a minute, with changed claims; None removes one."""
    now = int(time.time())
    claims = {"sub": "ann", "aud": "app", "iat": now, "exp": now + 60}
    claims["throng"] = {"subscribe": ["rooms/*", "private/{user}/*"], "history": ["rooms/*"]}
    claims = {name: value for name, value in (claims | changes).items() if value is not None}
    header = {"kid": kid} | (header or {})
    header = {name: value for name, value in header.items() if value is not None}
    return jwt.encode(claims, key, algorithm, headers=header)


def status(server, path, credential=None, **headers):
    """The status of a subscription, and its headers."""
    if credential:
        headers["Authorization"] = f"Bearer {credential}"
    with closing(Raw(server)) as raw:
        raw.request("GET", path, headers)
        return raw.read_head()


def socket(server, path, credential, protocol="throng.plain"):
    return RawWebSocket(server, path, protocol=f"{protocol}, throng.token.{credential}")


def say(raw, **command):
    raw.send(frame(TEXT, json.dumps(command).encode()))


def hear(raw, kind):
    """The next text of this type."""
    while True:
        message = json.loads(raw.read_message())
        if message["type"] == kind:
            return message


@pytest.mark.parametrize("key", ["hmac", "ec"])
def test_a_token_allows_what_it_grants(server, key):
    good = token() if key == "hmac" else token(EC, "ES256", "ec")
    expected = {
        "/channels/rooms%2Fa": 200,
        "/channels/private%2Fann%2Fx": 200,
        "/channels/private%2Fbob%2Fx": 403,
        "/channels/other": 403,
        "/users/ann": 200,
        "/users/bob": 403,
        "/subscribe?channel=rooms/a&user=ann": 200,
        "/subscribe?channel=rooms/a&user=bob": 403,
        "/channels/news": 200,
    }
    assert {path: status(server, path, good).status for path in expected} == expected


def test_without_a_token_there_is_no_user(server):
    assert status(server, "/channels/news").status == 200
    for path in ["/channels/rooms%2Fa", "/users/ann", "/subscribe?channel=news&user=ann"]:
        response = status(server, path)
        assert (response.status, response.header("www-authenticate")) == (401, "Bearer"), path


def changed(part, **changes):
    """A good token, of which a part is changed without a new signature."""
    parts = token().split(".")
    padded = parts[part] + "=" * (-len(parts[part]) % 4)
    claims = json.loads(base64.urlsafe_b64decode(padded)) | changes
    raw = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return ".".join(raw if at == part else text for at, text in enumerate(parts))


def hmac_with_the_public_key():
    """What a server believes that takes a public key as an HMAC secret."""
    import hashlib
    import hmac

    encode = lambda value: base64.urlsafe_b64encode(value).rstrip(b"=")  # noqa: E731
    claims = {"sub": "ann", "aud": "app", "exp": int(time.time()) + 60}
    signed = encode(b'{"alg":"HS256","kid":"ec"}') + b"." + encode(json.dumps(claims).encode())
    return (signed + b"." + encode(hmac.digest(PUBLIC, signed, hashlib.sha256))).decode()


NOW = int(time.time())
BAD = {
    "forged": lambda: changed(1, sub="bob"),
    "truncated": lambda: token()[:-10],
    "without a signature": lambda: token().rsplit(".", 1)[0] + ".",
    "alg none": lambda: changed(0, alg="none").rsplit(".", 1)[0] + ".",
    "a public key as a secret": hmac_with_the_public_key,
    "another secret": lambda: token(SECRET[::-1]),
    "not yet valid": lambda: token(nbf=int(time.time()) + 60),
    "another audience": lambda: token(aud="other"),
    "no audience": lambda: token(aud=None),
    "no expiry": lambda: token(exp=None),
    "a long life": lambda: token(exp=NOW + 10**8),
    "an unknown key": lambda: token(kid="other"),
    "an own key": lambda: token(SECRET[::-1], header={"jwk": {"kty": "oct", "k": "x"}}),
    "100 KB": lambda: "x" * 100_000,
    "10,000 grants": lambda: token(throng={"subscribe": [str(at) for at in range(10_000)]}),
    "a user of 10 KB": lambda: token(sub="x" * 10_000),
    "200 grants": lambda: token(throng={"subscribe": [str(at) for at in range(200)]}),
    "a user of 300 bytes": lambda: token(sub="x" * 300),
    "duplicate claims": lambda: signed(
        '{"alg":"HS256","kid":"hmac"}', payload(aud="app")[:-1] + ',"sub":"bob"}', SECRET
    ),
    "garbage": lambda: "garbage",
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_token_is_refused_on_every_transport(server, case):
    bad = BAD[case]()
    too_large = len(bad) > 15_000
    expected = 431 if too_large else 401
    for headers in [{}, {"Accept": "text/event-stream"}]:
        response = status(server, "/channels/rooms%2Fa", bad, **headers)
        assert response.status == expected
        if not too_large:
            assert response.header("www-authenticate") == 'Bearer error="invalid_token"'
    assert status(server, "/channels/rooms%2Fa?wait=1", bad).status == expected
    if not too_large:
        with socket(server, "/channels/rooms%2Fa", bad) as raw:
            code, reason = raw.read_close()
        assert code == 4003 and reason and bad[:20] not in reason
    assert bad[:40] not in server.log()


def test_an_expired_token_has_a_code_of_its_own(server):
    expired = token(iat=NOW - 100, exp=NOW - 50)
    with socket(server, "/channels/rooms%2Fa", expired) as raw:
        assert raw.read_close()[0] == 4002
    assert status(server, "/channels/rooms%2Fa", expired).status == 401


@pytest.mark.parametrize("user", ["*", "ann/x", "{user}", "an:n"])
def test_no_user_reaches_the_channels_of_another(server, user):
    of_user = token(sub=user)
    for path in ["/channels/private%2Fann%2Fx", "/channels/private%2Fann%2Fx%2Fy", "/users/ann"]:
        assert status(server, path, of_user).status == 403, path
    own = status(server, f"/users/{quote(user, safe='')}", of_user)
    # Nobody follows names that look like patterns.
    assert own.status == (400 if user == "*" else 200)


@pytest.mark.parametrize(
    "name", ["rooms%2F..%2Fadmin", "rooms/../admin", "rooms%252Fa", "ROOMS%2Fa", "%72ooms%2Fa"]
)
def test_names_that_try_to_escape_a_pattern(server, name):
    code = status(server, f"/channels/{name}", token()).status
    # Decoded once, `%72ooms/a` is the room itself, and a name with dots is a name within `rooms/`.
    assert code in ((200,) if name == "%72ooms%2Fa" else (200, 400, 403, 404))
    if code == 200:
        assert status(server, f"/channels/{name}", token(throng={})).status == 403


def test_two_different_tokens_are_a_bad_request(server):
    path = f"/channels/rooms%2Fa?token={token()}"
    assert status(server, path).status == 200
    assert status(server, path, token(jti="x")).status == 400


@contextmanager
def opened_in_time(life_s, open):
    """What `open` returns for a stack and a token that ends soon, but not before it has returned: for a
    loaded machine the token lives longer. Gives that time, too."""
    while True:
        ends = int(time.time()) + life_s
        with ExitStack() as stack:
            try:
                opened = open(stack, token(exp=ends))
            except (AssertionError, Closed, OSError):
                if time.time() < ends - 1:
                    raise
            else:
                if time.time() < ends - 1:
                    yield opened, life_s
                    return
        life_s *= 2


def test_a_connection_ends_with_its_token(server):
    def open(stack, good):
        plain = stack.enter_context(socket(server, "/channels/rooms%2Fa", good))
        v1 = stack.enter_context(socket(server, "/subscribe?channel=rooms/a", good, "throng.v1"))
        sse = stack.enter_context(Raw(server))
        headers = {"Authorization": f"Bearer {good}", "Accept": "text/event-stream"}
        sse.request("GET", "/channels/rooms%2Fa", headers)
        assert sse.read_head().status == 200
        return plain, v1, sse

    with opened_in_time(4, open) as ((plain, v1, sse), life_s):
        assert 0 < hear(v1, "expiring")["expires_in"] <= life_s
        assert plain.read_close()[0] == 4002 and v1.read_close()[0] == 4002
        assert b'event: closed\ndata: {"type":"closed","code":"token_expired"' in sse.read_to_end()


def test_a_newer_token_keeps_the_connection(server):
    path = "/subscribe?channel=rooms/a&channel=rooms/b"

    def open(stack, first):
        raw = stack.enter_context(socket(server, path, first, "throng.v1"))
        other = stack.enter_context(socket(server, path, first, "throng.v1"))
        say(raw, type="auth", token=token(sub="bob"), ref=1)
        assert hear(raw, "error")["code"] == "forbidden"
        say(raw, type="auth", token=token(throng={"subscribe": ["rooms/a"]}), ref=2)
        return raw, other, hear(raw, "authenticated")

    with opened_in_time(3, open) as ((raw, other, renewed), _):
        assert renewed["user"] == "ann" and renewed["expires_in"] > 50
        ended = hear(raw, "unsubscribed")
        assert (ended["channel"], ended["code"]) == ("rooms/b", "forbidden")
        assert other.read_close()[0] == 4002
        say(raw, type="ping", ref=3)
        assert hear(raw, "pong")["ref"] == 3


def test_a_plain_websocket_that_may_not_publish_is_told_so_and_stays(server):
    with socket(server, "/channels/rooms%2Fa", token()) as raw:
        raw.send(frame(TEXT, b"hello"))
        assert json.loads(raw.read_message())["code"] == "forbidden"
        raw.send(frame(TEXT, b"again"))
        assert json.loads(raw.read_message())["code"] == "forbidden"
    with socket(server, "/channels/news", token()) as raw:
        raw.send(frame(TEXT, b"hello"))
        assert raw.read_message() == b"hello"


def test_a_library_sees_the_close_code(server):
    connect = websockets.sync.client.connect(
        f"{server.ws}/channels/rooms%2Fa",
        subprotocols=["throng.plain", "throng.token.nonsense"],
        open_timeout=TIMEOUT_SECONDS,
        proxy=None,
    )
    with connect as client, pytest.raises(websockets.exceptions.ConnectionClosed) as closed:
        client.recv(timeout=TIMEOUT_SECONDS)
    assert closed.value.rcvd.code == 4003




def test_a_token_may_grant_more_channels(server):
    grants = {"subscribe": ["rooms/*"], "max_channels": 2000}
    query = "&".join(f"channel=rooms/{n}" for n in range(200))
    assert status(server, f"/subscribe?{query}", token(throng=grants)).status == 200
    assert status(server, f"/subscribe?{query}", token()).status == 400
    names = [f"rooms/{n}" for n in range(2000)]
    for credential, channels_max in [(token(throng=grants), 2000), (token(), 128)]:
        with socket(server, "/subscribe", credential, protocol="throng.v1") as raw:
            assert hear(raw, "welcome")["channels_max"] == channels_max
            say(raw, type="subscribe", channels=["other", *names])
            answer = hear(raw, "subscribed")["channels"]
            codes = [entry.get("error", {}).get("code") for entry in answer]
            assert codes[0] == "forbidden"
            assert codes[1:].count(None) == channels_max
            assert codes[1:].count("too_many_channels") == 2000 - channels_max
