"""Sockets without a client library, for what no library would send."""

import base64
import json
import os
import socket
import struct
from dataclasses import dataclass, field

from . import TIMEOUT_SECONDS

TEXT, BINARY, CLOSE, PING, PONG = 0x1, 0x2, 0x8, 0x9, 0xA
CONTINUATION = 0x0


class Closed(Exception):
    """The server ended the connection where more bytes were expected."""


@dataclass
class Response:
    """An HTTP response, read to its end unless it is a stream."""

    status: int
    headers: list = field(default_factory=list)
    body: bytes = b""

    def header(self, name):
        """The value of a header, or None."""
        for key, value in self.headers:
            if key.lower() == name.lower():
                return value
        return None

    def json(self):
        """The body as JSON."""
        return json.loads(self.body)


class Raw:
    """A TCP connection with a read buffer."""

    def __init__(self, server, receive_buffer_bytes=None, source=None):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if source:
            # Any address of 127.0.0.0/8 is this machine's.
            self.socket.bind((source, 0))
        if receive_buffer_bytes:
            # Before connecting, so that the window is small from the first segment on.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(TIMEOUT_SECONDS)
        self.socket.connect((server.host, server.port))
        self.host = f"{server.host}:{server.port}"
        self.buffer = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Closes the connection."""
        self.socket.close()

    def reset(self):
        """Ends the connection with a reset instead of an orderly end."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def send(self, data):
        """Sends bytes, or text as UTF-8."""
        self.socket.sendall(data.encode() if isinstance(data, str) else data)

    def send_anyway(self, data):
        """Sends data that the server may refuse to read completely."""
        try:
            self.send(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def request(self, method, path, headers=None, body=b"", version="HTTP/1.1"):
        """Sends a well-formed request."""
        lines = [f"{method} {path} {version}", f"Host: {self.host}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def _more(self):
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError:
            data = b""
        if not data:
            raise Closed
        self.buffer += data

    def read(self, count):
        """Reads exactly `count` bytes."""
        while len(self.buffer) < count:
            self._more()
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken

    def read_until(self, mark):
        """Everything up to and including a mark."""
        while mark not in self.buffer:
            self._more()
        at = self.buffer.index(mark) + len(mark)
        taken, self.buffer = self.buffer[:at], self.buffer[at:]
        return taken

    def read_to_end(self):
        """Everything until the server ends the connection."""
        try:
            while True:
                self._more()
        except Closed:
            taken, self.buffer = self.buffer, b""
            return taken

    def is_ended(self):
        """Waits for the server to end the connection; any further byte is an error."""
        rest = self.read_to_end()
        assert rest == b"", rest[:200]
        return True

    def read_head(self):
        """Status and headers of a response."""
        lines = self.read_until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        version, status, *_ = lines[0].split(" ")
        assert version == "HTTP/1.1", lines[0]
        pairs = [line.split(":", 1) for line in lines[1:] if line]
        return Response(int(status), [(name, value.strip()) for name, value in pairs])

    def read_response(self, is_head=False):
        """A whole response."""
        response = self.read_head()
        if is_head or response.status in (101, 204, 304):
            return response
        if response.header("transfer-encoding") == "chunked":
            while chunk := self.read_chunk():
                response.body += chunk
        elif response.header("content-length") is not None:
            response.body = self.read(int(response.header("content-length")))
        else:
            response.body = self.read_to_end()
        return response

    def read_chunk(self):
        """One chunk of a body; empty at its end."""
        size = int(self.read_until(b"\r\n").split(b";")[0], 16)
        data = self.read(size)
        assert self.read(2) == b"\r\n"
        return data


def frame(opcode, payload=b"", final=True, masked=True, reserved=0, length=None):
    """A WebSocket frame, valid or not. `length` overrides the length in the header."""
    payload = payload.encode() if isinstance(payload, str) else payload
    size = len(payload) if length is None else length
    head = bytes([(0x80 if final else 0) | reserved << 4 | opcode])
    mask_bit = 0x80 if masked else 0
    if size < 126:
        head += bytes([mask_bit | size])
    elif size < 1 << 16:
        head += bytes([mask_bit | 126]) + struct.pack(">H", size)
    else:
        head += bytes([mask_bit | 127]) + struct.pack(">Q", size)
    if not masked:
        return head + payload
    mask = os.urandom(4)
    repeated = (mask * (len(payload) // 4 + 1))[: len(payload)]
    mixed = int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")
    return head + mask + mixed.to_bytes(len(payload), "big")


def handshake_headers(**changes):
    """The headers of a proper handshake; a change to None leaves one out."""
    headers = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
    }
    headers.update({name.replace("_", "-"): value for name, value in changes.items()})
    return {name: value for name, value in headers.items() if value is not None}


class RawWebSocket(Raw):
    """A WebSocket that answers nothing by itself."""

    def __init__(self, server, path, protocol=None, receive_buffer_bytes=None, source=None, headers=None):
        super().__init__(server, receive_buffer_bytes, source)
        self.request("GET", path, {**handshake_headers(Sec_WebSocket_Protocol=protocol), **(headers or {})})
        self.response = self.read_response()
        assert self.response.status == 101, self.response

    def read_frame(self):
        """The next frame: its opcode and payload. The server's must be whole and unmasked."""
        first, second = self.read(2)
        assert first & 0xF0 == 0x80, f"a frame that is not whole, or with reserved bits: {first:#x}"
        assert second & 0x80 == 0, "a masked frame from the server"
        size = second
        if size == 126:
            (size,) = struct.unpack(">H", self.read(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", self.read(8))
        return first & 0x0F, self.read(size)

    def read_message(self):
        """The next text or binary message."""
        while True:
            opcode, payload = self.read_frame()
            assert opcode != CLOSE, payload
            if opcode in (TEXT, BINARY):
                return payload

    def read_close(self):
        """Reads until the server closes; returns the code and the reason, and sees the end."""
        while True:
            opcode, payload = self.read_frame()
            if opcode == CLOSE:
                break
        code = struct.unpack(">H", payload[:2])[0] if payload else None
        self.send_anyway(frame(CLOSE, payload[:2]))
        self.is_ended()
        return code, payload[2:].decode()
