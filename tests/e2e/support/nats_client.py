"""A client of NATS that asks one question after the other."""

import json
import socket

PATIENCE_SECONDS = 1


class NatsClient:
    """One connection."""

    def __init__(self, port, user=None, password=None):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
        self.file = self.socket.makefile("rwb")
        self.file.readline()
        login = {"user": user, "pass": password} if user else {}
        options = {"verbose": False, "headers": True, "no_responders": True, "protocol": 1, **login}
        self._send(f"CONNECT {json.dumps(options)}\r\nSUB _INBOX.t.* 1\r\n".encode())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
        self.socket.close()

    def _send(self, data):
        self.file.write(data)
        self.file.flush()

    def request(self, subject, payload=None):
        """The answer as an object; None if nobody listens."""
        body = b"" if payload is None else json.dumps(payload).encode()
        head = f"PUB {subject} _INBOX.t.1 {len(body)}\r\n".encode()
        self._send(head + body + b"\r\n")
        while line := self.file.readline():
            words = line.split()
            if words[0] == b"PING":
                self._send(b"PONG\r\n")
            elif words[0] == b"-ERR":
                raise ValueError(line)
            elif words[0] in (b"MSG", b"HMSG"):
                data = self.file.read(int(words[-1]) + 2)[:-2]
                if words[0] == b"HMSG":
                    return None
                return json.loads(data)
        raise EOFError
