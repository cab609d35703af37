"""A proxy that misbehaves at random, and the rules that clients keep behind it.

What happens to a connection is drawn from the seed and the connection's number. How the client
divides its bytes among connections depends on the machine, so a seed repeats the faults and not the
whole run.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from misbehaving import CHUNK_BYTES, Proxy, flush

FAULTS = ["refuse", "cut", "cut", "cut request", "freeze", "freeze request", "pause", "pieces"]
# After what a connection survives, it is cut, so that the next one has its turn.
REST_BYTES = 2_000
# Longer than what clients take for a server that is frozen, and than a test.
FOREVER_SECONDS = 600


@dataclass
class Suffering:
    """One direction of a connection, to which something happens after `at` bytes."""

    dice: random.Random
    suffered: Callable
    """Called with what has happened."""
    fault: str | None = None
    at: int = 0
    is_in_pieces: bool = False
    passed: int = 0

    def size(self):
        """How many bytes pass next, at most."""
        return self.dice.randint(1, 40) if self.is_in_pieces else CHUNK_BYTES

    async def forward(self, data, writer):
        """Passes data on. Whether the connection goes on."""
        if self.fault is not None and self.passed + len(data) >= self.at:
            first, rest = data[: self.at - self.passed], data[self.at - self.passed :]
            writer.write(first)
            if not await self._happens(writer):
                return False
            writer.write(rest)
            self.passed += len(data)
            self.fault, self.at = "cut", self.passed + REST_BYTES
            return True
        self.passed += len(data)
        writer.write(data)
        await writer.drain()
        if self.is_in_pieces:
            await asyncio.sleep(self.dice.random() * 0.002)
        return True

    async def _happens(self, writer):
        """The fault. Whether the connection goes on."""
        self.suffered(f"{self.fault} at {self.at}")
        if self.fault.startswith("cut"):
            await flush(writer)
            return False
        is_frozen = self.fault.startswith("freeze")
        await asyncio.sleep(FOREVER_SECONDS if is_frozen else self.dice.random() / 2)
        return True


class ChaosProxy(Proxy):
    """Forwards to the real server; the first `faults` connections suffer, each in its own way."""

    def __init__(self, loop, upstream, seed, faults):
        super().__init__(loop, upstream)
        self.seed = seed
        self.faults = faults
        self.suffered = []
        """The faults that have happened, each with the number of its connection."""

    @property
    def is_calm(self):
        """Whether all faults have been dealt out."""
        return self.connections >= self.faults

    def directions(self, number, client):
        dice = random.Random(f"{self.seed}/{number}")
        fault = dice.choice(FAULTS) if number < self.faults else None
        # Most often early: in heads, handshakes and first frames.
        at = int(10 ** dice.uniform(0, 3.5))

        def suffered(what):
            self.suffered.append((number, what))

        if fault == "refuse":
            suffered(fault)
            return None
        up, down = Suffering(dice, suffered), Suffering(dice, suffered)
        if fault == "pieces":
            suffered(fault)
            up.is_in_pieces = down.is_in_pieces = True
            down.fault, down.at = "cut", at + REST_BYTES
        elif fault is not None and fault.endswith("request"):
            up.fault, up.at = fault, at // 4
        else:
            down.fault, down.at = fault, at
        return up, down


def offset_of(id):
    """The number in an id, and its epoch."""
    epoch, _, offset = id.rpartition("-")
    return epoch, int(offset)


def told(client, channel):
    """The messages and gaps of a channel, in the order in which the client told of them."""
    kinds = ("message", "gap")
    return [it for it in client.heard if it["event"] in kinds and it["channel"] == channel]


def check_whole(client, channel, kept):
    """The client has each message that the server keeps, from its first one on, once and in order;
    and nothing else."""
    events = told(client, channel)
    gaps = [event for event in events if event["event"] == "gap"]
    assert not gaps, f"nothing was lost, yet the client tells of gaps: {gaps}"
    expected = [(each["id"], each["data"]) for each in kept]
    received = [(each["id"], each["data"]) for each in events]
    assert received == expected


def check_gaps(client, channel, published):
    """Each message of `published` is there, in order and once, or a gap is told in its place.

    No gap is told where nothing is missing.
    """
    places = {id: place for place, (id, _) in enumerate(published)}
    last, gap = None, None
    for event in told(client, channel):
        if event["event"] == "gap":
            gap = event
            continue
        assert event["id"] in places, f"nobody published {event}"
        place = places[event["id"]]
        assert event["data"] == published[place][1]
        assert last is None or place > last, f"{event} came twice, or too late"
        if last is not None and place > last + 1:
            missing = [id for id, _ in published[last + 1 : place]]
            assert gap, f"{missing} are missing before {event}, and no gap was told"
        if gap and last is not None and place == last + 1:
            epochs = {offset_of(published[each][0])[0] for each in (last, place)}
            assert len(epochs) > 1, f"a gap before {event}, where nothing is missing: {gap}"
        last, gap = place, None
    assert last == len(published) - 1, "the last message is missing"


def check_outcomes(client, kept):
    """What the client says of its publications is true: none lost, none doubled."""
    places = {}
    for message in kept:
        places.setdefault(message["data"], []).append(message["id"])
    for event in client.all("published"):
        assert places.get(event["data"]) == [event["id"]], f"published once: {event}"
    for event in client.all("unpublished"):
        count = len(places.get(event["data"], []))
        assert count <= (event["outcome"] == "unknown"), f"published {count} times: {event}"
