"""Pages of an application, at an address of their own."""

import functools
import http.server
import threading
from contextlib import contextmanager


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def served(directory):
    """Serves a directory over HTTP; the value is its URL."""
    handler = functools.partial(_Quiet, directory=directory)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_address[1]}"
        finally:
            running.shutdown()
            thread.join()
