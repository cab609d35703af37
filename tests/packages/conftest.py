"""What the tests of the packages share. They need the files that `packaging/release --profile dev
target/test-packages` makes; `scripts/test packages` does that first."""

import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGES = Path(os.environ.get("THRONG_PACKAGES", ROOT / "target" / "test-packages"))
BUILT = PACKAGES / "server"
FILES = PACKAGES / "release"
ARCHITECTURE = platform.machine()
TIMEOUT_SECONDS = 120

sys.dont_write_bytecode = True


def pytest_sessionstart():
    """Reports missing files once, instead of once per test."""
    if not (FILES / "SHA256SUMS").exists():
        pytest.exit(f"{FILES} is incomplete: packaging/release --profile dev {PACKAGES}", 1)


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
    """The directory that packaging/build has filled with the server."""
    return BUILT


@pytest.fixture(scope="session")
def files():
    """The directory of a release."""
    return FILES


@pytest.fixture(scope="session")
def version():
    """The version of the workspace."""
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


@pytest.fixture
def served(built, tmp_path):
    """The URL of the packaged server, which runs until the end of the test."""
    command = [built / "throng", "serve", "--listen", "127.0.0.1:0"]
    with started(command, cwd=tmp_path) as url:
        yield url


@contextmanager
def started(command, **options):
    """Runs a server until the end; yields its URL, and expects that it stops cleanly."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    server = subprocess.Popen(command, env=without_variables(), text=True, **pipes, **options)
    try:
        seen = []
        for line in server.stdout:
            seen.append(line)
            if found := re.search(r"listening on (http://\S+)", line):
                break
        else:
            pytest.fail("".join(seen))
        yield found.group(1)
    finally:
        server.terminate()
        server.communicate(timeout=TIMEOUT_SECONDS)
    assert server.returncode == 0


@pytest.fixture
def empty_root(tmp_path):
    """A directory that has the portable binary, as /throng, and nothing else."""
    root = tmp_path / "root"
    root.mkdir()
    shutil.copy2(BUILT / "throng", root / "throng")
    return root
