"""`throng bench`: every classic benchmark at a small size, and what goes wrong in the middle."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conftest import HERE
from support import TIMEOUT_SECONDS
from support.server import BINARY, ROOT, clean_environment, eventually, run_throng
from support.tunnel import needs_tunnel, without_rights

# A tunnel is a network device.
pytestmark = pytest.mark.usefixtures("a_network_of_its_own")

# Small and short: what is tested is that measurements are there and right, not that they are large.
SMALL = ["--connections", "200", "--time", "2s"]

# `million-sse`: heartbeats come once a second, and so do updates of the status page: some of them must.
SIZES = {
    "million-sse": ["--connections", "200", "--time", "6s"],
    # Time for an upgrade of each server at least.
    "upgrade": ["--connections", "200", "--time", "8s"],
    # Time for the drain, and for the clients' moments to come.
    "drain": ["--connections", "200", "--time", "6s"],
    # That long, many times.
    **{
        name: ["--connections", "200", "--time", "1s"]
        for name in ("growth", "million-default", "access", "tls", "million-tls")
    },
    # Seventeen servers, each with users of fifteen channels, and a hundred inboxes for each client.
    "durable": ["--connections", "60", "--time", "1s"],
}


def connections(name):
    """How many connections a benchmark has here."""
    return int(SIZES.get(name, SMALL)[1])


# Figures that say how many came, and how many were due.
AUDITED = {
    "c10k-stream": ("lines", "expected", 400),
    "c10k-long-poll": ("answered", None, 200),
    "long-poll-chat": (None, None, None),
    "router": ("delivered", "expected", 40),
    "friends": ("delivered", "expected", None),
    "websocket-chat": ("delivered", "expected", 3 * (46 + 100 + 150 + 200)),
    "million-sse": ("heartbeats", None, None),
    "two-million": ("delivered", "expected", 200),
    "three-million": ("delivered", "expected", 200),
    "growth": ("delivered", "expected", None),
    "million-default": ("delivered", "expected", 4 * 2 * 200),
    "access": ("delivered", "expected", (4 * 10 + 2 * 20) * 200),
    "tls": ("delivered", "expected", (6 * (1 + 2 * 2 + 3 * 10) + 6 * 4) * 200),
    "million-tls": ("delivered", "expected", 200),
    "upgrade": ("delivered", "expected", None),
    "drain": ("moved", None, 200),
    "storm": ("returned", None, 200),
    "durable": ("inboxes", None, 100 * connections("durable")),
}

# A benchmark is up to twenty servers and loads one after the other, each of several seconds. Only one
# that hangs takes so long.
TIMEOUT = 14 * TIMEOUT_SECONDS

# Their clients have no sockets.
TUNNELLED = {"three-million"}

# A server anew for each step.
SERVERS = {
    "growth": 7,
    "million-default": 4,
    "access": 10 + 4 + 3 + 1,
    "tls": 6 + 2 + 1,
    "upgrade": 2,
    "drain": 2,
    "durable": 4 + 3 + 17,
}

# What else the machine does meanwhile may be more than 200 connections take: even the memory of their
# server, whose share of the program's pages falls when another server starts.
MAY_BE_ABSENT = {"kernel", "memory", "memory_all", *(f"memory_{step}" for step in range(1, 5))}
MAY_BE_ABSENT |= {"inbox", "inbox_durable_more", "named", "kept"}


@pytest.fixture(scope="session")
def own_binary(tmp_path_factory):
    """A copy of the binary for benchmarks alone.

    The memory of a process (Pss) counts its share of pages that it has in common with others, so it
    would grow whenever a server of another test ends.
    """
    directory = tmp_path_factory.mktemp("binary")
    shutil.copy2(BINARY.with_name("throng-bench"), directory)
    return shutil.copy2(BINARY, directory / "throng")


@pytest.fixture
def bench(tmp_path, own_binary):
    """Runs benchmarks to their end; returns the completed process and the results."""

    def run(*arguments):
        results = tmp_path / "results.json"
        command = ["bench", *arguments, "--json", results]
        done = run_throng(*command, directory=tmp_path, timeout=TIMEOUT, binary=own_binary)
        assert "panicked" not in done.stderr, done.stderr
        for process in servers(done.stderr):
            assert has_ended(process)
        return done, json.loads(results.read_text()) if results.exists() else None

    return run


@pytest.fixture
def running(tmp_path):
    """Starts a benchmark that would take ten minutes; ends it with the test."""
    children = []

    def start(name="router"):
        command = ["bench", name, "-n", "100", "--time", "10m", "--json", "results.json"]
        child = subprocess.Popen(
            [BINARY, *command],
            cwd=tmp_path,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        seen = ""
        for line in child.stderr:
            seen += line
            if "hold" in line and "100 of 100 clients active" in line:
                return child, servers(seen)[0]
        raise AssertionError(f"it ended: {seen}")

    yield start
    for child in children:
        child.kill()
        child.communicate()


def servers(text):
    """The processes of the servers that were started."""
    return [int(number) for number in re.findall(r"^a server with .*: process (\d+)$", text, re.M)]


def has_ended(process):
    """Whether a process has ended. A zombie has, too."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return status.rpartition(")")[2].split()[0] in ("Z", "X")


def test_without_names_they_are_listed(tmp_path):
    done = run_throng("bench", directory=tmp_path)
    assert done.returncode == 0
    for name in AUDITED:
        assert name in done.stdout
    assert not servers(done.stderr)
    assert run_throng("bench", "--list", directory=tmp_path).stdout == done.stdout


def test_measures_by_size_are_written_as_csv(bench, tmp_path):
    done, results = bench("long-poll-chat", *SMALL, "--csv", "sizes.csv")
    assert done.returncode == 0, done.stdout + done.stderr
    with open(tmp_path / "sizes.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["clients"] for row in rows] == ["1", "5", "10", "20", "30", "50", "100", "200"]
    table = results["benchmarks"][0]["tables"][0]
    assert [float(row["first to last response, ms"]) for row in rows] == [
        row[table["columns"].index("first to last response, ms")] for row in table["rows"]
    ]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=needs_tunnel if name in TUNNELLED else ()) for name in AUDITED],
)
def test_every_measurement_of_a_benchmark_is_measured(bench, name):
    done, results = bench(name, *SIZES.get(name, SMALL))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(servers(done.stderr)) == SERVERS.get(name, 1)
    [outcome] = results["benchmarks"]
    assert (outcome["name"], outcome["verdict"], outcome["reasons"]) == (name, "done", [])
    assert outcome["connections"] == connections(name)
    measurements = {measurement["key"]: measurement["ours"] for measurement in outcome["measurements"]}
    absent = {key for key, value in measurements.items() if value is None} - MAY_BE_ABSENT
    if any("no live status page" in warning for warning in outcome["warnings"]):
        absent -= {"updates", "shown"}
    assert not absent
    received, expected, number = AUDITED[name]
    if expected is not None:
        assert measurements[received] == measurements[expected] > 0
    if number is not None:
        assert measurements[received] == number
    if name == "million-sse":
        assert measurements["heartbeats"] >= 800 and measurements["disconnects"] == 0
    for flood in outcome["floods"]:
        total = flood["total"]
        assert not total["failures"] and not total["publish_failures"]
        assert total["received"] == total["expected"]
        wrong = ["lost", "missed", "duplicated", "reordered", "stray"]
        assert not any(total[name] for name in wrong), total
        assert flood["series"], "raw samples are there"
        network = "tunnel" if name in TUNNELLED else "sockets"
        assert flood["environment"]["network"] == flood["plan"]["network"] == network
    assert all(flood["total"]["active"] == connections(name) for flood in outcome["floods"][-1:])
    assert outcome["plots"] or outcome["tables"]
    assert results["environment"]["kernel"] and results["environment"]["sysctl"]


# Small numbers of `baseline`.
QUICK = ["--quick", "--connections", "200", "--set", "rounds=2", "--set", "parked=0.1"]


def test_throng_stands_beside_a_raw_loop(bench):
    done, results = bench("baseline", *QUICK, "--set", "publishes=500", "--set", "health=0.5")
    assert done.returncode == 0, done.stdout + done.stderr
    [outcome] = results["benchmarks"]
    assert (outcome["verdict"], outcome["repeats"], outcome["beside"]) == ("done", 1, "raw loop")
    assert len(servers(done.stderr)) == len(outcome["servers"]) == 14
    assert sum(flags.startswith("raw loop, 2 threads") for flags in outcome["servers"]) == 4
    measurements = {measurement["key"]: measurement for measurement in outcome["measurements"]}
    compared = {key for key, measurement in measurements.items() if measurement["beside"]}
    assert {"fanout_64_rate", "fanout_1024_cpu", "burst_batch_rate", "connect_rate", "health_kept_p50"} <= compared
    # The others may be less than what can be counted of so few connections.
    for key in {key for key in compared if not key.endswith("cpu")} - {"slab"}:
        measurement = measurements[key]
        assert measurement["ours"] > 0 and measurement["beside"]["median"] > 0, key
        ratio = measurement["ours"] / measurement["beside"]["median"]
        assert measurement["beside_ratio"]["median"] == pytest.approx(ratio), key
    for key in ["idle_heartbeats", "publish_rate", "publish_cpu"]:
        assert measurements[key]["ours"] > 0, key
    goal = measurements["fanout_64_rate"]
    assert goal["goal"] == {"ratio-at-least": 0.9}
    assert goal["is_reached"] == (goal["beside_ratio"]["median"] >= 0.9)
    assert "ratio 0.9 at least" in done.stdout and "On loopback the sender also pays" in done.stdout


def test_the_raw_loop_alone_needs_no_server(bench):
    done, results = bench("baseline", *QUICK, "--part", "raw", "--repeats", "2", "--server", "/bin/false")
    assert done.returncode == 0, done.stdout + done.stderr
    [outcome] = results["benchmarks"]
    assert len(outcome["servers"]) == 2 * 4
    by_key = {measurement["key"]: measurement for measurement in outcome["measurements"]}
    rate = by_key["fanout_64_rate"]
    assert rate["ours"] is None and rate["beside"]["min"] < rate["beside"]["max"]
    assert rate["beside_ratio"] is None and rate["is_reached"] is None
    assert "fan-out 64 B" in done.stdout and "idle with heartbeats" not in done.stdout


@needs_tunnel
def test_without_rights_a_benchmark_without_sockets_is_not_begun(tmp_path):
    if shutil.which("setpriv") is None or os.geteuid() != 0:
        pytest.skip("setpriv is missing, or the tests do not run as root")
    line = without_rights([BINARY, "bench", "three-million", *SMALL])
    for flags in [[], ["--dry-run"]]:
        done = subprocess.run(
            [*line, *flags],
            cwd=tmp_path,
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1 and not servers(done.stderr)
        assert "CAP_NET_ADMIN" in done.stdout + done.stderr


def test_the_growth_is_drawn(bench, tmp_path):
    done, results = bench("growth", "--connections", "1000", "--time", "500ms")
    assert done.returncode == 0, done.stdout + done.stderr
    [outcome] = results["benchmarks"]
    assert all(plot["is_log_x"] and not plot["is_log"] for plot in outcome["plots"])
    assert all(warning.startswith(("this is a debug", "at ")) for warning in outcome["warnings"])

    def draw():
        command = [ROOT / "bench" / "draw-growth", tmp_path / "results.json"]
        command += ["--to", tmp_path / "growth.svg"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    drawn = draw()
    assert drawn.returncode == 0, drawn.stderr
    picture = ElementTree.parse(tmp_path / "growth.svg").getroot()
    names = {"text": "{http://www.w3.org/2000/svg}text", "dot": "{http://www.w3.org/2000/svg}circle"}
    # With few clients on a busy machine, a step may lack a measurement.
    drawn_lines = [
        ("growth-processor", "server"),
        ("growth-memory", "server"),
        ("growth-rates", "deliveries per second"),
    ]
    lines = {
        (plot["id"], line["name"]): line["points"]
        for plot in outcome["plots"]
        for line in plot["lines"]
    }
    points = [point for place in drawn_lines for point in lines[place]]
    assert len(points) == 3 * len(outcome["floods"])
    measured = [value for _, value in points if value is not None]
    assert len(list(picture.iter(names["dot"]))) == len(measured) > 0
    # The labels of an axis across are centred; those of an axis up may have the same text.
    texts = [
        text.text for text in picture.iter(names["text"]) if text.get("text-anchor") == "middle"
    ]
    assert texts.count("1,000") == 3, "the last step, below each chart"

    outcome["verdict"], outcome["reasons"] = "failed", ["a connection was lost"]
    (tmp_path / "results.json").write_text(json.dumps(results))
    refused = draw()
    assert refused.returncode == 1 and "a connection was lost" in refused.stderr
    (tmp_path / "results.json").write_text("[]")
    assert draw().returncode == 1


def test_published_values_stand_beside_ours(bench):
    done, results = bench("c10k-long-poll", *SMALL)
    measurements = {measurement["key"]: measurement for measurement in results["benchmarks"][0]["measurements"]}
    last = measurements["memory_4"]
    assert last["published"]["value"] == pytest.approx(6.84 * 1024)
    assert last["published"]["connections"] == 10000 and last["connections"] == 200
    # Of so few clients, the memory may be none.
    ratio = last["published"]["value"] / last["ours"] if (last["ours"] or 0) > 0 else None
    assert last["ratio"] == (pytest.approx(ratio) if ratio else None)
    assert measurements["answer_all"]["ratio"] is None, "200 responses are not compared with 10,000"
    assert "6.84 KiB" in done.stdout and "different size" in done.stdout
    steps = results["benchmarks"][0]["tables"][0]
    assert [row[0] for row in steps["rows"]] == [2, 20, 100, 200]


def test_documents_have_the_published_figures_of_the_files():
    command = [ROOT / "bench" / "published", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    guide = (ROOT / "docs" / "guides" / "benchmarks.md").read_text()
    published = numbers(guide.partition("<!-- published")[2].partition("<!-- end")[0])
    section = (ROOT / "docs" / "benchmarks.md").read_text().partition("\n## The classic benchmarks\n")[2]
    table = section[section.index("\n| benchmark | published |") :].strip().partition("\n\n")[0]
    cited = [number for row in table.splitlines()[2:] for number in numbers(row.split("|")[2])]
    assert len(cited) > 15
    for number in cited:
        assert any(number == pytest.approx(known, rel=0.005) for known in published), number


def numbers(text):
    """The numbers of a text. A thousand milliseconds are a second."""
    text = text.replace("1,000 ms", "1 s")
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


def test_a_benchmark_of_ones_own_runs(bench, tmp_path):
    guide = (ROOT / "docs" / "guides" / "benchmarks.md").read_text()
    [text] = re.findall(r"```toml\n(.*?)```", guide, re.DOTALL)
    (tmp_path / "mine.toml").write_text(text)
    done, results = bench("./mine.toml", *SMALL)
    assert done.returncode == 0, done.stdout + done.stderr
    [outcome] = results["benchmarks"]
    assert (outcome["name"], len(outcome["servers"])) == ("mine", 4)
    assert [one["key"] for one in outcome["measurements"]] == ["server_cores", "share"]

    (tmp_path / "mine.toml").write_text(text.replace("quiet.hold", "quiet.held"))
    done = run_throng("bench", "mine.toml", directory=tmp_path)
    assert done.returncode == 64 and 'mine.toml: ' in done.stderr
    assert "there is no figure \"quiet.held.server_cores\"" in done.stderr


def test_a_dry_run_shows_story_and_plan(tmp_path):
    done = run_throng("bench", "router", *SMALL, "--dry-run", directory=tmp_path)
    assert done.returncode == 0 and "Mochiweb, part 2 (2008), http" in done.stdout
    plan = done.stdout.partition("\n  router\n")[2]
    assert 'url = "http://127.0.0.1:PORT/users/{stream}"' in plan and "rate = 20" in plan


def test_the_page_opens_without_complaint(bench, chromium_program, tmp_path):
    names = ["c10k-stream", "long-poll-chat", "websocket-chat"]
    done, _ = bench(*names, "--connections", "100", "--time", "1s", "--html", "page.html")
    assert done.returncode == 0, done.stdout + done.stderr
    opened = subprocess.run(
        ["node", HERE / "node" / "page.mjs", chromium_program, tmp_path / "page.html"],
        env=clean_environment({"NO_PROXY": "*"}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS * 2,
        check=False,
    )
    assert opened.returncode == 0, opened.stderr
    page = json.loads(opened.stdout)
    assert page["complaints"] == [] and not page["isTooWide"]
    headings = ["Benchmarks", "C10K stream", "Long-poll chat", "WebSocket chat", "Machine"]
    assert page["headings"] == headings
    assert page["charts"] >= 8


@pytest.mark.parametrize("name", ["router", "million-sse"])
def test_a_server_that_is_killed_is_told_in_one_sentence(running, tmp_path, name):
    child, server = running(name)
    os.kill(server, signal.SIGKILL)
    out, _ = child.communicate(timeout=TIMEOUT_SECONDS)
    assert child.returncode == 1
    sentence = 'the server is gone: it was killed by signal 9 in the middle of the phase "hold'
    assert f"failed: {sentence}" in out
    [outcome] = json.loads((tmp_path / "results.json").read_text())["benchmarks"]
    assert outcome["verdict"] == "failed" and outcome["reasons"][0].startswith(sentence)


@pytest.mark.parametrize(
    ("name", "number"),
    # One with requests beside the load, which end too.
    [("router", signal.SIGINT), ("router", signal.SIGTERM), ("million-sse", signal.SIGINT)],
)
def test_an_interrupt_ends_the_server_too(running, tmp_path, name, number):
    child, server = running(name)
    child.send_signal(number)
    out, _ = child.communicate(timeout=TIMEOUT_SECONDS)
    assert child.returncode == 128 + number and "it was interrupted" in out
    assert has_ended(server)
    [outcome] = json.loads((tmp_path / "results.json").read_text())["benchmarks"]
    assert outcome["verdict"] == "failed" and outcome["floods"], "what was seen so far is there"


def test_the_server_ends_with_whoever_started_it(running):
    child, server = running()
    child.kill()
    child.wait(TIMEOUT_SECONDS)
    eventually(lambda: has_ended(server), "the end of the server")


def test_what_the_machine_does_not_allow_is_not_begun(tmp_path):
    line = ["bench", "c10k-stream", "two-million", "-n", "2000000000"]
    done = run_throng(*line, directory=tmp_path)
    assert done.returncode == 1 and not servers(done.stderr)
    assert "two-million: 2,000,000,000 connections requested, but only" in done.stderr
    assert "To change that:" in done.stderr
    dry = run_throng(*line, "--dry-run", directory=tmp_path)
    assert dry.returncode == 1 and "not possible:" in dry.stdout
    dry = run_throng("bench", "router", *SMALL, "--dry-run", directory=tmp_path)
    assert dry.returncode == 0 and "connections fit" in dry.stdout and not servers(dry.stderr)


def test_results_are_compared(bench, tmp_path):
    for name in ["a", "b"]:
        bench("long-poll-chat", *SMALL)
        (tmp_path / "results.json").rename(tmp_path / f"{name}.json")
    compare = ["bench", "--compare", "a.json", "both=a.json,b.json", "--html", "compared.html"]
    done = run_throng(*compare, directory=tmp_path)
    assert done.returncode == 0 and "first to last response, all clients" in done.stdout
    assert '"title":"a against both"' in (tmp_path / "compared.html").read_text()
    (tmp_path / "c.json").write_text("{}")
    done = run_throng("bench", "--compare", "a.json", "c.json", directory=tmp_path)
    assert done.returncode == 1 and "c.json is not a report of `throng bench`" in done.stderr


@pytest.mark.parametrize(
    ("line", "code", "sentence"),
    [
        (["rooter"], 64, "did you mean router?"),
        (["router", "-n", "0"], 64, "--connections must be more than 0"),
        (["baseline", "--part", "fanout"], 64, "there is no run"),
        (["baseline", "--set", "sender=3"], 64, 'baseline has no number "sender"'),
        (["baseline", "--set", "senders"], 64, "like senders=4"),
        (["baseline", "--server", "/nowhere/throng"], 1, "/nowhere/throng is no program"),
        (["router", "--time", "1ms"], 64, "--time must be half a second at least"),
        (["router", *SMALL, "--html", "/nowhere/page.html"], 1, "cannot write /nowhere/page.html"),
    ],
)
def test_mistakes_are_told_before_anything_starts(tmp_path, line, code, sentence):
    done = run_throng("bench", *line, directory=tmp_path)
    assert done.returncode == code and sentence in done.stderr
    assert not servers(done.stderr)
