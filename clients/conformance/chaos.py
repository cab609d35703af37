"""A proxy that misbehaves at random, and the rules that clients keep behind it.

What happens to a connection is drawn from the seed and the connection's number. How the client
divides its bytes among connections depends on the machine, so a seed repeats the faults and not the
whole run.
"""

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass

from misbehaving import Proxy

FAULTS = ["refuse", "cut", "cut", "cut request", "freeze", "freeze request", "pause", "pieces"]
# After what a connection survives, it is cut, so that the next one has its turn.
REST_BYTES = 2_000
# Longer than what clients take for a server that is frozen, and than a test.
FOREVER_SECONDS = 600


@dataclass
class Plan:
    """What happens to one direction of a connection, after `at` bytes."""

    dice: random.Random
    fault: str | None = None
    at: int = 0
    is_in_pieces: bool = False

    def size(self):
        """How many bytes pass next, at most."""
        return self.dice.randint(1, 40) if self.is_in_pieces else 65_536


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

    async def _serve(self, reader, writer):
        number = self.connections
        self.connections += 1
        dice = random.Random(f"{self.seed}/{number}")
        fault = dice.choice(FAULTS) if number < self.faults else None
        # Most often early: in heads, handshakes and first frames.
        at = int(10 ** dice.uniform(0, 3.5))
        if fault == "refuse":
            self.suffered.append((number, fault))
            writer.transport.abort()
            return
        is_of_request = fault is not None and fault.endswith("request")
        pieces = fault == "pieces"
        up = Plan(dice, fault if is_of_request else None, at // 4, pieces)
        down = Plan(dice, None if is_of_request else fault, at, pieces)
        if pieces:
            self.suffered.append((number, fault))
            down.fault, down.at = "cut", at + REST_BYTES
        await self._forward(reader, writer, number, up, down)

    async def _forward(self, reader, writer, number, up, down):
        task = asyncio.current_task()
        self._tasks.add(task)
        other = None
        try:
            await self._flows.wait()
            up_reader, other = await asyncio.open_connection("127.0.0.1", self.upstream.port)
            pumps = [
                asyncio.create_task(self._pass(reader, other, number, up)),
                asyncio.create_task(self._pass(up_reader, writer, number, down)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for each in (writer, other):
                if each is not None:
                    each.transport.abort()

    async def _pass(self, reader, writer, number, plan):
        passed = 0
        with suppress(OSError):
            while data := await reader.read(plan.size()):
                await self._flows.wait()
                is_due = plan.fault is not None and passed + len(data) >= plan.at
                if not is_due:
                    passed += len(data)
                    writer.write(data)
                    await writer.drain()
                    if plan.is_in_pieces:
                        await asyncio.sleep(plan.dice.random() * 0.002)
                    continue
                first, rest = data[: plan.at - passed], data[plan.at - passed :]
                writer.write(first)
                if not await self._happens(writer, number, plan):
                    return
                writer.write(rest)
                passed += len(data)
                plan.fault, plan.at = "cut", passed + REST_BYTES

    async def _happens(self, writer, number, plan):
        """The fault of this direction. Whether the connection goes on."""
        self.suffered.append((number, f"{plan.fault} at {plan.at}"))
        if plan.fault.startswith("cut"):
            with suppress(TimeoutError):
                await asyncio.wait_for(writer.drain(), 1)
            return False
        is_frozen = plan.fault.startswith("freeze")
        await asyncio.sleep(FOREVER_SECONDS if is_frozen else plan.dice.random() / 2)
        return True


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
