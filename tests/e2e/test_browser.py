"""The chat page in a real Chromium; the scenarios are in node/chat.mjs."""

import shutil
import subprocess

import pytest

from conftest import HERE
from support import PATIENCE_SECONDS
from support.server import clean_environment


@pytest.fixture(scope="module")
def chromium():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    raise AssertionError("Chromium is missing: scripts/setup")


@pytest.mark.parametrize("scenario", ["together", "lost", "sse", "poll"])
def test_chat(server, chromium, scenario):
    done = subprocess.run(
        ["node", HERE / "node" / "chat.mjs", chromium, server.url, scenario],
        env=clean_environment({"NO_PROXY": "*"}),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS * 6,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
