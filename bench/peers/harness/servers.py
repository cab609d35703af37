"""Starts a peer with its `start` script, and always ends it."""

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

PEERS = Path(__file__).resolve().parents[1]

# Longer than all attempts of `peer.py`.
READY_SECONDS_MAX = 70
# Longer than `peer.py` waits for its server to exit.
END_SECONDS_MAX = 10
LOG_LINES = 20
# The exit code of `peer.py`.
EXIT_MISSING = 69


class Failure(Exception):
    """A peer cannot be measured: a message, and the end of its log."""

    def __init__(self, message, log=""):
        super().__init__(message)
        self.log = log


class Unavailable(Failure):
    """A dependency of a peer is not installed."""


@dataclass
class Peer:
    """A server: a folder with a `start` script, and a binary if the script needs one."""

    folder: Path
    binary: Path | None = None

    @staticmethod
    def named(text):
        """Parses `NAME`, `NAME=BINARY`, or a folder."""
        name, _, binary = text.partition("=")
        folder = Path(name) if "/" in name else PEERS / name
        if not (folder / "start").exists():
            known = ", ".join(sorted(path.parent.name for path in PEERS.glob("*/start")))
            raise Failure(f"there is no peer {name!r}; the peers are {known}")
        if binary and not os.access(binary, os.X_OK):
            raise Failure(f"{binary} is not a program")
        return Peer(folder.resolve(), Path(binary).resolve() if binary else None)

    @property
    def name(self):
        return self.folder.name

    def install(self):
        """Runs the `install` script, if there is one."""
        script = self.folder / "install"
        if script.exists() and subprocess.run([script], check=False).returncode != 0:
            raise Failure(f"{script} failed")


@contextlib.contextmanager
def running(peer, connections=1000, environment=None, is_tls=False):
    """A server that answers when the block begins; yields the JSON of its script."""
    command = [peer.folder / "start", "--connections", str(connections)]
    command += ["--binary", peer.binary] if peer.binary else []
    command += ["--tls"] if is_tls else []
    with tempfile.TemporaryFile("w+b") as log:
        script = subprocess.Popen(
            command,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield await_description(script, log)
        except Failure as failure:
            failure.log = failure.log or end_of(log)
            raise
        finally:
            end(script)


def await_description(script, log):
    """Waits for the line that the script prints when its server answers."""
    ready, _, _ = select.select([script.stdout], [], [], READY_SECONDS_MAX)
    line = script.stdout.readline() if ready else b""
    if not line:
        lines = end_of(log).splitlines()
        said = f": {lines[-1]}" if lines else ""
        if ready and script.wait(END_SECONDS_MAX) == EXIT_MISSING:
            raise Unavailable(f"it is not installed{said}")
        raise Failure(f"it does not start{said}")
    return json.loads(line)


def end(script):
    """Ends the script, which ends its server; then kills what remains of its session."""
    script.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        script.wait(END_SECONDS_MAX)
    # The group has only processes of this session. It may be empty already.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(script.pid, signal.SIGKILL)
    script.wait()
    script.stdout.close()
    await_group_end(script.pid)


def await_group_end(group):
    """Waits until the group's processes have ended, so that the next server runs alone."""
    deadline = time.monotonic() + END_SECONDS_MAX
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.02)


def end_of(log):
    """The last lines of a log."""
    log.seek(0)
    return "\n".join(log.read().decode(errors="replace").splitlines()[-LOG_LINES:])
