"""Servers with keys, and tokens for them: by PyJWT, or by hand where PyJWT refuses to make them."""

import base64
import hashlib
import hmac
import json
import time

import jwt

from .server import run_throng

SECRET = "0123456789abcdef0123456789abcdef"
MINUTE = 60
# Longer than any test, and any module that keeps tokens.
LIFE = 30 * MINUTE


def now():
    return int(time.time())


def token(secret=SECRET, algorithm="HS256", headers=None, **claims):
    """A token of `ann` that is valid for as long as tests run, unless the claims say otherwise. A claim
    that is None is left out."""
    claims = {"sub": "ann", "iat": now(), "exp": now() + LIFE, **claims}
    claims = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(claims, secret, algorithm, headers)


def signed(header, payload, secret=SECRET):
    """A token with an HMAC over any header and payload, which are JSON texts."""
    parts = [base64.urlsafe_b64encode(part.encode()).rstrip(b"=") for part in (header, payload)]
    tag = hmac.new(secret.encode(), b".".join(parts), hashlib.sha256).digest()
    return b".".join([*parts, base64.urlsafe_b64encode(tag).rstrip(b"=")]).decode()


def payload(**claims):
    return json.dumps({"sub": "ann", "iat": now(), "exp": now() + LIFE, **claims})


def bearer(credential):
    return {"Authorization": f"Bearer {credential}"}


def server_key(directory, name, *scopes, **patterns):
    """A new server key, and its table for `throng.toml`."""
    flags = ["--name", name, "--scopes", ",".join(scopes)]
    done = run_throng("key", *flags, directory=directory)
    assert done.returncode == 0, done.stderr
    lines = [f"{kind} = {json.dumps(list(texts))}\n" for kind, texts in patterns.items()]
    return done.stdout.strip(), done.stderr.strip() + "\n" + "".join(lines)
