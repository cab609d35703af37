"""Publishing in the background: a bounded queue, so that a web request never waits for the server.

Invariants:
- `publish` does not block, and never holds more than the queue's limits. What does not fit is
  refused at once: the newest message, so that the order of the others stays.
- Of each message that is not published, the application is told once, and it is counted.
"""

from __future__ import annotations

import abc
import asyncio
import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from .errors import ThrongError, closed
from .logs import log, warn_once
from .messages import Draft, Published, Tag, Target
from .options import Options
from .publishing import BATCH_BYTES_MAX, BATCH_LINES_MAX, Line, line_from, publish_lines
from .requests import Exchange, run_blocking

# Unless the application says: half a minute of 300 messages a second.
MESSAGES_MAX = 10_000
BYTES_MAX = 16 << 20
# How long the end of a program waits for what is in the queue, in seconds.
CLOSE_TIMEOUT = 5.0

OnFailed = Callable[[Draft, ThrongError], None]


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of the messages of a queue, by their outcome."""

    waiting: int = 0
    """In the queue, or under way."""
    published: int = 0
    failed: int = 0
    """Refused by the server, or not confirmed in time."""
    dropped: int = 0
    """Not taken, because the queue was full, or left in it at its end."""


class Queue(abc.ABC):
    """The base of both kinds of background publishers."""

    def __init__(
        self,
        exchange: Exchange,
        options: Options,
        messages_max: int,
        bytes_max: int,
        on_failed: OnFailed | None,
    ) -> None:
        if messages_max < 1 or bytes_max < 1:
            raise ValueError("a queue has room for at least one message and one byte")
        if on_failed is not None and not callable(on_failed):
            raise TypeError(f"on_failed must be a function, not {on_failed!r}")
        self._exchange = exchange
        self._options = options
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._on_failed = on_failed
        self._lock = threading.Lock()
        self._lines: deque[tuple[Draft, Line]] = deque()
        self._bytes = 0
        self._counts = Counts()
        self._is_closed = False

    @property
    def counts(self) -> Counts:
        """The outcomes of the messages until now."""
        with self._lock:
            return self._counts

    def publish(
        self,
        target: Target,
        data: Any,
        *,
        key: str | None = None,
        content_type: str | None = None,
        exclude: str | None = None,
        expires_in: float | timedelta | None = None,
        event: str | None = None,
        tags: Mapping[str, Tag] | None = None,
    ) -> bool:
        """Puts a message into the queue, and returns at once. False if the queue is full.

        Raises for a message that could never be published, such as one with a bad name.
        """
        draft = Draft(target, data, key, content_type, exclude, expires_in, event, tags)
        line = line_from(draft, self._exchange, self._options)
        if line.error is not None:
            raise line.error
        with self._lock:
            if self._is_closed:
                raise closed()
            room = self._bytes_max - self._bytes
            is_taken = self._counts.waiting < self._messages_max and len(line.text) <= room
            if is_taken:
                self._lines.append((draft, line))
                self._bytes += len(line.text)
                self._count(waiting=1)
            else:
                self._count(dropped=1)
        if is_taken:
            self._wake()
        else:
            limits = f"{self._messages_max} messages or {self._bytes_max} bytes"
            message = f"the queue of the background publisher is full ({limits})"
            self._tell(draft, line, ThrongError("queue_full", message, outcome="unpublished"))
        return is_taken

    def _count(self, **changes: int) -> None:
        self._counts = replace(
            self._counts,
            **{name: getattr(self._counts, name) + each for name, each in changes.items()},
        )

    @abc.abstractmethod
    def _wake(self) -> None:
        """There is something to publish."""

    def _tell(self, draft: Draft, line: Line, error: ThrongError) -> None:
        """Tells of a message that is not published."""
        error.key = line.key
        if self._on_failed is None:
            warn_once(f"a message was not published: {error}")
            return
        try:
            self._on_failed(draft, error)
        except Exception:
            log.exception("on_failed has failed")

    def _next(self) -> list[tuple[Draft, Line]]:
        """The messages of the next request. They count as waiting until they are settled."""
        part: list[tuple[Draft, Line]] = []
        size = 0
        with self._lock:
            while self._lines and len(part) < BATCH_LINES_MAX:
                size += len(self._lines[0][1].text)
                if part and size > BATCH_BYTES_MAX:
                    break
                part.append(self._lines.popleft())
        return part

    async def _publish(self, part: list[tuple[Draft, Line]]) -> None:
        results: list[Published | ThrongError]
        cancelled: asyncio.CancelledError | None = None
        try:
            lines = [line for _, line in part]
            results = await publish_lines(self._exchange, self._options, lines)
        except (Exception, asyncio.CancelledError) as error:
            cancelled = error if isinstance(error, asyncio.CancelledError) else None
            results = [ThrongError("closed", repr(error), outcome="unknown") for _ in part]
        failed = 0
        for (draft, line), result in zip(part, results, strict=True):
            if isinstance(result, ThrongError):
                failed += 1
                self._tell(draft, line, result)
        with self._lock:
            self._bytes -= sum(len(line.text) for _, line in part)
            self._count(waiting=-len(part), failed=failed, published=len(part) - failed)
        if cancelled is not None:
            raise cancelled

    def _drop_rest(self) -> int:
        """Drops what is in the queue at its end, and tells of it. Returns how many."""
        with self._lock:
            rest = list(self._lines)
            self._lines.clear()
            self._bytes -= sum(len(line.text) for _, line in rest)
            self._count(waiting=-len(rest), dropped=len(rest))
        for draft, line in rest:
            message = "the background publisher was closed before it was sent"
            self._tell(draft, line, ThrongError("closed", message, outcome="unpublished"))
        return len(rest)


class Background(Queue):
    """A queue that a thread of its own publishes. Any number of threads may use it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None

    def _wake(self) -> None:
        with self._changed:
            if self._thread is None and not self._is_closed:
                # Not before, so that a program may fork after it has made its client.
                self._thread = threading.Thread(
                    target=self._run, name="throng-publish", daemon=True
                )
                self._thread.start()
                atexit.register(self.close)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._lines and not self._is_closed:
                    self._changed.wait()
            part = self._next()
            if not part:
                return
            run_blocking(self._publish(part))
            with self._changed:
                self._changed.notify_all()

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until the queue is empty. False if that takes longer than `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while self._counts.waiting:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def close(self, timeout: float = CLOSE_TIMEOUT) -> bool:
        """Takes no more messages, and publishes those that wait. After `timeout` seconds the rest
        is dropped, and the result is False."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        is_empty = self.flush(timeout)
        self._drop_rest()
        atexit.unregister(self.close)
        return is_empty

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncBackground(Queue):
    """A queue that a task publishes. Use it in the event loop of its client."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._task: asyncio.Task[None] | None = None

    def _wake(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while part := self._next():
            await self._publish(part)

    async def flush(self, timeout: float | None = None) -> bool:
        """Waits until the queue is empty. False if that takes longer than `timeout` seconds."""
        if self._task is not None and not self._task.done():
            await asyncio.wait({self._task}, timeout=timeout)
        return self._task is None or self._task.done()

    async def aclose(self, timeout: float = CLOSE_TIMEOUT) -> bool:
        """Takes no more messages, and publishes those that wait. After `timeout` seconds the rest
        is dropped, and the result is False."""
        with self._lock:
            self._is_closed = True
        is_empty = await self.flush(timeout)
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        self._drop_rest()
        return is_empty

    async def __aenter__(self) -> AsyncBackground:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
