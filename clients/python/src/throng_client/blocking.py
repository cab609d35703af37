"""The client without asyncio.

Requests use a blocking HTTP client in the calling thread. Subscriptions run on an event loop in a
thread of their own, which the first one starts.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Literal, TypeVar, Unpack

from . import creations, publishing, requests
from .background import BYTES_MAX, MESSAGES_MAX, Background, OnFailed
from .channel_state import Change, KeptState
from .client import Hub
from .creations import Creation
from .cursor import Event
from .errors import ThrongError, closed
from .exchange import BlockingExchange
from .messages import (
    NOTHING,
    Conflated,
    Draft,
    Ended,
    Erased,
    Gap,
    History,
    Members,
    Message,
    MessageId,
    PresenceEvent,
    Published,
    StateEnd,
    Tag,
    Target,
    Unreadable,
)
from .network import network_of
from .options import OptionValues, Token, Transport, checked_options, checked_url
from .read_markers import ReadMarker, Unread
from .requests import ServerLimits
from .subscription import AsyncSubscription, Callbacks, OnState
from .tokens import Tokens

# How long what a closed client has begun may take to end, before it is cancelled.
CLOSE_TIMEOUT = 1.0

T = TypeVar("T")


class _Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="throng", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work in the loop. An interrupt of the waiting thread cancels it."""
        try:
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:
            # The loop has ended.
            work.close()
            raise closed() from None
        try:
            return future.result()
        except CancelledError:
            raise closed() from None
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Ends the thread, and all work that others wait for."""
        self.run(self._end_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    async def _end_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            # What has been closed ends by itself; the rest is asked to.
            _, pending = await asyncio.wait(others, timeout=CLOSE_TIMEOUT)
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)


class Subscription:
    """Messages of one or several channels: an iterator, with a connection of its own.

    One thread iterates; any thread may call `close`, which ends the iteration. It ends with a
    `ThrongError` if the server refuses the subscription for good.
    """

    def __init__(self, inner: AsyncSubscription, loop: _Loop) -> None:
        self._inner = inner
        self._loop = loop

    @property
    def transport(self) -> Transport:
        """The transport that is open or being tried."""
        return self._inner.transport

    @property
    def connection(self) -> str | None:
        """The server's name of the open connection, to exclude it from a publication."""
        return self._inner.connection

    @property
    def position(self) -> dict[Target, str]:
        """The ids to resume after, as `since` takes them, for the channels that have one."""
        return self._inner.position

    def __iter__(self) -> Subscription:
        return self

    def __next__(self) -> Message:
        try:
            message = self._loop.run(self._next())
        except ThrongError as error:
            if error.code != "closed":
                raise
            message = None
        if message is None:
            raise StopIteration
        return message

    async def _next(self) -> Message | None:
        return await anext(self._inner, None)

    def _next_event(self) -> Event:
        async def next_event() -> Event | None:
            try:
                return await self._inner._next_event()
            except StopAsyncIteration:
                return None

        event = self._loop.run(next_event())
        if event is None:
            raise StopIteration
        return event

    def update(self, info: Mapping[str, Any]) -> None:
        """Shows something else to the other members of the channels. Any thread may call it."""
        self._loop.run(self._inner.update(info))

    def close(self) -> None:
        """Ends the iteration and closes the connection."""
        try:
            self._loop.run(self._inner.aclose())
        except ThrongError as error:
            # The client has been closed, with this subscription.
            if error.code != "closed":
                raise

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ChannelState(KeptState):
    """Follows a channel, and keeps the newest message of each of its keys.

    An iterator of the changes, which keeps as much as has been iterated over; `ready` takes the
    state as it is now. Close it with `close` or `with`.
    """

    def __init__(self, subscription: Subscription) -> None:
        super().__init__()
        self.subscription = subscription
        self._changes: deque[Change] = deque()

    def ready(self) -> None:
        """Waits until the state is complete. The changes until then are not iterated over."""
        while not self.is_complete:
            self._take(self.subscription._next_event())

    def __iter__(self) -> ChannelState:
        return self

    def __next__(self) -> Change:
        while not self._changes:
            self._changes += self._take(self.subscription._next_event())
        return self._changes.popleft()

    def __enter__(self) -> ChannelState:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the iteration and closes the connection."""
        self.subscription.close()


class Throng:
    """The client without asyncio. Any number of threads may use it.

    `token` is a token or a server key, or a function that returns one, as for `AsyncThrong`. A
    process that forks makes its client afterwards.
    """

    def __init__(
        self, url: str, token: Token | None = None, **options: Unpack[OptionValues]
    ) -> None:
        self._url = checked_url(url)
        self._options = checked_options(options)
        self._tokens = Tokens(token)
        self._network = network_of(self._url, self._options)
        self._limits = ServerLimits()
        self._exchange = BlockingExchange(self._url, self._network, self._tokens, self._limits)
        # For the loop, the hub, and whether there may be any.
        self._starting = threading.Lock()
        self._loop: _Loop | None = None
        self._hub: Hub | None = None
        self._is_closed = False
        self._queues: list[Background] = []

    def subscribe(
        self,
        *targets: Target,
        since: str | Mapping[Target, str] | None = None,
        history: int = 0,
        pace: float | None = None,
        state: bool = False,
        info: Mapping[str, Any] | None = None,
        on_gap: Callable[[Gap], None] | None = None,
        on_presence: Callable[[PresenceEvent], None] | None = None,
        on_state: OnState | None = None,
        on_unreadable: Callable[[Unreadable], None] | None = None,
        on_conflated: Callable[[Conflated], None] | None = None,
        on_erased: Callable[[Erased], None] | None = None,
        on_state_end: Callable[[StateEnd], None] | None = None,
        on_ended: Callable[[Ended], None] | None = None,
        on_unread: Callable[[Unread], None] | None = None,
    ) -> Subscription:
        """Follows channels, or a user's inbox: see `AsyncThrong.subscribe`.

        The functions `on_…` are called in the thread of the connections and must
        return soon.
        """
        told = (on_gap, on_presence, on_state, on_unreadable, on_conflated, on_erased, on_state_end)
        calls = Callbacks(*told, on_ended, on_unread)
        with self._starting:
            if self._is_closed:
                raise closed()
            loop = self._loop = self._loop or _Loop()

            async def start() -> AsyncSubscription:
                self._hub = self._hub or Hub(
                    self._url, self._options, self._network, self._tokens, self._limits
                )
                return self._hub.subscribe(targets, since, history, pace, state, info, calls)

            return Subscription(loop.run(start()), loop)

    def state(self, target: Target) -> ChannelState:
        """Follows a channel, and keeps the newest message of each of its keys."""
        return ChannelState(self.subscribe(target, state=True, on_gap=lambda _: None))

    def publish(
        self,
        target: Target,
        data: Any,
        *,
        key: str | None = None,
        content_type: str | None = None,
        exclude: str | None = None,
        expires_in: float | timedelta | None = None,
        volatile: bool = False,
        event: str | None = None,
        tags: Mapping[str, Tag] | None = None,
    ) -> Published:
        """Publishes a `str`, `bytes` or a JSON value: see `AsyncThrong.publish`."""
        draft = Draft(target, data, key, content_type, exclude, expires_in, event, tags)
        publish = publishing.publish_volatile if volatile else publishing.publish
        return self._run(publish(self._exchange, self._options, draft))

    def publish_batch(self, drafts: Iterable[Draft]) -> list[Published | ThrongError]:
        """Publishes messages with few requests. The list has the result of each, at its place."""
        return self._run(publishing.publish_batch(self._exchange, self._options, drafts))

    def background(
        self,
        *,
        messages_max: int = MESSAGES_MAX,
        bytes_max: int = BYTES_MAX,
        on_failed: OnFailed | None = None,
    ) -> Background:
        """A publisher whose `publish` never waits: a thread publishes what is in its queue.

        Beyond either limit new messages are refused. `on_failed` is called with each message that
        is not published and its error; without it, a warning is logged.
        """
        queue = Background(self._exchange, self._options, messages_max, bytes_max, on_failed)
        with self._starting:
            if self._is_closed:
                raise closed()
            self._queues.append(queue)
        return queue

    def history(
        self,
        target: Target,
        *,
        limit: int | None = None,
        before: str | None = None,
        after: str | None = None,
        since_time: int | None = None,
        order: Literal["oldest", "newest"] | None = None,
    ) -> History:
        """A page of the history: the latest messages, or those before or after an id, or since a
        time in milliseconds since 1970. The oldest comes first, unless `order` is `newest`."""
        return self._run(
            requests.read_history(
                self._exchange, self._options, target, limit, before, after, since_time, order
            )
        )

    def set(
        self,
        target: Target,
        key: str,
        value: Any,
        *,
        if_match: MessageId | None = None,
        if_absent: bool = False,
        content_type: str | None = None,
        expires_in: float | timedelta | None = None,
        event: str | None = None,
        tags: Mapping[str, Tag] | None = None,
    ) -> str:
        """Sets the value of a key. Returns the id of its message.

        With `if_match`, only if the key has the message with this id, and with `if_absent`, only if
        it has none; otherwise the error is `conflict`. Such a condition has one attempt.
        """
        draft = Draft(target, value, None, content_type, None, expires_in, event, tags, key)
        if if_match is not None or if_absent:
            return self._run(requests.set_key(self._exchange, self._options, draft, if_match))
        published = self._run(publishing.publish(self._exchange, self._options, draft))
        return published.id or ""

    def remove(self, target: Target, key: str, *, if_match: MessageId | None = None) -> str:
        """Removes a key. Returns the id of its tombstone."""
        return self._run(requests.remove_key(self._exchange, self._options, target, key, if_match))

    def edit(
        self,
        target: Target,
        id: MessageId,
        data: Any,
        *,
        content_type: str | None = None,
        event: str | None = None,
        tags: Mapping[str, Tag] | None = None,
    ) -> str:
        """Publishes `data` in the place of a message, which is erased. Returns the new id.

        `id` may be the message itself, or what `publish` has returned.

        This needs the right `edit`, unless the client has published the message itself and the
        channel shows users. Makes one attempt.
        """
        draft = Draft(target, data, content_type=content_type, event=event, tags=tags)
        return self._run(requests.edit(self._exchange, self._options, id, draft))

    def erase(self, target: Target, id: MessageId) -> Erased:
        """Erases a message. This needs the right `erase`."""
        return self._run(requests.erase(self._exchange, self._options, target, id))

    def erase_history(self, target: Target) -> Erased:
        """Erases all messages that a channel keeps now."""
        return self._run(requests.erase(self._exchange, self._options, target, None))

    def read(self, id: MessageId | None = None, *, channel: str | None = None) -> ReadMarker:
        """Moves the read marker of the client's `user` to a message of the inbox, or of a channel
        that has read markers: forward only, so that devices may report late. Without an id, it
        only asks."""
        return self._run(requests.mark(self._exchange, self._options, id, channel))

    def create(
        self,
        channel: str,
        *,
        content_type: str | None = None,
        ttl: float | timedelta | None = None,
        expires_at: int | None = None,
        messages: Iterable[Draft] = (),
    ) -> Creation:
        """Creates a channel, and publishes its first messages in the same step: all or none. This
        needs the right `create`.

        Messages have this content type from then on. After `ttl`, in seconds and without a message,
        or at `expires_at`, in milliseconds since 1970, the channel ends and is erased. `messages`
        are drafts for the channel. The call may be repeated; with other properties the error is
        `already_created`. A channel that was created before gets no messages: the answer has no
        `ids`.
        """
        given = {"content_type": content_type, "ttl": ttl, "expires_at": expires_at}
        return self._run(creations.create(self._exchange, self._options, channel, given, messages))

    def creation(self, channel: str) -> Creation:
        """The creation of a channel; the error is `not_created` if nobody has created it."""
        return self._run(creations.read_creation(self._exchange, self._options, channel))

    def end(
        self,
        target: Target,
        data: Any = NOTHING,
        *,
        content_type: str | None = None,
        event: str | None = None,
        tags: Mapping[str, Tag] | None = None,
    ) -> Ended:
        """Ends a channel, with a last message if `data` is given. This needs the right `end`.

        Readers get the end behind the last message, and later publications the error `closed`.
        Makes one attempt.
        """
        draft = Draft(target, data, content_type=content_type, event=event, tags=tags)
        return self._run(requests.end(self._exchange, self._options, draft))

    def open(self, target: Target) -> None:
        """Opens a channel again that has ended."""
        self._run(requests.reopen(self._exchange, self._options, target))

    def presence(
        self, target: Target, *, limit: int | None = None, after: str | None = None
    ) -> Members:
        """Who follows a channel."""
        return self._run(
            requests.read_presence(self._exchange, self._options, target, limit, after)
        )

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._watched():
            return requests.run_blocking(work)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        loop, hub = self._loop, self._hub
        if loop is None or hub is None:
            yield
            return
        timers: list[asyncio.TimerHandle] = []
        # Another thread may close the client at any time.
        with suppress(RuntimeError):
            loop.loop.call_soon_threadsafe(lambda: timers.append(hub.began()))
        try:
            yield
        finally:
            with suppress(RuntimeError):
                loop.loop.call_soon_threadsafe(lambda: timers.pop().cancel())

    def close(self) -> None:
        """Ends all subscriptions and background publishers, and closes all connections."""
        for queue in self._queues:
            queue.close()
        with self._starting:
            # First, because nobody would end what another thread begins from now on.
            self._is_closed = True
            loop, hub = self._loop, self._hub
            self._loop = self._hub = None
        if loop is not None:
            if hub is not None:
                loop.run(hub.aclose())
            loop.stop()
        self._exchange.http.close()

    def __enter__(self) -> Throng:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
