"""What axe-core finds in the pages of the server and in the reports, and what the tab key reaches.

Each page is opened at the sizes of a desktop and of a phone, light and dark.
"""

import subprocess

import pytest

from conftest import HERE
from support import TIMEOUT_SECONDS
from support.access import server_key
from support.server import BINARY, clean_environment


@pytest.fixture
def look(chromium):
    """Opens a page in a scenario of accessibility.mjs, and expects no findings."""

    def run(scenario, url, **environment):
        done = subprocess.run(
            ["node", HERE / "node" / "accessibility.mjs", chromium, scenario, url],
            env=clean_environment({"NO_PROXY": "*", **environment}),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS * 8,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return run


@pytest.mark.parametrize("scenario", ["name dialog", "chat", "rooms"])
def test_the_chat(server, look, scenario):
    look(scenario, f"{server.url}/chat")


def test_the_status_page(server, look):
    look("status", f"{server.url}/status")


@pytest.mark.parametrize("scenario", ["login", "status after a login"])
def test_the_login_of_the_status_page(tmp_path, serve, look, scenario):
    key, table = server_key(tmp_path, "operator", "administration")
    (tmp_path / "throng.toml").write_text(table)
    server = serve("--config", tmp_path / "throng.toml")
    look(scenario, f"{server.url}/status", KEY=key)


def run_load(*command):
    done = subprocess.run(
        [BINARY, *command],
        env=clean_environment({"NO_PROXY": "*"}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS * 4,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_report_of_flood_and_a_comparison(server, look, tmp_path):
    load = ["--clients", "20", "--publish", "10", "--hold", "2s"]
    reports = [tmp_path / "a.json", tmp_path / "b.json"]
    for report in reports:
        page = report.with_suffix(".html")
        run_load("flood", server.url, *load, "--json", report, "--html", page)
    look("report", (tmp_path / "a.html").as_uri())
    run_load("flood", "compare", *reports, "--html", tmp_path / "compared.html")
    look("report", (tmp_path / "compared.html").as_uri())


def test_the_report_of_bench(look, tmp_path):
    page = tmp_path / "page.html"
    run_load("bench", "small", "--connections", "100", "--time", "1s", "--html", page)
    look("report", page.as_uri())
