"""The position of a subscription in one channel.

Invariant: a cursor's position is an id from the server, and no message after it has been handed
on. So a connection may be lost at any time and resumed from the positions. While a state begins
there is none: if the connection is lost, all of it comes again, after a gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .messages import (
    MALFORMED,
    Conflated,
    Ended,
    Erased,
    Gap,
    Message,
    PresenceEvent,
    StateEnd,
    Target,
    Unreadable,
    User,
    checked_id,
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
from .read_markers import Unread
from .roster import Roster


@dataclass(frozen=True, slots=True, eq=False)
class Handled:
    """In the place behind the events of a frame: the link is to tell its server when the reader is
    done with them."""

    link: object


_Told = Gap | Conflated | Erased | PresenceEvent | StateEnd | Ended | Unread | Unreadable
Event = Message | _Told | Handled
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
        self.seen_at: int | str | None = None
        """The time of the last presence event, or the id of the last one of a member."""
        self._roster = Roster(target)
        self.wants_state = False
        """Whether the subscription begins with the newest message of each key."""
        self._is_beginning = False
        """Whether the values of a state are coming."""
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
        self._roster.begin()
        if not self._has_started:
            self._has_started = True
            self._is_beginning = self.wants_state and self.position is None
            if not self._is_beginning:
                self.position = self.first = self.position or id
            self.head = self.head or head
        elif self._is_beginning and self.position is None:
            recovered = False
        return self._miss(id) if recovered is False else []

    def _miss(self, id: str) -> list[Event]:
        """Takes that messages are missing: all of a state comes again."""
        events = self.gap({"id": id})
        if self.wants_state:
            self._is_beginning = True
            self.position = self.first = self.head = self._delivered = None
        return events

    def end_state(self, id: str) -> list[Event]:
        """Takes the end of a state, as it was at the message with this id."""
        self._is_beginning = False
        self.position = id
        return [StateEnd(self.target, id)]

    def gap(self, fields: Mapping[str, Any]) -> list[Event]:
        """Takes a gap."""
        id = id_of(fields) if fields.get("id") else self.position or ""
        if not self._is_beginning:
            self.position = id or None
        if self.is_silent:
            return []
        missed = fields.get("missed")
        return [Gap(self.target, id, missed if type(missed) is int else None)]

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
        self._delivered = id
        if not self._is_beginning:
            self.position = id
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
        """Takes a presence event. It changes no position."""
        if "event" in fields:
            self.seen_at = id_of(fields)
            return [*self._roster.take(fields)]
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

    def __init__(
        self,
        targets: list[Cursor],
        history: int,
        *,
        has_presence: bool = False,
        wants_state: bool = False,
    ) -> None:
        self.all = targets
        """Those that are followed."""
        self.ended: list[Cursor] = []
        """Those that were, until their channels have ended."""
        for each in targets:
            each.wants_state = wants_state and not each.is_silent
        self.history = history
        self.has_presence = has_presence
        """Whether the subscription wants presence events, of all of its channels."""
        self._by_target = {cursor.target: cursor for cursor in targets}

    def of(self, fields: Mapping[str, Any]) -> Cursor | None:
        """The cursor of the channel that a frame names."""
        if "channel" not in fields and "user" not in fields:
            return None
        return self._by_target.get(target_of(fields))

    def unread(self, fields: Mapping[str, Any]) -> list[Event]:
        """Takes how many messages of the inbox or a channel are unread, if that is told."""
        inboxes = (each.target for each in self.all if isinstance(each.target, User))
        inbox = next(inboxes, None)
        if inbox is None or "unread" not in fields:
            return []
        target = str(fields["channel"]) if "channel" in fields else inbox
        read = fields.get("read")
        return [Unread(target, None if read is None else checked_id(read), int(fields["unread"]))]

    def end(self, cursor: Cursor, id: str) -> list[Event]:
        """Takes that a channel has ended, with its last id: it is followed no more."""
        cursor.position = id
        self.all = [each for each in self.all if each is not cursor]
        self.ended.append(cursor)
        del self._by_target[cursor.target]
        return [Ended(cursor.target, id)]

    @property
    def are_over(self) -> bool:
        """Whether all channels have ended."""
        return all(each.is_silent for each in self.all)

    @property
    def have_positions(self) -> bool:
        """Whether the server has named a position for each."""
        return all(cursor.position for cursor in self.all)
