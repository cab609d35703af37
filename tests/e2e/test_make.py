"""`make run` on a machine that lacks what a build needs."""

import os
import shutil
import subprocess

import pytest

from support import TIMEOUT_SECONDS
from support.server import ROOT

# The programs that make and its scripts use.
TOOLS = ["make", "sh", "sed", "sort", "head", "dirname", "printf"]
RUSTC = "#!/bin/sh\necho 'rustc {} (0123456789 2026-01-01)'\n"
CARGO = "#!/bin/sh\necho 'cargo was run'\nexit 1\n"


@pytest.fixture
def make_run(tmp_path):
    """Runs `make run` with only the given programs on the path; returns its output."""

    # A make that runs these tests does not make this one a part of it.
    own = ("MAKELEVEL", "MAKEFLAGS", "MFLAGS")
    environment = {name: value for name, value in os.environ.items() if name not in own}

    def run(**programs):
        for tool in TOOLS:
            if path := shutil.which(tool):
                (tmp_path / tool).symlink_to(path)
        for name, text in programs.items():
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        # The makefile puts a folder of its own before this one; no compiler is in it.
        done = subprocess.run(
            [shutil.which("make"), "--no-print-directory", "-C", ROOT, "run"],
            env={**environment, "PATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert done.returncode != 0
        return done

    return run


MISSING = {
    "no Rust": ({}, "cargo is missing: Throng needs Rust"),
    "no rustc": ({"cargo": CARGO}, "rustc is missing: Throng needs Rust"),
    "an old Rust": (
        {"cargo": CARGO, "rustc": RUSTC.format("1.63.0")},
        "Rust 1.63.0 is too old: Throng needs",
    ),
    "a rustc that does not run": (
        {"cargo": CARGO, "rustc": "#!/bin/sh\nexit 1\n"},
        "rustc does not run: Throng needs Rust",
    ),
    "no linker": (
        {"cargo": CARGO, "rustc": RUSTC.format("1.1000.0")},
        "cc is missing: Rust needs a C linker",
    ),
}


@pytest.mark.parametrize("case", MISSING)
def test_a_missing_tool_is_one_clear_message(make_run, case):
    programs, expected = MISSING[case]
    done = make_run(**programs)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("make: ")]
    assert len(lines) == 1 and lines[0].startswith(f"error: {expected}"), done.stderr
    assert "cargo was run" not in done.stdout


def test_a_recent_rust_is_accepted(make_run):
    version = RUSTC.format("1.1000.0")
    done = make_run(cargo=CARGO, rustc=version, cc="#!/bin/sh\n")
    assert "cargo was run" in done.stdout, done.stderr
