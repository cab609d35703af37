"""The transports SSE and long-poll. A link names all of its channels in one request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlencode

import httpx
import httpx_sse

from .cursor import Cursor, Event, Handled, Mark
from .decoding import read_object
from .errors import Loss, NotThrong, is_stale_token, loss_of_close
from .link import Deadline, Host, Link, loss_of_refusal
from .messages import (
    MALFORMED,
    checked_id,
    id_of,
    is_up_to,
    message_id_of,
    path_of,
    place_of,
)
from .options import bounded, parameters_of
from .requests import Answer, NoAnswer, Request, retry_after, send_with_token

# The server's limit of messages on a page.
PAGE_MAX = 1_000
# The events of a stream that tell something of a channel.
EVENTS = {"message", "binary", "erased", "gap", "conflated", "presence", "ended", "unread"}


class HttpLink(Link):
    """What SSE and long-poll have in common."""

    def url(self, query: Mapping[str, Any], *, is_from_now: bool = False) -> str:
        """The path that follows all channels from their positions."""
        parameters: list[tuple[str, str]] = list(query.items())
        for cursor in self.host.cursors.all:
            parameters += place_of(cursor.target).items()
        parameters.append(("envelope", "true"))
        if self.host.cursors.has_presence and not is_from_now:
            parameters.append(("presence", self.presence()))
        if is_from_now:
            pass
        elif self.host.cursors.have_positions:
            positions = [cursor.position or "" for cursor in self.host.cursors.all]
            parameters.append(("since", ",".join(positions)))
        elif self.host.cursors.history > 0:
            parameters.append(("history", str(self.host.cursors.history)))
        return f"/subscribe?{urlencode(parameters)}"

    def presence(self) -> str:
        """Which presence events to ask for: those of all channels."""
        return "true"

    async def request(self, method: str, path: str) -> Answer:
        """The complete response to a short request that must succeed."""
        try:
            timeout = self.host.options.request_timeout
            answer = await send_with_token(self.host.exchange, Request(method, path), timeout)
        except NoAnswer as lost:
            raise Loss(str(lost)) from lost
        self.check(answer)
        return answer

    def check(self, answer: Answer) -> None:
        """Raises what an error response means."""
        if not answer.is_ok:
            raise loss_of_refusal(answer, self.host)

    def ids(self, headers: Mapping[str, str]) -> list[str]:
        """The id for each channel in the head of a response."""
        ids = headers.get("throng-id", "").split(",")
        if len(ids) != len(self.host.cursors.all):
            raise NotThrong
        try:
            return [checked_id(id) for id in ids]
        except TypeError as error:
            raise NotThrong from error

    async def states(self) -> list[Event]:
        """The states of channels that begin with theirs, which are followed from there."""
        events: list[Event] = []
        for cursor in self.host.cursors.all:
            if cursor.wants_state and not cursor.position:
                events += await self._state_of(cursor)
        return events

    async def _state_of(self, cursor: Cursor) -> list[Event]:
        id, after = None, None
        messages: list[dict[str, Any]] = []
        while id is None or after is not None:
            path = path_of(cursor.target, "state", {"limit": PAGE_MAX, "after": after})
            answer = await self.request("GET", path)
            try:
                page = read_object(answer.body)
                id = id or id_of(page)
                # What is newer comes to those who follow the channel from there.
                messages += [it for it in page["messages"] if is_up_to(message_id_of(it), id)]
                after = page.get("next")
            except MALFORMED as error:
                raise NotThrong from error
        messages.sort(key=lambda it: int(it["id"].rpartition("-")[2]))
        events = cursor.follow(id, head=id, recovered=None)
        for message in messages:
            events += cursor.take(message)
        return events + cursor.end_state(id)

    async def settle(self) -> None:
        """Asks where the channels end now, to tell older messages from live ones."""
        cursors = self.host.cursors
        has_some = any(cursor.position for cursor in cursors.all)
        is_settled = all(cursor.is_settled for cursor in cursors.all)
        if is_settled or (not has_some and cursors.history == 0):
            return
        answer = await self._heads()
        for cursor, head in zip(cursors.all, self.ids(answer.headers), strict=True):
            cursor.settle(head)
            if has_some and not cursor.position:
                # A request names a position for all of its channels or for none.
                cursor.follow(head, recovered=None)

    async def _heads(self) -> Answer:
        path = self.url({"transport": "sse"}, is_from_now=True)
        request = Request("HEAD", path)
        try:
            answer = await send_with_token(
                self.host.exchange, request, self.host.options.request_timeout
            )
        except NoAnswer as lost:
            raise Loss(str(lost)) from lost
        if answer.is_ok:
            return answer
        # The response to a HEAD has no body, which would say who refuses.
        path = self.url({"transport": "poll", "wait": "0"}, is_from_now=True)
        return await self.request("GET", path)

    async def resumed(self, headers: Mapping[str, str], *, is_resumed: bool) -> list[Event]:
        """Takes where each channel starts, and the gaps."""
        cursors = self.host.cursors.all
        starts = self.ids(headers)
        recovered: list[bool | None] = [None] * len(cursors)
        if is_resumed and headers.get("throng-recovered") == "false":
            recovered = [await self._is_whole(cursor) for cursor in cursors]
        events: list[Event] = []
        for cursor, start, is_whole in zip(cursors, starts, recovered, strict=True):
            events += cursor.follow(start, recovered=is_whole)
            if not cursor.position:
                # The next connection begins with its state, and tells of the gap.
                raise Loss("a state begins again", hint=0.0)
        return events

    async def _is_whole(self, cursor: Cursor) -> bool:
        """Whether this channel has no gap. A response covers all channels; a history covers one."""
        if len(self.host.cursors.all) == 1:
            return False
        path = path_of(cursor.target, "history", {"after": cursor.position or "", "limit": 1})
        timeout = self.host.options.request_timeout
        try:
            answer = await send_with_token(self.host.exchange, Request("GET", path), timeout)
        except NoAnswer as lost:
            raise Loss(str(lost)) from lost
        try:
            return answer.is_ok and read_object(answer.body).get("recovered") is not False
        except ValueError as error:
            raise NotThrong from error

    def ends(self, headers: Mapping[str, str]) -> list[Event]:
        """Takes that all channels of a response have ended, if it says so."""
        if headers.get("throng-ended") != "true":
            return []
        cursors = self.host.cursors
        pairs = zip(cursors.all, self.ids(headers), strict=True)
        return [event for cursor, id in pairs for event in cursors.end(cursor, id)]

    def deliver(self, envelope: Mapping[str, Any]) -> list[Event]:
        """Takes a message, or a gap in its place. What has another type is from a newer server."""
        cursor, type = self.host.cursors.of(envelope), envelope["type"]
        if type == "unread":
            return self.host.cursors.unread(envelope)
        if cursor is None:
            return []
        if type == "presence":
            return cursor.see(envelope)
        if type == "gap":
            return cursor.gap(envelope)
        if type == "conflated":
            return cursor.skip(envelope.get("count"))
        if type == "ended":
            return self.host.cursors.end(cursor, id_of(envelope))
        return cursor.take(envelope) if type in ("message", "erased") else []


class Watched(httpx.AsyncByteStream):
    """A body that reports each chunk, also those without a complete event."""

    def __init__(self, stream: httpx.AsyncByteStream, link: StreamLink) -> None:
        self._stream = stream
        self._link = link

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._link.heard()
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class StreamLink(HttpLink):
    """Server-sent events."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._stack = AsyncExitStack()
        self._deadline = Deadline()
        self._heard_at = 0.0
        self._retry: float | None = None
        self._token: str | None = None

    def heard(self) -> None:
        """Data has arrived."""
        self._heard_at = asyncio.get_running_loop().time()
        options = self.host.options
        if self.is_open:
            patience = options.heartbeat + options.request_timeout / 2
            self._deadline.set(self._heard_at + patience if options.heartbeat else None)

    def suspect(self, since: float, until: float) -> None:
        if self._heard_at < since:
            self._deadline.hasten(until)

    async def open(self) -> list[Event]:
        states = await self.states()
        await self.settle()
        is_resumed = self.host.cursors.have_positions
        asked = parameters_of(self.host.options)
        if self.host.pace_ms is not None:
            asked["pace"] = f"{self.host.pace_ms}ms"
        path = self.url({**asked, "transport": "sse", "welcome": "true"})
        late = Loss("the stream did not begin in time", is_unusable=True)
        try:
            # A stream begins with an event at once, unless a proxy buffers it.
            async with asyncio.timeout(self.host.open_timeout):
                response = await self._request(path)
                headers = dict(response.headers)
                if response.status_code == 204 and "throng-ended" in headers:
                    events = await self.resumed(headers, is_resumed=is_resumed)
                    self.is_open = True
                    return states + events + self.ends(headers)
                type = response.headers.get("content-type", "")
                if not type.startswith("text/event-stream"):
                    raise Loss("the answer is not an event stream", is_unusable=True)
                self._events = httpx_sse.EventSource(response).aiter_sse()
                first = await self._next()
                if first.event == "resumed":
                    first = await self._next()
        except TimeoutError:
            raise late from None
        if first.event == "closed":
            raise self._closed(first.data)
        told: list[Event] = []
        if first.event == "welcome":
            try:
                told = self.host.cursors.unread(read_object(first.data))
            except MALFORMED as error:
                raise NotThrong from error
        self.connection = headers.get("throng-connection")
        events = await self.resumed(headers, is_resumed=is_resumed)
        self.is_open = True
        self.heard()
        return states + told + events

    async def _request(self, path: str) -> httpx.Response:
        exchange = self.host.exchange
        tokens = exchange.tokens
        self._token = tokens.current
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            stream = exchange.http.stream(
                "GET", self.host.url + path, headers=headers, timeout=None
            )
            response = await self._stack.enter_async_context(stream)
            if response.is_success:
                assert isinstance(response.stream, httpx.AsyncByteStream)
                response.stream = Watched(response.stream, self)
                return response
            body = await response.aread()
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise Loss(f"the server cannot be reached: {error!r}") from error
        if response.status_code == 401:
            tokens.refuse(self._token)
        answer = Answer(response.status_code, dict(response.headers), body)
        raise loss_of_refusal(answer, self.host)

    async def _next(self) -> httpx_sse.ServerSentEvent:
        """The next event with data."""
        try:
            while True:
                event = await anext(self._events)
                if event.retry is not None:
                    self._retry = bounded(min(event.retry, 10**9) / 1_000)
                if event.data:
                    return event
        except StopAsyncIteration:
            raise Loss("the stream ended", hint=self._retry) from None
        except (httpx.HTTPError, httpx.StreamError, httpx_sse.SSEError) as error:
            raise Loss(f"the stream broke: {error!r}", hint=self._retry) from error

    async def receive(self) -> list[Event]:
        self._deadline.allow(self.host.options.request_timeout / 2)
        try:
            async with self._deadline.over():
                event = await self._next()
        except TimeoutError:
            raise Loss("the server fell silent") from None
        if event.event == "closed":
            raise self._closed(event.data)
        if event.event not in EVENTS:
            return []
        try:
            return self.deliver(read_object(event.data))
        except MALFORMED as error:
            raise NotThrong from error

    def _closed(self, data: str) -> Loss:
        try:
            fields = read_object(data)
            code, message = int(fields["close_code"]), str(fields["message"])
        except MALFORMED as error:
            raise NotThrong from error
        tokens = self.host.exchange.tokens
        if is_stale_token(code):
            tokens.refuse(self._token)
        return loss_of_close(
            code,
            message,
            is_ours=True,
            hint=self._retry,
            can_renew=tokens.can_renew,
            has_token=self._token is not None,
        )

    async def close(self) -> None:
        await self._stack.aclose()


class PollLink(HttpLink):
    """Long-poll: one request after another; each returns as soon as there is a message."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._deadline = Deadline()
        self._request: asyncio.Future[Answer] | None = None
        self._is_closed = False
        self._hint: float | None = None
        """The time to retry of a server that shuts down, which is in its last response."""

    def suspect(self, since: float, until: float) -> None:
        if self.is_open:
            self._deadline.hasten(until)

    def presence(self) -> str:
        """Those after the last one, for the server answers at once without its time."""
        channels = [each for each in self.host.cursors.all if each.may_have_presence]
        return ",".join(str(each.seen_at or "true") for each in channels)

    async def open(self) -> list[Event]:
        states = await self.states()
        await self.settle()
        # The first poll returns at once, which shows that the transport works.
        events = states + await self._poll(0)
        self.is_open = True
        return events

    async def close(self) -> None:
        self._is_closed = True
        if self._request is not None:
            self._request.cancel()

    async def receive(self) -> list[Event]:
        if self._hint is not None:
            raise Loss("the server is shutting down", hint=self._hint)
        return await self._poll(self.host.options.poll_wait)

    async def _poll(self, wait: float) -> list[Event]:
        options = self.host.options
        is_resumed = self.host.cursors.have_positions
        path = self.url({"transport": "poll", "wait": f"{wait:g}"})
        patience = wait + (options.request_timeout / 2 if wait else options.request_timeout)
        self._deadline.set(asyncio.get_running_loop().time() + patience)
        try:
            async with self._deadline.over():
                work = send_with_token(self.host.exchange, Request("GET", path), patience)
                self._request = asyncio.ensure_future(work)
                answer = await self._request
        except asyncio.CancelledError:
            if self._is_closed:
                raise Loss("the subscription is closed") from None
            raise
        except (TimeoutError, NoAnswer) as lost:
            is_late = isinstance(lost, TimeoutError) or lost.is_late
            reason = "the poll was not answered in time" if is_late else str(lost)
            raise Loss(reason) from lost
        self.check(answer)
        events = await self._taken(answer, is_resumed=is_resumed)
        self._hint = retry_after(answer, options)
        return events

    async def _taken(self, answer: Answer, *, is_resumed: bool) -> list[Event]:
        cursors = self.host.cursors.all
        ends = self.ids(answer.headers)
        marks = [cursor.mark for cursor in cursors]
        events = await self.resumed(answer.headers, is_resumed=is_resumed)
        for line in filter(None, answer.body.split(b"\n")):
            try:
                events += self.deliver(read_object(line))
            except MALFORMED as error:
                kept = self._kept(events, marks, is_resumed=is_resumed)
                if not kept:
                    raise NotThrong from error
                # The next poll begins after them.
                return kept
        for cursor, end in zip(cursors, ends, strict=True):
            cursor.position = end
        return events + self.ends(answer.headers)

    def _kept(self, events: list[Event], marks: list[Mark], *, is_resumed: bool) -> list[Event]:
        """The usable part of an answer with a line that cannot be passed over: messages before it,
        if the next poll can begin after them. No position may be beyond that line."""
        cursors = self.host.cursors.all
        pairs = list(zip(cursors, marks, strict=True))
        kept = {each.target for each, mark in pairs if is_resumed and each.has_taken_since(mark)}
        for cursor, mark in pairs:
            if cursor.target not in kept:
                cursor.go_back(mark)
        return [it for it in events if not isinstance(it, Handled) and it.target in kept]
