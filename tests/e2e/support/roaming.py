"""Publishers and subscribers that go to the next node when theirs is gone, as clients do."""

import contextlib
import itertools
import time

import httpx
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from . import TIMEOUT_SECONDS, transports
from .traffic import LAST, PACE_SECONDS, Listener, Publisher, Traffic

# How a connection ends when its node does.
GONE = (httpx.TransportError, ConnectionClosed, StopIteration, OSError)
# A client waits for this time between two attempts.
PAUSE_SECONDS = 0.1


class RoamingPublisher(Publisher):
    """Publishes to another node when its own does not answer any more."""

    def __init__(self, nodes, first, *kind):
        self.turns = itertools.cycle(nodes[first:] + nodes[:first])
        self.context, self.moves = None, 0
        super().__init__(next(self.turns), *kind)

    def _run(self):
        try:
            for number in itertools.count():
                if self.is_over.is_set():
                    break
                self._one(self._roam, f"{self.name}-{number}")
                time.sleep(PACE_SECONDS)
            self._leave()
        except BaseException as error:
            self.fault = error

    def _roam(self, body):
        """Publishes over the connection of now. Returns an error, or the message's id."""
        try:
            if self.context is None:
                context = {"http": self._http, "websocket": self._websocket}[self.transport]()
                self.publish = context.__enter__()
                self.context = context
        except (*GONE, InvalidHandshake):
            # It was not sent.
            self._go_on()
            return "not_connected", None
        try:
            return self.publish(body)
        except GONE:
            self._go_on()
            return "gone", None

    def _go_on(self):
        self._leave()
        self.node, self.moves = next(self.turns), self.moves + 1
        time.sleep(PAUSE_SECONDS)

    def _leave(self):
        if self.context is not None:
            context, self.context = self.context, None
            with contextlib.suppress(*GONE):
                context.__exit__(None, None, None)


class RoamingListener(Listener):
    """Resumes on another node when its own is gone, and has to be told that nothing is missing."""

    def __init__(self, nodes, first, channel, transport):
        self.channel, self.transport = channel, transport
        self.turns = itertools.cycle(nodes[first:] + nodes[:first])
        self.moves, self.is_over = 0, False
        super().__init__(next(self.turns), channel, transport)

    def _run(self):
        try:
            while not self.received or self.received[-1][1] != LAST:
                try:
                    self.received.append(self.subscriber.next())
                except TimeoutError:
                    pass
                except GONE:
                    if self.is_over:
                        return
                    self._move()
        except BaseException as error:
            self.fault = error

    def _move(self):
        since = self.received[-1][0] if self.received else self.subscriber.id
        with contextlib.suppress(*GONE):
            self.subscriber.close()
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            node = next(self.turns)
            path = f"/channels/{self.channel}"
            try:
                self.subscriber = transports.subscribe(self.transport, node, path, since=since)
                break
            except (*GONE, InvalidHandshake, AssertionError):
                # It refuses connections, or says when to come again.
                if time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE_SECONDS)
        self.moves += 1
        assert self.subscriber.recovered is True, f"{self.name} lacks messages after {since}"

    def finish(self):
        """Waits for the last message."""
        self.thread.join(TIMEOUT_SECONDS)
        self.is_over = True
        super().finish()


class RoamingTraffic(Traffic):
    """Traffic whose clients outlive their nodes."""

    def _listen(self, channel, number, transport):
        return RoamingListener(self.nodes, number % len(self.nodes), channel, transport)

    def _publish(self, channel, number, kind):
        return RoamingPublisher(self.nodes, number % len(self.nodes), channel, *kind)

    def moves(self):
        """How often clients have gone to another node."""
        listeners = [listener for _, listener in self.listeners]
        return sum(one.moves for one in [*self.publishers, *listeners])
