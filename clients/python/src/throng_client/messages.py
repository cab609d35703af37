"""What travels: targets, messages, gaps, and the answers of the server."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from .options import Transport

# What reading raises of something that no Throng server sends.
MALFORMED = (AttributeError, KeyError, TypeError, ValueError)

StateName = Literal["connecting", "open", "waiting", "closed"]


@dataclass(frozen=True, slots=True)
class User:
    """A user's inbox, in the place of a channel: `publish(User("ann"), …)`."""

    name: str


Target = str | User
"""A channel by its name, or a user's inbox."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message."""

    target: Target
    id: str
    """Identifies the message: to resume after it, or to page through history."""
    time: int
    """When the server accepted it, in milliseconds since 1970."""
    data: Any
    """A `str`, a JSON value or, for a binary body, `bytes`: as it was published."""
    content_type: str
    replayed: bool = False
    """Whether it is older than the subscription, and came because of `history` or `since`. False
    for messages missed during a reconnect."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages of `target` are missing here."""

    target: Target
    id: str
    """Delivery goes on after this id."""
    missed: int | None = None
    """How many are missing, if the server knows it."""


@dataclass(frozen=True, slots=True)
class State:
    """What the connection of a subscription does now."""

    name: StateName
    transport: Transport
    delay: float | None = None
    """If it waits: seconds until the next attempt."""
    reason: str = ""
    """If it waits: why the connection was lost."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A message of a batch."""

    target: Target
    data: Any
    key: str | None = None
    """The idempotency key: repeated within five minutes, it publishes nothing. Random if None."""
    content_type: str | None = None
    exclude: str | None = None
    """The name of a connection that does not get the message."""


@dataclass(frozen=True, slots=True)
class Published:
    """The server has the message."""

    id: str
    subscribers: int
    """Number of connections that the message goes to; 0 with `duplicate`."""
    duplicate: bool = False
    """The server already had a message with this key; `id` is that message's."""


@dataclass(frozen=True, slots=True)
class History:
    """A page of history, oldest message first."""

    id: str
    """The id of the newest message of the channel."""
    messages: list[Message]
    more: bool
    """Whether there are further messages in the requested direction."""
    recovered: bool | None = None
    """With `after`: whether the server still has all messages after that id."""


@dataclass(frozen=True, slots=True)
class Presence:
    """Who follows a channel."""

    connections: int
    users: list[str]
    more: bool
    """Whether there are more users than listed."""


@dataclass(frozen=True, slots=True)
class Absence:
    """A user who is no longer there."""

    user: str
    last_seen: int
    """When the user's last connection was found to be gone, in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class PresenceEvent(Presence):
    """Who follows a channel now, and what has changed since the event before."""

    target: Target
    time: int
    """When the server looked, in milliseconds since 1970."""
    joined: list[str]
    left: list[Absence]
    """Both are empty in the first event of a connection, and where `users` is not all of them."""


def place_of(target: Target) -> dict[str, str]:
    """The fields that name a target in the protocol."""
    if isinstance(target, User):
        return {"user": target.name}
    if isinstance(target, str):
        return {"channel": target}
    raise TypeError(f"name a channel, or give User(name), not {target!r}")


def path_of(target: Target) -> str:
    """The path of a target on the server."""
    kind, name = next(iter(place_of(target).items()))
    return f"/{kind}s/{quote(name, safe='')}"


def target_of(fields: Mapping[str, Any]) -> Target:
    """The target that an envelope or a frame names."""
    return User(fields["user"]) if "user" in fields else str(fields["channel"])


def message_of(envelope: Mapping[str, Any], *, replayed: bool) -> Message:
    """The message in an envelope."""
    data = envelope["data"]
    content_type = "text/plain; charset=utf-8" if isinstance(data, str) else "application/json"
    if envelope.get("encoding") == "base64":
        data = base64.b64decode(data, validate=True)
        content_type = "application/octet-stream"
    content_type = envelope.get("content_type", content_type)
    return Message(
        target_of(envelope), envelope["id"], envelope["time"], data, content_type, replayed
    )


def presence_of(fields: Mapping[str, Any]) -> PresenceEvent:
    """The presence event in a frame."""
    return PresenceEvent(
        connections=fields["connections"],
        users=fields["users"],
        more=fields["more"],
        target=target_of(fields),
        time=fields["time"],
        joined=fields.get("joined", []),
        left=[Absence(each["user"], each["last_seen"]) for each in fields.get("left", [])],
    )


def id_of(fields: Mapping[str, Any]) -> str:
    """The id in a frame; raises `TypeError` if it is none, because it would be sent back."""
    id = fields["id"]
    if not isinstance(id, str):
        raise TypeError(f"{id!r} is no id")
    return id


def is_up_to(id: str, last: str | None) -> bool:
    """Whether `id` is `last` or before it. False if they are of different epochs."""
    if last is None:
        return False
    epoch, _, offset = id.rpartition("-")
    last_epoch, _, last_offset = last.rpartition("-")
    return epoch == last_epoch and int(offset) <= int(last_offset)


def json_of(value: Any) -> str:
    """The JSON of a value, on one line."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def body_of(data: Any) -> tuple[bytes, str]:
    """The body of a publication and its content type."""
    if isinstance(data, str):
        return data.encode(), "text/plain; charset=utf-8"
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data), "application/octet-stream"
    return json_of(data).encode(), "application/json"


def line_of(draft: Draft, key: str) -> bytes:
    """The line of a batch."""
    fields: dict[str, Any] = {**place_of(draft.target), "key": key}
    if isinstance(draft.data, bytes | bytearray | memoryview):
        fields |= {"data": base64.b64encode(draft.data).decode(), "encoding": "base64"}
    else:
        fields["data"] = draft.data
    if draft.content_type is not None:
        fields["content_type"] = draft.content_type
    if draft.exclude is not None:
        fields["exclude"] = draft.exclude
    return json_of(fields).encode() + b"\n"


def random_key() -> str:
    """A new idempotency key."""
    return secrets.token_hex(16)
