"""Tokens of three libraries that the server does not use, made during the test, in every algorithm:
PyJWT, Node's jose and Go's golang-jwt against the running server."""

import json
import subprocess

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from conftest import HERE, QUICK
from support import TIMEOUT_SECONDS
from support.access import MINUTE, bearer, now
from support.server import ROOT, Server, clean_environment

GO_PROGRAM = ROOT / ".cache/go/golang-jwt"
GRANTS = {"subscribe": ["rooms/*"], "publish": ["rooms/*"], "history": ["private/{user}"]}


def pem(key):
    """The private and the public half."""
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return private.decode(), public.decode()


def make_keys(letter):
    """A key for each algorithm: what signs, and what verifies."""
    secrets = {f"HS{bits}": letter * (bits // 8) for bits in (256, 384, 512)}
    pairs = {
        "RS256": rsa.generate_private_key(65537, 2048),
        "PS256": rsa.generate_private_key(65537, 2048),
        "ES256": ec.generate_private_key(ec.SECP256R1()),
        "ES384": ec.generate_private_key(ec.SECP384R1()),
        "EdDSA": ed25519.Ed25519PrivateKey.generate(),
    }
    pairs = {algorithm: pem(key) for algorithm, key in pairs.items()}
    return {**{algorithm: (secret, secret) for algorithm, secret in secrets.items()}, **pairs}


KEYS, OTHERS = make_keys("k"), make_keys("o")


def by_pyjwt(request):
    made = {}
    for algorithm, key in request["keys"].items():
        headers = {"kid": algorithm.lower()}
        made[algorithm] = jwt.encode(request["claims"], key, algorithm, headers)
    return made


def by_program(*command):
    def run(request):
        done = subprocess.run(
            command,
            input=json.dumps(request),
            env=clean_environment(),
            stdout=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=True,
        )
        return json.loads(done.stdout)

    return run


LIBRARIES = {
    "pyjwt": by_pyjwt,
    "jose": by_program("node", HERE / "node" / "jose-tokens.mjs"),
    "golang-jwt": by_program(GO_PROGRAM),
}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    """A server with a key for each algorithm."""
    directory = tmp_path_factory.mktemp("keyed")
    tables = ["token-audience = ['throng']\ntoken-issuer = ['https://issuer.example']\n"]
    for algorithm, (_, verifies) in KEYS.items():
        kind = "secret" if algorithm.startswith("HS") else "public-key"
        table = f"id = '{algorithm.lower()}'\nalgorithm = '{algorithm}'\n{kind} = '''{verifies}'''\n"
        tables.append("[[token-keys]]\n" + table)
    (directory / "throng.toml").write_text("".join(tables))
    running = Server(directory, *QUICK)
    yield running
    running.stop()


def tokens(library, keys, **claims):
    """A token of each algorithm by a library."""
    claims = {
        "sub": "ann",
        "iss": "https://issuer.example",
        "aud": ["throng"],
        "iat": now(),
        "nbf": now(),
        "exp": now() + MINUTE,
        "jti": library,
        "throng": GRANTS,
        **claims,
    }
    signing = {algorithm: signs for algorithm, (signs, _) in keys.items()}
    made = LIBRARIES[library]({"claims": claims, "keys": signing})
    assert made.keys() == KEYS.keys()
    return made.items()


@pytest.mark.parametrize("library", LIBRARIES)
def test_tokens_count_in_every_algorithm_and_on_both_planes(keyed, library):
    for algorithm, token in tokens(library, KEYS):
        published = keyed.http.post("/channels/rooms%2Fa", content="x", headers=bearer(token))
        assert published.status_code == 201, (algorithm, published.text)
        polled = keyed.http.get("/channels/rooms%2Fa?wait=0&user=ann", headers=bearer(token))
        assert polled.status_code == 204, (algorithm, polled.text)
        own = keyed.http.get("/channels/private%2Fann/history", headers=bearer(token))
        assert own.status_code == 200, (algorithm, own.text)
        for path in ("/channels/news?wait=0", "/channels/private%2Fbob/history"):
            refused = keyed.http.get(path, headers=bearer(token))
            assert refused.status_code == 403, (algorithm, path, refused.text)


BAD = {
    "another key": (OTHERS, {}, "invalid_token"),
    "expired": (KEYS, {name: now() - MINUTE for name in ("iat", "nbf", "exp")}, "token_expired"),
    "another audience": (KEYS, {"aud": "other"}, "invalid_token"),
    "another issuer": (KEYS, {"iss": "https://other.example"}, "invalid_token"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("library", LIBRARIES)
def test_bad_tokens_are_refused_on_both_planes(keyed, library, case):
    keys, claims, code = BAD[case]
    for algorithm, token in tokens(library, keys, **claims):
        answers = [
            keyed.http.post("/channels/rooms%2Fa", content="x", headers=bearer(token)),
            keyed.http.get("/channels/rooms%2Fa?wait=0", headers=bearer(token)),
        ]
        for answer in answers:
            assert (answer.status_code, answer.json()["error"]) == (401, code), algorithm
