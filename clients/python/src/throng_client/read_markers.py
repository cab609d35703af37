"""How far a user has read the inbox."""

from __future__ import annotations

from dataclasses import dataclass

from .messages import User


@dataclass(frozen=True, slots=True)
class ReadMarker:
    """How far a user has read the inbox, on whatever device."""

    read: str | None
    """The id of the last message that was read; None if there is no marker."""
    unread: int
    """How many messages behind it the server keeps, at most 10,000."""


@dataclass(frozen=True, slots=True)
class Unread:
    """How many messages of the inbox `target` are unread, as the server tells."""

    target: User
    read: str | None
    """The id of the last message that was read; None if there is no marker, or it is not told."""
    unread: int
    """How many messages behind it the server keeps, at most 10,000."""

    @property
    def user(self) -> str:
        """The user of the inbox."""
        return self.target.name
