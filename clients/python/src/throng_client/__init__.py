"""The Python client of Throng, a push server: publishes, follows channels, reconnects and resumes.

`Throng` is for programs without asyncio, `AsyncThrong` for those with it.
"""

from .background import AsyncBackground, Background, Counts
from .blocking import ChannelState, Subscription, Throng
from .channel_state import AsyncChannelState, Change
from .client import AsyncThrong
from .creations import Creation
from .errors import ThrongError, WebhookError
from .messages import (
    Absence,
    Conflated,
    Draft,
    Ended,
    Erased,
    Gap,
    History,
    Member,
    Members,
    Message,
    Presence,
    PresenceEvent,
    Published,
    State,
    StateEnd,
    Tag,
    Target,
    Unreadable,
    User,
)
from .options import ConnectionOptions, Token, Transport
from .read_markers import ReadMarker, Unread
from .subscription import AsyncSubscription
from .tokens import make_token
from .webhooks import Webhook

__all__ = [
    "Absence",
    "AsyncBackground",
    "AsyncChannelState",
    "AsyncSubscription",
    "AsyncThrong",
    "Background",
    "Change",
    "ChannelState",
    "Conflated",
    "ConnectionOptions",
    "Counts",
    "Creation",
    "Draft",
    "Ended",
    "Erased",
    "Gap",
    "History",
    "Message",
    "Member",
    "Members",
    "Presence",
    "PresenceEvent",
    "Published",
    "ReadMarker",
    "State",
    "StateEnd",
    "Subscription",
    "Tag",
    "Target",
    "Throng",
    "ThrongError",
    "Token",
    "Transport",
    "Unread",
    "Unreadable",
    "User",
    "Webhook",
    "WebhookError",
    "make_token",
]
