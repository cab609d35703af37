"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Literal, Unpack

from . import creations, publishing, requests
from .background import BYTES_MAX, MESSAGES_MAX, AsyncBackground, OnFailed
from .channel_state import AsyncChannelState
from .creations import Creation
from .errors import ThrongError, closed
from .exchange import AsyncExchange
from .messages import (
    NOTHING,
    Draft,
    Ended,
    Erased,
    History,
    Members,
    MessageId,
    Published,
    Tag,
    Target,
)
from .network import Network, network_of
from .options import Options, OptionValues, Token, checked_options, checked_url
from .read_markers import ReadMarker
from .requests import ServerLimits
from .subscription import (
    AsyncSubscription,
    Callbacks,
    OnConflated,
    OnEnded,
    OnErased,
    OnGap,
    OnPresence,
    OnState,
    OnStateEnd,
    OnUnread,
    OnUnreadable,
)
from .tokens import AsyncTokens, Tokens


class Hub:
    """The subscriptions of a client, which learn of its unanswered requests."""

    def __init__(
        self, url: str, options: Options, network: Network, tokens: Tokens, limits: ServerLimits
    ) -> None:
        self.url = url
        self.options = options
        self.exchange = AsyncExchange(url, network, tokens, limits)
        self._subscriptions: set[AsyncSubscription] = set()

    def subscribe(
        self,
        targets: tuple[Target, ...],
        since: str | Mapping[Target, str] | None,
        history: int,
        pace: float | None,
        state: bool,
        info: Mapping[str, Any] | None,
        calls: Callbacks,
    ) -> AsyncSubscription:
        """A new subscription."""
        if self.exchange.http.is_closed:
            raise closed()
        subscription = AsyncSubscription(
            self.url, self.options, self.exchange, targets, since, history, pace, state, info, calls
        )
        self._subscriptions.add(subscription)
        subscription._on_close = self._subscriptions.discard
        return subscription

    def began(self) -> asyncio.TimerHandle:
        """A request begins. Cancel the handle when it has an answer.

        After half of its time all connections are asked for a sign of life, so that a frozen
        server is noticed when the request's time is over.
        """
        loop = asyncio.get_running_loop()
        since, patience = loop.time(), self.options.request_timeout

        def suspect() -> None:
            for subscription in self._subscriptions:
                subscription.suspect(since, since + patience)

        return loop.call_later(patience / 2, suspect)

    async def aclose(self) -> None:
        """Ends all subscriptions and closes all connections."""
        for subscription in list(self._subscriptions):
            await subscription.aclose()
        await self.exchange.http.aclose()


class AsyncThrong:
    """The client for asyncio. Use it in one event loop, and close it with `aclose` or `async with`.

    `token` is a token or a server key, or a function, asynchronous or not, that returns one. The
    function is called before the first request, before the token expires, and after the server
    has refused one. If it fails, it is called again after a backoff; if it returns None,
    requests and subscriptions fail with `no_token`.
    """

    def __init__(
        self, url: str, token: Token | None = None, **options: Unpack[OptionValues]
    ) -> None:
        made = checked_options(options)
        tokens = AsyncTokens(token, made.request_timeout)
        checked = checked_url(url)
        self._hub = Hub(checked, made, network_of(checked, made), tokens, ServerLimits())
        self._options = made
        self._exchange = self._hub.exchange
        self._queues: list[AsyncBackground] = []

    def subscribe(
        self,
        *targets: Target,
        since: str | Mapping[Target, str] | None = None,
        history: int = 0,
        pace: float | None = None,
        state: bool = False,
        info: Mapping[str, Any] | None = None,
        on_gap: OnGap | None = None,
        on_presence: OnPresence | None = None,
        on_state: OnState | None = None,
        on_unreadable: OnUnreadable | None = None,
        on_conflated: OnConflated | None = None,
        on_erased: OnErased | None = None,
        on_state_end: OnStateEnd | None = None,
        on_ended: OnEnded | None = None,
        on_unread: OnUnread | None = None,
    ) -> AsyncSubscription:
        """Follows channels, or a user's inbox.

        `since` is the id to resume after; for several channels, a dictionary of ids by channel.
        Without it, `history` is the number of latest messages to begin with. `pace` is the least
        time in seconds between two deliveries of a channel, 0.01 to 60. With `state` the newest
        message of each key comes first, then `on_state_end` is called. `info` is shown to the other
        members of the channels, over WebSockets, which needs the right `update`. `on_gap` is called
        where messages are missing, before the next message; without it, a gap is logged as a
        warning. `on_presence` is called with who follows each channel: at once, and on each change.
        Where the server has no presence events, or not for this client, the subscription ends with
        its error. `on_state` is called when the connection opens, is lost, or ends. `on_unreadable`
        is called in the place of a message that this client cannot read; without it, a warning is
        logged. `on_conflated` is called where messages were skipped for newer ones, `on_erased`
        where some are erased, and `on_ended` when a channel has ended: the iteration ends after the
        last one. `on_unread` is called with the number of unread messages in the user's inbox: once
        connected, and when the user has read on, on whatever device; a new message is no such
        event, and with the transport `poll` it is not called. Raises `ThrongError` for a name that
        no channel can have (`bad_name`, `bad_utf8`).
        """
        told = (on_gap, on_presence, on_state, on_unreadable, on_conflated, on_erased, on_state_end)
        calls = Callbacks(*told, on_ended, on_unread)
        return self._hub.subscribe(targets, since, history, pace, state, info, calls)

    def state(self, target: Target) -> AsyncChannelState:
        """Follows a channel, and keeps the newest message of each of its keys."""
        return AsyncChannelState(self.subscribe(target, state=True, on_gap=lambda _: None))

    async def publish(
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
        """Publishes a `str`, `bytes` or a JSON value; returns once the server has it.

        Tries again within `publish_timeout`, always with the same idempotency key. Raises a
        `ThrongError` with an `outcome` and the `key`. After `expires_in` seconds the message is
        not delivered any more. A `volatile` one has no id, and only those get it who follow now
        and keep up; it is tried once, and has neither a `key` nor `expires_in`. Readers see the
        name of the `event` and the `tags`.
        """
        draft = Draft(target, data, key, content_type, exclude, expires_in, event, tags)
        publish = publishing.publish_volatile if volatile else publishing.publish
        async with self._watched():
            return await publish(self._exchange, self._options, draft)

    async def publish_batch(self, drafts: Iterable[Draft]) -> list[Published | ThrongError]:
        """Publishes messages with few requests. The list has the result of each, at its place."""
        async with self._watched():
            return await publishing.publish_batch(self._exchange, self._options, drafts)

    def background(
        self,
        *,
        messages_max: int = MESSAGES_MAX,
        bytes_max: int = BYTES_MAX,
        on_failed: OnFailed | None = None,
    ) -> AsyncBackground:
        """A publisher whose `publish` never waits: a task publishes what is in its queue.

        Beyond either limit new messages are refused. `on_failed` is called with each message that
        is not published and its error; without it, a warning is logged.
        """
        queue = AsyncBackground(self._exchange, self._options, messages_max, bytes_max, on_failed)
        self._queues.append(queue)
        return queue

    async def history(
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
        async with self._watched():
            return await requests.read_history(
                self._exchange, self._options, target, limit, before, after, since_time, order
            )

    async def set(
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
        async with self._watched():
            if if_match is not None or if_absent:
                return await requests.set_key(self._exchange, self._options, draft, if_match)
            published = await publishing.publish(self._exchange, self._options, draft)
        return published.id or ""

    async def remove(self, target: Target, key: str, *, if_match: MessageId | None = None) -> str:
        """Removes a key. Returns the id of its tombstone."""
        async with self._watched():
            return await requests.remove_key(self._exchange, self._options, target, key, if_match)

    async def edit(
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
        async with self._watched():
            return await requests.edit(self._exchange, self._options, id, draft)

    async def erase(self, target: Target, id: MessageId) -> Erased:
        """Erases a message. This needs the right `erase`."""
        async with self._watched():
            return await requests.erase(self._exchange, self._options, target, id)

    async def erase_history(self, target: Target) -> Erased:
        """Erases all messages that a channel keeps now."""
        async with self._watched():
            return await requests.erase(self._exchange, self._options, target, None)

    async def read(self, id: MessageId | None = None, *, channel: str | None = None) -> ReadMarker:
        """Moves the read marker of the client's `user` to a message of the inbox, or of a channel
        that has read markers: forward only, so that devices may report late. Without an id, it
        only asks."""
        async with self._watched():
            return await requests.mark(self._exchange, self._options, id, channel)

    async def create(
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
        async with self._watched():
            return await creations.create(self._exchange, self._options, channel, given, messages)

    async def creation(self, channel: str) -> Creation:
        """The creation of a channel; the error is `not_created` if nobody has created it."""
        async with self._watched():
            return await creations.read_creation(self._exchange, self._options, channel)

    async def end(
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
        async with self._watched():
            return await requests.end(self._exchange, self._options, draft)

    async def open(self, target: Target) -> None:
        """Opens a channel again that has ended."""
        async with self._watched():
            await requests.reopen(self._exchange, self._options, target)

    async def presence(
        self, target: Target, *, limit: int | None = None, after: str | None = None
    ) -> Members:
        """Who follows a channel."""
        async with self._watched():
            return await requests.read_presence(self._exchange, self._options, target, limit, after)

    @asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        timer = self._hub.began()
        try:
            yield
        finally:
            timer.cancel()

    async def aclose(self) -> None:
        """Ends all subscriptions and background publishers, and closes all connections."""
        for queue in self._queues:
            await queue.aclose()
        await self._hub.aclose()

    async def __aenter__(self) -> AsyncThrong:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
