"""When a WebSocket is asked for a sign of life, and when it is lost.

Two things are watched: that frames arrive, and that what this client sends is answered. Heartbeats
and messages do not show that the server still hears the client.
"""

from __future__ import annotations

from .options import Options

# In parts of a request's time: how late a heartbeat may be before a ping, and the answer to that. A
# server under load may send heartbeats 3 s late, and pings would add to the load.
HEARTBEAT_GRACE = 0.3
PONG_GRACE = 0.2


class Pulse:
    """The deadlines of one WebSocket. All times are those of the event loop."""

    def __init__(self, options: Options) -> None:
        self.heartbeat = options.heartbeat
        self._patience = options.request_timeout
        self._frame_at = 0.0
        self._frame_by: float | None = None
        """When any frame must have arrived, after a ping."""
        self._answer_by: float | None = None
        """When the oldest command or ping must have its answer."""
        self._away_since: float | None = None
        self._quiet_from = 0.0
        """Before this, a heartbeat is not late: it may lie ready."""

    @property
    def is_waiting(self) -> bool:
        """Whether the server owes something."""
        return self._frame_by is not None or self._answer_by is not None

    @property
    def due(self) -> float | None:
        """When to ask, or to give up if the server owes something; None means never."""
        deadlines = [by for by in (self._frame_by, self._answer_by) if by is not None]
        if deadlines:
            return min(deadlines)
        if not self.heartbeat:
            return None
        return max(
            self._frame_at + self.heartbeat + self._patience * HEARTBEAT_GRACE, self._quiet_from
        )

    def asked(self, now: float) -> None:
        """A command was sent."""
        if self._answer_by is None:
            self._answer_by = now + self._patience
            self._count_from(now)

    def pinged(self, now: float) -> None:
        """A ping was sent, because nothing has arrived in time."""
        grace = (HEARTBEAT_GRACE + PONG_GRACE) * self._patience
        by = self._frame_at + self.heartbeat + grace
        self._frame_by = max(by, now + self._patience * PONG_GRACE)
        self.asked(now)

    def doubted(self, now: float, until: float) -> None:
        """A ping was sent, because a request of another connection has no answer yet."""
        by = max(until, now + self._patience * PONG_GRACE)
        if self._answer_by is None:
            self._count_from(now)
        self._answer_by = by if self._answer_by is None else min(self._answer_by, by)

    def heard(self, now: float) -> None:
        """A frame has arrived."""
        self._frame_at = now
        self._frame_by = None

    def answered(self, now: float, *, is_complete: bool) -> None:
        """The server has heard this client; `is_complete` if it owes no other answer. The next may
        be as late again, for the server answers one after the other."""
        self._answer_by = None if is_complete else now + self._patience

    def _count_from(self, now: float) -> None:
        """If nobody waits for frames, that time counts from now on."""
        if self._away_since is not None:
            self._away_since = now

    def left(self, now: float) -> None:
        """Nobody waits for frames from now on."""
        self._away_since = now

    def came_back(self, now: float) -> None:
        """Somebody waits for frames again. Meanwhile they may have piled up, and an
        answer behind them."""
        if self._away_since is None:
            return
        if self._answer_by is not None:
            self._answer_by += now - self._away_since
        soon = now + self._patience / 2
        if self._frame_by is not None and self._frame_by <= now:
            self._frame_by = soon
        elif self.due is not None and self.due <= now:
            self._quiet_from = soon
        self._away_since = None
