"""The application that callouts ask: an HTTP server whose answers a test sets.

It verifies each request with a library of others.
"""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks.webhooks import Webhook

from support import TIMEOUT_SECONDS
from support.access import bearer

# The same in all processes: some are in the ids of tests.
OLD, NEW = ("whsec_" + base64.b64encode(bytes([number] * 32)).decode() for number in (1, 2))


class Application:
    """An HTTP server whose answers a test sets."""

    def __init__(self):
        self.requests = []
        # Returns the body of the answer, or writes an answer of its own and returns None.
        self.decide = lambda request, handler: {"allow": True}
        application = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                for secret in (OLD, NEW):
                    Webhook(secret).verify(body, dict(self.headers.items()))
                request = json.loads(body)
                application.requests.append(request)
                answer = application.decide(request, self)
                if answer is not None:
                    self.answer(200, json.dumps(answer))

            def answer(self, status, text, **headers):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            # Connections that wait to be accepted: by default there are few.
            request_queue_size = 128

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/throng"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def events(self):
        """All events so far, in the order of their arrival."""
        batches = [request for request in self.requests if request["type"] == "events"]
        return [event for batch in batches for event in batch["data"]["events"]]


def hang(_request, handler):
    handler.connection.settimeout(TIMEOUT_SECONDS)
    # Until the server has given up.
    handler.rfile.read(1)
    handler.close_connection = True


def redirect(_request, handler):
    handler.answer(307, '{"allow": true}', Location="/elsewhere")


def close_early(_request, handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{\"allow\": true}")
    handler.close_connection = True


MISBEHAVIOUR = {
    "timeout": hang,
    "status": lambda _, handler: handler.answer(500, '{"allow": true}'),
    "status redirect": redirect,
    "bad_answer": lambda _, handler: handler.answer(200, "<html>"),
    "bad_answer lie": lambda *_: {"allow": "yes"},
    "too_large": lambda *_: {"allow": True, "message": "x" * 100_000},
    "protocol": close_early,
}


# The longest time that a callout may have, so that no answer of a busy machine is too late.
LONGEST_DEADLINE = "timeout = '4s'"


def deadline(misbehaviour):
    """The setting of the callout for a misbehaviour: short where it has to pass."""
    return "timeout = '1s'" if misbehaviour == "timeout" else LONGEST_DEADLINE


def with_deadline(keys):
    """The keys of a callout, with a deadline unless they have one."""
    return keys if "timeout" in keys else f"{LONGEST_DEADLINE}\n{keys}"


def metric(server, name, operator=None, **labels):
    """The value of a metric. A server that controls access shows it to an operator's key."""
    label = ",".join(f'{key}="{value}"' for key, value in labels.items())
    sample = f"throng_{name}{{{label}}} " if labels else f"throng_{name} "
    lines = server.http.get("/metrics", headers=bearer(operator) if operator else {}).text.splitlines()
    return int(next(line for line in lines if line.startswith(sample)).rpartition(" ")[2])
