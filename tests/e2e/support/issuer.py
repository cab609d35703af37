"""An issuer of tokens, which serves its key set over HTTP."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FIXTURES = Path(__file__).resolve().parents[3] / "crates/throng-access/tests/fixtures"
KEYS = (FIXTURES / "jwks.json").read_text()


class Issuer:
    """Serves a key set, or whatever a test sets."""

    def __init__(self):
        self.answer = lambda handler: handler.send(200, KEYS)
        self.requests = 0
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                issuer.requests += 1
                issuer.answer(self)

            def send(self, status, text, **headers):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/keys.json"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
