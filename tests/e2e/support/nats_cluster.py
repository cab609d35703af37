"""Three nats-servers as a cluster, each on ports that stay, and the ways of nodes to them."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import threading

from . import TIMEOUT_SECONDS
from .doors import Door
from .nats import program
from .nats_client import NatsClient
from .server import eventually, keep_port

SIZE = 3

# A limit for what streams may ask for, which is far more than they ever store: each prefix of a
# test asks for more than 1 GiB.
STORE_BYTES = 64 << 30


class Member:
    """One server of the cluster."""

    def __init__(self, cluster, number):
        self.cluster = cluster
        self.name = f"n{number}"
        self.directory = cluster.directory / self.name
        self.directory.mkdir()
        # Kept, so that the server has the same ports whenever it is started.
        self.kept = [keep_port("127.0.0.1", 0) for _ in range(2)]
        self.port, self.route = (kept.getsockname()[1] for kept in self.kept)
        self.process = None

    @property
    def is_up(self):
        """Whether the process is there."""
        return self.process is not None and self.process.poll() is None

    def launch(self):
        """Starts the server, with what it has stored."""
        routes = [f"nats://127.0.0.1:{other.route}" for other in self.cluster.members]
        file = self.directory / "nats.conf"
        file.write_text(
            f'listen: "127.0.0.1:{self.port}"\nserver_name: {self.name}\n'
            f'jetstream {{ store_dir: "{self.directory / "store"}", '
            f"max_file_store: {STORE_BYTES} }}\n"
            f'cluster {{ name: c, listen: "127.0.0.1:{self.route}", no_advertise: true, '
            f"routes: {json.dumps(routes)} }}\n"
            f"system_account: SYS\n"
            f"accounts {{ SYS {{ users: [ {{ user: sys, password: s3 }} ] }}, "
            f"APP {{ jetstream: enabled, users: [ {{ user: app, password: s3 }} ] }} }}\n"
            f"no_auth_user: app\n"
        )
        with (self.directory / "nats.log").open("a") as log:
            self.process = subprocess.Popen(
                [program(), "-c", file], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @contextlib.contextmanager
    def killed(self):
        """Kills the server, which writes nothing more; starts it after the block."""
        self.process.kill()
        self.process.wait(TIMEOUT_SECONDS)
        try:
            yield
        finally:
            self.launch()

    @contextlib.contextmanager
    def frozen(self):
        """Stops the server for the block; the kernel still accepts bytes for it."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


# A process that is slowed runs for the first of these times, and then stands still for the second.
RUNS_SECONDS, STANDS_SECONDS = 0.02, 0.18


@contextlib.contextmanager
def slowed(process):
    """For the block a process stands still most of the time, and goes on again and again."""
    is_over = threading.Event()

    def pulse():
        while not is_over.wait(RUNS_SECONDS):
            process.send_signal(signal.SIGSTOP)
            is_over.wait(STANDS_SECONDS)
            process.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=pulse)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(TIMEOUT_SECONDS)
        process.send_signal(signal.SIGCONT)


class NatsCluster:
    """Three servers with JetStream."""

    def __init__(self, directory):
        self.directory = directory
        self.members = []
        self.members = [Member(self, number) for number in range(SIZE)]
        self.rotation = itertools.count()
        for member in self.members:
            member.launch()
        eventually(self._has_meta_leader, lambda: f"a cluster:\n{self.log()}")

    def log(self):
        """What the servers have said."""
        logs = [member.directory / "nats.log" for member in self.members]
        return "".join(log.read_text() for log in logs if log.exists())

    def _has_meta_leader(self):
        answer = self.ask("$JS.API.INFO")
        return answer is not None and "error" not in answer

    def ask(self, subject, payload=None, user="app"):
        """The answer of any server that is up, as an object; None without one in a second."""
        for member in self.members:
            if member.is_up:
                with contextlib.suppress(OSError, ValueError, EOFError):
                    with NatsClient(member.port, user, "s3") as client:
                        return client.request(subject, payload)
        return None

    def stream(self, name="throng-channels"):
        """What the servers say about a stream."""
        return self.ask(f"$JS.API.STREAM.INFO.{name}") or {}

    def leader(self, name="throng-channels"):
        """The server that leads a stream; None while none does."""
        leader = self.stream(name).get("cluster", {}).get("leader")
        return next((member for member in self.members if member.name == leader), None)

    def wait_for_leader(self, other_than=None):
        """The leader of the stream, once there is one."""
        found = []

        def leads():
            leader = self.leader()
            if leader is not None and leader is not other_than and leader.is_up:
                found.append(leader)
            return bool(found)

        eventually(leads, lambda: f"a leader:\n{self.log()}")
        return found[0]

    def wait_until_current(self):
        """Waits until all servers have the whole stream."""

        def is_current():
            cluster = self.stream().get("cluster", {})
            peers = cluster.get("replicas", [])
            whole = [peer for peer in peers if peer.get("current") and not peer.get("offline")]
            return bool(cluster.get("leader")) and len(whole) == SIZE - 1

        eventually(is_current, lambda: f"all servers are up to date:\n{self.log()}")

    def step_down(self):
        """Makes the leader of the stream give it to another server."""
        return self.ask("$JS.API.STREAM.LEADER.STEPDOWN.throng-channels")

    def ways(self, first=None):
        """New ways to all servers, which begin with this one, or with another one each time."""
        first = next(self.rotation) % SIZE if first is None else self.members.index(first)
        return Ways(self.members[first:] + self.members[:first])

    def stop(self):
        """Ends the servers."""
        for member in self.members:
            if member.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    member.process.send_signal(signal.SIGCONT)
                member.process.kill()
                member.process.wait(TIMEOUT_SECONDS)
            for kept in member.kept:
                kept.close()


class Ways:
    """The ways of one node to all servers: it can be cut off, and nobody else is."""

    def __init__(self, members):
        self.doors = [Door(lambda member=member: member.port) for member in members]
        self.url = ",".join(f"nats://127.0.0.1:{door.port}" for door in self.doors)

    @contextlib.contextmanager
    def cut_off(self):
        """For the block nothing passes, and all connections stay."""
        for door in self.doors:
            door.is_cut = True
        try:
            yield
        finally:
            for door in self.doors:
                door.is_cut = False

    @contextlib.contextmanager
    def slow(self, delay):
        """For the block each piece takes `delay` seconds, in each direction, one after the other."""
        for door in self.doors:
            door.delay = delay
        try:
            yield
        finally:
            for door in self.doors:
                door.delay = 0

    def close(self):
        """Ends the doors."""
        for door in self.doors:
            door.close()
