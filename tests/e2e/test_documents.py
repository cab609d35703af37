"""The commands of README and the first guide, run in order."""

import json
import re
import shlex
import subprocess

import pytest

from conftest import HERE
from support import TIMEOUT_SECONDS
from support.pages import served
from support.server import BINARY, ROOT, clean_environment

DOCUMENTED = "http://127.0.0.1:8080"
README = (ROOT / "README.md").read_text()
FIRST_STEPS = (ROOT / "docs" / "guides" / "first-steps.md").read_text()


def commands_for_ann():
    """Every line of a shell block that publishes to Ann."""
    blocks = re.findall(r"```sh\n(.*?)```", README + FIRST_STEPS, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    curls = [line for line in lines if line.startswith("curl") and " -d " in line]
    found = [line for line in curls if line.endswith("/users/ann")]
    return found + [line for line in lines if line.startswith("throng publish --user ann")]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/guides/first-steps.md"])
def test_the_documents_name_the_required_rust_version(name):
    version = re.search(r'^rust-version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert f"Rust {version.group(1)} or later" in (ROOT / name).read_text()


@pytest.fixture
def pages(tmp_path):
    """Serves a directory over HTTP; returns its URL."""
    with served(tmp_path) as url:
        yield url


def test_the_first_page_shows_every_message_that_the_documents_send(
    serve, chromium, pages, tmp_path
):
    server = serve()
    commands = commands_for_ann()
    assert len(commands) >= 3, commands
    environment = clean_environment({"THRONG_URL": server.url, "NO_PROXY": "*"})
    for command in commands:
        words = shlex.split(command.replace(DOCUMENTED, server.url), comments=True)
        words[0] = str(BINARY) if words[0] == "throng" else words[0]
        subprocess.run(words, env=environment, check=True, timeout=TIMEOUT_SECONDS)
    # A body that is not JSON is shown verbatim.
    server.publish_to_user("ann", "plain text")
    (page,) = re.findall(r"```html\n(.*?)```", FIRST_STEPS, re.DOTALL)
    (tmp_path / "index.html").write_text(page.replace(DOCUMENTED, server.url))
    done = subprocess.run(
        ["node", HERE / "node" / "items.mjs", chromium, pages, str(len(commands) + 1)],
        env=clean_environment({"NO_PROXY": "*"}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS * 6,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    items = json.loads(done.stdout)
    assert not any("undefined" in item or "{" in item for item in items), items
    assert any(item.endswith("plain text") for item in items), items
