"""Publishers and subscribers on several nodes while something fails, and the audit of both."""

import contextlib
import itertools
import json
import os
import threading
import time

import httpx
from websockets.sync.client import connect

from . import NO_TLS, TIMEOUT_SECONDS, transports
from .server import eventually

# For how long faults last that a test ends by itself; 0 until they are noticed.
FAULT_SECONDS = float(os.environ.get("THRONG_FAULT_SECONDS", "0"))
# A node that is frozen answers nothing for that time.
PATIENCE_SECONDS = TIMEOUT_SECONDS + FAULT_SECONDS
transports.TIMEOUT = httpx.Timeout(PATIENCE_SECONDS)
# A publisher pauses for this time between two messages: faults are what is tested, not rates.
PACE_SECONDS = 0.01
LAST = "last"
# Errors after which a message may be there: a server's, and that its connection was lost.
UNKNOWN = ("outcome_unknown", "gone")


class Publisher:
    """Publishes one message after the other to its channel, over one transport, with a key or
    without."""

    def __init__(self, node, channel, transport, has_keys):
        self.node, self.channel = node, channel
        self.transport, self.has_keys = transport, has_keys
        self.name = f"{transport}-{'keys' if has_keys else 'plain'}"
        self.accepted = []
        # What was refused: none of it may arrive.
        self.refused = []
        # What nobody knows about: each may arrive once.
        self.unknown = []
        self.errors = {}
        self.fault = None
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def stop(self):
        """Ends after the publication that is under way."""
        self.is_over.set()
        self.thread.join()
        if self.fault is not None:
            raise self.fault

    def _run(self):
        try:
            ways = {"http": self._http, "websocket": self._websocket}
            with ways[self.transport]() as publish:
                for number in itertools.count():
                    if self.is_over.is_set():
                        return
                    self._one(publish, f"{self.name}-{number}")
                    time.sleep(PACE_SECONDS)
        except BaseException as error:
            self.fault = error

    def _one(self, publish, body):
        """Publishes a message; with a key until it is accepted."""
        while True:
            error, id = publish(body)
            if error is None:
                self.accepted.append((id, body))
                return
            self.errors[error] = self.errors.get(error, 0) + 1
            if not self.has_keys:
                (self.unknown if error in UNKNOWN else self.refused).append(body)
                return
            if self.is_over.is_set():
                self.unknown.append(body)
                return
            time.sleep(PACE_SECONDS)

    @contextlib.contextmanager
    def _http(self):
        with httpx.Client(
            base_url=self.node.url, timeout=PATIENCE_SECONDS, trust_env=False, verify=NO_TLS
        ) as client:

            def publish(body):
                headers = {"Idempotency-Key": body} if self.has_keys else {}
                path = f"/channels/{self.channel}"
                answer = client.post(path, content=body, headers=headers)
                if answer.status_code in (200, 201):
                    return None, answer.json()["id"]
                error = answer.json()["error"]
                expected = {"unavailable": 503, "busy": 503, "outcome_unknown": 504}
                assert answer.status_code == expected[error], answer.text
                if answer.status_code == 503:
                    assert int(answer.headers["Retry-After"]) >= 1
                return error, None

            yield publish

    @contextlib.contextmanager
    def _websocket(self):
        url = f"{self.node.ws}/subscribe"
        options = {"subprotocols": ["throng.v1"], "open_timeout": TIMEOUT_SECONDS}
        # Without pings: the library would give up a node that is frozen for longer than 20 s.
        with connect(url, proxy=None, ping_interval=None, **options) as socket:
            refs = itertools.count()

            def publish(body):
                ref = next(refs)
                command = {"type": "publish", "channel": self.channel, "data": body, "ref": ref}
                if self.has_keys:
                    command["key"] = body
                socket.send(json.dumps(command))
                while True:
                    frame = json.loads(socket.recv(timeout=PATIENCE_SECONDS))
                    if frame.get("ref") == ref:
                        break
                if frame["type"] == "published":
                    return None, frame["id"]
                assert frame["type"] == "error", frame
                assert frame["code"] in ("unavailable", "busy", "outcome_unknown"), frame
                return frame["code"], None

            yield publish


class Listener:
    """A subscriber that notes what comes, in a thread of its own, until the last message."""

    def __init__(self, node, channel, transport):
        self.name = f"{transport} {channel} {node.url}"
        self.received = []
        self.fault = None
        self.subscriber = transports.subscribe(transport, node, f"/channels/{channel}")
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        try:
            while True:
                # Silence is what is tested: no time-out of the client may end it.
                with contextlib.suppress(TimeoutError):
                    self.received.append(self.subscriber.next())
                    if self.received[-1][1] == LAST:
                        return
        except BaseException as error:
            self.fault = error

    def finish(self):
        """Waits for the last message."""
        self.thread.join(TIMEOUT_SECONDS)
        is_over = not self.thread.is_alive()
        self.subscriber.close()
        self.thread.join(TIMEOUT_SECONDS)
        assert self.fault is None, f"{self.name} was closed: {self.fault!r}"
        assert is_over, f"{self.name} lacks the last message: {self.received[-3:]}"


class Traffic:
    """Publishers of each kind, one channel each, and subscribers to all on all nodes."""

    def __init__(self, nodes, channel):
        self.nodes = nodes
        self.listeners, self.publishers = [], []
        kinds = list(itertools.product(["http", "websocket"], [False, True]))
        self.channels = [f"{channel}-{number}" for number in range(len(kinds))]
        ways = itertools.cycle(["sse", "websocket"])
        for name, number in itertools.product(self.channels, range(len(nodes))):
            self.listeners.append((name, self._listen(name, number, next(ways))))
        for number, (name, kind) in enumerate(zip(self.channels, kinds, strict=True)):
            self.publishers.append(self._publish(name, number, kind))

    def _listen(self, channel, number, transport):
        return Listener(self.nodes[number], channel, transport)

    def _publish(self, channel, number, kind):
        return Publisher(self.nodes[number % len(self.nodes)], channel, *kind)

    def flow(self, among=None, count=10):
        """Waits until publishers (of the nodes `among`) have had more messages accepted."""
        watched = [one for one in self.publishers if among is None or one.node in among]
        before = [len(one.accepted) for one in watched]

        def has_more():
            for one in self.publishers:
                if one.fault is not None:
                    raise one.fault
            counts = [len(one.accepted) for one in watched]
            return all(now >= then + count for now, then in zip(counts, before, strict=True))

        eventually(has_more, f"messages are accepted again: {self.shown()}")

    def shown(self):
        """What publishers have had, for errors."""
        return [(one.name, len(one.accepted), one.errors) for one in self.publishers]

    def refused(self):
        """How often publishers were told to come later, or that the outcome is unknown."""
        return sum(sum(one.errors.values()) for one in self.publishers)

    def abandon(self):
        """Ends everything without an audit: the test has failed already."""
        for one in self.publishers:
            one.is_over.set()
        for _, listener in self.listeners:
            listener.subscriber.close()

    def audit(self):
        """Ends everything: 0 lost, 0 doubled, 0 reordered, and nobody was closed."""
        for one in self.publishers:
            one.stop()
        for name in self.channels:
            eventually(lambda name=name: self._publish_last(name), "the last message is accepted")
        for _, listener in self.listeners:
            listener.finish()
        for publisher in self.publishers:
            received = [one.received for name, one in self.listeners if name == publisher.channel]
            for one in received[1:]:
                unlike = set(one) ^ set(received[0])
                assert one == received[0], f"{publisher.name}: not for all: {sorted(unlike)[:9]}"
            audit(publisher, received[0])

    def _publish_last(self, channel):
        headers = {"Idempotency-Key": f"{LAST}-{channel}"}
        answer = self.nodes[0].http.post(f"/channels/{channel}", content=LAST, headers=headers)
        return answer.status_code in (200, 201)


def audit(publisher, received):
    """Compares what a publisher was told with what a subscriber got."""
    ids = [int(id.partition("-")[2]) for id, _ in received]
    assert ids == sorted(set(ids)), f"{publisher.name}: reordered or doubled ids"
    bodies = [body for _, body in received]
    assert len(bodies) == len(set(bodies)), f"{publisher.name}: doubled"
    places = dict(received)
    lost = [one for one in publisher.accepted if places.get(one[0]) != one[1]]
    assert not lost, f"{publisher.name}: lost {lost[:5]} of {len(publisher.accepted)}"
    wrong = [body for body in publisher.refused if body in set(bodies)]
    assert not wrong, f"{publisher.name}: refused, and yet there: {wrong[:5]}"
    # What nobody knows about may come late, so that later messages are before it.
    uncertain = {LAST, *publisher.unknown}
    numbers = [int(body.rpartition("-")[2]) for body in bodies if body not in uncertain]
    assert numbers == sorted(numbers), f"{publisher.name}: reordered {numbers}"
