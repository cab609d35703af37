"""What travels: targets, messages, gaps, and the answers of the server."""

from __future__ import annotations

import base64
import json
import math
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal
from urllib.parse import quote, urlencode
from uuid import UUID

from .decoding import Fault
from .errors import ThrongError
from .options import Transport

# What reading raises of something that no Throng server sends.
MALFORMED = (ArithmeticError, AttributeError, KeyError, TypeError, ValueError)
# As on the server.
NAME_BYTES_MAX = 255
EXPIRES_IN_MAX = 31_536_000

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_ID = re.compile(r"[!-+\--~]{1,200}")
_MESSAGE_ID = re.compile(r"[!-+\--~]{1,200}-[0-9]{1,20}")

StateName = Literal["connecting", "open", "waiting", "closed"]


NOTHING: Any = object()
"""In the place of data: there is none. None is JSON's `null`."""


@dataclass(frozen=True, slots=True, init=False)
class User:
    """A user's inbox, in the place of a channel: `publish(User("ann"), …)`."""

    name: str

    def __init__(self, name: str | int | UUID) -> None:
        object.__setattr__(self, "name", name_of_user(name))


Tag = str | int | float
"""The value of a tag."""

Target = str | User
"""A channel by its name, or a user's inbox."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message."""

    target: Target
    id: str | None
    """Identifies the message: to resume after it, or to page through history. None for a volatile
    message, which is not kept."""
    time: int | None
    """When the server accepted it, in milliseconds since 1970. None if it was left out, because of
    the option `no_time`."""
    data: Any
    """A `str`, a JSON value or, for a binary body, `bytes`: as it was published."""
    content_type: str
    replayed: bool = False
    """Whether it is older than the subscription, and came because of `history` or `since`. False
    for messages missed during a reconnect."""
    event: str | None = None
    """The name of its event, if it has one."""
    tags: Mapping[str, Tag] = field(default_factory=dict, hash=False)
    sender: str | None = None
    """Who published it, set by the server (`from`), if the channel shows that."""
    replaces: str | None = None
    """The id of the message in whose place it is, which is erased."""
    state_key: str | None = None
    """The key that it sets, or removes if it is a tombstone."""
    tombstone: bool = False


@dataclass(frozen=True, slots=True)
class StateEnd:
    """All values of the keys of `target` have come, as they were at the message `id`."""

    target: Target
    id: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages of `target` are missing here. Where the subscription has the state, it begins
    again."""

    target: Target
    id: str
    """Delivery goes on after this id."""
    missed: int | None = None
    """How many are missing, if the server knows it."""


@dataclass(frozen=True, slots=True)
class Conflated:
    """Messages of `target` were skipped for newer ones, because this reader was behind and its
    channel has the newest only (`lag-policy = "latest"`), or their keys have newer values. It is no
    gap."""

    target: Target
    count: int | None = None
    """How many, if the server knows it."""


@dataclass(frozen=True, slots=True)
class Erased:
    """Messages of `target` are erased: the one with the id `erased`, or all up to `erased_up_to`. A
    notice to readers, and the answer to an erasure."""

    target: Target
    id: str | None
    """The id of the notice, in place of a message; None in an answer if there never was one."""
    erased: str | None = None
    erased_up_to: str | None = None
    messages: int | None = None
    """In an answer: how many were erased, if the server knows it."""

    def covers(self, id: str) -> bool:
        """Whether the message with this id is erased."""
        return id == self.erased or is_up_to(id, self.erased_up_to)


@dataclass(frozen=True, slots=True)
class Ended:
    """The channel `target` has ended: all of its messages have come. The answer to `end`, too."""

    target: Target
    id: str
    """The last id of the channel."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A message that this client cannot read: it is passed over, and delivery goes on after it."""

    target: Target
    id: str | None
    reason: str

    @property
    def channel(self) -> str | None:
        """The channel; None for the message of an inbox."""
        return self.target if isinstance(self.target, str) else None

    @property
    def user(self) -> str | None:
        """The user of the inbox; None for the message of a channel."""
        return self.target.name if isinstance(self.target, User) else None


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
    expires_in: float | timedelta | None = None
    """Seconds after which the message is not delivered any more."""
    event: str | None = None
    """The name of its event: 1 to 128 bytes, and none of the server's own events."""
    tags: Mapping[str, Tag] | None = None
    """At most 16 short facts about it, of at most 1,024 bytes as JSON."""
    state_key: str | None = None
    """The key whose value it is."""


@dataclass(frozen=True, slots=True)
class Published:
    """The server has the message."""

    id: str | None
    """None if the message is volatile."""
    subscribers: int
    """Number of connections that the message goes to; 0 with `duplicate`."""
    duplicate: bool = False
    """The server already had a message with this key; `id` is that message's."""


MessageId = str | Message | Published
"""The id of a message, or a message that has one: one that was received or published."""


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
    unreadable: list[Unreadable] = field(default_factory=list)
    """Messages of the page that this client cannot read."""


@dataclass(frozen=True, slots=True)
class Presence:
    """Who follows a channel."""

    connections: int
    users: list[str]
    more: bool
    """Whether there are more users than listed."""
    partial: bool = field(default=False, kw_only=True)
    """Whether some may be missing, because a node of several cannot be reached. In an event about
    members: when the list came."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a channel, as it shows itself."""

    user: str | None = None
    """None for a connection without a user."""
    connection: str | None = None
    """The name of the connection, where each one is a member."""
    info: Mapping[str, Any] | None = None

    @property
    def key(self) -> str:
        """Its name among the members of the channel."""
        return self.connection or self.user or ""


@dataclass(frozen=True, slots=True)
class Members(Presence):
    """A page of who follows a channel."""

    members: list[Member]
    """Where the channel has a list of its members."""
    next: str | None
    """The `after` of the next page, if there is one."""


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
    members: Mapping[str, Member] = field(default_factory=dict)
    """The members, in a channel with a list of them, by their keys. `joined` and `left` have these,
    and `connections` is the number of members."""
    updated: list[str] = field(default_factory=list)
    """The keys of members that show something else than before."""


def name_of_user(name: object) -> str:
    """The name of a user. Keys of databases are often numbers."""
    if isinstance(name, int | UUID) and not isinstance(name, bool):
        return str(name)
    if isinstance(name, str):
        return str(name)
    raise TypeError(f"a user is a str or an int, not {name!r}")


def checked_target(target: Target, *, is_read: bool = False) -> Target:
    """A target whose name the server can accept. Raises `bad_name` or `bad_utf8`.

    With `is_read` it is neither followed nor published to.
    """
    for noun, name in place_of(target).items():
        fault = _fault_of(name)
        if fault is None and "*" in name and not is_read:
            fault = "contains `*`: there are no patterns, so name each by its whole name"
        if fault is not None:
            raise ThrongError("bad_name", f"the {noun} name {fault}")
    return target


def _fault_of(name: str) -> str | None:
    if not name:
        return "is empty"
    if not is_text(name):
        raise ThrongError("bad_utf8", f"the name {name!r} has half of a surrogate pair")
    if len(name.encode()) > NAME_BYTES_MAX:
        return f"is longer than {NAME_BYTES_MAX} bytes"
    if _CONTROL.search(name):
        return "contains a control character"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "has a part between slashes that is empty, `.` or `..`"
    return None


def is_text(text: str) -> bool:
    """Whether UTF-8 can hold it: it has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def place_of(target: Target) -> dict[str, str]:
    """The fields that name a target in the protocol."""
    if isinstance(target, User):
        return {"user": target.name}
    if isinstance(target, str):
        return {"channel": target}
    raise TypeError(f"name a channel, or give User(name), not {target!r}")


def path_of(target: Target, what: str, query: Mapping[str, object] | None = None) -> str:
    """The path and query of what a target has, such as its `history`, or of `publish`.

    A name that has to be encoded is in the query: many proxies refuse %2F in a path, or decode it.
    """
    given = {name: str(value) for name, value in (query or {}).items() if value is not None}
    ((kind, name),) = place_of(target).items()
    if quote(name, safe="") != name:
        return f"/{what}?{urlencode({kind: name, **given})}"
    path = f"/{kind}s/{name}" + ("" if what == "publish" else f"/{what}")
    return path + (f"?{urlencode(given)}" if given else "")


def target_of(fields: Mapping[str, Any]) -> Target:
    """The target that a frame or an envelope names."""
    if "user" in fields:
        return User(_text(fields["user"]))
    return _text(fields["channel"])


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def envelope_of(target: Target, epoch: str, item: list[Any]) -> dict[str, Any]:
    """The envelope of a compact message: number, offset, data, then its time if that was asked for,
    and an object with whatever else it has. A volatile message has no offset, and so no id."""
    _, offset, data, *rest = item
    envelope: dict[str, Any] = {**place_of(target), "data": data, "time": None}
    if type(offset) is int:
        envelope["id"] = f"{epoch}-{offset}"
    elif offset is not None:
        raise TypeError("an offset is no number")
    if rest and not isinstance(rest[0], dict):
        envelope["time"] = rest.pop(0)
    if rest:
        envelope |= rest[0]
    return envelope


def message_of(envelope: Mapping[str, Any], *, replayed: bool) -> Message:
    """The message in an envelope."""
    data, time = envelope["data"], envelope["time"]
    if isinstance(data, Fault):
        raise ValueError(data.reason)
    if type(time) is not int and time is not None:
        raise TypeError("the time of the message is no number")
    content_type = "text/plain; charset=utf-8" if isinstance(data, str) else "application/json"
    if envelope.get("encoding") == "base64":
        data = base64.b64decode(_text(data), validate=True)
        content_type = "application/octet-stream"
    content_type = _text(envelope.get("content_type", content_type))
    id = message_id_of(envelope) if "id" in envelope else None
    event, tags, sender = (envelope.get(name) for name in ("event", "tags", "from"))
    if not isinstance(tags, dict | None):
        raise TypeError("the tags of the message are no object")
    labels = (None if event is None else _text(event), tags or {})
    sender = None if sender is None else _text(sender)
    replaces = None if envelope.get("replaces") is None else checked_id(envelope["replaces"])
    place = (target_of(envelope), id, time)
    key = envelope.get("state_key")
    state = (None if key is None else _text(key), envelope.get("tombstone") is True)
    return Message(*place, data, content_type, replayed, *labels, sender, replaces, *state)


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
        partial=bool(fields.get("partial")),
    )


def member_of(fields: Mapping[str, Any]) -> Member:
    """A member in a frame or an answer."""
    return Member(fields.get("user"), fields.get("connection"), fields.get("info"))


def id_of(fields: Mapping[str, Any]) -> str:
    """The id in a frame; raises `TypeError` if it is none, because it would be sent back."""
    return checked_id(fields["id"])


def ended_of(target: Target, fields: Mapping[str, Any]) -> Ended:
    """The answer to `end`."""
    return Ended(target, checked_id(fields["ended"]))


def checked_id(id: object) -> str:
    """An id of the server, with which a client may resume."""
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise TypeError("this is no id")
    return id


def given_id(given: object) -> str:
    """The id that an application gives, by itself or with its message."""
    id = given.id if isinstance(given, Message | Published) else given
    if id is None:
        raise TypeError("a volatile message has no id, because it is not kept")
    try:
        return checked_id(id)
    except TypeError:
        raise TypeError(f"give the id of a message, as `published.id`, not {given!r}") from None


def message_id_of(envelope: Mapping[str, Any]) -> str:
    """The id of a message, which has a place in an order."""
    id = envelope["id"]
    if not isinstance(id, str) or not _MESSAGE_ID.fullmatch(id):
        raise TypeError("this is no id of a message")
    return id


def is_notice(envelope: Mapping[str, Any]) -> bool:
    """Whether an envelope is a notice that messages are erased."""
    return "erased" in envelope or "erased_up_to" in envelope


def erased_of(target: Target, fields: Mapping[str, Any]) -> Erased:
    """The event of a notice of erasure, or the result of a request."""

    def named(name: str) -> str | None:
        return None if fields.get(name) is None else checked_id(fields[name])

    erased, up_to = named("erased"), named("erased_up_to")
    return Erased(target, named("id"), erased, up_to, fields.get("messages"))


def unreadable_of(envelope: Mapping[str, Any], error: Exception) -> Unreadable:
    """The report of a message that cannot be read."""
    if isinstance(error, KeyError):
        reason = f"it has no {error.args[0]}"
    else:
        reason = str(error)
    id = message_id_of(envelope) if "id" in envelope else None
    return Unreadable(target_of(envelope), id, reason)


def is_up_to(id: str, last: str | None) -> bool:
    """Whether `id` is `last` or before it. False if they are of different epochs."""
    if last is None:
        return False
    epoch, _, offset = id.rpartition("-")
    last_epoch, _, last_offset = last.rpartition("-")
    is_known = epoch == last_epoch and offset.isdecimal() and last_offset.isdecimal()
    return is_known and int(offset) <= int(last_offset)


def json_of(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """The JSON of a value, on one line."""
    try:
        return json.dumps(
            value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=default
        )
    except RecursionError:
        raise ValueError("the data is nested too deeply") from None
    except TypeError as error:
        if default is not None:
            raise
        raise TypeError(
            f"{error}; convert it, or give the client a function for it: default=str"
        ) from error


def body_of(data: Any, default: Callable[[Any], Any] | None = None) -> tuple[bytes, str]:
    """The body of a publication and its content type."""
    if isinstance(data, str):
        return encoded(data), "text/plain; charset=utf-8"
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data), "application/octet-stream"
    return encoded(json_of(data, default)), "application/json"


def encoded(text: str) -> bytes:
    """The text in UTF-8. Raises `bad_utf8`."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        message = "the text has half of a surrogate pair, which UTF-8 cannot hold"
        raise ThrongError("bad_utf8", message) from None


def seconds_of(time: float | timedelta | None, name: str = "expires_in") -> int | None:
    """The whole seconds after which a message expires, or a channel goes."""
    if time is None:
        return None
    given = time.total_seconds() if isinstance(time, timedelta) else time
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(f"`{name}` is a number of seconds or a timedelta, not {given!r}")
    if not 0 < given <= EXPIRES_IN_MAX:
        raise ValueError(f"`{name}` is from 1 s to a year, not {given:g} s")
    return math.ceil(given)


def line_of(draft: Draft, key: str, default: Callable[[Any], Any] | None = None) -> bytes:
    """The line of a batch."""
    fields = {**place_of(draft.target), "key": key, **fields_of_draft(draft)}
    return encoded(json_of(fields, default)) + b"\n"


def fields_of_draft(draft: Draft) -> dict[str, Any]:
    """A message of a batch, without its target and its idempotency key."""
    fields: dict[str, Any] = {}
    if isinstance(draft.data, bytes | bytearray | memoryview):
        fields |= {"data": base64.b64encode(draft.data).decode(), "encoding": "base64"}
    else:
        fields["data"] = draft.data
    if draft.content_type is not None:
        fields["content_type"] = draft.content_type
    if draft.exclude is not None:
        fields["exclude"] = draft.exclude
    if draft.expires_in is not None:
        fields["expires_in"] = seconds_of(draft.expires_in)
    if draft.event is not None:
        fields["event"] = draft.event
    if draft.tags:
        fields["tags"] = dict(draft.tags)
    if draft.state_key is not None:
        fields["state_key"] = draft.state_key
    return fields


def label_headers(draft: Draft) -> dict[str, str | bytes]:
    """The headers with the event, the tags and the key of a message. Raises for what no header may
    have."""
    headers: dict[str, str | bytes] = {}
    if draft.event is not None:
        if _CONTROL.search(draft.event):
            raise ValueError(f"the event {draft.event!r} contains a control character")
        headers["Throng-Event"] = encoded(draft.event)
    if draft.tags:
        headers["Throng-Tags"] = json.dumps(dict(draft.tags), allow_nan=False)
    if draft.state_key is not None:
        headers["Throng-State-Key"] = encoded(checked_key(draft.state_key))
    return headers


def checked_key(key: str) -> str:
    """A key that a channel can have."""
    if not 1 <= len(encoded(key)) <= NAME_BYTES_MAX or _CONTROL.search(key):
        raise ValueError(f"a key has 1 to 255 bytes and no control character, not {key!r}")
    return key


def random_key() -> str:
    """A new idempotency key."""
    return secrets.token_hex(16)
