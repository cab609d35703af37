"""A relay between a client and the server that keeps what goes through it."""

import contextlib
import selectors
import socket
import threading

from . import TIMEOUT_SECONDS

SEGMENT_BYTES = 1400


class Relayed:
    """What has gone through one connection, in each direction."""

    def __init__(self):
        self.from_server, self.from_client = bytearray(), bytearray()


class Relay:
    """Listens on a port of its own and passes everything on. `relayed` is what has gone through, one
    for each connection. Without a `server`, `target` is set later; `receive_buffer_bytes` is what the kernel takes of
    the server's while the relay does not read."""

    def __init__(self, server, receive_buffer_bytes=None):
        self.target = server and (server.host, server.port)
        self.receive_buffer_bytes = receive_buffer_bytes
        self._flows, self._admits = threading.Event(), threading.Event()
        self._flows.set()
        self._admits.set()
        # What may still pass from the server before the relay cuts.
        self._bytes_left = None
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self.listener.getsockname()[:2]
        self.relayed, self.sockets = [], []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for each in [self.listener, *self.sockets]:
            each.close()

    def cut(self):
        """Ends all connections at both ends, and drops what is on its way."""
        sockets, self.sockets = self.sockets, []
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def cut_within(self, count):
        """Cuts once so many more bytes have come from the server, in the midst of a frame."""
        self._bytes_left = count

    @contextlib.contextmanager
    def closed(self):
        """For the block, connections to the relay wait."""
        self._admits.clear()
        try:
            yield
        finally:
            self._admits.set()

    @contextlib.contextmanager
    def paused(self):
        """For the block, reads nothing."""
        self._flows.clear()
        try:
            yield
        finally:
            self._flows.set()

    @property
    def url(self):
        """The address of the relay as a URL."""
        return f"http://{self.host}:{self.port}"

    @property
    def ws(self):
        """The same for WebSockets."""
        return f"ws://{self.host}:{self.port}"

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
                self._admits.wait()
                server = self._connect()
            except OSError:
                return
            self.sockets += [client, server]
            relayed = Relayed()
            self.relayed.append(relayed)
            args = (client, server, relayed)
            threading.Thread(target=self._relay, args=args, daemon=True).start()

    def _connect(self):
        """A connection to the server."""
        if not self.receive_buffer_bytes:
            return socket.create_connection(self.target, TIMEOUT_SECONDS)
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer_bytes)
        # As on a network: a segment of the loopback's never fits into such a window, and the kernel would take the client
        # for dead.
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
        server.settimeout(TIMEOUT_SECONDS)
        server.connect(self.target)
        return server

    def _relay(self, client, server, relayed):
        ways = {client: (server, relayed.from_client), server: (client, relayed.from_server)}
        with selectors.DefaultSelector() as selector:
            for source in ways:
                selector.register(source, selectors.EVENT_READ)
            try:
                while True:
                    for key, _ in selector.select():
                        self._flows.wait()
                        target, kept = ways[key.fileobj]
                        data = key.fileobj.recv(65536)
                        if not data:
                            client.close()
                            server.close()
                            return
                        if target is client and self._bytes_left is not None:
                            data = data[: self._bytes_left]
                            self._bytes_left -= len(data)
                        kept += data
                        target.sendall(data)
                        if self._bytes_left == 0:
                            self._bytes_left = None
                            self.cut()
            except (OSError, ValueError):
                return
