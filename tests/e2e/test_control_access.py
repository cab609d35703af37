"""Tokens and server keys on the control plane, and what operators do: the real binary, with tokens
that the server's own code did not make."""

import json
import os
import resource
import signal
import subprocess
import threading
import time

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from conftest import HERE, QUICK
from support import TIMEOUT_SECONDS
from support.access import MINUTE, SECRET, bearer, now, payload, server_key, signed, token
from support.raw import Raw, RawWebSocket
from support.server import Server, clean_environment, eventually

PEM = serialization.Encoding.PEM
PRIVATE = {"RS256": rsa.generate_private_key(65537, 2048), "ES256": ec.generate_private_key(ec.SECP256R1()),
           "ES384": ec.generate_private_key(ec.SECP384R1())}
PUBLIC = {
    name: key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()
    for name, key in PRIVATE.items()
}
GRANTS = {"publish": ["rooms/*", "private/{user}/*"], "history": ["rooms/*"], "subscribe": ["*"]}


class Keyed:
    """A server with keys: its clients, and the server keys by name."""

    def __init__(self, directory, serve, *flags, **options):
        self.operator, operator = server_key(directory, "operator", "administration")
        self.publisher, publisher = server_key(directory, "app", "publish", channels=["rooms/*"])
        public = "".join(f'[[token-keys]]\npublic-key = """{pem}"""\n' for pem in PUBLIC.values())
        (directory / "throng.toml").write_text(
            f"revocations-file = 'revocations'\n[[token-keys]]\nsecret = '{SECRET}'\n"
            + public + operator + publisher
        )
        self.server = serve(*flags, **options)
        self.http = self.server.http

    def publish(self, credential, channel="rooms%2Fa", **headers):
        shown = bearer(credential) if credential else {}
        return self.http.post(f"/channels/{channel}", content="x", headers={**shown, **headers})

    def refused(self, reason):
        text = self.http.get("/metrics", headers=bearer(self.operator)).text
        name = f'throng_http_credentials_refused_total{{reason="{reason}"}} '
        return next(int(line[len(name):]) for line in text.splitlines() if line.startswith(name))


@pytest.fixture
def keyed(tmp_path, serve):
    return Keyed(tmp_path, serve, "--log", "debug")


def refusal(response):
    """Status and code of an error, whose message is one sentence."""
    error = response.json()
    assert set(error) == {"error", "message"}, error
    assert error["message"] and "\n" not in error["message"] and ". " not in error["message"], error
    assert ("WWW-Authenticate" in response.headers) == (response.status_code == 401)
    return response.status_code, error["error"]


def test_refused_credentials_of_both_planes_are_counted(keyed):
    forged = bearer(token("x" * 32))
    for path in ("/channels/a/history", "/channels/a", "/channels/a?wait=0"):
        before = keyed.refused("signature")
        assert keyed.http.get(path, headers=forged).status_code == 401
        assert keyed.refused("signature") == before + 1, path


@pytest.mark.parametrize("algorithm", ["HS256", "RS256", "ES256", "ES384"])
def test_tokens_of_pyjwt_publish_what_they_grant(keyed, algorithm):
    secret = PRIVATE.get(algorithm, SECRET)
    granting = token(secret, algorithm, throng=GRANTS)
    for _ in range(2):  # the second time from the cache
        assert keyed.publish(granting).status_code == 201
    assert refusal(keyed.publish(granting, "news")) == (403, "forbidden")
    history = keyed.http.get("/channels/rooms%2Fa/history", headers=bearer(granting)).json()
    assert [message["data"] for message in history["messages"]] == ["x", "x"]
    presence = keyed.http.get("/channels/rooms%2Fa/presence", headers=bearer(granting))
    assert refusal(presence) == (403, "forbidden")


def confused():
    """An RSA public key as the secret of an HMAC."""
    return signed('{"alg":"HS256","typ":"JWT"}', payload(throng=GRANTS), PUBLIC["RS256"])


def forged(algorithm):
    """A token whose signature is of another key."""
    others = {"HS256": SECRET[::-1], "ES256": ec.generate_private_key(ec.SECP256R1()),
              "ES384": ec.generate_private_key(ec.SECP384R1())}
    return token(others[algorithm], algorithm, throng=GRANTS)


BAD = {
    "forged HS256": (lambda: forged("HS256"), "signature"),
    "forged ES256": (lambda: forged("ES256"), "signature"),
    "forged ES384": (lambda: forged("ES384"), "signature"),
    "truncated": (lambda: token(throng=GRANTS)[:-11], "signature"),
    "two parts": (lambda: token(throng=GRANTS).rpartition(".")[0], "malformed"),
    "no token": (lambda: "hunter2hunter2.hunter2hunter2", "malformed"),
    "expired": (lambda: token(throng=GRANTS, exp=now() - MINUTE), "expired"),
    "not yet valid": (lambda: token(throng=GRANTS, nbf=now() + MINUTE), "not_yet_valid"),
    "issued in the future": (lambda: token(throng=GRANTS, iat=now() + MINUTE), "not_yet_valid"),
    "without exp": (lambda: token(throng=GRANTS, exp=None), "no_expiry"),
    "lives for years": (lambda: token(throng=GRANTS, exp=now() + 10**8), "lives_too_long"),
    "wrong audience": (lambda: token(throng=GRANTS, aud="other"), "audience"),
    "alg none": (lambda: jwt.encode(json.loads(payload(throng=GRANTS)), None, "none"), "malformed"),
    "alg none, signed": (lambda: signed('{"alg":"none"}', payload(throng=GRANTS)), "algorithm"),
    "public key as secret": (confused, "signature"),
    "HMAC by alg RS256": (lambda: signed('{"alg":"RS256"}', payload(throng=GRANTS)), "signature"),
    "duplicate claim": (
        lambda: signed('{"alg":"HS256"}', payload()[:-1] + ',"sub":"bob"}'), "duplicate_claim"),
    "escaped duplicate": (
        lambda: signed('{"alg":"HS256"}', payload()[:-1] + ',"s\\u0075b":"bob"}'), "duplicate_claim"),
    "critical extension": (
        lambda: signed('{"alg":"HS256","crit":["b64"],"b64":false}', payload()), "critical"),
    "an address of a key": (
        lambda: token(SECRET[::-1], headers={"jku": "https://a.example"}, throng=GRANTS), "signature"),
    "another type": (lambda: token(headers={"typ": "logout+jwt"}), "type"),
    "too many grants": (
        lambda: token(throng={"publish": [f"c{number}" for number in range(129)]}), "grants"),
    "a long user": (lambda: token(sub="x" * 300), "user"),
    "a user of dots": (lambda: token(sub=".."), "user"),
    "a number as user": (
        lambda: signed('{"alg":"HS256"}', payload(sub=7)), "claim_form"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_tokens_are_refused_counted_and_not_repeated(keyed, case):
    make, reason = BAD[case]
    bad = make()
    before = keyed.refused(reason)
    response = keyed.publish(bad)
    code = "token_expired" if reason == "expired" else "invalid_token"
    assert refusal(response) == (401, code), response.text
    assert response.headers["WWW-Authenticate"] == 'Bearer error="invalid_token"'
    assert keyed.refused(reason) == before + 1, reason
    everything = response.text + str(response.headers) + keyed.server.log()
    assert bad not in everything and bad.split(".")[1][:12] not in everything


def test_a_token_of_100_kb(tmp_path, serve):
    keyed = Keyed(tmp_path, serve, "--max-head-bytes", "64KiB")
    response = keyed.publish(token(pad="x" * 75_000))
    assert (response.status_code, response.json()["error"]) == (431, "head_too_large")
    assert refusal(keyed.publish(token(pad="x" * 30_000))) == (401, "invalid_token")
    assert keyed.publish(token(throng=GRANTS)).status_code == 201


@pytest.mark.parametrize(
    ("user", "channel", "status"),
    [
        ("ann", "private%2Fann%2Fx", 201),
        ("ann", "private%2Fbob%2Fx", 403),
        ("*", "private%2Fann%2Fx", 403),
        ("*", "private%2F*%2Fx", 400),
        ("ann/x", "private%2Fann%2Fx%2Fy", 403),
        ("ann/x", "private%2Fann%2Fx", 403),
        ("{user}", "private%2Fann%2Fx", 403),
    ],
)
def test_a_user_stands_for_itself_in_patterns(keyed, user, channel, status):
    assert keyed.publish(token(sub=user, throng=GRANTS), channel).status_code == status


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/channels/rooms%2F..%2Fadmin", (400, "bad_name")),
        ("/channels/rooms%2f%2e%2e%2fadmin", (400, "bad_name")),
        ("/channels/rooms/../admin", (404, "not_found")),
        ("/channels/rooms/../../channels/admin", (404, "not_found")),
        ("/channels/rooms%252F..%252Fadmin", (403, "forbidden")),
        ("/channels/rooms%5C..%5Cadmin", (403, "forbidden")),
        ("/channels/rooms%2F%2Fadmin", (400, "bad_name")),
        ("/channels/rooms%2F%00admin", (400, "bad_name")),
        ("/channels/%2Frooms%2Fadmin", (400, "bad_name")),
        ("/channels/rooms%C0%AFadmin", (400, "bad_name")),
        ("/channels/ROOMS%2Fadmin", (403, "forbidden")),
        ("//channels/rooms%2Fadmin", (404, "not_found")),
    ],
)
def test_no_name_escapes_its_pattern(keyed, path, expected):
    with Raw(keyed.server) as client:
        client.request("POST", path, headers=bearer(token(throng=GRANTS)), body=b"x")
        response = client.read_response()
    assert (response.status, response.json()["error"]) == expected


def test_lines_of_a_batch_are_decided_one_by_one(keyed):
    lines = '{"channel":"rooms/a","data":1}\n{"channel":"news","data":1}\n{"user":"bob","data":1}\n'

    def publish(headers):
        return keyed.http.post("/publish", content=lines, headers=headers)

    results = [json.loads(line) for line in publish(bearer(keyed.publisher)).text.splitlines()]
    assert "id" in results[0]
    assert [result["error"] for result in results[1:]] == ["forbidden", "forbidden"]
    assert refusal(publish({})) == (401, "unauthorized")
    assert refusal(publish(bearer(token()))) == (403, "forbidden")


def test_server_keys_have_scopes_and_are_no_pages(keyed):
    assert keyed.publish(keyed.publisher).status_code == 201
    assert refusal(keyed.publish(keyed.publisher, "news")) == (403, "forbidden")
    assert refusal(keyed.publish(keyed.operator)) == (403, "forbidden")
    page = keyed.publish(keyed.publisher, Origin=keyed.server.url)
    assert refusal(page) == (403, "forbidden") and "Origin" in page.json()["message"]
    wrong = keyed.publisher[:-1] + ("x" if keyed.publisher[-1] != "x" else "y")
    before = keyed.refused("server_key_of_page")
    assert keyed.publish(wrong, Origin=keyed.server.url).text == page.text, "the key is not looked up"
    assert keyed.refused("server_key_of_page") == before + 1
    assert refusal(keyed.publish(wrong)) == (401, "invalid_token")
    for key in (keyed.publisher, keyed.operator, wrong):
        assert key not in keyed.server.log()


def test_two_credentials(keyed):
    two = [("Authorization", f"Bearer {token()}"), ("Authorization", f"Bearer {keyed.publisher}")]
    response = keyed.http.post("/channels/rooms%2Fa", content="x", headers=two)
    assert refusal(response) == (400, "bad_request")
    response = keyed.http.post(f"/channels/rooms%2Fa?token={token()}", content="x")
    assert response.status_code in (400, 401) and "eyJ" not in response.text


def test_a_credential_without_a_scheme_is_named(keyed):
    path = "/channels/rooms%2Fa"
    for method, path in [("POST", path), ("GET", path + "?wait=0"), ("GET", "/channels")]:
        for credential, word in [(keyed.publisher, "KEY"), (token(throng=GRANTS), "TOKEN")]:
            headers = {"Authorization": credential}
            refused = keyed.http.request(method, path, headers=headers)
            assert refusal(refused) == (401, "invalid_token")
            assert f"write `Authorization: Bearer {word}`" in refused.json()["message"]


def test_a_server_key_in_place_of_a_token_is_named(keyed):
    shown = keyed.http.get("/channels/rooms%2Fa", params={"wait": 0, "token": keyed.publisher})
    assert refusal(shown) == (403, "forbidden")
    assert "this is a server key, not a token" in shown.json()["message"]


def test_the_admin_listener_demands_keys_where_there_are_server_keys(tmp_path, serve):
    keyed = Keyed(tmp_path, serve, "--admin-listen", "127.0.0.1:0")
    with keyed.server.admin() as admin:
        assert admin.get("/health").status_code == 200
        for path in ("/metrics", "/status.json", "/revocations"):
            assert refusal(admin.get(path)) == (401, "unauthorized")
            assert keyed.http.get(path, headers=bearer(keyed.operator)).status_code == 403
        assert admin.get("/metrics", headers=bearer(keyed.operator)).status_code == 200
        assert refusal(admin.post("/channels/rooms%2Fa", content="x")) == (401, "unauthorized")
        published = admin.post("/channels/rooms%2Fa", content="x", headers=bearer(keyed.publisher))
        assert published.status_code == 201


def test_with_token_keys_alone_the_admin_listener_trusts_who_reaches_it(tmp_path, serve):
    (tmp_path / "throng.toml").write_text(f"[[token-keys]]\nsecret = '{SECRET}'\n")
    server = serve("--admin-listen", "127.0.0.1:0")
    with server.admin() as admin:
        assert admin.get("/metrics").status_code == 200
        assert admin.post("/channels/news", content="x").status_code == 201
    assert refusal(server.http.post("/channels/news", content="x")) == (401, "unauthorized")
    assert refusal(server.http.get("/metrics")) == (403, "forbidden")


def follow(keyed, credential, path="/channels/rooms%2Fa"):
    """A stream of server-sent events, with its head read."""
    client = Raw(keyed.server)
    client.request("GET", path, {**bearer(credential), "Accept": "text/event-stream"})
    assert client.read_head().status == 200
    return client


def test_a_revocation_ends_connections_and_survives_restarts(tmp_path, serve):
    keyed = Keyed(tmp_path, serve)
    operator = bearer(keyed.operator)
    one, other = token(throng=GRANTS, jti="t1"), token(sub="bob", throng=GRANTS, jti="t2")
    with follow(keyed, one) as revoked, follow(keyed, other) as kept:
        made = keyed.http.post("/revocations/tokens/t1", headers=operator)
        assert (made.status_code, made.json()["token"]) == (201, "t1")
        assert b"token_revoked" in revoked.read_to_end()
        assert refusal(keyed.publish(one)) == (401, "token_revoked")
        assert keyed.publish(other).status_code == 201
        assert b"data: x" in kept.read_until(b"data: x")
    with follow(keyed, other) as revoked:
        assert keyed.http.post("/revocations/users/bob", headers=operator).status_code == 201
        assert b"token_revoked" in revoked.read_to_end()
    keyed.server.process.send_signal(signal.SIGKILL)
    keyed.server.process.wait()
    again = Server(tmp_path, *QUICK)
    try:
        for revoked in (one, other):
            response = again.http.post("/channels/rooms%2Fa", content="x", headers=bearer(revoked))
            assert refusal(response) == (401, "token_revoked")
        listed = again.http.get("/revocations", headers=operator).json()["revocations"]
        assert [set(entry) for entry in listed] == [{"token_hash", "at"}, {"user", "before"}]
        lifted = again.http.delete("/revocations/tokens/t1", headers=operator)
        assert lifted.status_code == 204
        response = again.http.post("/channels/rooms%2Fa", content="x", headers=bearer(one))
        assert response.status_code == 201
    finally:
        again.stop()


def test_a_user_with_a_newer_token_comes_back_after_a_revocation(keyed):
    old, new = (token(throng=GRANTS, iat=now() - age) for age in (100, 0))
    with follow(keyed, old) as one, follow(keyed, new) as other:
        revoked = keyed.http.post(
            "/revocations/users/ann", params={"before": now() - 50}, headers=bearer(keyed.operator)
        )
        assert revoked.status_code == 201
        for client in (one, other):
            assert b'"close_code":4100' in client.read_to_end()
    with Raw(keyed.server) as client:
        client.request("GET", "/channels/rooms%2Fa", bearer(old))
        response = client.read_response()
    assert (response.status, response.json()["error"]) == (401, "token_revoked")
    with follow(keyed, new) as client:
        assert keyed.publish(new).status_code == 201
        assert b"data: x" in client.read_until(b"data: x")


@pytest.mark.parametrize("path", ["/channels/rooms%2Fa", "/publish"])
def test_a_body_that_was_awaited_during_a_revocation_is_not_published(keyed, path):
    line = b'{"channel": "rooms/a", "data": 1}'
    with Raw(keyed.server) as client:
        announced = {"Content-Length": len(line), "Expect": "100-continue"}
        client.request("POST", path, {**bearer(token(throng=GRANTS)), **announced})
        assert client.read_head().status == 100
        posted = keyed.http.post("/revocations/users/ann", headers=bearer(keyed.operator))
        assert posted.status_code == 201
        client.send(line)
        response = client.read_response()
    assert (response.status, response.json()["error"]) == (401, "token_revoked")


def test_a_revoked_user_who_reconnects_in_a_loop_is_refused_each_time(keyed):
    revoked, other = token(throng=GRANTS), token(sub="bob", throng=GRANTS)
    posted = keyed.http.post("/revocations/users/ann", headers=bearer(keyed.operator))
    assert posted.status_code == 201
    outcomes, turns = set(), 50

    def come_back():
        for turn in range(turns):
            path = "/channels/rooms%2Fa" + ("?wait=60" if turn % 2 else "")
            with Raw(keyed.server) as client:
                client.request("GET", path, {**bearer(revoked), "Accept": "text/event-stream"})
                response = client.read_response()
                outcomes.add((response.status, response.json()["error"]))
            offered = f"throng.v1, throng.token.{revoked}"
            with RawWebSocket(keyed.server, "/channels/rooms%2Fa", protocol=offered) as client:
                outcomes.add(client.read_close()[0])

    with follow(keyed, other) as kept:
        threads = [threading.Thread(target=come_back) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert keyed.publish(other).status_code == 201
            assert b"data: x" in kept.read_until(b"data: x")
        for thread in threads:
            thread.join()
    assert outcomes == {(401, "token_revoked"), 4004}
    found = keyed.http.get("/users/ann/connections", headers=bearer(keyed.operator)).json()
    assert found["count"] == 0


def test_a_revocation_that_the_disk_does_not_take_does_not_hold(tmp_path, serve):
    # So that a write beyond the limit below fails, and does not end the process.
    keyed = Keyed(tmp_path, serve, prepare=lambda: signal.signal(signal.SIGXFSZ, signal.SIG_IGN))
    operator = bearer(keyed.operator)
    assert keyed.http.post("/revocations/users/eve", headers=operator).status_code == 201
    size = (tmp_path / "revocations").stat().st_size
    resource.prlimit(keyed.server.process.pid, resource.RLIMIT_FSIZE, (size + 10, size + 10))
    valid = token(throng=GRANTS)
    response = keyed.http.post("/revocations/users/ann", headers=operator)
    assert refusal(response) == (507, "not_stored")
    assert keyed.publish(valid).status_code == 201
    assert keyed.http.get("/revocations/users/ann", headers=operator).status_code == 404


def test_connections_of_a_user_are_listed_and_closed(keyed):
    operator = bearer(keyed.operator)
    started = time.time()

    def connections(path="/users/ann/connections", **parameters):
        return keyed.http.get(path, headers=operator, params=parameters).json()

    anns, bobs = token(throng=GRANTS), token(sub="bob", throng=GRANTS)
    with follow(keyed, anns) as one, follow(keyed, anns, "/users/ann") as two, follow(keyed, bobs):
        eventually(lambda: connections()["count"] == 2, "both connections")
        page = connections()
        assert (page["user"], page["more"]) == ("ann", False)
        ports = {int(found["address"].rpartition(":")[2]) for found in page["connections"]}
        assert ports == {client.socket.getsockname()[1] for client in (one, two)}
        for found in page["connections"]:
            assert found["transport"] == "sse"
            assert started - 3 <= found["since"] / 1000 <= time.time() + 3
        assert connections(limit=1)["more"] is True
        assert connections("/channels/rooms%2Fa/connections")["count"] == 2
        name = page["connections"][0]["connection"]
        closed = keyed.http.delete(f"/connections/{name}", headers=operator)
        assert closed.json() == {"disconnected": 1}
        eventually(lambda: connections()["count"] == 1, "one connection less")
        reason = {"reconnect": "false", "reason": "out of credit"}
        closed = keyed.http.delete("/users/ann/connections", headers=operator, params=reason)
        assert closed.json() == {"disconnected": 1}
        ends = [client.read_to_end() for client in (one, two)]
        assert sum(b"out of credit" in end and b"4500" in end for end in ends) == 1, ends
        assert connections()["count"] == 0
        assert connections("/users/bob/connections")["count"] == 1
    gone = keyed.http.delete(f"/connections/{name}", headers=operator)
    assert refusal(gone) == (404, "not_found")


def test_only_operators_operate(keyed):
    for method, path in [("GET", "/users/ann/connections"), ("DELETE", "/channels/a/connections"),
                         ("GET", "/revocations"), ("POST", "/revocations/users/ann")]:  # fmt: skip
        assert refusal(keyed.http.request(method, path)) == (401, "unauthorized")
        for credential in (keyed.publisher, token(throng=GRANTS)):
            response = keyed.http.request(method, path, headers=bearer(credential))
            assert refusal(response) == (403, "forbidden")


def test_the_login_of_the_status_page(tmp_path, serve, chromium_program):
    keyed = Keyed(tmp_path, serve, listen="0.0.0.0")
    url = f"http://127.0.0.1:{keyed.server.port}"
    pictures = os.environ.get("THRONG_PICTURES", "")
    done = subprocess.run(
        ["node", HERE / "node" / "status-login.mjs", chromium_program, url, pictures],
        env=clean_environment({"NO_PROXY": "*", "KEY": keyed.operator}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS * 3,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert keyed.operator not in keyed.server.log()


def test_who_excludes_anothers_connection_does_not_learn_what_it_follows(keyed):
    ann, bob = (token(throng=GRANTS, sub=user) for user in ("ann", "bob"))
    room = "/channels/rooms%2Fa"

    def follow(shown):
        events = {"Accept": "text/event-stream", **bearer(shown)}
        return keyed.http.stream("GET", room, headers=events)

    with follow(ann) as of_ann, follow(bob) as of_bob:
        names = [sse.headers["Throng-Connection"] for sse in (of_ann, of_bob)]

        def counts(shown):
            answers = [keyed.publish(shown, **{"Throng-Exclude": name}) for name in names]
            return [answer.json()["subscribers"] for answer in answers]

        assert counts(ann) == [1, 2]
        assert counts(bob) == [2, 1]
        assert counts(keyed.publisher) == [1, 1]
