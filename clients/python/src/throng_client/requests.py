"""Requests and their answers, and reading history and presence.

The functions are `async`, but all that they wait for is an `Exchange`. The exchange of `Throng`
blocks instead, so that its functions never suspend and `run_blocking` finishes them in one step.
Tests pass one with a clock of their own.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from urllib.parse import urlencode

from .decoding import Fault, read_elements, read_object
from .errors import STATUSES, ThrongError
from .messages import (
    MALFORMED,
    NOTHING,
    Draft,
    Ended,
    Erased,
    History,
    Members,
    Message,
    MessageId,
    Target,
    Unreadable,
    User,
    body_of,
    checked_id,
    checked_key,
    checked_target,
    ended_of,
    erased_of,
    given_id,
    id_of,
    is_notice,
    label_headers,
    member_of,
    message_id_of,
    message_of,
    path_of,
    place_of,
    seconds_of,
    unreadable_of,
)
from .options import Options, bounded
from .read_markers import ReadMarker
from .tokens import Tokens

T = TypeVar("T")


@dataclass(slots=True)
class Request:
    """One HTTP request."""

    method: str
    path: str
    headers: dict[str, Any] = field(default_factory=dict)
    """A value is a `str`, or `bytes` if it is not ASCII."""
    body: bytes = b""


@dataclass(slots=True)
class Answer:
    """One complete response. Names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def is_ok(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300


class NoAnswer(Exception):
    """A request without a response. `was_sent` is False if nothing of it can have arrived."""

    def __init__(self, message: str, *, was_sent: bool, is_late: bool = False) -> None:
        super().__init__(message)
        self.was_sent = was_sent
        self.is_late = is_late


@dataclass(slots=True)
class ServerLimits:
    """Limits that the server has told one of the client's connections."""

    message_bytes_max: int | None = None

    def check(self, size: int) -> None:
        """Raises `too_large` for a message that the server would refuse."""
        limit = self.message_bytes_max
        if limit is not None and size > limit:
            message = f"the message has {size} bytes; the server takes {limit}"
            raise ThrongError("too_large", message)


class Exchange(Protocol):
    """The world of requests."""

    tokens: Tokens
    limits: ServerLimits

    async def send(self, request: Request, timeout: float) -> Answer:
        """Sends a request; raises `NoAnswer`."""

    async def load_token(self, old: str | None) -> str:
        """A newer token than `old`."""

    async def sleep(self, seconds: float) -> None:
        """Waits for a time."""

    def now(self) -> float:
        """The seconds of a clock that is never set."""


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """The result of work on an `Exchange` that blocks."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a blocking exchange does not suspend")


def error_of(answer: Answer) -> ThrongError:
    """The error that a response reports: the server's own, or `http_…` of something else."""
    try:
        fields = read_object(answer.body)
        code, message = fields["error"], fields["message"]
        is_own = isinstance(code, str) and isinstance(message, str) and len(fields) == 2
        if is_own and STATUSES.get(code) == answer.status:
            return ThrongError(code, message, status=answer.status)
    except (KeyError, ValueError):
        pass
    shown = " ".join(answer.body[:200].decode(errors="replace").split())[:80]
    message = f"a proxy or another server answered {answer.status}" + (
        f": {shown}" if shown else ""
    )
    return ThrongError(f"http_{answer.status}", message, status=answer.status)


def is_own(error: ThrongError) -> bool:
    """Whether a Throng server has said so, and not a proxy or another server."""
    return error.code in STATUSES


def fields_of(body: bytes) -> dict[str, Any]:
    """The fields of a JSON object that the server has sent."""
    try:
        return read_object(body)
    except ValueError:
        raise not_throng() from None


def not_throng() -> ThrongError:
    """The error for an answer that no Throng server gives."""
    return ThrongError("unreachable", "the answer is not one of a Throng server")


def is_temporary(status: int) -> bool:
    """Whether the same request may succeed later."""
    return status not in (501, 505) and (status in (408, 429) or status >= 500)


def retry_after(answer: Answer, options: Options) -> float | None:
    """The time to retry that a response names, spread over a second: many clients get the same."""
    text = answer.headers.get("retry-after", "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return None
    return bounded(int(text) + options.random())


async def send_with_token(exchange: Exchange, request: Request, timeout: float) -> Answer:
    """The response to a request. If the server refuses the token, that with a newer one."""
    tokens = exchange.tokens
    token = tokens.current if tokens.is_ready else await exchange.load_token(None)
    answer = await _send(exchange, request, token, timeout)
    if answer.status != 401:
        return answer
    tokens.refuse(token)
    if not tokens.can_renew or error_of(answer).code == "token_revoked":
        return answer
    newer = await exchange.load_token(token)
    return answer if newer == token else await _send(exchange, request, newer, timeout)


async def _send(exchange: Exchange, request: Request, token: str | None, timeout: float) -> Answer:
    headers = dict(request.headers)
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return await exchange.send(
        Request(request.method, request.path, headers, request.body), timeout
    )


async def _read(
    exchange: Exchange, options: Options, target: Target, what: str, query: dict[str, Any]
) -> dict[str, Any]:
    path = path_of(checked_target(target, is_read=True), what, query)
    return await ask(exchange, options, Request("GET", path))


async def ask(exchange: Exchange, options: Options, request: Request) -> dict[str, Any]:
    try:
        answer = await send_with_token(exchange, request, options.request_timeout)
    except NoAnswer as lost:
        raise ThrongError("timeout" if lost.is_late else "unreachable", str(lost)) from lost
    if not answer.is_ok:
        raise error_of(answer)
    return fields_of(answer.body)


async def read_history(
    exchange: Exchange,
    options: Options,
    target: Target,
    limit: int | None,
    before: str | None,
    after: str | None,
    since_time: int | None = None,
    order: str | None = None,
) -> History:
    """A page of the history of a channel."""
    query = {"limit": limit, "before": before, "after": after}
    query |= {"since_time": since_time, "order": order}
    fields = await _read(exchange, options, target, "history", query)
    messages: list[Message] = []
    unreadable: list[Unreadable] = []
    try:
        envelopes = fields["messages"]
        if isinstance(envelopes, Fault):
            envelopes = read_elements(envelopes.text)
        for envelope in envelopes:
            if is_notice(envelope):
                continue
            try:
                messages.append(message_of(envelope, replayed=True))
            except MALFORMED as error:
                unreadable.append(unreadable_of(envelope, error))
        more, recovered = fields["more"], fields.get("recovered")
        return History(id_of(fields), messages, more, recovered, unreadable)
    except MALFORMED as error:
        raise not_throng() from error


async def erase(
    exchange: Exchange, options: Options, target: Target, id: MessageId | None
) -> Erased:
    """Erases a message of a channel, or all if `id` is None."""
    checked = checked_target(target, is_read=True)
    if id is None:
        path = path_of(checked, "history")
    else:
        path = "/messages?" + urlencode({**place_of(checked), "id": given_id(id)})
    fields = await ask(exchange, options, Request("DELETE", path))
    if not is_notice(fields):
        raise not_throng()
    try:
        return erased_of(checked, fields)
    except MALFORMED as error:
        raise not_throng() from error


async def edit(exchange: Exchange, options: Options, id: MessageId, draft: Draft) -> str:
    """Publishes a message in the place of one, which is erased. Returns the id of the new one."""
    body, content_type = body_of(draft.data, options.default)
    exchange.limits.check(len(body))
    headers: dict[str, Any] = {"Content-Type": draft.content_type or content_type}
    headers |= label_headers(draft)
    target = place_of(checked_target(draft.target))
    path = "/messages?" + urlencode({**target, "id": given_id(id)})
    fields = await ask(exchange, options, Request("PUT", path, headers, body))
    try:
        return message_id_of(fields)
    except MALFORMED as error:
        raise not_throng() from error


async def mark(
    exchange: Exchange, options: Options, id: MessageId | None, channel: str | None
) -> ReadMarker:
    """Moves the read marker of the client's user in the inbox or a channel to a message, or asks
    for it if `id` is None."""
    if options.user is None:
        raise ValueError("whose marker is it? Give the client the option `user`")
    query: dict[str, object] = {"id": None if id is None else given_id(id)}
    target: Target = User(options.user)
    if channel is not None:
        target, query["reader"] = channel, options.user
    path = path_of(target, "read", query)
    fields = await ask(exchange, options, Request("GET" if id is None else "PUT", path))
    try:
        read, unread = fields.get("read"), fields["unread"]
        return ReadMarker(None if read is None else checked_id(read), int(unread))
    except MALFORMED as error:
        raise not_throng() from error


async def end(exchange: Exchange, options: Options, draft: Draft) -> Ended:
    """Ends the channel of a message, which is its last one unless it has no data."""
    target = checked_target(draft.target)
    headers: dict[str, Any] = {}
    body = b""
    if draft.data is not NOTHING:
        body, content_type = body_of(draft.data, options.default)
        exchange.limits.check(len(body))
        headers = {"Content-Type": draft.content_type or content_type, **label_headers(draft)}
    fields = await ask(exchange, options, Request("POST", path_of(target, "end"), headers, body))
    try:
        return ended_of(target, fields)
    except MALFORMED as error:
        raise not_throng() from error


async def reopen(exchange: Exchange, options: Options, target: Target) -> None:
    """Opens a channel again that has ended."""
    await ask(exchange, options, Request("DELETE", path_of(checked_target(target), "end")))


async def set_key(
    exchange: Exchange, options: Options, draft: Draft, if_match: MessageId | None
) -> str:
    """Sets the key of the draft if its value is that of the message `if_match`; if that is None, if
    it has none. Returns the id of the message."""
    body, content_type = body_of(draft.data, options.default)
    exchange.limits.check(len(body))
    headers: dict[str, Any] = {"Content-Type": draft.content_type or content_type}
    headers |= label_headers(draft)
    if draft.expires_in is not None:
        headers["Throng-Expires-In"] = str(seconds_of(draft.expires_in))
    key = headers.pop("Throng-State-Key").decode()
    headers |= _condition(if_match)
    return await _changed(exchange, options, "PUT", draft.target, key, headers, body)


async def remove_key(
    exchange: Exchange, options: Options, target: Target, key: str, if_match: MessageId | None
) -> str:
    """Removes a key. Returns the id of its tombstone."""
    headers = {} if if_match is None else _condition(if_match)
    return await _changed(exchange, options, "DELETE", target, checked_key(key), headers, b"")


def _condition(if_match: MessageId | None) -> dict[str, str]:
    if if_match is None:
        return {"If-None-Match": "*"}
    return {"If-Match": f'"{given_id(if_match)}"'}


async def _changed(
    exchange: Exchange,
    options: Options,
    method: str,
    target: Target,
    key: str,
    headers: dict[str, Any],
    body: bytes,
) -> str:
    place = place_of(checked_target(target))
    path = "/state?" + urlencode({**place, "key": key})
    fields = await ask(exchange, options, Request(method, path, headers, body))
    try:
        return message_id_of(fields)
    except MALFORMED as error:
        raise not_throng() from error


async def read_presence(
    exchange: Exchange, options: Options, target: Target, limit: int | None, after: str | None
) -> Members:
    """Who follows a channel."""
    parameters = {"limit": limit, "after": after}
    fields = await _read(exchange, options, target, "presence", parameters)
    try:
        members = [member_of(each) for each in fields.get("members", [])]
        here = (fields["connections"], fields["users"], fields["more"])
        is_partial = bool(fields.get("partial"))
        return Members(*here, members, fields.get("next"), partial=is_partial)
    except MALFORMED as error:
        raise not_throng() from error
