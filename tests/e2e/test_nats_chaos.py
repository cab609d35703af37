"""Three nodes over three nats-servers while one fault after the other happens to them at random, two
at times: kills, freezes, cuts, elections and rolling upgrades. The clients go to another node when
theirs is gone. Nothing is lost, doubled or reordered, and who resumes is told that nothing is missing.

`THRONG_NODE_CHAOS_SECONDS` says for how long; `make test-long` takes ten minutes. A failure prints its
seed, and `THRONG_NODE_CHAOS_SEED` draws the same faults again.
"""

import contextlib
import os
import random
import time

import pytest
from support.nats import ailments, connected
from support.nats_cluster import NatsCluster
from support.roaming import RoamingTraffic
from support.server import eventually
from support.upgrades import UpgradableServer

CHAOS_SECONDS = float(os.environ.get("THRONG_NODE_CHAOS_SECONDS", "15"))
SEED = int(os.environ.get("THRONG_NODE_CHAOS_SEED", time.time_ns() % 1_000_000))
# How long a fault lasts.
FAULT_SECONDS = (0.2, 6)
# How many percent of the faults have another one beside them.
BESIDE_PERCENT = 30

UPGRADES = "all nodes are upgraded"
# How often each fault happens, beside the others.
RATIOS = {
    "a node is killed": 4,
    "a node is frozen": 3,
    "a node is cut off": 3,
    UPGRADES: 2,
    "a nats-server is killed": 4,
    "a nats-server is frozen": 3,
    "a leader steps down": 3,
}


class Slot:
    """The place of a node: at one address, with the process of now."""

    def __init__(self, directory, ways):
        self.directory, self.ways = directory, ways
        self.server = self._start(0)
        self.url, self.ws = self.server.url, self.server.ws
        self.http = self.server.http

    def _start(self, port):
        flags = ["--engine", "nats", "--nats", self.ways.url, "--nats-replicas", "3"]
        flags += ["--history-messages", "10000", "--heartbeat", "2s", "--workers", "2"]
        flags += ["--drain-window", "200ms", "--drain-timeout", "5s"]
        return UpgradableServer(self.directory, *flags, port=port)

    @contextlib.contextmanager
    def killed(self):
        """Kills the node for the block."""
        self.server.kill()
        try:
            yield
        finally:
            self.server = self._start(self.server.port)
            self.http = self.server.http

    @contextlib.contextmanager
    def upgraded(self):
        """Replaces the process; it may refuse, if NATS cannot be used at that moment."""
        with self.server.upgrading():
            yield


class Chaos:
    """Faults that are drawn from a seed."""

    def __init__(self, seed, cluster, slots):
        self.random = random.Random(seed)
        self.cluster, self.slots = cluster, slots
        self.happened = dict.fromkeys(RATIOS, 0)

    def faults(self):
        """What happens next: one fault or two, to different processes."""
        count = 2 if self.random.randrange(100) < BESIDE_PERCENT else 1
        names = self.random.choices(list(RATIOS), RATIOS.values(), k=count)
        # An upgrade would wait for what is frozen, and what is killed cannot be upgraded.
        if UPGRADES in names:
            names, count = [UPGRADES], 1
        slots = self.random.sample(self.slots, count)
        members = self.random.sample(self.cluster.members, count)
        for name, slot, member in zip(names, slots, members, strict=True):
            self.happened[name] += 1
            yield name, {
                "a node is killed": slot.killed,
                "a node is frozen": lambda slot=slot: slot.server.frozen(),
                "a node is cut off": slot.ways.cut_off,
                UPGRADES: self._upgraded,
                "a nats-server is killed": member.killed,
                "a nats-server is frozen": member.frozen,
                "a leader steps down": self._step_down,
            }[name]

    @contextlib.contextmanager
    def _upgraded(self):
        for slot in self.slots:
            with slot.upgraded():
                pass
        yield

    @contextlib.contextmanager
    def _step_down(self):
        self.cluster.step_down()
        yield

    def strike(self):
        """Has some faults happen at once, and waits until they are over."""
        faults = list(self.faults())
        with contextlib.ExitStack() as stack:
            for _, begin in faults:
                stack.enter_context(begin())
            time.sleep(self.random.uniform(*FAULT_SECONDS))
        for slot in self.slots:
            eventually(lambda slot=slot: ailments(slot.server) == [], lambda: f"{faults} to be over")


@pytest.fixture
def slots(tmp_path):
    """Three nodes over three nats-servers, and these."""
    (tmp_path / "nats").mkdir()
    cluster = NatsCluster(tmp_path / "nats")
    slots = []
    try:
        for number in range(3):
            directory = tmp_path / str(number)
            directory.mkdir()
            slots.append(Slot(directory, cluster.ways()))
        yield cluster, slots
    finally:
        for slot in slots:
            slot.server.stop()
            slot.ways.close()
        cluster.stop()


def test_nothing_is_lost_whatever_fails(slots, channel):
    cluster, slots = slots
    for slot in slots:
        connected(slot.server)
    traffic, chaos = RoamingTraffic(slots, channel), Chaos(SEED, cluster, slots)
    until = time.monotonic() + CHAOS_SECONDS
    try:
        traffic.flow()
        while time.monotonic() < until:
            chaos.strike()
            traffic.flow(count=3)
        traffic.audit()
    except BaseException:
        print(f"THRONG_NODE_CHAOS_SEED={SEED}: {chaos.happened}")
        traffic.abandon()
        raise
    accepted = sum(len(one.accepted) for one in traffic.publishers)
    print(f"{accepted} messages, {traffic.refused()} attempts refused or lost, {traffic.moves()} moves")
    print(f"seed {SEED}: {chaos.happened}")
    assert sum(chaos.happened.values()) > 0
