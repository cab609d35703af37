"""One attempt at one transport, from opening to loss.

A link ends with a `Loss`, or with a `ThrongError` that no retry would change, and is never used
again. Nothing is lost if `receive` is cancelled: another link resumes from the cursors.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from .cursor import Cursors, Event
from .exchange import AsyncExchange
from .options import Options


@dataclass(slots=True)
class Host:
    """What a link gets from its subscription."""

    url: str
    options: Options
    exchange: AsyncExchange
    cursors: Cursors


class Deadline:
    """When a link is lost unless data arrives. May be set while `receive` waits."""

    def __init__(self) -> None:
        self.at: float | None = None
        self._waiting: asyncio.Timeout | None = None

    def set(self, at: float | None) -> None:
        """Sets the moment, in the time of the event loop."""
        self.at = at
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(at)

    def hasten(self, at: float) -> None:
        """Sets an earlier moment."""
        if self.at is None or at < self.at:
            self.set(at)

    def allow(self, patience: float) -> None:
        """Nobody has waited, so that data may lie ready: allows more time if it is over."""
        now = asyncio.get_running_loop().time()
        if self.at is not None and self.at <= now:
            self.at = now + patience

    @asynccontextmanager
    async def over(self) -> AsyncIterator[None]:
        """The context in which to wait; raises `TimeoutError`."""
        async with asyncio.timeout_at(self.at) as self._waiting:
            try:
                yield
            finally:
                self._waiting = None


class Link(abc.ABC):
    """One connection of a subscription."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.is_open = False
        self.connection: str | None = None
        """The server's name of this connection, to exclude from a publication."""

    @abc.abstractmethod
    async def open(self) -> list[Event]:
        """Connects, and subscribes; raises `Loss` or `ThrongError`."""

    @abc.abstractmethod
    async def receive(self) -> list[Event]:
        """The next events; raises `Loss` or `ThrongError`."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Closes the connection, without waiting for the server."""

    @abc.abstractmethod
    def suspect(self, since: float, until: float) -> None:
        """A request that was sent at `since` has no answer yet. Unless the server shows a sign of
        life, the link is lost at `until`."""
