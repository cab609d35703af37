"""A relay between a client and the server that keeps what goes through it."""

import contextlib
import selectors
import socket
import threading

from . import TIMEOUT_SECONDS


class Relayed:
    """What has gone through one connection, in each direction."""

    def __init__(self):
        self.from_server, self.from_client = bytearray(), bytearray()


class Relay:
    """Listens on a port of its own and passes everything on. `relayed` is what has gone through, one
    for each connection. Without a `server`, `target` is set later."""

    def __init__(self, server):
        self.target = server and (server.host, server.port)
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
                server = socket.create_connection(self.target, TIMEOUT_SECONDS)
            except OSError:
                return
            self.sockets += [client, server]
            relayed = Relayed()
            self.relayed.append(relayed)
            args = (client, server, relayed)
            threading.Thread(target=self._relay, args=args, daemon=True).start()

    def _relay(self, client, server, relayed):
        ways = {client: (server, relayed.from_client), server: (client, relayed.from_server)}
        with selectors.DefaultSelector() as selector:
            for source in ways:
                selector.register(source, selectors.EVENT_READ)
            try:
                while True:
                    for key, _ in selector.select():
                        target, kept = ways[key.fileobj]
                        data = key.fileobj.recv(65536)
                        if not data:
                            client.close()
                            server.close()
                            return
                        kept += data
                        target.sendall(data)
            except (OSError, ValueError):
                return
