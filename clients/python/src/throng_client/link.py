"""One attempt at one transport, from opening to loss.

A link ends with a `Loss`, or with a `ThrongError` that no retry would change, and is never used
again. Nothing is lost if `receive` is cancelled: another link resumes from the cursors.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from .cursor import Cursors, Event
from .errors import Loss
from .exchange import AsyncExchange
from .options import Options
from .requests import Answer, error_of, is_own, is_temporary, retry_after

# Statuses of the server's own after which it would refuse the same again, over any transport.
FINAL_STATUSES = {400, 401, 403}
# But this is about one transport.
_OF_ONE_TRANSPORT = {"bad_handshake"}


@dataclass(slots=True)
class Host:
    """What a link gets from its subscription."""

    url: str
    options: Options
    exchange: AsyncExchange
    cursors: Cursors
    open_timeout: float
    """Time for a transport to open, which grows with each attempt."""
    is_compressed: bool = True
    """Whether WebSockets may use compression: not if something on the way damages it."""
    is_compact: bool = True
    """Whether WebSockets ask for compact messages: not of an older server."""
    pace: float | None = None
    """The pace of the subscription in seconds."""
    info: Mapping[str, Any] | None = None
    """What the client shows to the other members of its channels."""

    @property
    def pace_ms(self) -> int | None:
        """The pace of its channels in ms: that of the subscription, or else of all connections."""
        pace = self.options.params.get("pace") if self.pace is None else self.pace
        return None if pace is None else round(pace * 1_000)


def loss_of_refusal(answer: Answer, host: Host) -> Loss:
    """The loss of a link whose request was refused: by the server, or by something before it."""
    error = error_of(answer)
    can_renew = host.exchange.tokens.can_renew
    if answer.status == 401 and can_renew and error.code != "token_revoked":
        return Loss(error.message, is_answer=is_own(error), is_token=True)
    is_final = is_own(error) and answer.status in FINAL_STATUSES
    return Loss(
        error.message,
        hint=retry_after(answer, host.options),
        is_unusable=not is_temporary(answer.status),
        error=error if is_final and error.code not in _OF_ONE_TRANSPORT else None,
    )


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
