"""`throng token`, and `throng check` for a client: tokens of PyJWT and of the command itself."""

import json
import time

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from support.server import run_throng

SECRET = "0123456789abcdef0123456789abcdef"
SETTINGS = f"[[token-keys]]\nid = 'main'\nsecret = '{SECRET}'\n"
PEM = serialization.Encoding.PEM
KEYS = {
    "RS256": lambda: rsa.generate_private_key(65537, 2048),
    "PS256": lambda: rsa.generate_private_key(65537, 2048),
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ES384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
}


@pytest.fixture
def throng(tmp_path):
    """Runs a command with a settings file; no output may contain the secret."""
    (tmp_path / "throng.toml").write_text(SETTINGS)

    def run(*arguments, code=0, **options):
        done = run_throng(*arguments, directory=tmp_path, **options)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        assert SECRET not in done.stdout + done.stderr and "panicked" not in done.stderr
        return done

    return run


def token(secret=SECRET, algorithm="HS256", **claims):
    """A token by PyJWT, which is valid for half an hour unless the claims say otherwise."""
    now = int(time.time())
    claims = {"sub": "ann", "iat": now, "exp": now + 30 * 60, **claims}
    claims = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(claims, secret, algorithm)


def test_an_application_signs_a_new_token(throng, tmp_path):
    own = "0123456789abcdef-of-an-application"
    app = f"[[apps]]\nid = '1'\nkey = 'app-key'\nsecret = '{SECRET}'\nprefix = 'shop/'\n"
    with (tmp_path / "throng.toml").open("a") as file:
        file.write(f"{app}keys = [{{ key = 'older', secret = '{SECRET}', token-secret = '{own}' }}]\n")
    flags = ["--key-id", "older", "--subscribe", "*"]
    made = throng("token", "new", "--user", "shop/ann", *flags)
    assert made.stderr == ""
    assert jwt.decode(made.stdout.strip(), own, ["HS256"])["sub"] == "shop/ann"
    assert jwt.get_unverified_header(made.stdout.strip())["kid"] == "older"
    assert "a server with these settings refuses this token" in throng("token", "new", "--user", "ann", *flags).stderr
    other = throng("token", "new", "--key-id", "app-key", code=1)
    assert "no key in [[apps]] with a token-secret" in other.stderr
    assert "HS256" in throng("token", "new", "--key-id", "older", "--algorithm", "HS512", code=1).stderr


def test_a_new_token_is_what_pyjwt_reads(throng):
    flags = ["--user", "ann", "--subscribe", "rooms/*", "--subscribe", "private/{user}"]
    flags += ["--publish", "rooms/*", "--expires-in", "90", "--token-id", "t1"]
    made = throng("token", "new", *flags)
    assert made.stderr == ""
    claims = jwt.decode(made.stdout.strip(), SECRET, ["HS256"])
    assert jwt.get_unverified_header(made.stdout.strip()) == {"alg": "HS256", "typ": "JWT", "kid": "main"}
    assert claims["exp"] - claims["iat"] == 90
    del claims["exp"], claims["iat"]
    assert claims == {
        "sub": "ann",
        "jti": "t1",
        "throng": {"subscribe": ["rooms/*", "private/{user}"], "publish": ["rooms/*"]},
    }
    checked = throng("token", "check", input=made.stdout).stdout
    assert checked.startswith("valid: user ann; refused from ")
    assert "subscribe  rooms/*, private/{user}\n" in checked


@pytest.mark.parametrize("algorithm", KEYS)
def test_a_private_key_signs_and_its_public_key_verifies(throng, tmp_path, algorithm):
    private = KEYS[algorithm]()
    form = serialization.PrivateFormat.PKCS8
    pem = private.private_bytes(PEM, form, serialization.NoEncryption())
    (tmp_path / "private.pem").write_bytes(pem)
    public = private.public_key()
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    (tmp_path / "public.pem").write_bytes(public.public_bytes(PEM, spki))
    (tmp_path / "throng.toml").write_text("[[token-keys]]\npublic-key-file = 'public.pem'\n")
    flags = ["--private-key-file", "private.pem", "--algorithm", algorithm, "--user", "ann"]
    made = throng("token", "new", *flags)
    assert made.stderr == ""
    assert jwt.decode(made.stdout.strip(), public, [algorithm])["sub"] == "ann"
    assert throng("token", "check", made.stdout.strip()).stdout.startswith("valid: user ann")
    by_pyjwt = token(private, algorithm)
    assert throng("token", "check", by_pyjwt).stdout.startswith("valid: user ann")


def test_audience_and_issuer_come_from_the_settings(throng, tmp_path):
    text = "token-audience = ['push', 'other']\ntoken-issuer = 'https://login.example'\n"
    (tmp_path / "throng.toml").write_text(text + SETTINGS)
    made = throng("token", "new").stdout.strip()
    claims = jwt.decode(made, SECRET, ["HS256"], audience="push")
    assert claims["iss"] == "https://login.example" and "sub" not in claims
    assert throng("token", "check", made).stdout.startswith("valid: no user;")
    other = throng("token", "new", "--audience", "elsewhere")
    assert "note: a server with these settings refuses this token: the token is for another" in (
        other.stderr
    )


BAD_NEW = {
    "an unknown key id": (["--key-id", "other"], 'no secret in [[token-keys]] has the id "other"'),
    "no life": (["--expires-in", "0"], "--expires-in must be more than 0"),
    "a negative life": (["--expires-in", "-1"], "is not a time"),
    "an empty pattern": (["--subscribe", ""], "a pattern is empty"),
    "a bad pattern": (["--publish", "a{user}"], "next to {user} a pattern needs a separator"),
    "grants that are no JSON": (["--grants", "rooms/*"], "not an object with lists of patterns"),
    "grants with an unknown word": (["--grants", '{"delete":[]}'], "has an unknown member `delete`"),
    "an unknown algorithm": (["--algorithm", "none"], "this is none of HS256"),
    "another algorithm": (["--algorithm", "HS512"], "is for HS256; leave out --algorithm"),
    "a missing file": (["--secret-file", "none"], "cannot read none"),
    "a file that is no key": (["--private-key-file", "throng.toml"], "not a private key in PEM"),
    "missing settings": (["--config", "none.toml"], "there is no file none.toml"),
}


@pytest.mark.parametrize("case", BAD_NEW)
def test_bad_arguments_of_new(throng, tmp_path, case):
    arguments, expected = BAD_NEW[case]
    done = run_throng("token", "new", *arguments, directory=tmp_path)
    assert done.returncode != 0 and done.stdout == "" and SECRET not in done.stderr
    assert expected in done.stderr, done.stderr


def test_new_without_a_secret_says_what_to_name(tmp_path):
    done = run_throng("token", "new", directory=tmp_path)
    assert done.returncode == 1 and "--secret-file or --private-key-file" in done.stderr
    (tmp_path / "short").write_text("hunter2\n")
    done = run_throng("token", "new", "--secret-file", "short", directory=tmp_path)
    assert "short: a secret for this algorithm needs at least 32 bytes" in done.stderr
    assert "hunter2" not in done.stderr
    (tmp_path / "secret").write_text(SECRET + "\n")
    done = run_throng("token", "new", "--secret-file", "secret", directory=tmp_path)
    assert jwt.decode(done.stdout.strip(), SECRET, ["HS256"])


REFUSED = {
    "expired": (lambda: token(exp=int(time.time()) - 60), "the token has expired"),
    "not valid yet": (lambda: token(nbf=int(time.time()) + 60), "not valid yet"),
    "without an end": (lambda: token(exp=None), "no expiry"),
    "too long": (lambda: token(exp=int(time.time()) + 10**6), "longer than `max-token-age`"),
    "another secret": (lambda: token(SECRET[::-1]), "signature of the token is wrong"),
    "another algorithm": (lambda: token(2 * SECRET, "HS512"), "accepts the algorithm"),
    "an audience": (lambda: token(aud="push"), "another audience"),
    "a bad user": (lambda: token(sub="a\nb"), "the user (`sub`) of the token is invalid"),
    "a bad grant": (lambda: token(throng={"subscribe": "*"}), "claim `throng`"),
    "no token": (lambda: "hunter2", "the token is malformed"),
    "a long one": (lambda: "a." * 50_000, "longer than 8 KiB"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_check_says_which_check_fails(throng, case):
    make, expected = REFUSED[case]
    bad = make()
    for done in [
        throng("token", "check", code=1, input=bad),
        throng("check", "--channel", "a", "--token", bad, code=1),
    ]:
        assert done.stdout == "" and len(done.stderr.splitlines()) == 1
        assert "the server refuses this token: " in done.stderr and expected in done.stderr
        assert bad not in done.stderr


def test_check_knows_only_the_keys_of_its_settings(throng, tmp_path):
    good = token()
    (tmp_path / "throng.toml").write_text("")
    done = throng("token", "check", good, code=1)
    assert "no key of these settings verifies tokens" in done.stderr
    (tmp_path / "throng.toml").write_text("token-key-urls = ['https://127.0.0.1:1/keys']\n")
    done = throng("token", "check", good, code=1)
    note, refusal = done.stderr.splitlines()
    assert "the key set https://127.0.0.1:1/keys cannot be used now: " in note
    assert "a running server may have keys from token-key-urls" in refusal


def test_show_decodes_and_says_that_nothing_is_verified(throng, tmp_path):
    made = token("x" * 32, sub="ann\x1b[31m", exp=1_800_000_060)
    shown = throng("token", "show", made)
    assert "expires  2027-01-15 08:01 UTC, in " in shown.stdout
    assert '"alg": "HS256"' in shown.stdout and "\x1b" not in shown.stdout
    assert "nothing here is verified" in shown.stderr
    same = throng("token", "show", input=f"Bearer {made}\n").stdout
    assert same.splitlines()[:5] == shown.stdout.splitlines()[:5]
    by_variable = throng("token", "show", environment={"THRONG_TOKEN": made}).stdout
    assert by_variable.splitlines()[:5] == shown.stdout.splitlines()[:5]


@pytest.mark.parametrize("bad", ["", "a", "a.b", "a.b.c", "....", "é.é.é", "e30.e30.*", "a." * 9000])
def test_show_refuses_what_is_no_token(throng, bad):
    done = throng("token", "show", code=1, input=bad)
    assert done.stdout == "" and done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


def test_check_says_what_a_client_may_do_and_why(throng, tmp_path):
    key = throng("key", "--scopes", "publish", "--channels", "rooms/*")
    rules = "[access]\nhistory = 'anyone'\n[[channels]]\nmatch = 'rooms/*'\npresence = 'user'\n"
    (tmp_path / "throng.toml").write_text(rules + SETTINGS + key.stderr)
    made = token(throng={"subscribe": ["rooms/*"]})

    def rows(*arguments, **options):
        lines = throng("check", "--channel", "rooms/a", *arguments, **options).stdout.splitlines()
        return {line.split()[0]: " ".join(line.split()[1:]) for line in lines}

    of_ann = rows("--token", made)
    # How long that is from now differs.
    client = of_ann.pop("client").partition(", in ")[0]
    assert client.startswith("user ann, until ")
    assert of_ann["channel"] == "rooms/a; [[channels]] number 1 (rooms/*) applies"
    assert of_ann["subscribe"] == "yes the token grants rooms/*"
    assert of_ann["publish"] == "no the token does not grant it"
    assert of_ann["history"] == "yes anyone may"
    assert of_ann["presence"] == "yes every client with a valid token may"
    by_environment = rows(environment={"THRONG_TOKEN": made})
    assert by_environment.pop("client").partition(", in ")[0] == client
    assert by_environment == of_ann
    nobody = rows()
    assert nobody["subscribe"] == "no this needs a token" and nobody["history"].startswith("yes")
    by_key = rows(environment={"THRONG_KEY": key.stdout.strip()})
    assert by_key["publish"] == "yes the key app has the scope"
    assert by_key["subscribe"].startswith("no the scopes")
    inbox = throng("check", "--inbox", "ann", "--token", made).stdout
    assert "subscribe  yes  users may always follow their own inbox" in inbox


def test_check_without_keys_says_that_everyone_may(tmp_path):
    done = run_throng("check", "--channel", "a", directory=tmp_path)
    assert "there are no keys, so every client may do everything" in done.stdout
    rows = done.stdout.splitlines()[2:]
    assert rows and all(row.endswith(" yes  anyone may") for row in rows), done.stdout


@pytest.mark.parametrize("name", ["a/../b", "", "a\nb", "x" * 300])
def test_check_refuses_what_is_no_channel(throng, name):
    assert "is no name of a channel" in throng("check", "--channel", name, code=1).stderr


def test_no_help_shows_a_token_of_the_environment(throng):
    for command in (["check"], ["token", "check"], ["tail"], ["publish"], ["serve"]):
        shown = throng(*command, "--help", environment={"THRONG_TOKEN": "hunter2"}).stdout
        assert "hunter2" not in shown


def test_dev_keys_do_not_join_others(throng):
    done = throng("serve", "--dev", "--listen", "127.0.0.1:0", code=78)
    assert "--dev creates keys" in done.stderr


def test_grants_in_json(throng):
    grants = '{"publish":[{"users":"*"}]}'
    made = throng("token", "new", "--grants", grants).stdout.strip()
    assert jwt.decode(made, SECRET, ["HS256"])["throng"] == json.loads(grants)
    assert "publish    users *\n" in throng("token", "check", made).stdout


def test_a_server_key_is_not_taken_for_a_token(throng):
    key = throng("key").stdout.strip()
    for command in (["check", "--token", key], ["token", "check", key], ["token", "show", key]):
        command += ["--channel", "a"] if command[0] == "check" else []
        said = throng(*command, code=1).stderr
        assert "this is a server key, and no token: put it into THRONG_KEY" in said
        assert key not in said
