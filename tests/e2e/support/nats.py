"""A real nats-server with JetStream, behind a door whose port stays when the server restarts."""

import contextlib
import itertools
import json
import re
import shutil
import signal
import subprocess

from . import TIMEOUT_SECONDS
from .doors import Door
from .server import ROOT, Server, eventually

QUICK = ["--drain-window", "200ms", "--drain-timeout", "5s"]


def old_program():
    """The path of a nats-server that is too old for nodes, or None."""
    found = shutil.which("nats-server", path="/usr/sbin")
    if found is None:
        return None
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    major, minor = map(int, re.search(r"v(\d+)\.(\d+)", said).groups())
    return found if (major, minor) < (2, 11) else None


def program():
    """The path of nats-server."""
    own = ROOT / ".cache" / "go" / "bin" / "nats-server"
    found = own if own.exists() else shutil.which("nats-server")
    found = found or shutil.which("nats-server", path="/usr/sbin")
    assert found, "nats-server is missing: scripts/setup"
    return found


class NatsServer:
    """One server, its store, and the door to it."""

    def __init__(self, directory, configuration="", jetstream=True, store="", program=None):
        """`store` is more of the configuration of JetStream, `program` another nats-server."""
        self.directory = directory
        self.program = program
        place = f'jetstream {{ store_dir: "{directory / "store"}"\n{store} }}'
        self.own = place if jetstream else ""
        self.configuration = f"{self.own}\n{configuration}"
        self.head = ""
        self.monitor = None
        self.process = None
        self.starts = 0
        self.upstream = None
        self.door = Door(lambda: self.upstream)
        self.url = self.door.url
        self.launch()

    def launch(self):
        """Starts the server again, with what it has stored, and waits until it listens."""
        self.starts += 1
        ports = self.directory / f"ports{self.starts}"
        ports.mkdir()
        file = self.directory / "nats.conf"
        self.head = f'listen: "127.0.0.1:-1"\nports_file_dir: "{ports}"'
        file.write_text(f"{self.head}\n{self.configuration}\n")
        log = (self.directory / "nats.log").open("a")
        with log:
            self.process = subprocess.Popen(
                [self.program or program(), "-c", file], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        found = ports / f"nats-server_{self.process.pid}.ports"

        def listens():
            with contextlib.suppress(OSError, ValueError, LookupError):
                urls = json.loads(found.read_text())
                self.monitor = next(iter(urls.get("monitoring", [])), None)
                self.upstream = int(urls["nats"][0].rpartition(":")[2])
            return self.upstream is not None

        eventually(listens, "the port of nats-server")

    def reload(self, configuration):
        """Makes the running server take another configuration."""
        self.configuration = f"{self.own}\n{configuration}"
        file = self.directory / "nats.conf"
        file.write_text(f"{self.head}\n{self.configuration}\n")
        log = self.directory / "nats.log"
        reloads = log.read_text().count("Reloaded server configuration")
        self.process.send_signal(signal.SIGHUP)
        eventually(
            lambda: log.read_text().count("Reloaded server configuration") > reloads,
            lambda: f"a reload:\n{log.read_text()}",
        )

    def kill(self):
        """Kills the server: it writes nothing more. The door stays, and nobody is behind it."""
        self.upstream = None
        self.process.kill()
        self.process.wait(TIMEOUT_SECONDS)

    def cut_off(self):
        """For the block nothing passes the door, and all connections stay."""
        return self.door.cut_off()

    def stop(self):
        """Ends the server and the door."""
        self.door.close()
        self.process.kill()
        self.process.wait(TIMEOUT_SECONDS)


def user_of_the_guide():
    """The user `node` with the password `s3` for the configuration of a server, with exactly the
    permissions that the guide says a node needs."""
    guide = (ROOT / "docs" / "guides" / "nodes.md").read_text()
    rows = re.findall(r"^\| (publish|subscribe) \| (.*) \|$", guide, re.MULTILINE)
    subjects = {verb: re.findall(r"`([^`]+)`", cell) for verb, cell in rows}
    allowed = ", ".join(f"{verb}: {json.dumps(found)}" for verb, found in subjects.items())
    return f"{{ user: node, password: s3, permissions: {{ {allowed} }} }}"


def ailments(node):
    """What ails the node as to NATS, by the readiness probe. Only a node that has not been able to use
    NATS since its start is not ready."""
    answer = node.http.get("/health/ready")
    finding = answer.json()
    found = [one["reason"] for one in finding["reasons"] if one["reason"].startswith("nats_")]
    if answer.status_code == 503:
        assert found and finding["status"] == "starting", finding
    else:
        assert answer.status_code == 200, answer.text
        assert not found or finding["status"] == "degraded", finding
    return found


def connected(node):
    """Waits until the node can use the stream."""
    eventually(lambda: not ailments(node), lambda: f"a connected node:\n{node.log()}")
    return node


def know_each_other(*nodes):
    """Waits until each node knows all others."""
    def others(one):
        return one.metrics()["throng_nats_other_nodes"]

    eventually(
        lambda: all(others(one) == len(nodes) - 1 for one in nodes),
        lambda: "\n".join(f"{others(one)} other nodes:\n{one.log()}" for one in nodes),
    )
    return nodes


@contextlib.contextmanager
def brokers_in(directory):
    """Starts nats-servers, and stops each of them after the block, whatever becomes of the others."""
    numbers = itertools.count()
    with contextlib.ExitStack() as stack:

        def begin(*configuration, **options):
            own = directory / f"nats{next(numbers)}"
            own.mkdir()
            server = NatsServer(own, *configuration, **options)
            stack.callback(server.stop)
            return server

        yield begin


@contextlib.contextmanager
def nodes_in(directory):
    """Starts nodes over a server, or over URLs, which may not be connected yet. Stops those that still
    run after the block, each of them whatever becomes of the others."""
    with contextlib.ExitStack() as stack:

        def begin(broker, *flags):
            url = getattr(broker, "url", broker)
            server = Server(directory, *QUICK, "--engine", "nats", "--nats", url, *flags)
            stack.callback(lambda: server.process.poll() is None and server.stop())
            return server

        yield begin
