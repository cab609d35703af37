"""The transports SSE and long-poll. A link names all of its channels in one request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlencode

import httpx
import httpx_sse

from .cursor import Cursor, Event
from .errors import Loss, loss_of_close
from .link import Deadline, Host, Link
from .messages import MALFORMED, path_of, place_of
from .options import bounded
from .requests import (
    Answer,
    NoAnswer,
    Request,
    error_of,
    is_temporary,
    retry_after,
    send_with_token,
)

# Statuses after which the server would refuse the same request again, over any transport.
FINAL_STATUSES = {400, 401, 403}


class HttpLink(Link):
    """What SSE and long-poll have in common."""

    def url(self, query: Mapping[str, str], *, is_from_now: bool = False) -> str:
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
        if answer.is_ok:
            return
        error = error_of(answer)
        if answer.status == 401 and self.host.exchange.tokens.can_renew:
            if error.code != "token_revoked":
                raise Loss(error.message, is_answer=True)
        if answer.status in FINAL_STATUSES:
            raise error
        hint = retry_after(answer, self.host.options)
        raise Loss(error.message, hint=hint, is_unusable=not is_temporary(answer.status))

    async def settle(self) -> None:
        """Asks where the channels end now, to tell older messages from live ones."""
        cursors = self.host.cursors
        has_some = any(cursor.position for cursor in cursors.all)
        is_settled = all(cursor.is_settled for cursor in cursors.all)
        if is_settled or (not has_some and cursors.history == 0):
            return
        answer = await self.request("HEAD", self.url({"transport": "sse"}, is_from_now=True))
        heads = answer.headers.get("throng-id", "").split(",")
        if len(heads) != len(cursors.all):
            raise Loss("the answer is not one of a Throng server", is_unusable=True)
        for cursor, head in zip(cursors.all, heads, strict=True):
            cursor.settle(head)
            if has_some and not cursor.position:
                # A request names a position for all of its channels or for none.
                cursor.follow(head, recovered=None)

    async def resumed(self, headers: Mapping[str, str], *, is_resumed: bool) -> list[Event]:
        """Takes where each channel starts, and the gaps."""
        cursors = self.host.cursors.all
        starts = headers.get("throng-id", "").split(",")
        if len(starts) != len(cursors):
            raise Loss("the answer is not one of a Throng server", is_unusable=True)
        recovered: list[bool | None] = [None] * len(cursors)
        if is_resumed and headers.get("throng-recovered") == "false":
            recovered = [await self._is_whole(cursor) for cursor in cursors]
        events: list[Event] = []
        for cursor, start, is_whole in zip(cursors, starts, recovered, strict=True):
            events += cursor.follow(start, recovered=is_whole)
        return events

    async def _is_whole(self, cursor: Cursor) -> bool:
        """Whether this channel has no gap. A response covers all channels; a history covers one."""
        if len(self.host.cursors.all) == 1:
            return False
        query = urlencode({"after": cursor.position or "", "limit": "1"})
        path = f"{path_of(cursor.target)}/history?{query}"
        timeout = self.host.options.request_timeout
        try:
            answer = await send_with_token(self.host.exchange, Request("GET", path), timeout)
        except NoAnswer as lost:
            raise Loss(str(lost)) from lost
        return answer.is_ok and json.loads(answer.body).get("recovered") is not False

    def deliver(self, envelope: Mapping[str, Any]) -> list[Event]:
        """Takes a message, or a gap in its place."""
        cursor = self.host.cursors.of(envelope)
        if cursor is None:
            return []
        if envelope["type"] == "presence":
            return cursor.see(envelope)
        return cursor.gap(envelope) if envelope["type"] == "gap" else cursor.take(envelope)


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
        await self.settle()
        is_resumed = self.host.cursors.have_positions
        path = self.url({"transport": "sse", "welcome": "true"})
        late = Loss("the stream did not begin in time", is_unusable=True)
        try:
            # A stream begins with an event at once, unless a proxy buffers it.
            async with asyncio.timeout(self.host.options.open_timeout):
                response = await self._request(path)
                type = response.headers.get("content-type", "")
                if not type.startswith("text/event-stream"):
                    raise Loss("the answer is not an event stream", is_unusable=True)
                headers = dict(response.headers)
                self._events = httpx_sse.EventSource(response).aiter_sse()
                first = await self._next()
                if first.event == "resumed":
                    first = await self._next()
        except TimeoutError:
            raise late from None
        if first.event == "closed":
            raise self._closed(json.loads(first.data))
        self.connection = headers.get("throng-connection")
        events = await self.resumed(headers, is_resumed=is_resumed)
        self.is_open = True
        self.heard()
        return events

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
        except httpx.HTTPError as error:
            raise Loss(f"the server cannot be reached: {error!r}") from error
        if response.status_code == 401:
            tokens.refuse(self._token)
        self.check(Answer(response.status_code, dict(response.headers), body))
        raise Loss(f"the server answered {response.status_code}", is_unusable=True)

    async def _next(self) -> httpx_sse.ServerSentEvent:
        """The next event with data."""
        try:
            while True:
                event = await anext(self._events)
                if event.retry is not None:
                    self._retry = bounded(event.retry / 1_000)
                if event.data:
                    return event
        except StopAsyncIteration:
            raise Loss("the stream ended", hint=self._retry) from None
        except httpx.HTTPError as error:
            raise Loss(f"the stream broke: {error!r}", hint=self._retry) from error

    async def receive(self) -> list[Event]:
        self._deadline.allow(self.host.options.request_timeout / 2)
        try:
            async with self._deadline.over():
                event = await self._next()
        except TimeoutError:
            raise Loss("the server fell silent") from None
        fields = json.loads(event.data)
        if event.event == "closed":
            raise self._closed(fields)
        if event.event in ("message", "binary", "gap", "presence"):
            return self.deliver(fields)
        return []

    def _closed(self, fields: Mapping[str, Any]) -> Loss:
        code: int = fields["close_code"]
        message: str = fields["message"]
        tokens = self.host.exchange.tokens
        if code in (4002, 4003):
            tokens.refuse(self._token)
        has_token = self._token is not None
        return loss_of_close(
            code,
            message,
            hint=self._retry,
            is_open=True,
            can_renew=tokens.can_renew,
            has_token=has_token,
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
        await self.settle()
        # The first poll returns at once, which shows that the transport works.
        events = await self._poll(0)
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
        ends = answer.headers.get("throng-id", "").split(",")
        cursors = self.host.cursors.all
        if len(ends) != len(cursors):
            raise Loss("the answer is not one of a Throng server", is_unusable=True)
        events = await self.resumed(answer.headers, is_resumed=is_resumed)
        for line in filter(None, answer.body.splitlines()):
            try:
                events += self.deliver(json.loads(line))
            except MALFORMED:
                # What came before counts; the next poll begins after it.
                if not events:
                    raise
                return events
        for cursor, end in zip(cursors, ends, strict=True):
            cursor.position = end
        return events
