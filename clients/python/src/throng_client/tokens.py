"""Tokens: those that a client shows, and those that an application signs."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import inspect
import json
import threading
import time
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from .errors import ThrongError
from .logs import warn_once
from .messages import json_of, name_of_user
from .options import Token

# RFC 7518, section 3.2: a key of the size of the hash, or larger. The server refuses shorter ones.
SECRET_BYTES_MIN = 32


def make_token(
    secret: str | bytes,
    *,
    user: str | int | UUID | None = None,
    subscribe: Iterable[str] = (),
    publish: Iterable[str] = (),
    history: Iterable[str] = (),
    presence: Iterable[str] = (),
    update: Iterable[str] = (),
    expires_in: int = 900,
    now: int | None = None,
    claims: dict[str, Any] | None = None,
) -> str:
    """Signs a token (HS256) for a client of your application.

    `secret` is that of the server's `[[token-keys]]`, at least 32 bytes. `user` is who the client
    is; it may always follow that user's inbox. The lists name the channels that the token
    grants, where `*` stands for any text and `{user}` for the user. `expires_in` is in seconds.
    `claims` are further claims, such as `jti` or `aud`, which override these.
    """
    # A file of the secret may end with a line feed, which does not count on the server either.
    key = secret.removesuffix("\n").encode() if isinstance(secret, str) else secret
    if len(key) < SECRET_BYTES_MIN:
        raise ValueError(f"the secret has {len(key)} bytes; HS256 needs {SECRET_BYTES_MIN}")
    issued = int(time.time()) if now is None else now
    lists = {
        "subscribe": subscribe,
        "publish": publish,
        "history": history,
        "presence": presence,
        "update": update,
    }
    for name, channels in lists.items():
        if isinstance(channels, str):
            raise TypeError(f"{name} is a list of channels: [{channels!r}]")
    grants = {name: list(channels) for name, channels in lists.items()}
    body: dict[str, Any] = {"iat": issued, "exp": issued + expires_in}
    if user is not None:
        body["sub"] = name_of_user(user)
    body["throng"] = {name: channels for name, channels in grants.items() if channels}
    body |= claims or {}
    parts = [_encoded(json_of(part).encode()) for part in ({"alg": "HS256", "typ": "JWT"}, body)]
    signed = ".".join(parts)
    return f"{signed}.{_encoded(hmac.digest(key, signed.encode(), hashlib.sha256))}"


def _encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def _is_text(token: str) -> bool:
    """Whether a header may have it: a token from a file may end with a line break."""
    return token.isascii() and token.isprintable() and " " not in token


def _lifetime(token: str) -> float | None:
    """How long a token is valid from now on, as far as it says so. A server key says nothing."""
    try:
        body = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        expires, issued = claims["exp"], claims.get("iat")
        # The clock here may be wrong; a token is new when the application hands it out.
        left = float(expires) - (time.time() if issued is None else float(issued))
    except (
        IndexError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ):
        return None
    return left if left > 0 else None


class Tokens:
    """The token that a client shows, and how it gets a newer one.

    A function is called once at a time for all connections and requests of a client. A token that
    the server has refused is not sent again, unless the function returns it again.
    """

    def __init__(self, token: Token | None) -> None:
        if isinstance(token, str) and not _is_text(token):
            raise ValueError("a token is printable ASCII without spaces and line breaks")
        if not (token is None or isinstance(token, str) or callable(token)):
            raise TypeError(f"a token is a str or a function that returns one, not {token!r}")
        self._token = token if isinstance(token, str) else None
        self._expires_at: float | None = None
        self._function = None if isinstance(token, str) else token
        self._lock = threading.Lock()

    @property
    def current(self) -> str | None:
        """The token to send; None if there is none yet, or it has expired, or the server has
        refused it."""
        is_over = self._expires_at is not None and time.time() >= self._expires_at
        return None if is_over else self._token

    @property
    def can_renew(self) -> bool:
        """Whether there may be a newer token."""
        return self._function is not None

    @property
    def is_ready(self) -> bool:
        """Whether `current` is what to send."""
        return self.current is not None or self._function is None

    def refuse(self, token: str | None) -> None:
        """Forgets a token that the server has refused."""
        if self.can_renew and self._token == token:
            self._token = None

    def load(self, old: str | None) -> str:
        """A newer token than `old`. Waits while another thread gets one."""
        with self._lock:
            current = self.current
            if current is not None and current != old:
                return current
            assert self._function is not None
            try:
                token = self._function()
                if inspect.isawaitable(token):
                    if inspect.iscoroutine(token):
                        token.close()
                    raise TypeError("the function is asynchronous; use AsyncThrong")
            except Exception as error:
                raise _failed(f"failed: {error!r}") from error
            return self._take(token)

    async def load_async(self, old: str | None) -> str:
        """The same for asyncio."""
        return await asyncio.to_thread(self.load, old)

    def _take(self, token: object) -> str:
        if token is None:
            raise ThrongError("no_token", "the function for tokens returned none")
        fault = _fault_of(token)
        if fault is not None:
            raise _failed(f"returned {fault}")
        assert isinstance(token, str)
        lifetime = _lifetime(token)
        self._expires_at = None if lifetime is None else time.time() + lifetime
        self._token = token
        return token


def _fault_of(token: object) -> str | None:
    """A name for something that is no token."""
    if not isinstance(token, str):
        hint = '; return its token, such as data["token"]' if isinstance(token, dict) else ""
        return f"a {type(token).__name__} in the place of a token{hint}"
    start = token.lstrip()[:1]
    if not start:
        return "an empty text in the place of a token"
    if start == "<":
        return "a page of HTML in the place of a token, perhaps of a login"
    if start in '{["':
        return "JSON in the place of a token; return the token in it"
    return None if _is_text(token) else "one with a space or a line break"


class AsyncTokens(Tokens):
    """The tokens of a client on asyncio, whose function may be asynchronous."""

    def __init__(self, token: Token | None, timeout: float) -> None:
        super().__init__(token)
        self._timeout = timeout
        self._turn = asyncio.Lock()

    async def load_async(self, old: str | None) -> str:
        async with self._turn:
            current = self.current
            if current is not None and current != old:
                return current
            assert self._function is not None
            try:
                async with asyncio.timeout(self._timeout):
                    if inspect.iscoroutinefunction(self._function):
                        token = await self._function()
                    else:
                        made = await asyncio.to_thread(self._function)
                        token = await made if inspect.isawaitable(made) else made
            except Exception as error:
                raise _failed(f"failed: {error!r}") from error
            return self._take(token)


def _failed(reason: str) -> ThrongError:
    message = f"the function for tokens {reason}"
    warn_once(message)
    return ThrongError("token_failed", message)
