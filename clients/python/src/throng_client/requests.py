"""Requests: publishing with retries, batches, history and presence.

The functions are `async`, but all that they wait for is an `Exchange`. That of `Throng` blocks
instead, so that its functions never suspend and `run_blocking` finishes them in one step. Tests
pass one with a clock of their own.

Invariant: all attempts of a publication have the same idempotency key, so that a retry cannot
publish twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar
from urllib.parse import urlencode

from .errors import Outcome, ThrongError
from .messages import (
    MALFORMED,
    Draft,
    History,
    Presence,
    Published,
    Target,
    body_of,
    line_of,
    message_of,
    path_of,
    random_key,
)
from .options import Options, backoff, bounded
from .tokens import Tokens

# The lines and bytes of a batch in one request: below the server's limits, and small enough that a
# retry repeats little.
BATCH_LINES_MAX = 1_000
BATCH_BYTES_MAX = 1 << 20
# Errors of a line after which the same message may be accepted.
RETRIED_CODES = {"busy", "too_many_requests", "full", "draining"}

T = TypeVar("T")


@dataclass(slots=True)
class Request:
    """One HTTP request."""

    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
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


class Exchange(Protocol):
    """What requests need from the world."""

    tokens: Tokens

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
    """The error that a response reports."""
    try:
        body = json.loads(answer.body)
        code, message = str(body["error"]), str(body["message"])
    except (ValueError, KeyError, TypeError):
        code, message = f"http_{answer.status}", f"the server answered {answer.status}"
    return ThrongError(code, message, status=answer.status)


def fields_of(body: bytes) -> dict[str, Any]:
    """The fields of a JSON object that the server has sent."""
    try:
        fields = json.loads(body)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise not_throng()
    return fields


def not_throng() -> ThrongError:
    """The error for an answer that no Throng server gives."""
    return ThrongError("unreachable", "the answer is not one of a Throng server")


def is_temporary(status: int) -> bool:
    """Whether the same request may succeed later."""
    return status not in (501, 505) and (status in (408, 429) or status >= 500)


def retry_after(answer: Answer, options: Options) -> float | None:
    """The time to retry that a response names, spread over a second: many clients get the same."""
    text = answer.headers.get("retry-after", "")
    if not (text.isascii() and text.isdigit()):
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


class _Attempts:
    """The attempts of a publication, within its time."""

    def __init__(self, exchange: Exchange, options: Options) -> None:
        self._exchange = exchange
        self._options = options
        self._until = exchange.now() + options.publish_timeout
        self._count = 0
        self._uncertain = 0
        self._reason = "there was no response"
        self.error: ThrongError | None = None
        """The last refusal."""

    @property
    def outcome(self) -> Outcome:
        """`unknown` if an attempt has no response: the message may be published now or later."""
        return "unknown" if self._uncertain else "unpublished"

    async def send(self, request: Request, read: Callable[[Answer], T]) -> T | None:
        """One attempt: what `read` makes of the response. None if the message is to be sent again,
        after `wait`."""
        timeout = min(self._options.request_timeout, self._until - self._exchange.now())
        self._delay = backoff(self._count, self._options.random)
        self._count += 1
        self._uncertain += 1
        self.error = None
        try:
            answer = await send_with_token(self._exchange, request, timeout)
        except NoAnswer as lost:
            self._reason = str(lost)
            if not lost.was_sent:
                self._uncertain -= 1
            return None
        except ThrongError as error:
            # There is no token, or the client is closed: nothing was sent.
            self._uncertain -= 1
            self.error = error
            self._reason = error.message
            if error.code in ("no_token", "closed"):
                raise
            return None
        if answer.is_ok:
            try:
                result = read(answer)
            except ThrongError as error:
                # Not from Throng, so that it says nothing about what a server behind it did.
                self._reason = error.message
                return None
            self._uncertain -= 1
            return result
        self.error = error_of(answer)
        self._reason = self.error.message
        # The error of a proxy says nothing about what the server behind it did.
        if not self.error.code.startswith("http_"):
            self._uncertain -= 1
        if not is_temporary(answer.status):
            raise self.error
        named = retry_after(answer, self._options)
        self._delay = self._delay if named is None else named
        return None

    async def wait(self) -> bool:
        """Waits for the time of the next attempt. False if that is too late."""
        if self._exchange.now() + self._delay >= self._until:
            return False
        await self._exchange.sleep(self._delay)
        return True

    def timeout(self) -> ThrongError:
        """The error when the time is over."""
        is_unknown = self.outcome == "unknown"
        end = "it is unknown whether it was published" if is_unknown else "it was not published"
        limit = f"{self._options.publish_timeout:g} s"
        message = f"the server did not confirm the message in {limit}; {end}: {self._reason}"
        return ThrongError("timeout", message, outcome=self.outcome)


async def publish(exchange: Exchange, options: Options, draft: Draft) -> Published:
    """Publishes a message; returns once the server has it."""
    body, content_type = body_of(draft.data)
    key = _key_of(draft)
    headers = {"Content-Type": draft.content_type or content_type, "Idempotency-Key": key}
    if draft.exclude is not None:
        headers["Throng-Exclude"] = draft.exclude
    request = Request("POST", path_of(draft.target), headers, body)
    attempts = _Attempts(exchange, options)
    try:
        while True:
            published = await attempts.send(request, _read_published)
            if published is not None:
                return published
            if not await attempts.wait():
                raise attempts.timeout()
    except ThrongError as error:
        error.outcome, error.key = attempts.outcome, key
        raise


def _key_of(draft: Draft) -> str:
    """The idempotency key. Refuses what no header may have: it could never be sent."""
    fields = {"key": draft.key, "content_type": draft.content_type, "exclude": draft.exclude}
    for name, value in fields.items():
        if value is not None and not (value.isascii() and value.isprintable()):
            raise ValueError(f"the {name} {value!r} is not printable ASCII")
    return draft.key if draft.key is not None else random_key()


def _read_published(answer: Answer) -> Published:
    return _published(fields_of(answer.body))


def _published(fields: dict[str, Any]) -> Published:
    if not isinstance(fields.get("id"), str):
        raise not_throng()
    is_duplicate = bool(fields.get("duplicate", False))
    return Published(fields["id"], fields.get("subscribers", 0), is_duplicate)


async def publish_batch(
    exchange: Exchange, options: Options, drafts: Iterable[Draft]
) -> list[Published | ThrongError]:
    """Publishes messages in order; the result of each is at its place."""
    lines = []
    for draft in drafts:
        key = _key_of(draft)
        lines.append((key, line_of(draft, key)))
    results: list[Published | ThrongError] = []
    for part in _parts(lines):
        results += await _publish_part(exchange, options, part)
    return results


def _parts(lines: list[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    part: list[tuple[str, bytes]] = []
    size = 0
    for key, line in lines:
        if part and (len(part) == BATCH_LINES_MAX or size + len(line) > BATCH_BYTES_MAX):
            yield part
            part, size = [], 0
        part.append((key, line))
        size += len(line)
    if part:
        yield part


async def _publish_part(
    exchange: Exchange, options: Options, part: list[tuple[str, bytes]]
) -> list[Published | ThrongError]:
    attempts = _Attempts(exchange, options)
    results: dict[int, Published | ThrongError] = {}
    open_lines = list(range(len(part)))
    error: ThrongError | None = None
    while open_lines and error is None:
        body = b"".join(part[index][1] for index in open_lines)
        request = Request("POST", "/publish", {"Content-Type": "application/x-ndjson"}, body)
        try:
            lines = await attempts.send(request, partial(_read_lines, count=len(open_lines)))
        except ThrongError as refused:
            error = refused
            break
        if lines is not None:
            open_lines = _settle(part, open_lines, lines, results)
        if open_lines and not await attempts.wait():
            error = attempts.timeout()
    for index in open_lines:
        # Each has an error of its own, with its key.
        earlier = results.get(index)
        if error is not None and (earlier is None or attempts.outcome == "unknown"):
            results[index] = ThrongError(
                error.code,
                error.message,
                status=error.status,
                outcome=attempts.outcome,
                key=part[index][0],
            )
    return [results[index] for index in range(len(part))]


def _read_lines(answer: Answer, count: int) -> list[Published | ThrongError]:
    """The result of each of so many lines that were sent."""
    lines = answer.body.splitlines()
    if len(lines) != count:
        raise not_throng()
    results: list[Published | ThrongError] = []
    for fields in map(fields_of, lines):
        if "error" in fields:
            code, message = str(fields["error"]), str(fields.get("message"))
            results.append(ThrongError(code, message, outcome="unpublished"))
        else:
            results.append(_published(fields))
    return results


def _settle(
    part: list[tuple[str, bytes]],
    open_lines: list[int],
    lines: list[Published | ThrongError],
    results: dict[int, Published | ThrongError],
) -> list[int]:
    """Takes the results of a response; returns the lines to send again."""
    again = []
    for index, result in zip(open_lines, lines, strict=True):
        results[index] = result
        if not isinstance(result, ThrongError):
            continue
        result.key = part[index][0]
        if result.code in RETRIED_CODES:
            again.append(index)
    return again


async def _read(
    exchange: Exchange, options: Options, target: Target, what: str, query: dict[str, Any]
) -> dict[str, Any]:
    named = {name: str(value) for name, value in query.items() if value is not None}
    path = f"{path_of(target)}/{what}" + (f"?{urlencode(named)}" if named else "")
    try:
        answer = await send_with_token(exchange, Request("GET", path), options.request_timeout)
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
) -> History:
    """A page of the history of a channel."""
    query = {"limit": limit, "before": before, "after": after}
    fields = await _read(exchange, options, target, "history", query)
    try:
        messages = [message_of(envelope, replayed=True) for envelope in fields["messages"]]
        return History(fields["id"], messages, fields["more"], fields.get("recovered"))
    except MALFORMED as error:
        raise not_throng() from error


async def read_presence(
    exchange: Exchange, options: Options, target: Target, limit: int | None
) -> Presence:
    """Who follows a channel."""
    fields = await _read(exchange, options, target, "presence", {"limit": limit})
    try:
        return Presence(fields["connections"], fields["users"], fields["more"])
    except MALFORMED as error:
        raise not_throng() from error
