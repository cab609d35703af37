"""A real nats-server with JetStream, behind a door whose port stays when the server restarts."""

import asyncio
import contextlib
import json
import re
import shutil
import socket
import subprocess
import threading

from . import TIMEOUT_SECONDS
from .server import ROOT, Server, eventually

QUICK = ["--drain-window", "200ms", "--drain-timeout", "5s"]


def program():
    """The path of nats-server."""
    own = ROOT / ".cache" / "go" / "bin" / "nats-server"
    found = own if own.exists() else shutil.which("nats-server")
    found = found or shutil.which("nats-server", path="/usr/sbin")
    assert found, "nats-server is missing: scripts/setup"
    return found


class NatsServer:
    """One server, its store, and the door to it."""

    def __init__(self, directory, configuration="", jetstream=True, store=""):
        """`store` is more of the configuration of JetStream."""
        self.directory = directory
        own = f'jetstream {{ store_dir: "{directory / "store"}"\n{store} }}' if jetstream else ""
        self.configuration = f"{own}\n{configuration}"
        self.monitor = None
        self.process = None
        self.starts = 0
        self.upstream = None
        self.is_cut = False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self.listener.getsockname()[1]}"
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()
        self.launch()

    def launch(self):
        """Starts the server again, with what it has stored, and waits until it listens."""
        self.starts += 1
        ports = self.directory / f"ports{self.starts}"
        ports.mkdir()
        file = self.directory / "nats.conf"
        file.write_text(
            f'listen: "127.0.0.1:-1"\nports_file_dir: "{ports}"\n{self.configuration}\n'
        )
        log = (self.directory / "nats.log").open("a")
        with log:
            self.process = subprocess.Popen(
                [program(), "-c", file], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        found = ports / f"nats-server_{self.process.pid}.ports"

        def listens():
            with contextlib.suppress(OSError, ValueError, LookupError):
                urls = json.loads(found.read_text())
                self.monitor = next(iter(urls.get("monitoring", [])), None)
                self.upstream = int(urls["nats"][0].rpartition(":")[2])
            return self.upstream is not None

        eventually(listens, "the port of nats-server")

    def kill(self):
        """Kills the server: it writes nothing more. The door stays, and nobody is behind it."""
        self.upstream = None
        self.process.kill()
        self.process.wait(TIMEOUT_SECONDS)

    @contextlib.contextmanager
    def cut_off(self):
        """For the block nothing passes the door, and all connections stay."""
        self.is_cut = True
        try:
            yield
        finally:
            self.is_cut = False

    def stop(self):
        """Ends the server and the door."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(TIMEOUT_SECONDS)
        self.listener.close()
        self.process.kill()
        self.process.wait(TIMEOUT_SECONDS)

    def _serve(self):
        asyncio.set_event_loop(self.loop)
        serving = asyncio.start_server(self._connected, sock=self.listener)
        server = self.loop.run_until_complete(serving)
        self.loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    async def _connected(self, reader, writer):
        with contextlib.suppress(OSError):
            if self.upstream is not None:
                behind = await asyncio.open_connection("127.0.0.1", self.upstream)
                pumps = [self._pump(reader, behind[1]), self._pump(behind[0], writer)]
                tasks = [asyncio.ensure_future(pump) for pump in pumps]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
                behind[1].transport.abort()
        writer.transport.abort()

    async def _pump(self, source, target):
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                while self.is_cut:
                    await asyncio.sleep(0.01)
                target.write(data)
                await target.drain()


def user_of_the_guide():
    """The user `node` with the password `s3` for the configuration of a server, with exactly the
    permissions that the guide says a node needs."""
    guide = (ROOT / "docs" / "guides" / "nodes.md").read_text()
    rows = re.findall(r"^\| (publish|subscribe) \| (.*) \|$", guide, re.MULTILINE)
    subjects = {verb: re.findall(r"`([^`]+)`", cell) for verb, cell in rows}
    allowed = ", ".join(f"{verb}: {json.dumps(found)}" for verb, found in subjects.items())
    return f"{{ user: node, password: s3, permissions: {{ {allowed} }} }}"


class Door(NatsServer):
    """Another door to a server, which is cut off by itself."""

    def __init__(self, server):
        self.server = server
        self.is_cut = False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self.listener.getsockname()[1]}"
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    @property
    def upstream(self):
        """The port of the server behind it."""
        return self.server.upstream

    def stop(self):
        """Ends the door."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(TIMEOUT_SECONDS)
        self.listener.close()


def ailments(node):
    """What ails the node as to NATS, by the readiness probe, which has to succeed."""
    answer = node.http.get("/health/ready")
    assert answer.status_code == 200, answer.text
    finding = answer.json()
    found = [one["reason"] for one in finding["reasons"] if one["reason"].startswith("nats_")]
    assert not found or finding["status"] == "degraded", finding
    return found


def connected(node):
    """Waits until the node can use the stream."""
    eventually(lambda: not ailments(node), f"a connected node:\n{node.log()}")
    return node


def start_node(directory, broker, *flags):
    """A node, which may not be connected yet."""
    return Server(directory, *QUICK, "--engine", "nats", "--nats", broker.url, *flags)
