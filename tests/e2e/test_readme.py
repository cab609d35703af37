"""The programs of the README, as printed there but for the address of the server: from an empty
directory to a message in a browser."""

import os
import re
import subprocess
import sys

import pytest

from conftest import HERE
from support import TIMEOUT_SECONDS
from support.commands import run
from support.pages import served
from support.server import ROOT, clean_environment

DOCUMENTED = "http://127.0.0.1:8080"
LINES_MAX = 5
README = (ROOT / "README.md").read_text()
SECTION = re.search(r"^## From an empty directory.*?(?=^## )", README, re.DOTALL | re.MULTILINE)
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", SECTION.group(), re.DOTALL | re.MULTILINE)


def block(language):
    """The first block in a language."""
    return next(text for found, text in BLOCKS if found == language)


def install_javascript(directory):
    """What `npm install` makes of the client, but for the copy."""
    scope = directory / "node_modules" / "@throng-push"
    scope.mkdir(parents=True)
    (scope / "client").symlink_to(ROOT / "clients" / "javascript")
    return ["node", "hello.mjs"]


def install_python(_directory):
    return [sys.executable, "hello.py"]


def install_go(directory):
    """Runs the commands of the README, which find all other modules in the cache."""
    (commands,) = re.findall(r"^\| \[Go\].*\|$", SECTION.group(), re.MULTILINE)
    commands = re.findall(r"`([^`]*)`", commands.replace("PATH/", f"{ROOT}/"))
    for command in commands[:-1]:
        run(*command.split(), directory=directory, environment=OWN)
    return commands[-1].split()


# Where the programs find their clients, and what those need.
OWN = {
    "HOME": os.environ.get("HOME", "/"),
    "PYTHONPATH": str(ROOT / "clients" / "python" / "src"),
    "GOMODCACHE": str(ROOT / ".cache/go/mod"),
    "GOCACHE": str(ROOT / ".cache/go/build"),
    "GOPROXY": "off",
    "GONOSUMDB": "*",
    "GOFLAGS": "-modcacherw",
    "GOTOOLCHAIN": "local",
    "CGO_ENABLED": "0",
}
PROGRAMS = {
    "js": ("hello.mjs", install_javascript),
    "python": ("hello.py", install_python),
    "go": ("hello.go", install_go),
}


@pytest.mark.parametrize("language", ["html", "js", "python", "go"])
def test_the_first_programs_are_short(language):
    code = block(language)
    inner = {"html": r"<script.*?>(.*)</script>", "go": r"func main\(\) \{(.*)^\}"}.get(language)
    if inner:
        code = re.search(inner, code, re.DOTALL | re.MULTILINE).group(1)
    lines = [line for line in code.splitlines() if line.strip()]
    assert 1 <= len(lines) <= LINES_MAX, lines


def test_a_message_of_each_client_is_shown_in_a_browser(serve, chromium, tmp_path):
    server = serve()
    for language, (name, _) in PROGRAMS.items():
        (tmp_path / language).mkdir()
        (tmp_path / language / name).write_text(block(language).replace(DOCUMENTED, server.url))
    (tmp_path / "page").mkdir()
    page = block("html").replace(DOCUMENTED, server.url)
    (tmp_path / "page" / "index.html").write_text(page)
    texts = ["hello from JavaScript", "hello from Python", "hello from Go"]
    with served(tmp_path / "page") as url:
        browser = subprocess.Popen(
            ["node", HERE / "node" / "texts.mjs", chromium, url, *texts],
            env=clean_environment({"NO_PROXY": "*"}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            for language, (_, install) in PROGRAMS.items():
                directory = tmp_path / language
                run(*install(directory), directory=directory, environment=OWN)
            said, _ = browser.communicate(timeout=TIMEOUT_SECONDS * 6)
        finally:
            browser.kill()
            browser.wait()
    assert browser.returncode == 0, said
