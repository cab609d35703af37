"""The world of requests: one exchange on asyncio, and one that blocks."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx

from .errors import closed
from .network import Network
from .requests import Answer, NoAnswer, Request, ServerLimits
from .tokens import Tokens


class Trace:
    """Whether anything of a request was sent: not if its connection could not be opened."""

    def __init__(self) -> None:
        self.was_sent = False

    def see(self, event: str, _: dict[str, object]) -> None:
        """Sees a step of the HTTP client."""
        # The connection has another name over a proxy, and for each version of HTTP.
        self.was_sent |= event.endswith(".send_request_headers.started")

    async def see_async(self, event: str, info: dict[str, object]) -> None:
        """The same for asyncio."""
        self.see(event, info)


def _settings(network: Network) -> dict[str, Any]:
    """The settings of an HTTP client, which reads no environment of its own."""
    return {
        "proxy": network.proxy,
        # Without TLS nothing is verified, and it takes a while to load all authorities.
        "verify": network.ssl or False,
        "trust_env": False,
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),
    }


def _answer(response: httpx.Response) -> Answer:
    return Answer(response.status_code, dict(response.headers), response.content)


def _no_answer(error: Exception, trace: Trace) -> NoAnswer:
    is_late = isinstance(error, httpx.TimeoutException | TimeoutError)
    reason = "did not answer in time" if is_late else f"cannot be reached: {error!r}"
    return NoAnswer(f"the server {reason}", was_sent=trace.was_sent, is_late=is_late)


class AsyncExchange:
    """An exchange on asyncio, with the connections of all its requests."""

    def __init__(self, url: str, network: Network, tokens: Tokens, limits: ServerLimits) -> None:
        self.tokens = tokens
        self.limits = limits
        self.network = network
        self._url = url
        # Each subscription has a connection of its own.
        self.http = httpx.AsyncClient(**_settings(network), timeout=None)

    async def send(self, request: Request, timeout: float) -> Answer:
        """Sends a request; raises `NoAnswer`, or a `ThrongError` once the client is closed."""
        if self.http.is_closed:
            raise closed()
        trace = Trace()
        try:
            async with asyncio.timeout(timeout):
                return _answer(
                    await self.http.request(
                        request.method,
                        self._url + request.path,
                        headers=request.headers,
                        content=request.body,
                        extensions={"trace": trace.see_async},
                    )
                )
        except (httpx.HTTPError, TimeoutError) as error:
            raise _no_answer(error, trace) from error

    async def load_token(self, old: str | None) -> str:
        """A newer token than `old`."""
        return await self.tokens.load_async(old)

    async def sleep(self, seconds: float) -> None:
        """Waits for a time."""
        await asyncio.sleep(seconds)

    def now(self) -> float:
        """The time of the event loop."""
        return asyncio.get_running_loop().time()


class BlockingExchange:
    """An exchange that blocks the calling thread. Any number of threads may use it."""

    def __init__(self, url: str, network: Network, tokens: Tokens, limits: ServerLimits) -> None:
        self.tokens = tokens
        self.limits = limits
        self._url = url
        self.http = httpx.Client(**_settings(network))

    async def send(self, request: Request, timeout: float) -> Answer:
        """Sends a request; raises `NoAnswer`, or a `ThrongError` once the client is closed."""
        if self.http.is_closed:
            raise closed()
        trace = Trace()
        try:
            return _answer(
                self.http.request(
                    request.method,
                    self._url + request.path,
                    headers=request.headers,
                    content=request.body,
                    timeout=timeout,
                    extensions={"trace": trace.see},
                )
            )
        except httpx.HTTPError as error:
            raise _no_answer(error, trace) from error

    async def load_token(self, old: str | None) -> str:
        """A newer token than `old`."""
        return self.tokens.load(old)

    async def sleep(self, seconds: float) -> None:
        """Waits for a time."""
        time.sleep(seconds)

    def now(self) -> float:
        """Seconds of a clock that is never set."""
        return time.monotonic()
