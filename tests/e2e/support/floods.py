"""`throng flood` beside a test, and what floods report."""

import subprocess

from . import TIMEOUT_SECONDS
from .server import BINARY, clean_environment

DELIVERED = ["lost == 0", "missed == 0", "duplicated == 0", "reordered == 0", "received > 0"]


def flooding(directory, *arguments, assertions=("failures == 0",)):
    """Starts a flood, which asserts that everything is delivered once and in order, and this."""
    command = [BINARY, "flood", *arguments]
    for assertion in [*DELIVERED, *assertions]:
        command += ["--assert", assertion]
    return subprocess.Popen(
        command,
        cwd=directory,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish_flood(flood):
    """Waits for the end of a flood, which holds what it asserts."""
    output, _ = flood.communicate(timeout=3 * TIMEOUT_SECONDS)
    assert flood.returncode == 0, output


def assert_delivered(total, transport, deliveries):
    """All `deliveries` were made.

    A long-poll has no response before its first message, so what is published before the server has
    read its first request is not expected: on a loaded machine a few messages of some clients.
    """
    assert total["expected"] == total["received"]
    if transport == "long-poll":
        assert deliveries / 2 < total["received"] <= deliveries
    else:
        assert total["received"] == deliveries
