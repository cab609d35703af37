"""The position of a subscription in one channel.

Invariant: a cursor's position is an id from the server, and no message after it has been handed
on. So a connection may be lost at any time and resumed from the positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .messages import (
    MALFORMED,
    Conflated,
    Erased,
    Gap,
    Message,
    PresenceEvent,
    Target,
    Unreadable,
    User,
    erased_of,
    id_of,
    is_notice,
    is_up_to,
    message_id_of,
    message_of,
    presence_of,
    target_of,
    unreadable_of,
)


@dataclass(frozen=True, slots=True, eq=False)
class Handled:
    """In the place behind the events of a frame: the link is to tell its server when the reader is
    done with them."""

    link: object


Event = Message | Gap | Conflated | Erased | PresenceEvent | Unreadable | Handled
Mark = tuple[str | None, str | None, str | None, bool, str | None]


class Cursor:
    """Follows the ids of one channel."""

    def __init__(self, target: Target, since: str | None, *, is_silent: bool = False) -> None:
        self.target = target
        self.position = since
        """The id to resume after; None until the server has named one."""
        self.head: str | None = None
        """The newest id at the time of subscribing: messages up to it are replayed."""
        self.is_silent = is_silent
        """The inbox of the client's user, which the connection follows without a subscription."""
        self.first = since
        """Where the subscription started."""
        self.seen_at: int | None = None
        """The time of the last presence event."""
        self._has_started = False
        self._delivered: str | None = None

    @property
    def is_settled(self) -> bool:
        """Whether it is known where older messages end, and where to resume."""
        return self._has_started or (self.head is not None and self.position is not None)

    def settle(self, head: str) -> None:
        """Takes where older messages end, if that is not known yet."""
        if not self._has_started:
            self.head = self.head or head

    def follow(self, id: str, *, head: str | None = None, recovered: bool | None) -> list[Event]:
        """Takes the server's confirmation; `recovered` is None if no id was sent."""
        if not self._has_started:
            self._has_started = True
            self.position = self.first = self.position or id
            self.head = self.head or head
        if recovered is False:
            return self.gap({"id": id})
        return []

    def gap(self, fields: Mapping[str, Any]) -> list[Event]:
        """Takes a gap."""
        if fields.get("id"):
            self.position = id_of(fields)
        if self.is_silent:
            return []
        missed = fields.get("missed")
        return [Gap(self.target, self.position or "", missed if type(missed) is int else None)]

    def take(self, envelope: Mapping[str, Any]) -> list[Event]:
        """Takes a message; one that was taken before yields nothing, and one that cannot be read
        yields a report in its place."""
        if "id" not in envelope and "data" in envelope:
            # A volatile message is not kept, and moves no position.
            return [] if self.is_silent else [_read(envelope, is_replayed=False)]
        id = message_id_of(envelope)
        if is_up_to(id, self._delivered):
            return []
        is_replayed = is_up_to(id, self.head)
        event: Event
        if is_notice(envelope):
            event = erased_of(self.target, envelope)
        else:
            event = _read(envelope, is_replayed=is_replayed)
        # Also past one that cannot be read: it will not be more readable the next time.
        self.position = self._delivered = id
        if not is_replayed:
            self.head = None
        return [] if self.is_silent else [event]

    @property
    def mark(self) -> Mark:
        """Where the cursor is, to go back to if an answer turns out to be broken."""
        return self.position, self.first, self.head, self._has_started, self._delivered

    def go_back(self, mark: Mark) -> None:
        """Goes back: what was taken since then counts as never taken."""
        self.position, self.first, self.head, self._has_started, self._delivered = mark

    def has_taken_since(self, mark: Mark) -> bool:
        """Whether messages have been taken since then."""
        return self._delivered != mark[-1]

    @property
    def may_have_presence(self) -> bool:
        """Inboxes have no presence events."""
        return not isinstance(self.target, User)

    def skip(self, count: object) -> list[Event]:
        """Takes that messages were skipped for newer ones, which changes no position."""
        known = count if isinstance(count, int) and count > 0 else None
        return [] if self.is_silent else [Conflated(self.target, known)]

    def see(self, fields: Mapping[str, Any]) -> list[Event]:
        """Takes a presence event. It has no id, and changes no position."""
        event = presence_of(fields)
        self.seen_at = event.time
        return [event]


def _read(envelope: Mapping[str, Any], *, is_replayed: bool) -> Event:
    try:
        return message_of(envelope, replayed=is_replayed)
    except MALFORMED as error:
        return unreadable_of(envelope, error)


class Cursors:
    """Those of a subscription, in the order of URLs: the user is last."""

    def __init__(self, targets: list[Cursor], history: int, *, has_presence: bool = False) -> None:
        self.all = targets
        self.history = history
        self.has_presence = has_presence
        """Whether the subscription wants presence events, of all of its channels."""
        self._by_target = {cursor.target: cursor for cursor in targets}

    def of(self, fields: Mapping[str, Any]) -> Cursor | None:
        """The cursor of the channel that a frame names."""
        if "channel" not in fields and "user" not in fields:
            return None
        return self._by_target.get(target_of(fields))

    @property
    def have_positions(self) -> bool:
        """Whether the server has named a position for each."""
        return all(cursor.position for cursor in self.all)
