"""Which transport a subscription uses, judged by how long its connections live.

A transport that does not open, or whose connections die within seconds, is doubted. It has failed
if the server then answers `/health` and a fresh connection fails all the same: a network that was
away for a moment is nobody's fault. On a lesser transport the first one is tried again at each
later reconnect, and every few minutes.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from .options import OPEN_TIMEOUT_MAX, Transport

# A connection that lived this long worked: after its loss, the backoff starts over.
STABLE = 10.0
# Failures in a row after which the server is asked whether it answers.
FAILURES_MAX = 2
# After the first transport has failed again at a reconnect, the least time until it is tried at
# another one. It doubles, up to the time below.
RETRY_FIRST_AFTER = 10.0
# How often the first transport is tried while a connection over a lesser one holds.
UPGRADE_AFTER = 180.0
# A handshake needs up to three round trips more than an answer on an open connection.
ROUND_TRIPS = 4


class Next(enum.Enum):
    """The next step after the loss of a connection."""

    BACKOFF = enum.auto()
    """The next attempt is after a delay."""
    AT_ONCE = enum.auto()
    """The next attempt is at once, over another transport."""
    ASK = enum.auto()
    """If the server answers now, the next attempt is at once; otherwise it is after a delay."""


class Choice:
    """The choice of one subscription. It has no clock: callers pass the time."""

    def __init__(self, transports: Sequence[Transport], open_timeout: float) -> None:
        self._transports = transports
        self._open_timeout = open_timeout
        self._index = 0
        self._proven: int | None = None
        """A lesser transport that has worked."""
        self._first_from = float("-inf")
        """When the first transport may be tried again at a reconnect."""
        self._failed_trials = 0
        self._failures = 0
        self._deaths = 0
        """How many of these were connections that opened, and died within seconds."""
        self._unopened = 0
        self._is_judged = False
        """The server has answered just before this attempt."""
        self._needed = open_timeout
        """The time that a transport needs to open, as far as it is known."""

    @property
    def transport(self) -> Transport:
        """The transport that is open or tried next."""
        return self._transports[self._index]

    @property
    def first(self) -> Transport:
        """The transport that is preferred."""
        return self._transports[0]

    @property
    def is_lesser(self) -> bool:
        """Whether there is a better transport than this one."""
        return self._index > 0

    @property
    def open_timeout(self) -> float:
        """The time that the next attempt has: twice as long as the one before, because a line may
        be slow. After an answer of the server it is known how slow."""
        if self._is_judged:
            return self._needed
        grown = self._open_timeout * 2.0 ** min(self._unopened, 16)
        return max(self._needed, min(OPEN_TIMEOUT_MAX, grown))

    def opened(self) -> None:
        """The connection is open."""
        self._unopened = 0
        if self._deaths < FAILURES_MAX:
            # That others did not open says nothing about this one.
            self._failures, self._is_judged = self._deaths, False
        if self.is_lesser:
            self._proven = self._index

    def promoted(self) -> None:
        """A connection over the first transport has taken the place of a lesser one."""
        self._index = 0

    def lost(self, *, is_failure: bool, is_unusable: bool, lived: float | None, now: float) -> Next:
        """A connection is lost after it `lived` so long; None if it never opened. `is_failure`
        unless the server has said why."""
        was_judged, self._is_judged = self._is_judged, False
        if lived is None:
            self._unopened += 1
        elif lived >= STABLE:
            self._failures = self._deaths = 0
            is_failure = False
            if not self.is_lesser:
                self._proven, self._failed_trials = None, 0
        if lived is not None and self.is_lesser and now >= self._first_from:
            self._goes_to(0)
            return Next.BACKOFF
        if not is_failure:
            return Next.BACKOFF
        if self._proven is not None and self._index < self._proven:
            pause = RETRY_FIRST_AFTER * 2.0 ** min(self._failed_trials, 16)
            self._first_from = now + min(UPGRADE_AFTER, pause)
            self._failed_trials += 1
            self._goes_to(self._proven)
            return Next.AT_ONCE
        self._failures += 1
        if lived is not None:
            self._deaths += 1
        if self._index + 1 == len(self._transports):
            if self.is_lesser and self._failures >= FAILURES_MAX:
                # None of them works, so that none is better.
                self._proven = None
                self._goes_to(0)
            return Next.BACKOFF
        if was_judged:
            self._goes_to(self._index + 1)
            return Next.AT_ONCE
        is_doubted = is_unusable or self._failures >= FAILURES_MAX
        return Next.ASK if is_doubted else Next.BACKOFF

    def answered(self, seconds: float) -> None:
        """The server has answered after so long: a fresh connection shows whether the transport
        works."""
        self._is_judged = True
        self._needed = max(self._open_timeout, min(OPEN_TIMEOUT_MAX, seconds * ROUND_TRIPS))

    def _goes_to(self, index: int) -> None:
        self._index = index
        self._failures = self._deaths = self._unopened = 0
