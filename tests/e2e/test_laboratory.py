"""`throng flood` and `throng bench` become programs of the laboratory, where it is installed."""

import shutil
import subprocess

import pytest

from support.server import BINARY, run_throng


@pytest.fixture
def alone(tmp_path):
    """The server's program without a laboratory beside it."""
    return shutil.copy(BINARY, tmp_path / "throng")


@pytest.mark.parametrize("name", ["flood", "bench"])
def test_a_missing_laboratory_says_how_to_get_it(alone, tmp_path, name):
    done = run_throng(name, "--help", directory=tmp_path, environment={"PATH": str(tmp_path)}, binary=alone)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"throng-{name}" in done.stderr and "install the package throng-lab" in done.stderr


def test_a_laboratory_in_path_is_found(alone, tmp_path):
    program = tmp_path / "bin" / "throng-flood"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "got: $*"\nexit 3\n')
    program.chmod(0o755)
    environment = {"PATH": f"{program.parent}:/usr/bin:/bin"}
    done = run_throng("flood", "--plan", "x y", directory=tmp_path, environment=environment, binary=alone)
    assert (done.returncode, done.stdout) == (3, "got: --plan x y\n")


@pytest.mark.parametrize("words", [["flood", "--help"], ["help", "flood"], ["bench", "-h"]])
def test_help_is_of_the_laboratory(tmp_path, words):
    done = run_throng(*words, directory=tmp_path)
    assert done.returncode == 0
    assert "--html" in done.stdout and "Usage: throng " in done.stdout


def test_the_programs_work_without_the_server(tmp_path):
    for name in ["throng-flood", "throng-bench"]:
        done = subprocess.run([BINARY.parent / name, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout.startswith(f"{name} ")
