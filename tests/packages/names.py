"""Runs `throng health` for a host name, in a root directory and a network of its own.

    unshare --map-root-user --net names.py ROOT NAME

The network has a server that is healthy on port 8080, and a name server that knows in-dns.test.
"""

import fcntl
import http.server
import socket
import struct
import subprocess
import sys
import threading

SIOCSIFFLAGS = 0x8914
IFF_UP = 1
TYPE_A = 1
KNOWN = "in-dns.test"
PORT = 8080


def loopback_up():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def question(query):
    """The name and type that a query asks for, and where its question ends."""
    labels, at = [], 12
    while size := query[at]:
        labels.append(query[at + 1 : at + 1 + size].decode())
        at += 1 + size
    return ".".join(labels), struct.unpack_from(">H", query, at + 1)[0], at + 5


def answer(query):
    name, kind, end = question(query)
    is_known = name == KNOWN
    has_address = is_known and kind == TYPE_A
    # A recursive answer without an error, or that there is no such name.
    flags = 0x8180 if is_known else 0x8183
    head = query[:2] + struct.pack(">HHHHH", flags, 1, int(has_address), 0, 0)
    address = struct.pack(">HHHIH4s", 0xC00C, TYPE_A, 1, 60, 4, b"\x7f\0\0\1")
    return head + query[12:end] + (address if has_address else b"")


def serve_names(port):
    while True:
        query, client = port.recvfrom(512)
        port.sendto(answer(query), client)


class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"ok\n")

    def log_message(self, *_):
        pass


def main():
    root, name = sys.argv[1:]
    loopback_up()
    port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    port.bind(("127.0.0.1", 53))
    threading.Thread(target=serve_names, args=(port,), daemon=True).start()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Healthy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    command = ["chroot", root, "/throng", "health", "--url", f"http://{name}:{PORT}"]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
