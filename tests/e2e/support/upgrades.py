"""A server whose process is replaced while it runs."""

import os
import re
import signal
from contextlib import contextmanager

from . import TIMEOUT_SECONDS
from .server import Server, eventually

TAKEN_OVER = re.compile(r"process (\d+) has taken over after a pause of (\d+) ms")
FAILED = "the upgrade has failed: "
# The version of what two processes say to each other.
PROTOCOL = 1
# Flags of a server that sends only what is published, and ends at once.
QUIET = ["--heartbeat", "1h", "--drain-window", "0ms"]


class UpgradableServer(Server):
    """A server that can be upgraded. Its log is that of all of its processes."""

    def __init__(self, directory, *flags, **options):
        self.pid = None
        super().__init__(directory, *flags, **options)
        self.pid = self.process.pid

    def upgrade(self):
        """Upgrades by SIGUSR2, and waits until the new process has taken over."""
        count = len(TAKEN_OVER.findall(self.log()))
        self.signal(signal.SIGUSR2)
        self.upgraded(count)

    def upgraded(self, count):
        """Waits until one more than `count` processes have taken over."""
        failures = self.log().count(FAILED)

        def outcome():
            assert self.log().count(FAILED) == failures, self.log()
            return len(TAKEN_OVER.findall(self.log())) > count

        eventually(outcome, "a process that takes over")
        old, self.pid = self.pid, int(TAKEN_OVER.findall(self.log())[count][0])
        if old == self.process.pid:
            assert self.process.wait(TIMEOUT_SECONDS) == 0, self.log()
        else:
            eventually(lambda: not is_running(old), "the end of the old process")

    @contextmanager
    def upgrading(self):
        """Begins an upgrade, which may fail; at the end of the block, waits until it is over."""
        count, failures = len(self.pauses()), self.log().count(FAILED)
        self.signal(signal.SIGUSR2)
        yield
        eventually(
            lambda: len(self.pauses()) > count or self.log().count(FAILED) > failures,
            "the end of the upgrade",
        )
        if len(self.pauses()) > count:
            self.upgraded(count)

    def pauses(self):
        """How long nothing was delivered in each upgrade, in milliseconds."""
        return [int(pause) for _, pause in TAKEN_OVER.findall(self.log())]

    def signal(self, number=signal.SIGTERM):
        os.kill(self.pid, number)

    @contextmanager
    def frozen(self):
        """Stops the process of now, which may not be a child of the tests."""
        self.signal(signal.SIGSTOP)
        try:
            eventually(lambda: state_of(self.pid) == "T", "a process that stands still")
            yield
        finally:
            self.signal(signal.SIGCONT)

    def stop(self):
        self.http.close()
        if is_running(self.pid):
            self.signal()
        if self.pid == self.process.pid:
            assert self.wait() == 0, self.log()
        eventually(lambda: not is_running(self.pid), "the end of the server")
        # The pipe ends with the last process.
        self._reader.join(TIMEOUT_SECONDS)
        assert "panicked" not in self.log(), self.log()

    def kill(self):
        self.http.close()
        if self.pid == self.process.pid:
            return super().kill()
        if is_running(self.pid):
            os.kill(self.pid, signal.SIGKILL)
        return None


def state_of(pid):
    """The state of a process, as proc(5) names it; X if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        # Before it was opened, or after that.
        return "X"


def is_running(pid):
    """Whether a process runs: one that has ended and that nobody has waited for does not."""
    return state_of(pid) not in "ZX"
