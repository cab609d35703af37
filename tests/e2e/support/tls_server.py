"""A server with a TLS listener beside the plain one, and what tests of it share."""

import socket

import httpx

from . import TIMEOUT_SECONDS
from .certificates import make_certificate, trusting
from .server import Server, eventually


class TlsServer:
    """A server with a TLS listener beside the plain one, and a certificate for localhost."""

    def __init__(self, server, certificate):
        self.plain, self.certificate, self.context = server, certificate, trusting(certificate)
        eventually(lambda: "TLS listener on https://" in server.log(), "the TLS listener")
        line = next(line for line in server.output if "TLS listener on" in line)
        self.url = line.split()[-1]
        self.port = int(self.url.rpartition(":")[2])

    def http(self):
        """An HTTP client that trusts the server."""
        return httpx.Client(
            base_url=self.url, verify=self.context, timeout=TIMEOUT_SECONDS, trust_env=False
        )

    def connect(self, **options):
        """A TLS connection."""
        return self.context.wrap_socket(self.tcp(), server_hostname="localhost", **options)

    def tcp(self):
        """A connection without TLS."""
        return socket.create_connection(("127.0.0.1", self.port), TIMEOUT_SECONDS)

    def metric(self, name):
        """The value of a metric."""
        return self.plain.metrics().get(f"throng_{name}", 0)


def start_tls(directory, *flags, **certificate_options):
    """Starts a server with a TLS listener; `plain.stop()` ends it."""
    certificate, key = make_certificate(directory, "own", "localhost", **certificate_options)
    listener = ["--tls-listen", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key]
    # Flags win: a test about the length of drains sets its own.
    quick = {"THRONG_DRAIN_WINDOW": "200ms"}
    return TlsServer(Server(directory, *listener, *flags, environment=quick), certificate)


def read_until(read, text):
    """Reads until `text` has come; returns everything."""
    received = b""
    while text not in received:
        piece = read()
        assert piece, received
        received += piece
    return received


def stream_request(channel, accept="text/event-stream"):
    """The head of a request that subscribes."""
    return (
        f"GET /channels/{channel} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n"
    ).encode()
