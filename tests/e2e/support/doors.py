"""A door to a nats-server: a port of its own that passes bytes on, until it is cut off."""

import asyncio
import contextlib
import socket
import threading

from . import TIMEOUT_SECONDS


class Door:
    """Passes connections on to the port that `behind` says; None while nobody is there."""

    def __init__(self, behind):
        self.behind = behind
        self.is_cut = False
        # How long each piece takes that passes, in seconds.
        self.delay = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    @contextlib.contextmanager
    def cut_off(self):
        """For the block nothing passes the door, and all connections stay."""
        self.is_cut = True
        try:
            yield
        finally:
            self.is_cut = False

    def close(self):
        """Ends the door and its connections."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(TIMEOUT_SECONDS)
        self.listener.close()

    def _serve(self):
        asyncio.set_event_loop(self.loop)
        serving = asyncio.start_server(self._connected, sock=self.listener)
        server = self.loop.run_until_complete(serving)
        self.loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    async def _connected(self, reader, writer):
        with contextlib.suppress(OSError):
            port = self.behind()
            if port is not None:
                behind = await asyncio.open_connection("127.0.0.1", port)
                pumps = [self._pump(reader, behind[1]), self._pump(behind[0], writer)]
                tasks = [asyncio.ensure_future(pump) for pump in pumps]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
                behind[1].transport.abort()
        writer.transport.abort()

    async def _pump(self, source, target):
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                if self.delay:
                    await asyncio.sleep(self.delay)
                while self.is_cut:
                    await asyncio.sleep(0.01)
                target.write(data)
                await target.drain()
