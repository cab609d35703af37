"""The scenario "prices": many channels with many messages each, to few readers.

Each load gets a new server. The readers of `throng flood` get fewer messages a second than a page, because there are
many of them: the rate is one that the servers sustain.
"""

import json
import shutil
import subprocess
from pathlib import Path
from string import Template

from charts.words import decimal, percent, whole

from . import load, servers
from .document import AHEAD, machine, spread, table, versions
from .results import OWN, Results, Spread

TEMPLATE = Path(__file__).with_name("prices.template")
MEASURE = Path(__file__).resolve().parents[1] / "prices" / "measure.mjs"
CHANNELS = 200
UPDATES = 50
READERS = 50
READER_RATE = 1000
STEM = "prices"
KINDS = {
    "page": "a page in Chromium",
    "blocked": "a page that blocks its main thread for 2 s of every 4; ages only from 0.5 s after that on",
    "node": "a program in Node",
}
# Columns: heading, path of the figure, how it is shown.
READER_COLUMNS = [
    ("age p50, ms", "p50_ms", decimal),
    ("age p99, ms", "p99_ms", decimal),
    ("age max, ms", "max_ms", decimal),
    ("behind at the end, ms", "behind_ms", decimal),
    ("handled a second", "rate", whole),
    ("published a second", "published_rate", whole),
    ("gap notices", "gaps", whole),
    ("skipped for newer ones", "skipped", whole),
    ("main thread", "busy", percent),
]
# At its end, such a page is blocked or not by chance.
BLOCKED_COLUMNS = [column for column in READER_COLUMNS if column[1] != "behind_ms"]
FLOOD_COLUMNS = [
    ("p50 of the worst, ms", "p50_ms", decimal),
    ("p99 of the worst, ms", "p99_ms", decimal),
    ("max, ms", "max_ms", decimal),
    ("behind at the end, ms", "behind_ms", decimal),
    ("lost", "lost", whole),
    ("server CPU each, µs", "cpu_us", decimal),
    ("bytes each", "bytes", whole),
]


def of_page(kind, server, seconds):
    """A page or a Node client, fed at the full rate."""
    facts = server["prices"]
    command = ["node", MEASURE, kind, facts["library"], server["url"], json.dumps(facts["headers"]), seconds]
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if kind != "node":
        if chromium is None:
            raise servers.Failure("there is no Chromium")
        command.append(chromium)
    limit = 4 * seconds + 120
    try:
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        raise servers.Failure(f"the reader did not end within {limit} s") from None
    if done.returncode != 0 or not done.stdout.startswith("{"):
        raise servers.Failure("the reader failed", done.stderr)
    return json.loads(done.stdout)


def of_flood(throng, server, seconds):
    """Many readers, by `throng flood`."""
    flags = ["--channels-per-client", CHANNELS, "--clients", READERS, "--hold", f"{seconds}s"]
    flags += ["--publish", READER_RATE, "--size", "64", "--publish-connections", "4", "--publish-pipeline", "16"]
    report = load.flood(throng, server, "websocket", flags, 3 * seconds + 120)
    total = report["total"]
    if total["active"] + sum(total["failures"].values()) < READERS or not total["behind"]:
        raise servers.Failure(f"nothing was measured; {load.reasons(total)}")
    figures = {
        "p50_ms": total["reader_p50"]["max"],
        "p99_ms": total["reader_p99"]["max"],
        "max_ms": total["reader_max"]["max"],
        "behind_ms": total["behind"]["max"],
        "lost": total["lost"],
        "cpu_us": total["server"] and total["server"]["cpu_us_per_delivery"],
        "bytes": total["received_bytes"] / max(1, total["received"]),
        "rate": total["publish_rate"],
        "failures": {**total["failures"], **total["publish_failures"]},
        "warnings": report["warnings"],
    }
    return figures, report["environment"]


class Prices(Results):
    """The measurements of the scenario."""

    stem = STEM

    def measure(self, throng, peer, repeat, seconds):
        """All loads on one peer; yields each as it is done."""
        for kind in [*KINDS, "flood"]:
            run = {"peer": peer.name, "transport": kind, "repeat": repeat}
            try:
                with servers.running(peer, READERS) as server:
                    if "prices" not in server:
                        return
                    names = ["name", "version", "configuration"]
                    self.data["peers"][peer.name] = {name: server[name] for name in names}
                    if kind == "flood":
                        run["figures"], self.data["environment"] = of_flood(throng, server, seconds)
                    else:
                        run["figures"] = of_page(kind, server, seconds)
            except servers.Failure as failure:
                run |= {"failure": str(failure), "log": failure.log}
            self.data["runs"].append(run)
            yield run

    def figure(self, peer, kind, name):
        runs = (run for run in self.runs(peer, kind) if "figures" in run)
        return Spread.of(run["figures"].get(name) for run in runs)

    def faults(self):
        return []


def is_better(name, theirs, ours):
    return theirs > ours if name == "rate" else name != "published_rate" and theirs < ours


def tables_of(results):
    """A table for each kind of reader; a mark where a peer is ahead of Throng."""
    special = {"blocked": BLOCKED_COLUMNS, "flood": FLOOD_COLUMNS}
    for kind in [*KINDS, "flood"]:
        columns = special.get(kind, READER_COLUMNS)
        rows = []
        for peer in results.names(kind):
            row = [results.title(peer)]
            for _, name, show in columns:
                found, own = (results.figure(each, kind, name) for each in (peer, OWN))
                is_ahead = peer != OWN and found and own and is_better(name, found.median, own.median)
                row.append(spread(found, show) + (f" {AHEAD}" if is_ahead else ""))
            rows.append(row)
        title = KINDS.get(kind, f"{READERS} clients of `throng flood`")
        if rows:
            yield f"### {title[0].upper()}{title[1:]}"
            yield table(["", *(head for head, _, _ in columns)], rows)


def failures(results):
    lines = [
        f"* {results.title(run['peer'])}, {run['transport']}, repeat {run['repeat']}: {run['failure']}"
        for run in results.failures()
    ]
    return "\n".join(lines) or "None."


def write(results, folder):
    """Writes the page below `folder`; returns its path."""
    page = folder / "benchmarks" / f"{STEM}.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    data = results.data
    page.write_text(
        Template(TEMPLATE.read_text()).substitute(
            machine=machine(data["environment"]),
            note=f"\n\n{note}" if (note := data.get("note")) else "",
            throng=data["environment"].get("throng", ""),
            date=data["started"][:10],
            channels=CHANNELS,
            updates=UPDATES,
            total=f"{CHANNELS * UPDATES:,}",
            readers=READERS,
            rate=f"{READER_RATE:,}",
            seconds=data["seconds"],
            repeats=data["repeats"],
            ahead_mark=AHEAD,
            versions=versions(results, page),
            tables="\n\n".join(tables_of(results)),
            failures=failures(results),
        )
    )
    return page
