"""A subscription: its current link, its retries, and the events for its reader.

Invariants:
- The reader gets each message of a channel once and in order, and a gap before the messages
  after it, over any number of links.
- A message that cannot be read is reported and passed over. It ends neither link nor subscription.
- What is not a `Loss` of the link is a mistake of this program, and ends the subscription.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from .cursor import Cursor, Cursors, Event, Handled
from .errors import Loss, ThrongError
from .exchange import AsyncExchange
from .http_links import PollLink, StreamLink
from .link import Host, Link
from .logs import log, warn_once
from .messages import (
    Conflated,
    Ended,
    Erased,
    Gap,
    Message,
    PresenceEvent,
    State,
    StateEnd,
    StateName,
    Target,
    Unreadable,
    User,
    checked_id,
    checked_target,
    json_of,
)
from .options import (
    OPEN_TIMEOUT_MAX,
    Options,
    Transport,
    backoff,
    bounded,
    check_connection_option,
)
from .read_markers import Unread
from .requests import NoAnswer, Request
from .socket_link import SocketLink
from .transports import STABLE, UPGRADE_AFTER, Choice, Next

# A link that lived this long has shown that its token was accepted.
ACCEPTED = 1.0

LINKS: dict[Transport, Callable[[Host], Link]] = {
    "websocket": SocketLink,
    "sse": StreamLink,
    "poll": PollLink,
}

OnGap = Callable[[Gap], Awaitable[None] | None]
OnPresence = Callable[[PresenceEvent], Awaitable[None] | None]
OnState = Callable[[State], None]
OnUnreadable = Callable[[Unreadable], Awaitable[None] | None]
OnConflated = Callable[[Conflated], Awaitable[None] | None]
OnErased = Callable[[Erased], Awaitable[None] | None]
OnStateEnd = Callable[[StateEnd], Awaitable[None] | None]
OnEnded = Callable[[Ended], Awaitable[None] | None]
OnUnread = Callable[[Unread], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What a subscription tells its reader beside messages, in their order."""

    on_gap: OnGap | None = None
    on_presence: OnPresence | None = None
    on_state: OnState | None = None
    on_unreadable: OnUnreadable | None = None
    on_conflated: OnConflated | None = None
    on_erased: OnErased | None = None
    on_state_end: OnStateEnd | None = None
    on_ended: OnEnded | None = None
    on_unread: OnUnread | None = None

    def __post_init__(self) -> None:
        waited = ("on_gap", "on_presence", "on_unreadable", "on_conflated", "on_erased")
        for name in (*waited, "on_state_end", "on_ended", "on_unread", "on_state"):
            call = getattr(self, name)
            if call is not None and not callable(call):
                raise TypeError(f"{name} must be a function, not {call!r}")
        if inspect.iscoroutinefunction(self.on_state):
            raise TypeError("on_state must not be asynchronous: nothing waits for it")

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

    async def skip(self, event: Conflated) -> None:
        """Tells of messages that were skipped for newer ones."""
        waiting = None if self.on_conflated is None else self.on_conflated(event)
        if waiting is not None:
            await waiting

    async def forget(self, event: Erased) -> None:
        """Tells of messages that are erased."""
        waiting = None if self.on_erased is None else self.on_erased(event)
        if waiting is not None:
            await waiting

    async def end_state(self, event: StateEnd) -> None:
        """Tells that a state is complete."""
        waiting = None if self.on_state_end is None else self.on_state_end(event)
        if waiting is not None:
            await waiting

    async def end(self, event: Ended) -> None:
        """Tells that a channel has ended."""
        waiting = None if self.on_ended is None else self.on_ended(event)
        if waiting is not None:
            await waiting

    async def count(self, event: Unread) -> None:
        """Tells how many messages are unread."""
        waiting = None if self.on_unread is None else self.on_unread(event)
        if waiting is not None:
            await waiting

    async def pass_over(self, event: Unreadable) -> None:
        """Tells of a message that cannot be read."""
        if self.on_unreadable is None:
            warn_once(
                f"a message in {event.target} cannot be read, and is passed over: {event.reason}"
            )
            return
        waiting = self.on_unreadable(event)
        if waiting is not None:
            await waiting


class AsyncSubscription:
    """Messages of one or several channels: an asynchronous iterator, with a connection of its own.

    The connection is opened by the first `anext`, and read as fast as messages are taken.
    Cancelling `anext` loses nothing. The iteration ends after `aclose`, once all channels have
    ended, and with a `ThrongError` if the server refuses the subscription for good.
    """

    def __init__(
        self,
        url: str,
        options: Options,
        exchange: AsyncExchange,
        targets: tuple[Target, ...],
        since: str | Mapping[Target, str] | None,
        history: int,
        pace: float | None,
        state: bool,
        info: Mapping[str, Any] | None,
        calls: Callbacks,
    ) -> None:
        if not isinstance(history, int) or history < 0:
            raise ValueError(f"`history` is a number of messages, 0 or more, not {history!r}")
        if state and history > 0:
            raise ValueError("`state` excludes `history`")
        if pace is not None:
            check_connection_option("pace", pace)
        followed = _cursors_of(targets, since, options.user)
        has_presence = calls.on_presence is not None
        if has_presence and not any(each.may_have_presence for each in followed):
            raise ValueError("`on_presence` needs a channel: inboxes have no presence events")
        cursors = Cursors(followed, history, has_presence=has_presence, wants_state=state)
        self._choice = Choice(options.transports, options.open_timeout)
        self._host = Host(url, options, exchange, cursors, options.open_timeout, pace=pace)
        self._host.info = _checked_info(info)
        self._calls = calls
        self._link: Link | None = None
        self._better: asyncio.Task[tuple[Link, list[Event]]] | None = None
        """Opens a link over the first transport, while a lesser one holds."""
        self._opening: asyncio.Future[list[Event]] | None = None
        self._events: deque[Event] = deque()
        self._taken: dict[Target, str] = {}
        self._attempt = 0
        self._refused_tokens = 0
        self._opened_at = 0.0
        self._retry_at = 0.0
        self._closed = asyncio.Event()
        self._on_close: Callable[[AsyncSubscription], None] | None = None

    @property
    def transport(self) -> Transport:
        """The transport that is open or being tried."""
        return self._choice.transport

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
        placed = Message | Gap | StateEnd | Unreadable
        waiting = {it.target for it in self._events if isinstance(it, placed)}
        for each in (*self._host.cursors.all, *self._host.cursors.ended):
            id = each.position
            if each.target in waiting:
                id = self._taken.get(each.target, each.first)
            if id and not each.is_silent:
                places[each.target] = id
        return places

    def __aiter__(self) -> AsyncSubscription:
        return self

    async def __anext__(self) -> Message:
        while True:
            event = await self._next_event()
            if isinstance(event, Message):
                return event

    async def _next_event(self) -> Event:
        """The next event. What is no message is told, too."""
        while not self._closed.is_set():
            if self._events and not isinstance(self._events[0], Handled):
                event = self._events.popleft()
                if not isinstance(event, Message):
                    await self._tell(event)
                elif event.id is not None:
                    self._taken[event.target] = event.id
                return event
            try:
                if self._events:
                    self._acknowledge()
                elif self._host.cursors.are_over:
                    await self.aclose()
                elif self._link is None:
                    await self._open()
                else:
                    self._events += await self._receive(self._link)
            except Loss as loss:
                if not self._closed.is_set():
                    await self._lost(loss)
            except Exception:
                if self._closed.is_set():
                    # The link was closed under the reader.
                    break
                await self.aclose()
                raise
        raise StopAsyncIteration

    async def _tell(self, event: Event) -> None:
        """Tells the reader of what is no message, in its place."""
        if isinstance(event, PresenceEvent):
            await self._calls.see(event)
        elif isinstance(event, Conflated):
            await self._calls.skip(event)
        elif isinstance(event, Erased):
            if event.id is not None:
                self._taken[event.target] = event.id
            await self._calls.forget(event)
        elif isinstance(event, StateEnd):
            self._taken[event.target] = event.id
            await self._calls.end_state(event)
        elif isinstance(event, Unreadable):
            if event.id is not None:
                self._taken[event.target] = event.id
            await self._calls.pass_over(event)
        elif isinstance(event, Gap):
            self._taken[event.target] = event.id
            await self._calls.report(event)
        elif isinstance(event, Ended):
            await self._calls.end(event)
        elif isinstance(event, Unread):
            await self._calls.count(event)

    def _acknowledge(self) -> None:
        """Tells the server that the reader is done with the frames before this place."""
        frames = 0
        while self._events and isinstance(self._events[0], Handled):
            event = self._events.popleft()
            # A link that is gone has nobody to tell.
            frames += isinstance(event, Handled) and event.link is self._link
        if frames > 0 and isinstance(self._link, SocketLink):
            self._link.acknowledge(frames)

    async def __aenter__(self) -> AsyncSubscription:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends the iteration and closes the connection."""
        try:
            if not self._closed.is_set():
                self._closed.set()
                self._report_state("closed")
        finally:
            if self._opening is not None:
                self._opening.cancel()
            await self._give_up_better()
            await self._release()
            if self._on_close is not None:
                self._on_close(self)

    async def update(self, info: Mapping[str, Any]) -> None:
        """Shows something else to the other members of the channels, in place of `info`."""
        shown, self._host.info = self._host.info, _checked_info(info)
        if isinstance(self._link, SocketLink):
            await self._link.show(shown)

    def suspect(self, since: float, until: float) -> None:
        """A request of the client has no answer yet: asks the server for a sign of life."""
        if self._link is not None:
            self._link.suspect(since, until)

    def _report_state(self, name: StateName) -> None:
        if self._calls.on_state is not None:
            self._calls.on_state(State(name, self.transport))

    def _report_waiting(self, lost: Transport, delay: float, loss: Loss) -> None:
        if self._calls.on_state is not None:
            self._calls.on_state(State("waiting", lost, delay, str(loss)))

    async def _receive(self, link: Link) -> list[Event]:
        better = self._better
        if better is None:
            return await link.receive()
        receiving = asyncio.ensure_future(link.receive())
        try:
            await asyncio.wait({receiving, better}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not receiving.done():
                receiving.cancel()
                await asyncio.wait({receiving})
            if not receiving.cancelled() and receiving.exception() is None:
                # Also if the reader was cancelled meanwhile: the position is behind them.
                self._events += receiving.result()
        if better.done():
            return await self._take_better()
        if not receiving.cancelled() and (error := receiving.exception()) is not None:
            raise error
        return []

    async def _take_better(self) -> list[Event]:
        """Puts the better link in the place of the lesser one, which resumes from where that was
        when it was opened: what both have had comes once, as over any two links."""
        better, self._better = self._better, None
        assert better is not None
        link, events = better.result()
        await self._release()
        self._link = link
        self._choice.promoted()
        self._opened_at = self._host.exchange.now()
        self._report_state("open")
        return events

    async def _upgrade(self) -> tuple[Link, list[Event]]:
        """A link over the first transport, which is tried every few minutes."""
        options = self._host.options
        while True:
            # Spread, so that clients that fell back together do not come back together.
            await asyncio.sleep(UPGRADE_AFTER * (0.5 + options.random()))
            host = replace(self._host, open_timeout=max(OPEN_TIMEOUT_MAX, options.open_timeout))
            link = LINKS[self._choice.first](host)
            try:
                return link, await link.open()
            except (Loss, ThrongError) as error:
                log.info("%s does not work yet: %s", self._choice.first, error)
                await link.close()
            except BaseException:
                await link.close()
                raise

    async def _give_up_better(self) -> None:
        better, self._better = self._better, None
        if better is None:
            return
        better.cancel()
        with suppress(asyncio.CancelledError, Exception):
            link, _ = await better
            await link.close()

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
        self._host.open_timeout = self._choice.open_timeout
        self._link = link = LINKS[self.transport](self._host)
        self._opening = asyncio.ensure_future(link.open())
        try:
            self._events += await self._opening
        except asyncio.CancelledError:
            # It is half open, and cannot be opened again.
            await link.close()
            self._link = None
            task = asyncio.current_task()
            if self._closed.is_set() and not (task and task.cancelling()):
                return
            raise
        self._opened_at = exchange.now()
        self._choice.opened()
        if self._choice.is_lesser:
            self._better = asyncio.create_task(self._upgrade())
        self._report_state("open")

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            try:
                await asyncio.wait_for(self._closed.wait(), seconds)
            except TimeoutError:
                pass

    async def _lost(self, loss: Loss) -> None:
        link, now, transport = self._link, self._host.exchange.now(), self.transport
        lived = now - self._opened_at if link is not None and link.is_open else None
        await self._give_up_better()
        await self._release()
        if loss.error is not None:
            await self.aclose()
            raise loss.error
        if lived is not None and lived >= STABLE:
            self._attempt = 0
        following = self._choice.lost(
            is_failure=loss.hint is None and not loss.is_answer and not loss.is_token,
            is_unusable=loss.is_unusable,
            lived=lived,
            now=now,
        )
        if following is Next.ASK and await self._server_answers():
            following = Next.AT_ONCE
        if following is Next.AT_ONCE or (loss.is_token and self._renews_at_once(lived)):
            self._retry_at = self._host.exchange.now()
            self._report_waiting(transport, 0.0, loss)
            return
        options = self._host.options
        delay = backoff(self._attempt, options.random) if loss.hint is None else bounded(loss.hint)
        self._attempt += 1
        self._retry_at = self._host.exchange.now() + delay
        if lived is None and loss.hint is None:
            warn_once(f"no connection to {self._host.url} yet: {loss}")
        log.info("the connection is lost (%s); trying again in %.1f s", loss, delay)
        self._report_waiting(transport, delay, loss)

    def _renews_at_once(self, lived: float | None) -> bool:
        """Whether a newer token is used without a delay: not if the server has just refused one."""
        if lived is not None and lived >= ACCEPTED:
            self._refused_tokens = 0
        self._refused_tokens += 1
        return self._refused_tokens == 1

    async def _server_answers(self) -> bool:
        exchange, since = self._host.exchange, self._host.exchange.now()
        try:
            health = Request("GET", "/health")
            answer = await exchange.send(health, self._host.options.request_timeout)
        except NoAnswer:
            return False
        if answer.is_ok:
            self._choice.answered(exchange.now() - since)
        return answer.is_ok

    async def _release(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()


def _checked_info(info: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if info is not None and not isinstance(info, Mapping):
        raise TypeError(f"`info` is a mapping, not {info!r}")
    return None if info is None else json.loads(json_of(dict(info)))


def _cursors_of(
    targets: tuple[Target, ...],
    since: str | Mapping[Target, str] | None,
    user: str | int | None,
) -> list[Cursor]:
    if not targets:
        raise TypeError("name at least one channel")
    for target in targets:
        checked_target(target)
    if len(set(targets)) < len(targets):
        raise ValueError("a channel is named twice")
    inboxes = [target for target in targets if isinstance(target, User)]
    if len(inboxes) > 1:
        raise ValueError("a subscription follows at most one user's inbox")
    if isinstance(since, str):
        if len(targets) > 1:
            raise TypeError("for several channels, `since` is a dictionary of ids by channel")
        since = {targets[0]: since}
    elif since is not None and not isinstance(since, Mapping):
        raise TypeError(f"`since` is an id, or a dictionary of ids by channel, not {since!r}")
    elif since is not None and set(since) != set(targets):
        raise ValueError("`since` names an id for each channel, or for none")
    for id in (since or {}).values():
        try:
            checked_id(id)
        except TypeError:
            raise ThrongError("bad_id", f"{id!r} is not a message id") from None
    # Ids of HTTP are in the order of the URL, in which the user is last.
    ordered = [target for target in targets if not isinstance(target, User)] + inboxes
    cursors = [Cursor(target, None if since is None else since[target]) for target in ordered]
    if user is not None and not inboxes:
        cursors.append(Cursor(User(user), None, is_silent=True))
    return cursors
