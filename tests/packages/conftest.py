"""What the tests of the packages share. They need what `packaging/build --profile dev target/packages`
has built; `scripts/test packages` does that first."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILT = Path(os.environ.get("THRONG_PACKAGES", ROOT / "target" / "packages"))
TIMEOUT_SECONDS = 120

sys.dont_write_bytecode = True


def pytest_sessionstart():
    """Reports missing files once, instead of once per test."""
    if not (BUILT / "throng").exists():
        pytest.exit(f"{BUILT} has no binary: packaging/build --profile dev target/packages", 1)


def run(*command, **options):
    """Runs a command to its end; returns it with its output as text."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    options = {**pipes, "text": True, "errors": "replace", "timeout": TIMEOUT_SECONDS, **options}
    return subprocess.run([str(word) for word in command], check=False, **options)


def output(*command, **options):
    """The output of a command that succeeds."""
    done = run(*command, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def without_variables():
    """The environment without settings of the server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("THRONG_")}


def in_root(directory):
    """The beginning of a command that runs with a directory as its root."""
    if os.geteuid() == 0:
        return ["chroot", directory]
    if run("unshare", "--map-root-user", "true").returncode != 0:
        pytest.skip("needs root, or user namespaces")
    return ["unshare", "--map-root-user", f"--root={directory}"]


@pytest.fixture(scope="session")
def built():
    """The directory that packaging/build has filled."""
    return BUILT


@pytest.fixture
def empty_root(tmp_path):
    """A directory that has the portable binary, as /throng, and nothing else."""
    root = tmp_path / "root"
    root.mkdir()
    shutil.copy2(BUILT / "throng", root / "throng")
    return root
