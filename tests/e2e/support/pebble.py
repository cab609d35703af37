"""Pebble, the test authority of ACME, with names that lead to the server under test."""

import json
import os
import socket
import socketserver
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

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
    """An authority whose certificates are valid for `life` seconds, and that validates names at
    `validation_port`. Its clients talk to `front`, if there is one."""

    def __init__(self, directory, validation_port, life=90 * 86_400, front=None):
        self.directory = directory / "pebble"
        self.directory.mkdir()
        authority = Authority(self.directory)
        self.ca = authority.certificate
        self._own = authority.sign("api", "DNS:localhost", usage="serverAuth")
        self._names = Names()
        self._validation_port, self._life = validation_port, life
        self._process = None
        self.port = self._management = None
        self._front = front and front.before(self, self._own)

    @property
    def url(self):
        """Of its directory, as its clients know it."""
        return f"https://localhost:{self._front.port if self._front else self.port}/dir"

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


class Forgetful:
    """What stands before an authority and removes from its answers which certificate an order
    replaces. `dropped` is how often it has done so."""

    def __init__(self):
        self._server, self.dropped = None, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    @property
    def port(self):
        return self._server.server_address[1]

    def before(self, authority, certificate):
        """Stands before the authority, with a certificate and its key."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), ForgetfulRequests)
        self._server.daemon_threads = True
        self._server.pass_on = lambda *request: self._pass_on(authority, *request)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*map(str, certificate))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def _pass_on(self, authority, method, path, headers, body):
        answer = httpx.request(
            *(method, f"https://localhost:{authority.port}{path}"),
            # The authority makes its URLs of the host's name.
            headers={name: value for name, value in headers.items() if name != "Content-Length"},
            **{"content": body, "verify": trusting(authority.ca)},
            **{"timeout": TIMEOUT_SECONDS, "trust_env": False},
        )
        content = answer.content
        if path.endswith("/order-plz") and "replaces" in answer.json():
            left = {name: value for name, value in answer.json().items() if name != "replaces"}
            content, self.dropped = json.dumps(left).encode(), self.dropped + 1
        return answer.status_code, answer.headers, content


class ForgetfulRequests(BaseHTTPRequestHandler):
    """One connection of a client."""

    def do_HEAD(self):
        self._pass_on()

    def do_GET(self):
        self._pass_on()

    def do_POST(self):
        self._pass_on()

    def _pass_on(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = self.server.pass_on(self.command, self.path, self.headers, body)
        status, headers, content = answer
        self.send_response(status)
        for name, value in headers.items():
            if name not in ("content-length", "date", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


def free_ports(count):
    """Ports that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
