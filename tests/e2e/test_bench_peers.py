"""`bench/peers`: servers side by side, at a small size that is no benchmark."""

import json
import os
import subprocess
from xml.etree import ElementTree

from support import TIMEOUT_SECONDS
from support.server import BINARY, ROOT

PEERS = ROOT / "bench" / "peers"
# Each server takes a few seconds, because memory is read after a pause. Only a run that hangs takes so
# long.
TIMEOUT = 14 * TIMEOUT_SECONDS
SMALL = ["--scenario", "all", "--connections", "200", "--messages", "1"]
SMALL += ["--repeats", "1", "--no-install"]
SILENT = """#!/bin/sh
echo 'this one never answers' >&2
exit 3
"""


def run(*arguments):
    return subprocess.run(
        list(map(str, arguments)),
        env={**os.environ, "THRONG_BIN": str(BINARY)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def test_servers_are_measured_and_drawn(tmp_path):
    silent = tmp_path / "silent"
    silent.mkdir()
    (silent / "start").write_text(SILENT)
    (silent / "start").chmod(0o755)
    only = ["--transports", "websocket"]
    first = tmp_path / "first"
    done = run(PEERS / "run", "throng", "ws", "bun", f"{silent}/", *SMALL, *only, "--to", first)

    # One does not start: its log is printed, and the others are still measured.
    assert done.returncode == 1, done.stderr
    assert "this one never answers" in done.stderr
    figures = json.loads((first / "benchmarks" / "peers.json").read_text())
    measured = {run["peer"]: run["figures"] for run in figures["runs"] if "figures" in run}
    assert set(measured) == {"throng", "ws", "bun"}, figures["runs"]
    for name, run_figures in measured.items():
        assert run_figures["lost"] == run_figures["duplicated"] == 0, name
        assert run_figures["storm_s"] is not None, name
        for size in ["64", "1024"]:
            assert run_figures["fanout"][size]["cpu_us"] is not None, name
            assert "machine_cpu_us" in run_figures["fanout"][size], name
    page = (first / "benchmarks" / "peers.md").read_text()
    for part in ["| Throng |", "| Node ws |", "| Bun (uWebSockets) |", "this one never answers"]:
        assert part in page

    # `draw` produces the same pictures from the measurements alone, and each is an SVG.
    again = tmp_path / "again"
    done = run(PEERS / "draw", first / "benchmarks" / "peers.json", "--to", again)
    assert done.returncode == 0, done.stderr
    drawn = sorted((again / "images").iterdir())
    assert drawn, done.stdout
    for picture in drawn:
        assert f"../images/{picture.name}" in page
        assert ElementTree.parse(picture).getroot().tag.endswith("svg")
        assert picture.read_text() == (first / "images" / picture.name).read_text()


def test_servers_are_measured_over_tls(tmp_path):
    only = ["--tls", "--transports", "websocket"]
    done = run(PEERS / "run", "throng", "ws", "bun", "nchan", *SMALL, *only, "--to", tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "benchmarks" / "peers-tls.json").read_text())
    assert {run["peer"] for run in results["runs"]} == {"throng", "ws", "bun", "nchan"}
    for measured in results["runs"]:
        assert measured["figures"]["lost"] == measured["figures"]["duplicated"] == 0, measured
    page = (tmp_path / "benchmarks" / "peers-tls.md").read_text()
    assert page.startswith("# Peers over TLS") and "../images/peers-tls-fanout.svg" in page


def test_readers_of_many_channels_are_measured(tmp_path):
    # Ten thousand messages a second may be more than this machine takes: only what is lost counts.
    small = ["--scenario", "prices", "--seconds", "1", "--repeats", "1", "--no-install"]
    done = run(PEERS / "run", "throng", "ws", *small, "--to", tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "benchmarks" / "prices.json").read_text())
    figures = {run["transport"]: run["figures"] for run in results["runs"]}
    assert list(figures) == ["page", "blocked", "node", "flood"], results["runs"]
    assert figures["flood"]["lost"] == 0 and figures["flood"]["bytes"] > 64, figures
    for kind in ["page", "node"]:
        assert figures[kind]["rate"] > 0 and 0 < figures[kind]["busy"] < 3, figures
    page = (tmp_path / "benchmarks" / "prices.md").read_text()
    assert "### A page in Chromium" in page and "| Throng |" in page
    again = run(PEERS / "draw", tmp_path / "benchmarks" / "prices.json", "--to", tmp_path / "again")
    assert again.returncode == 0, again.stderr
    assert "| Throng |" in (tmp_path / "again" / "benchmarks" / "prices.md").read_text()


def test_a_page_behind_a_slow_line_gets_no_gap(serve, chromium):
    server = serve("--config", PEERS / "throng" / "prices.toml", "--max-channels-per-connection", "200")
    measure = [PEERS / "prices" / "measure.mjs", "line", "throng", server.url, "{}", "3", chromium]
    done = run("node", *measure)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    # A message has more than 40 bytes, and the line passes 125,000 a second.
    assert 0 < figures["rate"] < 125_000 / 40, figures
    assert figures["gaps"] == 0, figures


def test_a_usage_error_is_one_clear_message(tmp_path):
    done = run(PEERS / "run", "nchann", "--to", tmp_path)
    assert done.returncode == 64
    assert "there is no peer 'nchann'; the peers are" in done.stderr
    done = run(PEERS / "run", "centrifugo=/nowhere", "--to", tmp_path)
    assert "/nowhere is not a program" in done.stderr
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"version": 99}')
    done = run(PEERS / "draw", wrong, "--to", tmp_path)
    assert done.returncode == 1 and "version 99" in done.stderr
