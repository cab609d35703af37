"""Errors that users of the client see, and the losses of connections, which stay inside it."""

from __future__ import annotations

import re
from typing import Literal

# The error codes of the server and their statuses: docs/reference/http.md, "Errors".
STATUSES = {
    "bad_request": 400,
    "bad_length": 400,
    "bad_name": 400,
    "bad_id": 400,
    "bad_parameter": 400,
    "too_many_channels": 400,
    "bad_json": 400,
    "bad_utf8": 400,
    "bad_compression": 400,
    "bad_handshake": 400,
    "unauthorized": 401,
    "invalid_token": 401,
    "token_expired": 401,
    "token_revoked": 401,
    "origin_refused": 403,
    "host_refused": 403,
    "forwarded_refused": 403,
    "forbidden": 403,
    "not_found": 404,
    "not_created": 404,
    "method_not_allowed": 405,
    "too_slow": 408,
    "already_subscribed": 409,
    "not_subscribed": 409,
    "closed": 409,
    "already_created": 409,
    "conflict": 412,
    "too_large": 413,
    "uri_too_long": 414,
    "other_type": 415,
    "upgrade_required": 426,
    "too_many_requests": 429,
    "head_too_large": 431,
    "not_implemented": 501,
    "full": 503,
    "busy": 503,
    "unavailable": 503,
    "draining": 503,
    "outcome_unknown": 504,
    "bad_version": 505,
    "not_stored": 507,
}

Outcome = Literal["unpublished", "unknown"]


class ThrongError(Exception):
    """A request, a publication or a subscription that failed.

    `code` is the server's error code, or one of the client's own: `timeout`, `unreachable`,
    `closed` (the server's, too: the channel has ended), `disconnected`, `no_token`, `token_failed`,
    `queue_full`, or `http_…` (a status of something else than a Throng server, such as a proxy).
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int | None = None,
        outcome: Outcome | None = None,
        key: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        """The HTTP status, if the error is from a response."""
        self.outcome: Outcome | None = outcome
        """Of a publication: `unknown` if an attempt got no response, so that the message may have
        been published or may still be; otherwise `unpublished`."""
        self.key = key
        """Of a publication: its idempotency key, to try again without publishing twice."""

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"


def closed() -> ThrongError:
    """The error of a client that its application has closed."""
    return ThrongError("closed", "the client is closed")


class WebhookError(Exception):
    """A webhook that Throng did not sign, or signed too long ago."""


class Loss(Exception):
    """Why a connection ended, and what to do next."""

    def __init__(
        self,
        message: str,
        *,
        hint: float | None = None,
        is_unusable: bool = False,
        is_answer: bool = False,
        is_token: bool = False,
        error: ThrongError | None = None,
    ) -> None:
        super().__init__(message)
        self.hint = hint
        """The server's time to retry in seconds; None if it named none."""
        self.is_unusable = is_unusable
        """The transport does not work here, so a retry will not help."""
        self.is_answer = is_answer
        """The transport works: the server has refused something, or there is no token for now."""
        self.is_token = is_token
        """The server has refused the token, and there may be a newer one."""
        self.error = error
        """Set if no transport will work: the subscription ends with it."""


class NotThrong(Loss):
    """The peer sends what no Throng server sends."""

    def __init__(self) -> None:
        super().__init__("the peer is not a Throng server", is_unusable=True)


# Close codes of RFC 6455 that say what a client has done wrong. A proxy may use them, too.
_PROTOCOL_CODES = {1002, 1003, 1007, 1008}
_TOKEN_CODES = {
    4002: "token_expired",
    4003: "unauthorized",
    4004: "token_revoked",
    4005: "forbidden",
}
# Codes of the server, and those of the application; from the last on, clients do not come back.
_THRONG = 4000
_DISCONNECTED_FOR_GOOD = 4500
_NAMED = re.compile(r"([a-z0-9_]+): ?(.*)", re.DOTALL)


def is_stale_token(code: int) -> bool:
    """Whether a close code asks for another token."""
    return code in (4002, 4003)


def loss_of_close(
    code: int, reason: str, *, is_ours: bool, hint: float | None, can_renew: bool, has_token: bool
) -> Loss:
    """The loss of a connection that was closed; by a Throng server if `is_ours`."""
    message = f"the connection was closed with {code}" + (f": {reason}" if reason else "")
    if not is_ours:
        return Loss(message, hint=hint)
    # Without a token, what has ended was allowed to any client for a time.
    is_renewable = is_stale_token(code) and (can_renew or (code == 4002 and not has_token))
    error: ThrongError | None = None
    if code in _TOKEN_CODES:
        if not is_renewable:
            error = ThrongError(_TOKEN_CODES[code], message)
    elif code >= _DISCONNECTED_FOR_GOOD:
        error = ThrongError("disconnected", message)
    elif code in _PROTOCOL_CODES:
        named = _NAMED.fullmatch(reason)
        if named is not None and named.group(1) in STATUSES:
            error = ThrongError(named.group(1), named.group(2) or message)
    return Loss(message, hint=hint, is_answer=code >= _THRONG, is_token=is_renewable, error=error)
