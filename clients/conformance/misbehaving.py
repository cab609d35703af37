"""Servers that misbehave by plan: a proxy before the real server, and one that follows a script.

Both run on an event loop in a thread. A plan is a function from the number of a connection to what
happens to it, so that the same seed gives the same run.
"""

import asyncio
import base64
import hashlib
import json
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field


class Loop:
    """An event loop in a thread."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    def stop(self):
        self.run(self._cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def _cancel_all(self):
        """Ends the connections that clients have left open."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


CHUNK_BYTES = 65_536


async def flush(writer):
    """Waits until all is sent, but not for a peer that does not read."""
    with suppress(TimeoutError):
        await asyncio.wait_for(writer.drain(), 1)


@dataclass
class Direction:
    """One direction of a connection through a proxy, and what happens to its bytes."""

    cut_after: int | None = None
    """The connection breaks after this many bytes."""
    piece: int = CHUNK_BYTES
    """Bytes come in pieces of at most this size, each a segment of its own."""
    delay: float = 0.0
    """Pause before each piece."""
    passed: int = 0

    def size(self):
        """How many bytes pass next, at most."""
        return self.piece

    async def forward(self, data, writer):
        """Passes data on. Whether the connection goes on."""
        if self.cut_after is not None and self.passed + len(data) >= self.cut_after:
            writer.write(data[: self.cut_after - self.passed])
            await flush(writer)
            return False
        self.passed += len(data)
        await asyncio.sleep(self.delay)
        writer.write(data)
        await writer.drain()
        return True


@dataclass
class Fault:
    """What happens to one connection of a proxy."""

    cut_after: int | None = None
    """The connection breaks after this many bytes from the server."""
    cut_request_after: int | None = None
    """The same for bytes from the client."""
    piece: int = CHUNK_BYTES
    """Bytes from the server come in pieces of this size."""
    delay: float = 0.0
    """Pause before each piece."""
    request_delay: float = 0.0
    """The same for pieces from the client."""

    def directions(self):
        """The direction from the client, and the direction from the server."""
        from_server = Direction(self.cut_after, self.piece, self.delay)
        return Direction(self.cut_request_after, delay=self.request_delay), from_server


class Proxy:
    """Forwards to the real server, with faults by plan."""

    def __init__(self, loop, upstream, plan=lambda number: Fault()):
        self.loop = loop
        self.upstream = upstream
        self.plan = plan
        self.connections = 0
        self._flows = asyncio.Event()
        self._flows.set()
        self._requests_flow = asyncio.Event()
        self._requests_flow.set()
        self._tasks = set()
        self.server = loop.run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    def freeze(self):
        """Nothing passes any more, and nothing is closed."""
        self.loop.loop.call_soon_threadsafe(self._flows.clear)

    def freeze_requests(self):
        """Nothing from clients passes any more; what the server sends does."""
        self.loop.loop.call_soon_threadsafe(self._requests_flow.clear)

    def thaw(self):
        self.loop.loop.call_soon_threadsafe(self._flows.set)
        self.loop.loop.call_soon_threadsafe(self._requests_flow.set)

    def cut(self):
        """Breaks all connections."""

        async def cut():
            for task in self._tasks:
                task.cancel()

        self.loop.run(cut())

    def close(self):
        self.server.get_loop().call_soon_threadsafe(self.server.close)
        self.cut()

    def directions(self, number, client):
        """The directions of a connection: from the client, and from the server. None refuses it.

        `client` is the writer of responses that are not from the server.
        """
        return self.plan(number).directions()

    async def _serve(self, reader, writer):
        directions = self.directions(self.connections, writer)
        self.connections += 1
        if directions is None:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        self._tasks.add(task)
        other = None
        try:
            await self._flows.wait()
            up_reader, other = await asyncio.open_connection("127.0.0.1", self.upstream.port)
            ways = [(reader, other, self._requests_flow), (up_reader, writer, self._flows)]
            pumps = [
                asyncio.create_task(self._pump(*way, direction))
                for way, direction in zip(ways, directions, strict=True)
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for each in (writer, other):
                if each is not None:
                    each.transport.abort()

    async def _pump(self, reader, writer, flows, direction):
        with suppress(OSError):
            while data := await reader.read(direction.size()):
                await flows.wait()
                await self._flows.wait()
                if not await direction.forward(data, writer):
                    return


@dataclass
class Request:
    """What a client has asked."""

    method: str
    path: str
    headers: dict
    body: bytes = b""
    seen: list = field(default_factory=list)


class Scripted:
    """Gives each request to a script: a coroutine of the request and the peer."""

    def __init__(self, loop, script):
        self.loop = loop
        self.script = script
        self.requests = []
        self.server = loop.run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    def close(self):
        self.server.get_loop().call_soon_threadsafe(self.server.close)

    async def _serve(self, reader, writer):
        peer = Peer(reader, writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                line, *fields = head.split("\r\n")
                method, path, _ = line.split(" ")
                named = (each.split(": ", 1) for each in fields if ": " in each)
                headers = {name.lower(): value for name, value in named}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                request = Request(method, path, headers, body)
                self.requests.append(request)
                if path == "/health":
                    peer.answer(200, b"ok")
                else:
                    await self.script(request, peer)
                if "upgrade" in headers or writer.is_closing():
                    break
        writer.transport.abort()


class Peer:
    """One connection of a scripted server."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer

    def answer(self, status, body=b"", **headers):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} -", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    def accept(self, request):
        """Opens the WebSocket."""
        salted = request.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(salted.encode()).digest()).decode()
        lines = ["HTTP/1.1 101 -", "Upgrade: websocket", "Connection: Upgrade"]
        lines += [f"Sec-WebSocket-Accept: {accept}", "Sec-WebSocket-Protocol: throng.v1"]
        self.writer.write("\r\n".join([*lines, "", ""]).encode())

    def welcome(self, request, heartbeat=25, channels_max=128):
        self.accept(request)
        limits = {"heartbeat": heartbeat, "channels_max": channels_max}
        self.say({"type": "welcome", "connection": "c", **limits})

    async def drain(self):
        await self.writer.drain()

    def say(self, frame):
        self.text(json.dumps(frame))

    def text(self, text):
        self._frame(0x81, text.encode())

    def bytes_frame(self, payload):
        """A text frame of bytes that may be no text."""
        self._frame(0x81, payload)

    def close(self, code, reason=""):
        self._frame(0x88, struct.pack(">H", code) + reason.encode())

    def _frame(self, first, payload):
        size = len(payload)
        if size < 126:
            head = bytes([first, size])
        elif size < 1 << 16:
            head = bytes([first, 126]) + struct.pack(">H", size)
        else:
            head = bytes([first, 127]) + struct.pack(">Q", size)
        self.writer.write(head + payload)

    async def hear(self):
        """The next text of the client; raises at its end."""
        while True:
            first, size = await self.reader.readexactly(2)
            size &= 0x7F
            if size == 126:
                (size,) = struct.unpack(">H", await self.reader.readexactly(2))
            elif size == 127:
                (size,) = struct.unpack(">Q", await self.reader.readexactly(8))
            mask = await self.reader.readexactly(4)
            payload = await self.reader.readexactly(size)
            if first & 0x0F == 8:
                # Both have closed: the server closes the connection.
                raise ConnectionResetError
            if first & 0x0F == 1:
                plain = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
                return json.loads(plain)

    async def until_subscribe(self):
        while (frame := await self.hear())["type"] != "subscribe":
            pass
        return frame


def read_list(frame):
    """The channels of a `subscribe` command, each with its fields."""
    entries = frame.get("channels", [frame])
    return [{"channel": it} if isinstance(it, str) else it for it in entries]
