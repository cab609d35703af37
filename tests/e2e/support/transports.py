"""One interface over the four transports, each by a client library of its own.

A subscriber has `id` (where it started), `recovered` (None without an id given), and
`next()`, which returns the id and the data of the next message.
"""

import json
from urllib.parse import urlencode

import httpx
from httpx_sse import EventSource
from websockets.sync.client import connect

from . import NO_TLS, TIMEOUT_SECONDS

TRANSPORTS = ["stream", "sse", "websocket", "poll"]
TIMEOUT = httpx.Timeout(TIMEOUT_SECONDS)


def subscribe(transport, server, path, since=None, **parameters):
    """Opens a subscription over the named transport."""
    kinds = {"stream": Stream, "sse": Sse, "websocket": WebSocket, "poll": Poll}
    return kinds[transport](server, path, since, parameters)


def target(path, since, parameters):
    """The path with its query."""
    query = dict(parameters)
    if since is not None:
        query["since"] = since
    joint = "&" if "?" in path else "?"
    return path + joint + urlencode(query) if query else path


def recovered_of(headers):
    """The value of `Throng-Recovered` as a boolean, or None."""
    return {"true": True, "false": False, None: None}[headers.get("Throng-Recovered")]


class Subscriber:
    """The interface that all four share."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def take(self, count):
        """The data of the next `count` messages."""
        return [self.next()[1] for _ in range(count)]


class HttpStream(Subscriber):
    """A response that does not end."""

    def __init__(self, server, path, since, parameters, headers):
        self.client = httpx.Client(base_url=server.url, timeout=TIMEOUT, trust_env=False, verify=NO_TLS)
        request = self.client.build_request("GET", target(path, since, parameters), headers=headers)
        self.response = self.client.send(request, stream=True)
        # An event stream says with 200, too, that the server is busy or ends: see docs/reference/http.md.
        if self.response.status_code != 200 or "Throng-Id" not in self.response.headers:
            self.response.read()
            self.client.close()
            raise AssertionError(f"{self.response.status_code} {self.response.text}")
        self.id = self.response.headers["Throng-Id"]
        self.connection = self.response.headers["Throng-Connection"]
        self.recovered = recovered_of(self.response.headers)

    def close(self):
        """Ends the connection."""
        self.response.close()
        self.client.close()


class Stream(HttpStream):
    """The chunked stream, as envelopes, so that ids show."""

    def __init__(self, server, path, since, parameters):
        super().__init__(server, path, since, {"envelope": "true", **parameters}, {})
        self.lines = self.response.iter_lines()

    def next_line(self):
        """The next line that is not a heartbeat, as JSON."""
        return json.loads(next(line for line in self.lines if line))

    def next(self):
        """The next message."""
        envelope = self.next_line()
        assert envelope["type"] == "message", envelope
        return envelope["id"], envelope["data"]


class Sse(HttpStream):
    """Server-sent events; an id is given back as `Last-Event-ID`, as browsers do."""

    def __init__(self, server, path, since, parameters):
        headers = {"Accept": "text/event-stream"}
        if since is not None:
            headers["Last-Event-ID"] = since
        super().__init__(server, path, None, parameters, headers)
        self.events = EventSource(self.response).iter_sse()
        if since is not None:
            event = next(self.events)
            assert event.event == "resumed", event
            assert json.loads(event.data) == {"recovered": self.recovered}

    def next(self):
        """The next message."""
        # That messages come late is no message, nor is a heartbeat, of which this library makes an event
        # without data.
        event = next(event for event in self.events if event.data and event.event != "late")
        assert event.event == "message", event
        return event.id, event.data


class WebSocket(Subscriber):
    """A plain WebSocket with envelopes."""

    def __init__(self, server, path, since, parameters):
        url = server.ws + target(path, since, {"envelope": "true", **parameters})
        # The library wants a context manager, and this class is one: both are left in close().
        self.context = connect(url, proxy=None, open_timeout=TIMEOUT_SECONDS, compression=None)
        self.socket = self.context.__enter__()
        headers = self.socket.response.headers
        if "Throng-Id" not in headers:
            # What a page could not read of a response is in the reason of the close frame.
            self.close()
            raise AssertionError(f"{self.socket.close_code} {self.socket.close_reason}")
        self.id = headers["Throng-Id"]
        self.connection = headers["Throng-Connection"]
        self.recovered = recovered_of(headers)

    def next(self):
        """The next message."""
        envelope = json.loads(self.socket.recv(timeout=TIMEOUT_SECONDS))
        assert envelope["type"] == "message", envelope
        return envelope["id"], envelope["data"]

    def close(self):
        """Closes with a closing handshake."""
        self.context.__exit__(None, None, None)


class Poll(Subscriber):
    """Long-poll: each response has the id for the next request."""

    def __init__(self, server, path, since, parameters):
        self.client = httpx.Client(base_url=server.url, timeout=TIMEOUT, trust_env=False, verify=NO_TLS)
        self.path, self.parameters = path, parameters
        self.waiting = []
        self.recovered = None
        self.id = since
        # Without an id this returns the current id of the channel; with one, the missed messages.
        self._poll(wait=0)

    def _poll(self, wait):
        query = {"envelope": "true", "wait": wait, **self.parameters}
        response = self.client.get(target(self.path, self.id, query))
        assert response.status_code in (200, 204), (response.status_code, response.text)
        if self.recovered is None:
            self.recovered = recovered_of(response.headers)
        self.id = response.headers["Throng-Id"]
        self.waiting += [json.loads(line) for line in response.text.split("\n") if line]

    def next(self):
        """The next message."""
        while not self.waiting:
            self._poll(wait=TIMEOUT_SECONDS // 2)
        envelope = self.waiting.pop(0)
        return envelope["id"], envelope["data"]

    def close(self):
        """Closes the kept-alive connection."""
        self.client.close()
