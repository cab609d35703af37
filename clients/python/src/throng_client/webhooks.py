"""Verification of callouts, which Throng signs by the Standard Webhooks convention."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from .errors import WebhookError

# How old a request may be, or how far ahead its clock, in seconds.
TOLERANCE = 300


class Webhook:
    """Verifies the requests that Throng makes to your application."""

    def __init__(self, secrets: str | Iterable[str]) -> None:
        """`secrets` is one of the callout's secrets (`whsec_…`), or several while you change it."""
        listed = [secrets] if isinstance(secrets, str) else list(secrets)
        if not listed:
            raise ValueError("give at least one secret")
        self._keys = [_key_of(secret) for secret in listed]

    def verify(
        self, body: bytes | str, headers: Mapping[str, str], *, now: float | None = None
    ) -> Any:
        """The JSON of a request. Raises `WebhookError` if Throng has not signed it.

        `body` is as it was received, before any parser. `headers` may have any case.
        """
        named = {name.lower(): value for name, value in headers.items()}
        id, timestamp = named.get("webhook-id"), named.get("webhook-timestamp")
        signatures = named.get("webhook-signature")
        if not id or not timestamp or not signatures:
            raise WebhookError("the request has no signature")
        if not timestamp.isascii() or not timestamp.isdigit():
            raise WebhookError("the time of the request is malformed")
        age = (time.time() if now is None else now) - int(timestamp)
        if abs(age) > TOLERANCE:
            raise WebhookError(f"the request is {age:.0f} s old; is a clock wrong?")
        raw = body.encode() if isinstance(body, str) else body
        signed = f"{id}.{timestamp}.".encode() + raw
        own = [_signature(key, signed) for key in self._keys]
        shown = [text.encode() for text in signatures.split()]
        # Compares all, so that the time says nothing about which of them is right.
        matches = [hmac.compare_digest(mine, other) for mine in own for other in shown]
        if not any(matches):
            raise WebhookError("the signature is wrong")
        try:
            return json.loads(raw)
        except ValueError as error:
            raise WebhookError(f"the body is no JSON: {error}") from error


def _signature(key: bytes, signed: bytes) -> bytes:
    return b"v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256))


def _key_of(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.strip().removeprefix("whsec_"), validate=True)
    except ValueError as error:
        raise ValueError("a secret is `whsec_` and base64") from error
