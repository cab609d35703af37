"""Tokens and webhooks against libraries that others wrote."""

import datetime
import json
import time

import jwt
import pytest
import standardwebhooks
from throng_client import Webhook, WebhookError, make_token

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_OfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = '{"type":"notify","data":{"events":[]}}'


def test_a_token_is_what_another_library_verifies():
    secret = "s" * 32
    token = make_token(secret + "\n", user="ann", subscribe=["rooms/*"], claims={"jti": "t1"})
    claims = jwt.decode(token, secret, ["HS256"], options={"require": ["exp", "iat"]})
    assert claims["throng"] == {"subscribe": ["rooms/*"]}
    assert (claims["sub"], claims["jti"], claims["exp"] - claims["iat"]) == ("ann", "t1", 900)


def test_what_would_make_a_bad_token_is_refused():
    with pytest.raises(ValueError, match="32"):
        make_token("short")
    with pytest.raises(TypeError, match="list"):
        make_token("s" * 32, subscribe="rooms/*")


def headers(secret=SECRET, at=None, body=BODY):
    at = int(time.time()) if at is None else at
    moment = datetime.datetime.fromtimestamp(at, tz=datetime.UTC)
    signature = standardwebhooks.Webhook(secret).sign("id1", moment, body)
    return {
        "Webhook-Id": "id1",
        "Webhook-Timestamp": str(at),
        "Webhook-Signature": signature,
    }


def test_a_webhook_that_another_library_signed():
    webhook = Webhook([OTHER, SECRET])
    assert webhook.verify(BODY.encode(), headers()) == json.loads(BODY)
    both = headers()
    both["Webhook-Signature"] = (
        headers(OTHER)["Webhook-Signature"] + " " + both["Webhook-Signature"]
    )
    assert Webhook(SECRET).verify(BODY, both) == json.loads(BODY)


@pytest.mark.parametrize(
    "change",
    [
        {"Webhook-Signature": "v1,AAAA"},
        {"Webhook-Signature": ""},
        {"Webhook-Signature": "ü"},
        {"Webhook-Id": "id2"},
        {"Webhook-Timestamp": "x"},
        {"Webhook-Timestamp": "²"},
        headers(OTHER),
        headers(at=int(time.time()) - 301),
        headers(at=int(time.time()) + 400),
        headers(body=BODY + " "),
    ],
)
def test_a_forged_or_old_webhook_is_refused(change):
    with pytest.raises(WebhookError):
        Webhook(SECRET).verify(BODY, {**headers(), **change})


def test_a_malformed_secret_is_refused():
    with pytest.raises(ValueError, match="base64"):
        Webhook("whsec_é")
    with pytest.raises(ValueError, match="at least one"):
        Webhook([])
