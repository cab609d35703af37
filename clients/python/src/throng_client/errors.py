"""Errors that users of the client see, and the losses of connections, which stay inside it."""

from __future__ import annotations

from typing import Literal

Outcome = Literal["unpublished", "unknown"]


class ThrongError(Exception):
    """A request, a publication or a subscription that failed.

    `code` is the server's error code, or one of the client's own: `timeout`, `unreachable`,
    `closed`, `disconnected`, `no_token`, `token_failed`, `http_…` or `close_…` (a status or close
    code without an error code of the server).
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
        error: ThrongError | None = None,
    ) -> None:
        super().__init__(message)
        self.hint = hint
        """The server's time to retry in seconds; None if it named none."""
        self.is_unusable = is_unusable
        """The transport does not work here, so a retry will not help."""
        self.is_answer = is_answer
        """The transport works: the server has refused the token, or there is none for now."""
        self.error = error
        """Set if no transport will work: the subscription ends with it."""


class NotThrong(Loss):
    """The peer sends what no Throng server sends."""

    def __init__(self) -> None:
        super().__init__("the peer is not a Throng server", is_unusable=True)


# Close codes after which the server would refuse the client again, if it has accepted it.
_FINAL_CODES = {1002, 1003, 1007, 1008}
_TOKEN_CODES = {
    4002: "token_expired",
    4003: "unauthorized",
    4004: "token_revoked",
    4005: "forbidden",
}
# Codes of the application; from the second on, clients do not come back.
_DISCONNECTED = 4100
_DISCONNECTED_FOR_GOOD = 4500


def is_stale_token(code: int) -> bool:
    """Whether a close code asks for another token."""
    return code in (4002, 4003)


def loss_of_close(
    code: int, message: str, *, hint: float | None, is_open: bool, can_renew: bool, has_token: bool
) -> Loss:
    """The loss of a connection that the server has closed."""
    # Without a token, what has ended was allowed to any client for a time.
    is_renewable = is_stale_token(code) and (can_renew or (code == 4002 and not has_token))
    error: ThrongError | None = None
    if code in _TOKEN_CODES:
        if not is_renewable:
            error = ThrongError(_TOKEN_CODES[code], message)
    elif code >= _DISCONNECTED_FOR_GOOD:
        error = ThrongError("disconnected", message)
    elif is_open and code in _FINAL_CODES:
        error = ThrongError(f"close_{code}", message)
    is_answer = is_renewable or code >= _DISCONNECTED
    return Loss(message, hint=hint, is_answer=is_answer, error=error)
