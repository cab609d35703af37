"""How far a user has read the inbox, or a channel."""

from __future__ import annotations

from dataclasses import dataclass

from .messages import Target, User


@dataclass(frozen=True, slots=True)
class ReadMarker:
    """How far a user has read the inbox or a channel, on whatever device."""

    read: str | None
    """The id of the last message that was read; None if there is no marker."""
    unread: int
    """How many messages behind it the server keeps, at most 10,000; in a channel, 1,000."""


@dataclass(frozen=True, slots=True)
class Unread:
    """How many messages of an inbox or a channel are unread, as the server tells."""

    target: Target
    read: str | None
    """The id of the last message that was read; None if there is no marker, or it is not told."""
    unread: int
    """How many messages behind it the server keeps, at most 10,000; of a channel, 1,000."""

    @property
    def user(self) -> str | None:
        """The user of the inbox; None of a channel."""
        return self.target.name if isinstance(self.target, User) else None

    @property
    def channel(self) -> str | None:
        """The name of the channel; None of an inbox."""
        return self.target if isinstance(self.target, str) else None
