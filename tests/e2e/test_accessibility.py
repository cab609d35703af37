"""What axe-core finds in the pages of the server and in the reports, and what the tab key reaches.

Each page is opened at the sizes of a desktop and of a phone, light and dark.
"""

import pytest

from conftest import HERE
from support.access import server_key
from support.commands import run
from support.server import BINARY


@pytest.fixture
def look(chromium):
    """Opens a page in a scenario of accessibility.mjs, and expects no findings."""

    def look_at(scenario, url, **environment):
        script = HERE / "node" / "accessibility.mjs"
        run("node", script, chromium, scenario, url, environment=environment)

    return look_at


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


def test_the_report_of_flood_and_a_comparison(server, look, tmp_path):
    load = ["--clients", "20", "--publish", "10", "--hold", "2s"]
    reports = [tmp_path / "a.json", tmp_path / "b.json"]
    for report in reports:
        page = report.with_suffix(".html")
        run(BINARY, "flood", server.url, *load, "--json", report, "--html", page)
    look("report", (tmp_path / "a.html").as_uri())
    run(BINARY, "flood", "compare", *reports, "--html", tmp_path / "compared.html")
    look("report", (tmp_path / "compared.html").as_uri())


def test_the_report_of_bench(look, tmp_path):
    page = tmp_path / "page.html"
    # Between them, parts of every kind: tiles, published figures, plots over time and by size, tables.
    names = ["c10k-long-poll", "long-poll-chat", "router"]
    run(BINARY, "bench", *names, "--connections", "100", "--time", "1s", "--html", page)
    look("report", page.as_uri())
