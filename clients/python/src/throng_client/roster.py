"""The members of one channel, as the server tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .messages import Absence, Member, PresenceEvent, member_of

if TYPE_CHECKING:
    from .messages import Target


class Roster:
    """Keeps the list. Until the first one is complete, there is nothing to tell."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._members: dict[str, Member] | None = None
        self._listed: dict[str, Member] = {}
        self._is_partial = False

    def begin(self) -> None:
        """A list may come from now on."""
        self._listed = {}

    def take(self, fields: Mapping[str, Any]) -> list[PresenceEvent]:
        """Takes the event of a member, or of the list: its end, or that it is partial or whole."""
        before = self._members
        if "member" not in fields:
            was_partial, self._is_partial = self._is_partial, bool(fields.get("partial"))
            after = self._listed if fields["event"] == "state" else before
            told_anyway = self._is_partial != was_partial
            return [] if after is None else self._tell(dict(after), fields, told_anyway=told_anyway)
        member = member_of(fields["member"])
        after = None if before is None else dict(before)
        for members in (self._listed, after):
            if members is not None and fields["event"] == "leave":
                members.pop(member.key, None)
            elif members is not None:
                members[member.key] = member
        return [] if after is None else self._tell(after, fields)

    def _tell(
        self, after: dict[str, Member], fields: Mapping[str, Any], *, told_anyway: bool = False
    ) -> list[PresenceEvent]:
        before, self._members = self._members, after
        time = fields.get("time", 0)
        known = after if before is None else before
        joined = [key for key in after if key not in known]
        updated = [key for key in after if key in known and known[key] != after[key]]
        left = [Absence(key, time) for key in known if key not in after]
        if before is not None and not (joined or updated or left or told_anyway):
            return []
        users = sorted({each.user for each in after.values() if each.user})
        here = (len(after), users, False, self._target, time)
        rest = (joined, left, after, updated)
        return [PresenceEvent(*here, *rest, partial=self._is_partial)]
