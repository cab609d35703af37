"""A proxy of slow and dying lines: what it does depends on the transport that a request asks for.

A connection may carry several requests, of which the last may be a subscription. Clients send the
head of a request in one piece.
"""

import asyncio
from dataclasses import dataclass, field, replace

from misbehaving import CHUNK_BYTES, Direction, Proxy, flush

BAD_GATEWAY = b"HTTP/1.1 502 -\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\n<h1>"


@dataclass(eq=False)
class Line:
    """The faults of a line, for subscriptions over one transport. Times are in seconds."""

    dies_after: float | None = None
    """It breaks this long after the first byte from the server."""
    frame_bytes_max: int | None = None
    """A WebSocket breaks at a frame from the client with a larger payload."""
    late: float = 0.0
    """Its request waits this long."""
    late_count: int = 0
    """Only the first ones are late; 0 for none."""
    is_refused: bool = False
    """Its request is answered 502."""
    is_hole: bool = False
    """Its request vanishes, and nothing is closed."""
    is_hole_once_open: bool = False
    """What the client sends after the first byte from the server vanishes, and so does what the
    server sends after its first piece."""
    asked: int = field(default=0, init=False)
    """How many were asked for."""


CLEAR = Line()


def transport_of(head):
    """The transport of a subscription, or None for any other request."""
    head = head.lower()
    if b"upgrade: websocket" in head:
        return "websocket"
    line = head.partition(b"\r\n")[0]
    for name in ("sse", "poll"):
        if line.startswith(b"get ") and f"transport={name}".encode() in line:
            return name
    return None


class FrameSizes:
    """Reads the sizes of the masked frames of a client."""

    def __init__(self):
        self.data = b""

    def feed(self, data):
        """The payload sizes of the frames whose heads are complete now."""
        self.data += data
        sizes = []
        while len(self.data) >= 2:
            size, head = self.data[1] & 0x7F, 6
            if size >= 126:
                extra = 2 if size == 126 else 8
                head += extra
                if len(self.data) < 2 + extra:
                    break
                size = int.from_bytes(self.data[2 : 2 + extra], "big")
            sizes.append(size)
            if len(self.data) < head + size:
                break
            self.data = self.data[head + size :]
        return sizes


@dataclass
class Upward(Direction):
    """From the client: finds out which transport the connection is for."""

    proxy: "LineProxy" = None
    client: asyncio.StreamWriter = None
    line: Line = CLEAR
    is_socket: bool = False
    is_open: bool = False
    sizes: FrameSizes = field(default_factory=FrameSizes)

    async def forward(self, data, writer):
        if not self.is_socket:
            if b" /health " in data.partition(b"\r\n")[0]:
                self.proxy.health_asked()
            if transport := transport_of(data):
                self.line = self.proxy.lines.get(transport, CLEAR)
                self.is_socket, self.is_open = transport == "websocket", False
                if not await self._starts(self.line):
                    return False
        elif self._is_too_large(data):
            return False
        elif self.is_open and self.line.is_hole_once_open:
            return True
        return await super().forward(data, writer)

    async def _starts(self, line):
        """Whether the request goes on to the server."""
        line.asked += 1
        if line.is_hole:
            await asyncio.Event().wait()
        if line.asked <= line.late_count:
            await asyncio.sleep(line.late)
        if line.is_refused:
            self.client.write(BAD_GATEWAY)
            await flush(self.client)
        return not line.is_refused

    def _is_too_large(self, data):
        most = self.line.frame_bytes_max
        return most is not None and any(size > most for size in self.sizes.feed(data))


@dataclass
class Downward(Direction):
    """From the server: knows from the other direction which line it is."""

    up: Upward = None

    async def forward(self, data, writer):
        line = self.up.line
        if line is not CLEAR and not self.up.is_open:
            self.up.is_open = True
            if line.dies_after is not None:
                asyncio.get_running_loop().call_later(line.dies_after, writer.transport.abort)
        elif line.is_hole_once_open:
            return True
        return await super().forward(data, writer)


class LineProxy(Proxy):
    """Forwards to the real server over lines that differ by transport."""

    def __init__(self, loop, upstream, delay=0.0, **lines):
        super().__init__(loop, upstream)
        self.lines = {name: replace(line) for name, line in lines.items()}
        """The line of each transport, which a test may replace at any time."""
        self.delay = delay
        """Each piece waits this long, in both directions."""
        self.are_cleared_by_health = False
        """A request for `/health` replaces the lines by clear ones."""

    def directions(self, number, client):
        up = Upward(None, CHUNK_BYTES, self.delay, proxy=self, client=client)
        return up, Downward(None, CHUNK_BYTES, self.delay, up=up)

    def health_asked(self):
        """A client has asked whether the server answers."""
        if self.are_cleared_by_health:
            self.lines = {}
