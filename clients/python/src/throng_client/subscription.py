"""A subscription: its current link, its retries, and the events for its reader.

Invariants:
- The reader gets each message of a channel once and in order, and a gap before the messages
  after it, over any number of links.
- The next transport is tried only if the server answers `/health` while this one fails. A refusal
  with a time to retry is not a failure of the transport.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from .cursor import Cursor, Cursors, Event
from .errors import Loss, NotThrong, ThrongError
from .exchange import AsyncExchange
from .http_links import PollLink, StreamLink
from .link import Host, Link
from .messages import MALFORMED, Gap, Message, PresenceEvent, State, StateName, Target, User
from .options import Options, Transport, backoff, bounded
from .requests import NoAnswer, Request
from .socket_link import SocketLink

# A link open for this long was stable: after its loss, the backoff starts over.
STABLE = 10.0
# Failures in a row after which the next transport is tried.
FAILURES_MAX = 2

LINKS: dict[Transport, Callable[[Host], Link]] = {
    "websocket": SocketLink,
    "sse": StreamLink,
    "poll": PollLink,
}

OnGap = Callable[[Gap], Awaitable[None] | None]
OnPresence = Callable[[PresenceEvent], Awaitable[None] | None]
OnState = Callable[[State], None]

log = logging.getLogger("throng_client")


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What a subscription tells its reader beside messages, in their order."""

    on_gap: OnGap | None = None
    on_presence: OnPresence | None = None
    on_state: OnState | None = None

    async def report(self, gap: Gap) -> None:
        """Tells of a gap."""
        if self.on_gap is None:
            log.warning("messages are missing in %s before %s", gap.target, gap.id)
            return
        waiting = self.on_gap(gap)
        if waiting is not None:
            await waiting

    async def see(self, event: PresenceEvent) -> None:
        """Tells of a presence event."""
        waiting = None if self.on_presence is None else self.on_presence(event)
        if waiting is not None:
            await waiting


class AsyncSubscription:
    """Messages of one or several channels: an asynchronous iterator, with a connection of its own.

    The connection is opened by the first `anext`, and read as fast as messages are taken.
    Cancelling `anext` loses nothing. The iteration ends after `aclose`, and with a `ThrongError` if
    the server refuses the subscription for good.
    """

    def __init__(
        self,
        url: str,
        options: Options,
        exchange: AsyncExchange,
        targets: tuple[Target, ...],
        since: str | Mapping[Target, str] | None,
        history: int,
        calls: Callbacks,
    ) -> None:
        if not isinstance(history, int) or history < 0:
            raise ValueError(f"`history` is a number of messages, 0 or more, not {history!r}")
        followed = _cursors_of(targets, since, options.user)
        has_presence = calls.on_presence is not None
        if has_presence and not any(each.may_have_presence for each in followed):
            raise ValueError("`on_presence` needs a channel: inboxes have no presence events")
        cursors = Cursors(followed, history, has_presence=has_presence)
        self._host = Host(url, options, exchange, cursors)
        self._calls = calls
        self._link: Link | None = None
        self._opening: asyncio.Future[list[Event]] | None = None
        self._events: deque[Event] = deque()
        self._taken: dict[Target, str] = {}
        self._transport = 0
        self._failures = 0
        self._attempt = 0
        self._opened_at = 0.0
        self._retry_at = 0.0
        self._closed = asyncio.Event()
        self._on_close: Callable[[AsyncSubscription], None] | None = None

    @property
    def transport(self) -> Transport:
        """The transport that is open or being tried."""
        return self._host.options.transports[self._transport]

    @property
    def connection(self) -> str | None:
        """The server's name of the open connection, to exclude it from a publication. None for a
        long-poll."""
        return None if self._link is None else self._link.connection

    @property
    def position(self) -> dict[Target, str]:
        """The ids to resume after, as `since` takes them, for the channels that have one."""
        places = {}
        # What has arrived and is not taken yet would be lost.
        waiting = {it.target for it in self._events if not isinstance(it, PresenceEvent)}
        for each in self._host.cursors.all:
            id = each.position
            if each.target in waiting:
                id = self._taken.get(each.target, each.first)
            if id and not each.is_silent:
                places[each.target] = id
        return places

    def __aiter__(self) -> AsyncSubscription:
        return self

    async def __anext__(self) -> Message:
        while not self._closed.is_set():
            if self._events:
                event = self._events.popleft()
                if isinstance(event, PresenceEvent):
                    await self._calls.see(event)
                    continue
                self._taken[event.target] = event.id
                if isinstance(event, Message):
                    return event
                await self._calls.report(event)
                continue
            try:
                if self._link is None:
                    await self._open()
                else:
                    self._events += await self._receive(self._link)
            except Loss as loss:
                if not self._closed.is_set():
                    await self._lost(loss)
            except ThrongError:
                await self.aclose()
                raise
        raise StopAsyncIteration

    async def __aenter__(self) -> AsyncSubscription:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends the iteration and closes the connection."""
        if not self._closed.is_set():
            self._closed.set()
            self._report_state("closed")
        if self._opening is not None:
            self._opening.cancel()
        await self._release()
        if self._on_close is not None:
            self._on_close(self)

    def suspect(self, since: float, until: float) -> None:
        """A request of the client has no answer yet: asks the server for a sign of life."""
        if self._link is not None:
            self._link.suspect(since, until)

    def _report_state(self, name: StateName, delay: float | None = None, reason: str = "") -> None:
        if self._calls.on_state is not None:
            self._calls.on_state(State(name, self.transport, delay, reason))

    async def _receive(self, link: Link) -> list[Event]:
        try:
            return await link.receive()
        except MALFORMED as error:
            raise NotThrong from error

    async def _open(self) -> None:
        exchange = self._host.exchange
        await self._pause(self._retry_at - exchange.now())
        if self._closed.is_set():
            return
        if not exchange.tokens.is_ready:
            try:
                await exchange.load_token(None)
            except ThrongError as error:
                if error.code == "no_token":
                    raise
                raise Loss(error.message, is_answer=True) from error
        self._report_state("connecting")
        self._link = link = LINKS[self.transport](self._host)
        self._opening = asyncio.ensure_future(link.open())
        try:
            self._events += await self._opening
        except MALFORMED as error:
            raise NotThrong from error
        except asyncio.CancelledError:
            # It is half open, and cannot be opened again.
            await link.close()
            self._link = None
            task = asyncio.current_task()
            if self._closed.is_set() and not (task and task.cancelling()):
                return
            raise
        self._opened_at = exchange.now()
        self._failures = 0
        self._report_state("open")

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            try:
                await asyncio.wait_for(self._closed.wait(), seconds)
            except TimeoutError:
                pass

    async def _lost(self, loss: Loss) -> None:
        link, now = self._link, self._host.exchange.now()
        was_open = link is not None and link.is_open
        await self._release()
        if loss.error is not None:
            await self.aclose()
            raise loss.error
        if was_open and now - self._opened_at >= STABLE:
            self._attempt = 0
        if not was_open and loss.hint is None and not loss.is_answer:
            self._failures += 1
            if await self._falls_back(loss):
                self._transport += 1
                self._failures = 0
                return
        options = self._host.options
        delay = backoff(self._attempt, options.random) if loss.hint is None else bounded(loss.hint)
        self._attempt += 1
        self._retry_at = self._host.exchange.now() + delay
        log.info("the connection is lost (%s); trying again in %.1f s", loss, delay)
        self._report_state("waiting", delay, str(loss))

    async def _falls_back(self, loss: Loss) -> bool:
        options = self._host.options
        if self._transport + 1 == len(options.transports):
            return False
        if not loss.is_unusable and self._failures < FAILURES_MAX:
            return False
        try:
            health = Request("GET", "/health")
            return (await self._host.exchange.send(health, options.open_timeout)).is_ok
        except NoAnswer:
            return False

    async def _release(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()


def _cursors_of(
    targets: tuple[Target, ...], since: str | Mapping[Target, str] | None, user: str | None
) -> list[Cursor]:
    if not targets:
        raise TypeError("name at least one channel")
    if len(set(targets)) < len(targets):
        raise ValueError("a channel is named twice")
    inboxes = [target for target in targets if isinstance(target, User)]
    if len(inboxes) > 1:
        raise ValueError("a subscription follows at most one user's inbox")
    if isinstance(since, str):
        if len(targets) > 1:
            raise TypeError("for several channels, `since` is a dictionary of ids by channel")
        since = {targets[0]: since}
    elif since is not None and set(since) != set(targets):
        raise ValueError("`since` names an id for each channel, or for none")
    # Ids of HTTP are in the order of the URL, in which the user is last.
    ordered = [target for target in targets if not isinstance(target, User)] + inboxes
    cursors = [Cursor(target, None if since is None else since[target]) for target in ordered]
    if user is not None and not inboxes:
        cursors.append(Cursor(User(user), None, is_silent=True))
    return cursors
