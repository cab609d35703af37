"""Key sets at URLs, served over HTTP by a server that misbehaves."""

import json
import time

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from support.issuer import KEYS, Issuer
from support.server import eventually, run_throng


@pytest.fixture
def issuer():
    running = Issuer()
    yield running
    running.close()


def test_a_key_set_is_fetched_at_the_start(serve, issuer):
    server = serve("--token-key-urls", issuer.url)
    eventually(lambda: f"the key set {issuer.url} is new" in server.log(), "the key set")
    # The fixture has keys for encryption and of a curve that the server lacks.
    server.says("2 keys left out")
    assert issuer.requests == 1


def slow(handler):
    handler.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n{")
    time.sleep(30)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda handler: handler.send(500, KEYS), "the status is 500, not 200"),
        (lambda handler: handler.send(302, KEYS, Location="/other"), "the status is 302, not 200"),
        (lambda handler: handler.send(200, "<html>"), "the key set is not a JSON object"),
        (lambda handler: handler.send(200, json.dumps({"keys": []})), "has no key that verifies"),
        (lambda handler: handler.send(200, " " * 300_000 + KEYS), "larger than 262144 bytes"),
        (lambda handler: handler.wfile.write(b"hello\r\n\r\n"), "cannot use the key set"),
        (slow, "no complete response in time"),
    ],
)
def test_what_is_no_key_set_is_asked_for_again(serve, issuer, answer, expected):
    issuer.answer = answer
    server = serve("--token-key-urls", issuer.url)
    eventually(lambda: expected in server.log(), "a warning")
    server.says("cannot use the key set")
    issuer.answer = lambda handler: handler.send(200, KEYS)
    eventually(lambda: "is new" in server.log(), "the key set after the failure")


def test_no_url_is_fetched_through_a_redirect_or_a_proxy(serve, issuer):
    """The environment's proxy settings do not count."""
    environment = {"http_proxy": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1"}
    server = serve("--token-key-urls", issuer.url, environment=environment)
    eventually(lambda: "is new" in server.log(), "the key set")


def key_set(**keys):
    """The public halves of keys, as a key set."""
    algorithm = jwt.algorithms.ECAlgorithm(jwt.algorithms.ECAlgorithm.SHA256)
    public = {name: algorithm.to_jwk(key.public_key(), as_dict=True) for name, key in keys.items()}
    return json.dumps({"keys": [{**jwk, "kid": name, "use": "sig"} for name, jwk in public.items()]})


def bearer(key, key_id):
    """The header with a token of `ann`, who may follow every channel."""
    claims = {"sub": "ann", "exp": int(time.time()) + 600, "throng": {"subscribe": ["*"]}}
    token = jwt.encode(claims, key, algorithm="ES256", headers={"kid": key_id})
    return {"Authorization": f"Bearer {token}"}


def test_the_commands_fetch_the_set_and_say_so(tmp_path, issuer):
    key, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer.answer = lambda handler: handler.send(200, key_set(first=key))
    (tmp_path / "throng.toml").write_text(f"token-key-urls = ['{issuer.url}?secret=x']\n")
    commands = [["token", "check"], ["check", "--channel", "news"]]

    def run(signer):
        for command in commands:
            token = bearer(signer, "first")["Authorization"].removeprefix("Bearer ")
            yield run_throng(*command, directory=tmp_path, environment={"THRONG_TOKEN": token})

    fetched = f"note: the key set {issuer.url} was fetched: 1 key\n"
    for done in run(key):
        assert (done.returncode, done.stderr) == (0, fetched)
        assert "user ann" in done.stdout
    for done in run(other):
        assert done.returncode == 1 and done.stderr.startswith(fetched)
        assert "the server refuses this token: the signature" in done.stderr
    for answer, reason in [
        (lambda handler: handler.send(302, "", Location="/other"), "the status is 302, not 200"),
        (lambda handler: handler.send(200, " " * 300_000 + KEYS), "larger than 262144 bytes"),
    ]:
        issuer.answer = answer
        for done in run(key):
            note, refusal = done.stderr.splitlines()
            assert f"{issuer.url} cannot be used now: " in note and reason in note
            assert "could not be fetched now" in refusal and done.returncode == 1
    assert issuer.requests == 8


def test_tokens_of_the_issuer_count_and_unknown_keys_cause_one_request(serve, issuer):
    first, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer.answer = lambda handler: handler.send(200, key_set(first=first))
    server = serve("--token-key-urls", issuer.url)

    def subscribe(key, key_id):
        headers = bearer(key, key_id)
        return server.http.get("/channels/news?wait=0", headers=headers).status_code

    # The first one may wait for the set.
    assert subscribe(first, "first") == 204
    assert subscribe(other, "first") == 401
    for number in range(50):
        assert subscribe(other, f"unknown-{number}") == 401
    assert issuer.requests == 1
    assert subscribe(first, "first") == 204
