"""Channels that are created, with their first messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .messages import (
    MALFORMED,
    Draft,
    checked_id,
    checked_target,
    encoded,
    fields_of_draft,
    json_of,
    path_of,
    seconds_of,
)
from .options import Options
from .requests import Exchange, Request, ask, not_throng


@dataclass(frozen=True, slots=True)
class Creation:
    """A channel that somebody has created."""

    channel: str
    created: int
    """When, in milliseconds since 1970."""
    content_type: str | None = None
    """The content type of all messages; None if they may have any."""
    ttl: int | None = None
    """For how many seconds it stays after its creation and each message."""
    expires_at: int | None = None
    """Until when it stays, in milliseconds since 1970."""
    ids: tuple[str, ...] = ()
    """The ids of the messages with which this call of `create` has created it."""


async def create(
    exchange: Exchange,
    options: Options,
    channel: str,
    properties: Mapping[str, Any],
    drafts: Iterable[Draft],
) -> Creation:
    """Creates a channel, with its first messages."""
    properties = {**properties, "ttl": seconds_of(properties["ttl"], "ttl")}
    fields = {name: value for name, value in properties.items() if value is not None}
    messages = []
    for draft in drafts:
        if draft.target != channel or draft.key is not None:
            raise ValueError(f"a first message is for the channel {channel!r}, and has no key")
        messages.append(fields_of_draft(draft))
    if messages:
        fields["messages"] = messages
    body = encoded(json_of(fields, options.default))
    headers = {"Content-Type": "application/json"}
    path = path_of(checked_target(channel), "creation")
    return _creation(await ask(exchange, options, Request("PUT", path, headers, body)))


async def read_creation(exchange: Exchange, options: Options, channel: str) -> Creation:
    """The creation of a channel."""
    path = path_of(checked_target(channel), "creation")
    return _creation(await ask(exchange, options, Request("GET", path)))


def _creation(fields: dict[str, Any]) -> Creation:
    """The creation that an answer shows."""
    try:
        return _read(fields)
    except MALFORMED as error:
        raise not_throng() from error


def _read(fields: dict[str, Any]) -> Creation:
    created, ids = fields["created"], fields.get("ids", [])
    if not isinstance(created, int) or not isinstance(ids, list):
        raise TypeError("this is no creation")
    content_type, ttl, expires_at = (
        fields.get(name) for name in ("content_type", "ttl", "expires_at")
    )
    named = tuple(map(checked_id, ids))
    return Creation(str(fields["channel"]), created, content_type, ttl, expires_at, named)
