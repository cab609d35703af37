"""`throng flood agent`: one flood from several processes that meet at a real NATS server."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from support import TIMEOUT_SECONDS
from support.server import BINARY, clean_environment, eventually, run_throng

CLIENTS = 3000
SOURCES = ["127.10.0.0/28", "127.11.0.0/28", "127.12.0.0/28"]
WHOLE = [
    *["lost == 0", "missed == 0", "duplicated == 0", "reordered == 0"],
    *["failures == 0", "received > 0"],
]
# The counts that an agent prints at the end of a run.
OVER = re.compile(r"the run is over: ([\d,]+) clients? were subscribed, ([\d,]+) messages? received")


class Agent:
    """One agent process and its output."""

    def __init__(self, directory, name, *flags, wrapper=()):
        self.log_path = directory / f"{name}.log"
        self.log_file = self.log_path.open("w")
        command = [*wrapper, BINARY, "flood", "agent", "--name", name, *map(str, flags)]
        self.process = subprocess.Popen(
            command,
            cwd=directory,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=self.log_file,
            stderr=subprocess.STDOUT,
            # A wrapper does not forward signals, so they go to the whole process group.
            start_new_session=True,
        )

    def log(self):
        return self.log_path.read_text()

    def says(self, words):
        eventually(lambda: words in self.log(), lambda: f"{words!r} in:\n{self.log()}")

    def counted(self):
        """Clients subscribed and messages received in its last run."""
        found = OVER.findall(self.log())
        assert found, self.log()
        return tuple(int(number.replace(",", "")) for number in found[-1])

    def stop(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
                raise AssertionError(f"the agent did not stop:\n{self.log()}") from None
        self.log_file.close()
        assert "panicked" not in self.log(), self.log()


@contextlib.contextmanager
def nats_server(directory):
    """A real NATS server: its URL and its process."""
    program = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")
    assert program, "nats-server is missing: scripts/setup"
    # It says in a file which port it has found free.
    command = [program, "--addr", "127.0.0.1", "--port", "-1", "--ports_file_dir", str(directory)]
    command += ["--log", str(directory / "nats.log")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ports = directory / f"{Path(program).name}_{process.pid}.ports"

    def is_there():
        assert process.poll() is None, (directory / "nats.log").read_text()
        return ports.exists() and ports.read_text().endswith("}")

    try:
        eventually(is_there, "the NATS server")
        yield json.loads(ports.read_text())["nats"][0], process
    finally:
        process.terminate()
        process.wait(TIMEOUT_SECONDS)


@pytest.fixture(scope="module")
def nats(tmp_path_factory):
    """A NATS server of this module's own; its URL."""
    with nats_server(tmp_path_factory.mktemp("nats")) as (url, _):
        yield url


@pytest.fixture
def agents(tmp_path, nats, request):
    """Starts agents of a group that no other test uses; returns the flags and the agents."""
    started = []
    group = re.sub(r"\W", "-", request.node.name)
    meeting = ["--nats", nats, "--group", group]

    def start(sources, wrappers=None):
        for number, source in enumerate(sources):
            wrapper = (wrappers or {}).get(number, ())
            flags = [*meeting, "--source", source]
            started.append(Agent(tmp_path, f"agent-{number}", *flags, wrapper=wrapper))
        for agent in started:
            agent.says("waits for a coordinator")
        return [*meeting, "--agents", len(started), "--agents-wait", "20s"], started

    yield start
    for agent in started:
        agent.stop()


@pytest.fixture
def flood(tmp_path):
    """Runs a flood to its end; returns the completed process and its report, if it made one."""

    def run(url, *arguments, check=True):
        report = tmp_path / "report.json"
        command = ["flood", url, *arguments, "--json", report]
        done = run_throng(*command, directory=tmp_path, timeout=3 * TIMEOUT_SECONDS)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        assert "panicked" not in done.stderr
        return done, json.loads(report.read_text()) if report.exists() else None

    return run


def until_held(process, clients):
    """Reads what a coordinator says until all of its clients are there, in the phase `hold`."""
    said = ""
    for line in process.stderr:
        said += line
        if "hold" in line and f"{clients} of {clients} clients active" in line:
            return
    raise AssertionError(f"it ended: {said}")


def asserting(*assertions):
    return [flag for each in assertions for flag in ("--assert", each)]


def test_three_agents_are_one_flood(serve, agents, flood):
    server = serve()
    flags, started = agents(SOURCES)
    load = ["--clients", CLIENTS, "--hold", "5s", "--publish", "10", "--count", "20"]
    load += ["--streams", "7"]
    load += ["--server-pid", "auto"]
    done, report = flood(server.url, *flags, *load, *asserting(*WHOLE))
    total = report["total"]
    assert total["active"] == total["subscribed"] == total["attempts"] == CLIENTS
    assert total["published"] == 20
    # Client i follows stream i % 7 on every agent; message k goes to stream k % 7.
    audience = [len(range(stream, CLIENTS, 7)) for stream in range(7)]
    expected = sum(audience[number % 7] for number in range(20))
    assert total["expected"] == total["received"] == expected
    # Merged counts and histograms are the sum of those that the agents print.
    counted = [agent.counted() for agent in started]
    assert [subscribed for subscribed, _ in counted] == [1000, 1000, 1000]
    assert sum(received for _, received in counted) == total["received"]
    assert total["delivery"]["count"] == total["received"]
    assert sum(count for _, count in total["delivery"]["buckets"]) == total["received"]
    assert total["connect"]["count"] == CLIENTS
    assert total["last"]["count"] == 20
    reported = [(agent["subscribed"], agent["received"]) for agent in report["agents"]]
    assert reported == counted
    # One machine has one clock, and the report says so.
    assert all(agent["clock"] is None for agent in report["agents"])
    assert "the publisher's" in done.stdout
    assert total["server"]["pss_bytes"] > 0


def test_agents_wait_for_the_next_run(server, agents, flood):
    flags, started = agents(SOURCES[:2])
    load = ["--clients", "31", "--hold", "500ms", "--publish", "20"]
    for _ in range(2):
        _, report = flood(server.url, *flags, *load, *asserting(*WHOLE))
        assert report["total"]["received"] == 310
        assert sorted(agent.counted()[0] for agent in started) == [15, 16]


def test_storms_and_churn_lose_nothing(server, agents, flood):
    flags, _ = agents(SOURCES)
    churn = ["--clients", "90", "--hold", "2s", "--publish", "50", "--churn", "30"]
    _, report = flood(server.url, *flags, *churn, *asserting(*WHOLE))
    assert report["total"]["attempts"] >= 120
    storm = ["--clients", "90", "--hold", "1s", "--publish", "20", "--storm", "20s"]
    checks = asserting("lost == 0", "duplicated == 0", "storm.recovered < 20s")
    _, report = flood(server.url, *flags, *storm, *checks)
    assert report["total"]["attempts"] == 180


def test_an_agent_that_is_killed_is_counted(server, agents, tmp_path):
    flags, started = agents(SOURCES)
    path = tmp_path / "report.json"
    command = [BINARY, "flood", server.url, *flags, "--clients", "600", "--hold", "5s"]
    command += ["--publish", "10", "--json", path]
    process = subprocess.Popen(
        list(map(str, command)),
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until_held(process, 600)
    started[1].process.kill()
    out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    report = json.loads(path.read_text())
    total = report["total"]
    assert total["failures"] == {"agent lost": 200}, out + err
    assert total["active"] == 400
    assert report["cut_short"] is None
    # The other agents received every message.
    assert total["lost"] == 0 and total["published"] == 50
    lost = [agent["lost"] is not None for agent in report["agents"]]
    assert lost == [False, True, False]
    assert [report["agents"][number]["received"] for number in (0, 2)] == [10000, 10000]
    warnings = [warning for warning in report["warnings"] if "agent-1 was lost" in warning]
    assert len(warnings) == 1 and "200 clients count as failed" in warnings[0]


def test_another_clock_is_measured_and_corrected(server, agents, flood, tmp_path):
    """An agent in a time namespace: its clock is ahead by more than an hour."""
    ahead_s = 5000
    wrapper = ["unshare", "--time", "--monotonic", str(ahead_s), "--fork", "--kill-child"]
    if subprocess.run([*wrapper, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine allows no time namespaces")
    flags, _ = agents(SOURCES[:2], {1: wrapper})
    load = ["--clients", "100", "--hold", "1s", "--publish", "20"]
    # Without the correction, a delivery would take an hour.
    _, report = flood(server.url, *flags, *load, *asserting(*WHOLE, "max < 60s"))
    same, other = report["agents"]
    assert same["clock"] is None
    clock = other["clock"]
    # How exactly it is measured depends on how busy the machine is.
    assert abs(clock["ahead_ms"] - ahead_s * 1000) <= clock["uncertainty_ms"] < ahead_s
    assert abs(clock["drift_ms"]) < ahead_s
    assert report["total"]["received"] == 2000
    assert any("agent-1 has another clock" in warning for warning in report["warnings"])


def sentence(done, words):
    assert done.returncode == 1, done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    assert len(errors) == 1 and words in errors[0], done.stderr


def test_a_missing_nats_server_is_one_message(server, flood, tmp_path):
    nowhere = "nats://127.0.0.1:1"
    done, report = flood(server.url, "--agents", "3", "--nats", nowhere, check=False)
    sentence(done, f"there is no NATS server at {nowhere}: ")
    assert report is None
    done = run_throng("flood", "agent", "--nats", nowhere, directory=tmp_path)
    sentence(done, f"there is no NATS server at {nowhere}: ")


def test_too_few_agents_is_one_message(server, agents, flood):
    flags, _ = agents(SOURCES[:2])
    flags[flags.index("--agents") + 1] = 3
    # Those who are there answer within this time, on a busy machine as well.
    flags[-1] = "3s"
    done, _ = flood(server.url, *flags, check=False)
    sentence(done, "2 of 3 agents are there after 3 s")


def test_an_agent_of_another_version_is_named(server, nats, flood, tmp_path):
    """A stand-in answers the call as a later version would."""
    host, port = nats.removeprefix("nats://").split(":")
    with socket.create_connection((host, int(port)), TIMEOUT_SECONDS) as connection:
        lines = connection.makefile("rb")
        connection.sendall(b'CONNECT {"verbose":false}\r\nSUB throng.flood.later.call 1\r\nPING\r\n')
        while lines.readline() != b"PONG\r\n":
            pass
        flags = ["--nats", nats, "--group", "later", "--agents", "1", "--agents-wait", "20s"]
        coordinator = subprocess.Popen(
            [BINARY, "flood", server.url, *flags],
            cwd=tmp_path,
            env=clean_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = lines.readline()
        while not line.startswith(b"MSG"):
            line = lines.readline()
        reply = line.split()[3]
        answer = json.dumps({"version": 99, "program": "9.9.9", "name": "later"}).encode()
        connection.sendall(b"PUB %s %d\r\n%s\r\n" % (reply, len(answer), answer))
        _, err = coordinator.communicate(timeout=TIMEOUT_SECONDS)
    assert coordinator.returncode == 1
    assert "the agent later is of version 99 (9.9.9) and this is version 2" in err


def test_a_lost_nats_server_ends_the_run_with_a_report(server, tmp_path):
    with nats_server(tmp_path) as (url, process):
        agent = Agent(tmp_path, "agent", "--nats", url, "--source", SOURCES[0])
        agent.says("waits for a coordinator")
        path = tmp_path / "report.json"
        flags = ["--agents", "1", "--nats", url, "--clients", "50", "--hold", "60s"]
        command = [BINARY, "flood", server.url, *flags, "--json", path]
        coordinator = subprocess.Popen(
            list(map(str, command)),
            cwd=tmp_path,
            env=clean_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        until_held(coordinator, 50)
        process.kill()
        _, said = coordinator.communicate(timeout=TIMEOUT_SECONDS)
        assert coordinator.returncode == 1, said
        report = json.loads(path.read_text())
        assert report["cut_short"] == f"the NATS server at {url} is gone"
        assert report["total"]["failures"] == {"agent lost": 50}
        agent.stop()
