"""Pebble, the test authority of ACME, with names that lead to the server under test."""

import json
import os
import socket
import socketserver
import subprocess
import threading

import httpx

from . import TIMEOUT_SECONDS
from .certificates import Authority, trusting
from .relay import Relay
from .server import ROOT, eventually

BINARY = ROOT / ".cache" / "go" / "bin" / "pebble"


class Names(socketserver.ThreadingTCPServer):
    """A DNS server, over TCP, as Pebble asks: each name leads to this machine, and those with
    `elsewhere` to an address of it where nothing listens."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Questions)
        self.address = "127.0.0.1:%d" % self.server_address[1]
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Questions(socketserver.StreamRequestHandler):
    """One connection of a resolver."""

    def handle(self):
        while length := self.rfile.read(2):
            answer = self._answer(self.rfile.read(int.from_bytes(length)))
            self.wfile.write(len(answer).to_bytes(2) + answer)

    @staticmethod
    def _answer(question):
        end = question.index(b"\0", 12) + 5
        asked, kind = question[12:end], question[end - 4 : end - 2]
        head = question[:2] + b"\x81\x80\0\1"
        if kind != b"\0\1":  # Only A has an answer.
            return head + b"\0\0\0\0\0\0" + asked
        address = bytes([127, 0, 0, 2 if b"elsewhere" in asked else 1])
        return head + b"\0\1\0\0\0\0" + asked + b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + address


class Door(Relay):
    """The port 443 of the names: what comes there waits until it is known where the server is."""

    def __init__(self):
        self._known, self._target = threading.Event(), None
        super().__init__(None)

    @property
    def target(self):
        assert self._known.wait(TIMEOUT_SECONDS), "the server has no port"
        return self._target

    @target.setter
    def target(self, target):
        self._target = target
        if target is None:
            self._known.clear()
        else:
            self._known.set()


class Pebble:
    """An authority whose certificates are valid for `life` seconds, and that validates names at the
    port of `relay`."""

    def __init__(self, directory, validation_port, life=90 * 86_400):
        self.directory = directory / "pebble"
        self.directory.mkdir()
        authority = Authority(self.directory)
        self.ca = authority.certificate
        self._own = authority.sign("api", "DNS:localhost", usage="serverAuth")
        self._names = Names()
        self._validation_port, self._life = validation_port, life
        self._process = None
        self.port = self._management = None

    @property
    def url(self):
        return f"https://localhost:{self.port}/dir"

    def start(self):
        """Starts it, at the same ports as before, or else at free ones."""
        if self.port is not None:
            # Others may have the ports for a moment, as those of a connection.
            eventually(self._start, "pebble at its ports")
            return self
        for _ in range(10):
            # Others may take the ports before it does.
            self.port, self._management = free_ports(2)
            if self._start():
                return self
        raise AssertionError(f"pebble does not start: {self.log()}")

    def _start(self):
        config = {
            "listenAddress": f"127.0.0.1:{self.port}",
            "managementListenAddress": f"127.0.0.1:{self._management}",
            "certificate": str(self._own[0]),
            "privateKey": str(self._own[1]),
            "httpPort": 1,
            "tlsPort": self._validation_port,
            "keyAlgorithm": "ecdsa",
            "retryAfter": {"authz": 1, "order": 1},
            "profiles": {"default": {"description": "the only one", "validityPeriod": self._life}},
        }
        path = self.directory / "config.json"
        path.write_text(json.dumps({"pebble": config}))
        settings = {
            "PEBBLE_VA_NOSLEEP": "1",
            "PEBBLE_WFE_NONCEREJECT": "0",
            "PEBBLE_AUTHZREUSE": "0",
        }
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                [BINARY, "-config", path, "-dnsserver", self._names.address],
                env={**os.environ, **settings},
                stdout=log,
                stderr=log,
            )
        eventually(lambda: self._process.poll() is not None or self._answers(), "pebble")
        return self._process.poll() is None

    def _answers(self):
        try:
            return self._get(self.port, "/dir").status_code == 200
        except httpx.TransportError:
            return False

    def _get(self, port, path):
        url = f"https://localhost:{port}{path}"
        context = trusting(self.ca)
        return httpx.get(url, verify=context, timeout=TIMEOUT_SECONDS, trust_env=False)

    def root(self):
        """Writes the certificate that signs those of the authority. Returns its path."""
        path = self.directory / "root.pem"
        path.write_text(self._get(self._management, "/roots/0").text)
        return path

    def want_renewal(self, certificate, window):
        """From now on names this window, of two dates, for the renewal of a certificate in PEM."""
        start, end = (moment.isoformat() for moment in window)
        said = {"suggestedWindow": {"start": start, "end": end}, "explanationURL": "https://ca.example/why"}
        wanted = {"certificate": certificate, "ariResponse": json.dumps(said)}
        url = f"https://localhost:{self._management}/set-renewal-info/"
        context = trusting(self.ca)
        answer = httpx.post(url, json=wanted, verify=context, timeout=TIMEOUT_SECONDS, trust_env=False)
        assert answer.status_code == 200, answer.text

    def log(self):
        path = self.directory / "log"
        return path.read_text() if path.exists() else ""

    def stop(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self):
        self.stop()
        self._names.shutdown()
        self._names.server_close()


def free_ports(count):
    """Ports that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
