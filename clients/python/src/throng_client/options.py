"""The options of a client, checked once."""

from __future__ import annotations

import difflib
import random
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict
from urllib.parse import urlsplit

Transport = Literal["websocket", "sse", "poll"]
Token = str | Callable[[], "str | Awaitable[str | None] | None"]

TRANSPORTS: tuple[Transport, ...] = ("websocket", "sse", "poll")

# Backoff: the bound of the first delay, which doubles with each attempt, up to the cap.
BACKOFF_BASE = 0.5
BACKOFF_CAP = 30.0
# The longest delay that a server can impose: a longer one is more likely a mistake.
RETRY_MAX = 86_400.0
# The server remembers idempotency keys for five minutes; a retry after that could double.
PUBLISH_TIMEOUT_MAX = 240.0
# As on the server.
POLL_WAIT_MAX = 300.0
# The longest time for a transport to open, to which it grows.
OPEN_TIMEOUT_MAX = 30.0
# The option `proxy` of a client that reads the variables of its environment.
FROM_ENVIRONMENT = "environment"


# What a client may ask of the server for its connections, in seconds: the least and the largest
# value.
CONNECTION = {"heartbeat": (10, 3_600), "pace": (0.01, 60)}


class ConnectionOptions(TypedDict, total=False):
    """Options that the server has for each connection, by their names in its reference."""

    heartbeat: int
    """The longest silence of the server in whole seconds, 10 to 3,600."""
    pace: float
    """The least time between two deliveries of a channel in seconds, 0.01 to 60: messages that come
    within it go out together, the first after silence at once."""


class OptionValues(TypedDict, total=False):
    """The options that a client may be given; see `Options`."""

    user: str | int | None
    no_time: bool
    params: ConnectionOptions
    transports: Sequence[Transport]
    heartbeat: float
    open_timeout: float
    request_timeout: float
    publish_timeout: float
    poll_wait: float
    ssl_context: ssl.SSLContext | None
    proxy: str | None
    default: Callable[[Any], Any] | None
    random: Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a client behaves. All times are in seconds."""

    user: str | int | None = None
    """The user of the connections, shown by `presence`. With a token it may be left out."""
    no_time: bool = False
    """Leaves out the time of messages over WebSockets, which makes them smaller."""
    params: ConnectionOptions = field(default_factory=ConnectionOptions)
    """Options that the client asks of the server for its connections."""
    transports: Sequence[Transport] = TRANSPORTS
    """The transports in order of preference."""
    heartbeat: float = 25.0
    """The server's `heartbeat`, for transports that do not announce it; 0 if it sends none."""
    open_timeout: float = 3.0
    """Time for a transport to open at the first attempt; each has twice as long, up to 30 s. If
    the server answers meanwhile, the client falls back to the next transport."""
    request_timeout: float = 10.0
    """Time after which a request counts as unanswered."""
    publish_timeout: float = 30.0
    """Time for a publication with all its attempts; at most 240."""
    poll_wait: float = 25.0
    """How long a long-poll waits; from 1 to 300."""
    ssl_context: ssl.SSLContext | None = None
    """The certificates to trust. None: those of `SSL_CERT_FILE` or `SSL_CERT_DIR`, or of the
    package `certifi` and of the system."""
    proxy: str | None = FROM_ENVIRONMENT
    """The URL of a proxy for all connections; None for no proxy. By default that of the variables
    `HTTPS_PROXY`, `HTTP_PROXY` and `ALL_PROXY` with `NO_PROXY`; a server on this machine has none.
    """
    default: Callable[[Any], Any] | None = None
    """Converts what is no JSON, such as a `datetime`, as in `json.dumps`."""
    random: Callable[[], float] = random.random
    """Returns numbers from 0 to 1, for the jitter."""

    def __post_init__(self) -> None:
        limits = {
            "heartbeat": 1e6,
            "open_timeout": 1e6,
            "request_timeout": 1e6,
            "publish_timeout": PUBLISH_TIMEOUT_MAX,
            "poll_wait": POLL_WAIT_MAX,
        }
        for name, limit in limits.items():
            # A poll that does not wait would be followed by the next at once.
            least = 1 if name == "poll_wait" else 0
            if not isinstance(getattr(self, name), int | float) or getattr(self, name) is True:
                raise TypeError(f"the option {name} must be a number of seconds")
            if not least <= getattr(self, name) <= limit:
                raise ValueError(f"the option {name} must be from {least} to {limit:g} seconds")
        for name, value in self.params.items():
            if name not in CONNECTION:
                known = ", ".join(CONNECTION)
                raise TypeError(f"a connection has no option {name!r}; there are: {known}")
            check_connection_option(name, value)
        for name in ("random", "default"):
            if not (getattr(self, name) is None or callable(getattr(self, name))):
                raise TypeError(f"the option {name} must be a function")
        if isinstance(self.transports, str):
            raise TypeError(f"the option transports is a list: [{self.transports!r}]")
        if not self.transports:
            raise ValueError("name at least one transport")
        for transport in self.transports:
            if transport not in TRANSPORTS:
                known = ", ".join(TRANSPORTS)
                raise ValueError(f"there is no transport {transport!r}; there are {known}")


def check_connection_option(name: str, value: object) -> None:
    """Raises `ValueError` unless an option of a connection is within its bounds."""
    least, limit = CONNECTION[name]
    is_whole = isinstance(least, int)
    kinds = int if is_whole else int | float
    if not isinstance(value, kinds) or value is True or not least <= value <= limit:
        kind = "an integer" if is_whole else "a number of seconds"
        wanted = f"must be {kind} from {least} to {limit}"
        raise ValueError(f"the option {name} of a connection {wanted}")


def checked_options(given: OptionValues) -> Options:
    """The options of a client. Raises `TypeError` for one that there is not."""
    for name in given:
        if name not in OptionValues.__annotations__:
            near = difflib.get_close_matches(name, OptionValues.__annotations__, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "there are: "
            known = "" if near else ", ".join(OptionValues.__annotations__)
            raise TypeError(f"there is no option {name!r}; {hint}{known}")
    options = OptionValues(**given)
    params = given.get("params", {})
    if not isinstance(params, dict):
        raise TypeError("the option params must be a dict")
    heartbeat = params.get("heartbeat")
    if heartbeat and "heartbeat" not in given:
        # Where the server does not announce it.
        options["heartbeat"] = float(heartbeat)
    return Options(**options)


def parameters_of(options: Options) -> dict[str, str]:
    """The options of a connection as parameters of its URL, but for the pace of its channels."""
    return {name: str(value) for name, value in options.params.items() if name != "pace"}


def backoff(attempt: int, random: Callable[[], float]) -> float:
    """Backoff with full jitter: 0 to the bound, so that clients do not retry together."""
    return random() * min(BACKOFF_CAP, BACKOFF_BASE * 2.0 ** min(attempt, 16))


def bounded(delay: float) -> float:
    """A time that the server has named in seconds, limited to a day."""
    return min(max(0.0, delay), RETRY_MAX)


def checked_url(url: str) -> str:
    """The URL of the server without a slash at the end. Raises `ValueError` if it is none."""
    if not isinstance(url, str):
        raise TypeError(f"the URL of the server is a str, not {url!r}")
    if "://" not in url:
        local = url.startswith(("localhost", "127.", "[::1]", ":"))
        host = f"localhost{url}" if url.startswith(":") else url.lstrip("/")
        meant = f"{'http' if local else 'https'}://{host}"
        raise ValueError(f"the URL {url!r} has no scheme; did you mean {meant!r}?")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        meant = {"ws": "http", "wss": "https"}.get(parts.scheme, "https")
        rest = url.partition("://")[2]
        raise ValueError(f"the URL {url!r} is not an HTTP URL; did you mean '{meant}://{rest}'?")
    if not parts.hostname:
        raise ValueError(f"the URL {url!r} names no host")
    if parts.query or parts.fragment:
        raise ValueError(f"the URL {url!r} must not have a query or fragment")
    return url.rstrip("/")
