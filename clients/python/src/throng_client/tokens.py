"""Tokens: those that a client shows, and those that an application signs."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import inspect
import threading
import time
from collections.abc import Iterable
from typing import Any

from .errors import ThrongError
from .messages import json_of
from .options import Token

# RFC 7518, section 3.2: a key of the size of the hash, or larger. The server refuses shorter ones.
SECRET_BYTES_MIN = 32


def make_token(
    secret: str | bytes,
    *,
    user: str | None = None,
    subscribe: Iterable[str] = (),
    publish: Iterable[str] = (),
    history: Iterable[str] = (),
    presence: Iterable[str] = (),
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
    lists = {"subscribe": subscribe, "publish": publish, "history": history, "presence": presence}
    for name, channels in lists.items():
        if isinstance(channels, str):
            raise TypeError(f"{name} is a list of channels: [{channels!r}]")
    grants = {name: list(channels) for name, channels in lists.items()}
    body: dict[str, Any] = {"iat": issued, "exp": issued + expires_in}
    if user is not None:
        body["sub"] = user
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


class Tokens:
    """The token that a client shows, and how it gets a newer one.

    A function is called once at a time for all connections and requests of a client. A token that
    the server has refused is not sent again, unless the function returns it again.
    """

    def __init__(self, token: Token | None) -> None:
        if isinstance(token, str) and not _is_text(token):
            raise ValueError("a token is printable ASCII without spaces and line breaks")
        self.current = token if isinstance(token, str) else None
        """The token to send; None if there is none yet, or the server has refused it."""
        self._function = None if isinstance(token, str) else token
        self._lock = threading.Lock()

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
        if self.can_renew and self.current == token:
            self.current = None

    def load(self, old: str | None) -> str:
        """A newer token than `old`. Waits while another thread gets one."""
        with self._lock:
            if self.current is not None and self.current != old:
                return self.current
            assert self._function is not None
            try:
                token = self._function()
                if inspect.isawaitable(token):
                    if inspect.iscoroutine(token):
                        token.close()
                    raise TypeError("the function is asynchronous; use AsyncThrong")
            except Exception as error:
                raise _failed(error) from error
            return self._take(token)

    async def load_async(self, old: str | None) -> str:
        """The same for asyncio."""
        return await asyncio.to_thread(self.load, old)

    def _take(self, token: str | None) -> str:
        if not token:
            raise ThrongError("no_token", "the function for tokens returned none")
        if not isinstance(token, str):
            name = type(token).__name__
            raise ThrongError("token_failed", f"the function for tokens returned a {name}")
        if not _is_text(token):
            message = "the function for tokens returned one with a space or a line break"
            raise ThrongError("token_failed", message)
        self.current = token
        return token


class AsyncTokens(Tokens):
    """The tokens of a client on asyncio, whose function may be asynchronous."""

    def __init__(self, token: Token | None, timeout: float) -> None:
        super().__init__(token)
        self._timeout = timeout
        self._turn = asyncio.Lock()

    async def load_async(self, old: str | None) -> str:
        async with self._turn:
            if self.current is not None and self.current != old:
                return self.current
            assert self._function is not None
            try:
                async with asyncio.timeout(self._timeout):
                    if inspect.iscoroutinefunction(self._function):
                        token = await self._function()
                    else:
                        made = await asyncio.to_thread(self._function)
                        token = await made if inspect.isawaitable(made) else made
            except Exception as error:
                raise _failed(error) from error
            return self._take(token)


def _failed(error: Exception) -> ThrongError:
    return ThrongError("token_failed", f"the function for tokens failed: {error!r}")
