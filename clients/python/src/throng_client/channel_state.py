"""The state of a channel: the newest message of each of its keys."""

from __future__ import annotations

from collections import deque
from collections.abc import ItemsView
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .cursor import Event
from .messages import Erased, Gap, Message, StateEnd

if TYPE_CHECKING:
    from .subscription import AsyncSubscription


@dataclass(frozen=True, slots=True)
class Change:
    """A key has another value, or none."""

    key: str
    value: Any
    """None also if the key is gone: `is_removed` tells."""
    is_removed: bool = False


class KeptState:
    """What both clients keep of a channel."""

    def __init__(self) -> None:
        self.is_complete = False
        """Whether it is the channel's state: until then, keys are missing."""
        self._messages: dict[str, Message] = {}
        self._next: dict[str, Message] | None = {}
        """The messages of a state that has begun, and is not complete."""

    def __getitem__(self, key: str) -> Any:
        return self._messages[key].data

    def __contains__(self, key: str) -> bool:
        return key in self._messages

    def __len__(self) -> int:
        return len(self._messages)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key."""
        message = self._messages.get(key)
        return default if message is None else message.data

    def message(self, key: str) -> Message | None:
        """The message that has set a key, with its id."""
        return self._messages.get(key)

    def items(self) -> ItemsView[str, Any]:
        """A copy of all keys with their values."""
        return {key: message.data for key, message in self._messages.items()}.items()

    def _take(self, event: Event) -> list[Change]:
        """Takes an event of the subscription."""
        if isinstance(event, Gap):
            # Keys may be gone of which nothing will tell: all others come again.
            self._next = {}
        elif isinstance(event, StateEnd):
            return self._end()
        elif isinstance(event, Erased):
            return self._forget(event)
        elif isinstance(event, Message) and event.state_key is not None:
            for messages in (self._messages, self._next):
                if messages is None:
                    continue
                messages.pop(event.state_key, None)
                if not event.tombstone:
                    messages[event.state_key] = event
            return [Change(event.state_key, event.data, event.tombstone)]
        return []

    def _end(self) -> list[Change]:
        before = self._messages
        self._messages = before if self._next is None else self._next
        self._next, self.is_complete = None, True
        return [Change(key, None, True) for key in before if key not in self._messages]

    def _forget(self, notice: Erased) -> list[Change]:
        changes = []
        for messages in (self._messages, self._next or {}):
            gone = [key for key, it in messages.items() if it.id and notice.covers(it.id)]
            for key in gone:
                del messages[key]
                if messages is self._messages:
                    changes.append(Change(key, None, True))
        return changes


class AsyncChannelState(KeptState):
    """Follows a channel, and keeps the newest message of each of its keys.

    An asynchronous iterator of the changes, which keeps as much as has been iterated over;
    `ready` takes the state as it is now. Close it with `aclose` or `async with`.
    """

    def __init__(self, subscription: AsyncSubscription) -> None:
        super().__init__()
        self.subscription = subscription
        self._changes: deque[Change] = deque()

    async def ready(self) -> None:
        """Waits until the state is complete. The changes until then are not iterated over."""
        while not self.is_complete:
            self._take(await self.subscription._next_event())

    def __aiter__(self) -> AsyncChannelState:
        return self

    async def __anext__(self) -> Change:
        while not self._changes:
            self._changes += self._take(await self.subscription._next_event())
        return self._changes.popleft()

    async def __aenter__(self) -> AsyncChannelState:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends the iteration and closes the connection."""
        await self.subscription.aclose()
