"""A control group for a server and what is to share its memory, made by hand: cgroup v1 or v2."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")

# Holds as many MiB as the last line of its input says.
BALLAST = """
import mmap, sys
held = []
for line in sys.stdin:
    while len(held) > int(line):
        held.pop().close()
    while len(held) < int(line):
        held.append(mmap.mmap(-1, 1 << 20))
        for at in range(0, 1 << 20, 4096): held[-1][at] = 1
    print("done", flush=True)
"""

_numbers = itertools.count()


class Group:
    """Limits of memory and processor time for the processes that `enter`."""

    def __init__(self, memory_bytes=None, cpu=None):
        name = f"throng-test-{os.getpid()}-{next(_numbers)}"
        self.folders = []
        self.ballast = None
        controllers = ROOT / "cgroup.controllers"
        self.is_unified = controllers.exists()
        try:
            if self.is_unified:
                enabled = (ROOT / "cgroup.subtree_control").read_text().split()
                if not {"memory", "cpu"} <= set(enabled):
                    pytest.skip("the root control group does not pass memory and cpu on")
                folder = self._make(ROOT / name)
                if memory_bytes:
                    (folder / "memory.max").write_text(str(memory_bytes))
                if cpu:
                    (folder / "cpu.max").write_text(f"{int(cpu * 100_000)} 100000")
                self.memory = folder
                return
            if memory_bytes:
                self.memory = self._make(ROOT / "memory" / name)
                (self.memory / "memory.limit_in_bytes").write_text(str(memory_bytes))
            if cpu:
                folder = self._make(ROOT / "cpu" / name)
                (folder / "cpu.cfs_period_us").write_text("100000")
                (folder / "cpu.cfs_quota_us").write_text(str(int(cpu * 100_000)))
        except OSError as error:
            self.close()
            pytest.skip(f"no control group can be made here: {error}")

    def _make(self, folder):
        folder.mkdir()
        self.folders.append(folder)
        return folder

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def enter(self):
        """Moves the calling process into the group; before it uses memory."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(os.getpid()))

    def hold(self, mebibytes):
        """Makes a process of the group hold this much."""
        if self.ballast is None:
            self.ballast = subprocess.Popen(
                [sys.executable, "-c", BALLAST],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=self.enter,
            )
        self.ballast.stdin.write(f"{mebibytes}\n")
        self.ballast.stdin.flush()
        assert self.ballast.stdout.readline() == "done\n"

    def used(self):
        """What counts against the limit, in bytes: page cache that is not in use does not."""
        file = "memory.current" if self.is_unified else "memory.usage_in_bytes"
        name = "inactive_file" if self.is_unified else "total_inactive_file"
        stat = (self.memory / "memory.stat").read_text().splitlines()
        cached = next(int(line.split()[1]) for line in stat if line.split()[0] == name)
        return int((self.memory / file).read_text()) - cached

    def killed(self):
        """How many processes the kernel has killed for want of memory."""
        file = "memory.events" if self.is_unified else "memory.oom_control"
        lines = (self.memory / file).read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def close(self):
        """Removes the group, whose processes have ended."""
        if self.ballast:
            self.ballast.stdin.close()
            self.ballast.wait()
        for folder in self.folders:
            folder.rmdir()
