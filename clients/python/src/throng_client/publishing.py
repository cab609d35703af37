"""Publishing: messages and batches, with retries.

Invariant: all attempts of a publication have the same idempotency key, so that a retry cannot
publish twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from .errors import Outcome, ThrongError
from .logs import warn_once
from .messages import (
    Draft,
    Published,
    body_of,
    checked_target,
    label_headers,
    line_of,
    path_of,
    random_key,
    seconds_of,
)
from .options import Options, backoff
from .requests import (
    Answer,
    Exchange,
    NoAnswer,
    Request,
    error_of,
    fields_of,
    is_own,
    is_temporary,
    not_throng,
    retry_after,
    send_with_token,
)

# The lines and bytes of a batch in one request: below the server's limits, and small enough that a
# retry repeats little.
BATCH_LINES_MAX = 1_000
BATCH_BYTES_MAX = 1 << 20
# Errors of a line after which the same message may be accepted.
RETRIED_CODES = {"busy", "too_many_requests", "full", "draining"}

T = TypeVar("T")


class _Attempts:
    """The attempts of a publication, within its time."""

    def __init__(self, exchange: Exchange, options: Options, *, is_only: bool = False) -> None:
        self._exchange = exchange
        self._is_only = is_only
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
        if timeout <= 0:
            # The pause before it took longer than asked.
            return None
        self._uncertain += 1
        self.error = None
        try:
            answer = await send_with_token(self._exchange, request, timeout)
        except NoAnswer as lost:
            if not lost.was_sent:
                self._uncertain -= 1
            self._failed(str(lost))
            return None
        except ThrongError as error:
            # There is no token, or the client is closed: nothing was sent.
            self._uncertain -= 1
            self.error = error
            if error.code in ("no_token", "closed"):
                raise
            self._failed(error.message)
            return None
        if answer.is_ok:
            try:
                result = read(answer)
            except ThrongError as error:
                # Not from Throng, so that it says nothing about what a server behind it did.
                self._failed(error.message)
                return None
            self._uncertain -= 1
            return result
        self._refused(answer)
        return None

    def _refused(self, answer: Answer) -> None:
        self.error = error = error_of(answer)
        # The error of a proxy says nothing about what the server behind it did, and may pass.
        if is_own(error):
            if error.code != "outcome_unknown":
                self._uncertain -= 1
            if not is_temporary(answer.status):
                raise error
            self._reason = error.message
        else:
            self._failed(error.message)
        named = retry_after(answer, self._options)
        self._delay = self._delay if named is None else named

    def _failed(self, reason: str) -> None:
        self._reason = reason
        if not self._is_only:
            warn_once(f"a publication is not accepted, and is tried again: {reason}")

    async def wait(self) -> bool:
        """Waits for the time of the next attempt. False if that is too late."""
        if self._exchange.now() + self._delay >= self._until:
            return False
        await self._exchange.sleep(self._delay)
        return True

    def lost(self) -> ThrongError:
        """The error of the only attempt, if it has no response."""
        return ThrongError("timeout", f"the server did not confirm the message: {self._reason}")

    def timeout(self) -> ThrongError:
        """The error when the time is over."""
        is_unknown = self.outcome == "unknown"
        end = "it is unknown whether it was published" if is_unknown else "it was not published"
        limit = f"{self._options.publish_timeout:g} s"
        message = f"the server did not confirm the message in {limit}; {end}: {self._reason}"
        return ThrongError("timeout", message, outcome=self.outcome)


async def publish_volatile(exchange: Exchange, options: Options, draft: Draft) -> Published:
    """Publishes a volatile message, with one attempt: nothing tells a second one from the first,
    and it would come too late."""
    if draft.key is not None or draft.expires_in is not None:
        raise ValueError("a volatile message has neither a `key` nor `expires_in`")
    _key_of(draft)
    attempts = _Attempts(exchange, options, is_only=True)
    try:
        checked_target(draft.target)
        body, content_type = body_of(draft.data, options.default)
        exchange.limits.check(len(body))
        headers: dict[str, Any] = {"Content-Type": draft.content_type or content_type}
        headers |= label_headers(draft)
        if draft.exclude is not None:
            headers["Throng-Exclude"] = draft.exclude
        path = path_of(draft.target, "publish", {"volatile": "true"})
        published = await attempts.send(Request("POST", path, headers, body), _read_volatile)
        if published is None:
            raise attempts.error or attempts.lost()
        return published
    except ThrongError as error:
        error.outcome = attempts.outcome
        raise


async def publish(exchange: Exchange, options: Options, draft: Draft) -> Published:
    """Publishes a message; returns once the server has it."""
    key = _key_of(draft)
    try:
        checked_target(draft.target)
        body, content_type = body_of(draft.data, options.default)
        exchange.limits.check(len(body))
    except ThrongError as error:
        error.outcome, error.key = "unpublished", key
        raise
    headers: dict[str, Any] = {"Content-Type": draft.content_type or content_type}
    headers["Idempotency-Key"] = key
    if draft.exclude is not None:
        headers["Throng-Exclude"] = draft.exclude
    if draft.expires_in is not None:
        headers["Throng-Expires-In"] = str(seconds_of(draft.expires_in))
    headers |= label_headers(draft)
    request = Request("POST", path_of(draft.target, "publish"), headers, body)
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


def _read_volatile(answer: Answer) -> Published:
    fields = fields_of(answer.body)
    if fields.get("volatile") is not True:
        raise not_throng()
    return Published(None, fields.get("subscribers", 0))


def _published(fields: dict[str, Any]) -> Published:
    if not isinstance(fields.get("id"), str):
        raise not_throng()
    is_duplicate = bool(fields.get("duplicate", False))
    return Published(fields["id"], fields.get("subscribers", 0), is_duplicate)


@dataclass(frozen=True, slots=True)
class Line:
    """A message of a batch, ready to be sent, or the error that it has before."""

    key: str
    text: bytes
    error: ThrongError | None = None


def line_from(draft: Draft, exchange: Exchange, options: Options) -> Line:
    """The line of a message. Raises for a value that is no JSON."""
    key = _key_of(draft)
    try:
        checked_target(draft.target)
        if isinstance(draft.data, str | bytes | bytearray | memoryview):
            exchange.limits.check(len(body_of(draft.data)[0]))
        text = line_of(draft, key, options.default)
        return Line(key, text)
    except ThrongError as error:
        error.outcome, error.key = "unpublished", key
        return Line(key, b"", error)


async def publish_batch(
    exchange: Exchange, options: Options, drafts: Iterable[Draft]
) -> list[Published | ThrongError]:
    """Publishes messages in order; the result of each is at its place."""
    lines = [line_from(draft, exchange, options) for draft in drafts]
    right = [line for line in lines if line.error is None]
    results = iter(await publish_lines(exchange, options, right))
    return [next(results) if line.error is None else line.error for line in lines]


async def publish_lines(
    exchange: Exchange, options: Options, lines: list[Line]
) -> list[Published | ThrongError]:
    """Publishes lines in order; the result of each is at its place."""
    results: list[Published | ThrongError] = []
    for part in _parts(lines):
        results += await _publish_part(exchange, options, part)
    return results


def _parts(lines: list[Line]) -> Iterator[list[Line]]:
    part: list[Line] = []
    size = 0
    for line in lines:
        if part and (len(part) == BATCH_LINES_MAX or size + len(line.text) > BATCH_BYTES_MAX):
            yield part
            part, size = [], 0
        part.append(line)
        size += len(line.text)
    if part:
        yield part


async def _publish_part(
    exchange: Exchange, options: Options, part: list[Line]
) -> list[Published | ThrongError]:
    attempts = _Attempts(exchange, options)
    results: dict[int, Published | ThrongError] = {}
    open_lines = list(range(len(part)))
    error: ThrongError | None = None
    while open_lines and error is None:
        body = b"".join(part[index].text for index in open_lines)
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
                key=part[index].key,
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
    part: list[Line],
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
        result.key = part[index].key
        if result.code in RETRIED_CODES:
            again.append(index)
    return again
