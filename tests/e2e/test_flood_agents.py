"""`throng flood agent`: one flood from several processes."""

import json
import os
import re
import signal
import socket
import subprocess

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

    def address(self):
        """Where it listens, which it says first."""
        self.says("listens at ")
        return re.search(r"listens at (\S+)", self.log()).group(1)

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


@pytest.fixture
def secret(tmp_path):
    """A file with a secret."""
    path = tmp_path / "secret"
    path.write_text("a secret that agents and coordinators share\n")
    return path


@pytest.fixture
def agents(tmp_path, secret):
    """Starts agents; returns the coordinator's flags and the agents."""
    started = []

    def start(sources, wrappers=None, flags=()):
        for number, source in enumerate(sources):
            wrapper = (wrappers or {}).get(number, ())
            own = ["--listen", "127.0.0.1:0", "--secret-file", secret, "--source", source, *flags]
            started.append(Agent(tmp_path, f"agent-{number}", *own, wrapper=wrapper))
        addresses = ",".join(agent.address() for agent in started)
        return ["--secret-file", secret, "--agents", addresses, "--agents-wait", "20s"], started

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


def start_coordinator(tmp_path, url, *arguments):
    """A coordinator, and where its report will be."""
    path = tmp_path / "report.json"
    command = [BINARY, "flood", url, *arguments, "--json", path]
    process = subprocess.Popen(
        list(map(str, command)),
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return process, path


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
    load = [*flags, "--clients", "600", "--hold", "5s", "--publish", "10"]
    process, path = start_coordinator(tmp_path, server.url, *load)
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


def test_a_run_that_has_lost_all_agents_ends_with_a_report(server, agents, tmp_path):
    flags, started = agents(SOURCES[:1])
    load = [*flags, "--clients", "50", "--hold", "60s"]
    process, path = start_coordinator(tmp_path, server.url, *load)
    until_held(process, 50)
    started[0].process.kill()
    _, said = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 1, said
    report = json.loads(path.read_text())
    assert report["cut_short"] == "all agents were lost"
    assert report["total"]["failures"] == {"agent lost": 50}


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


def test_the_end_of_the_coordinator_ends_the_clients(server, agents, tmp_path):
    flags, started = agents(SOURCES[:2])
    load = [*flags, "--clients", "200", "--hold", "60s", "--publish", "10"]
    process, _ = start_coordinator(tmp_path, server.url, *load)
    until_held(process, 200)
    process.kill()
    process.communicate(timeout=TIMEOUT_SECONDS)
    for agent in started:
        agent.says("the coordinator is gone")
        assert re.search(r"is gone \(.*\): 100 clients were subscribed", agent.log()), agent.log()
    # They are there for the next one.
    done = run_throng(
        *["flood", server.url, *flags, "--clients", "20", "--hold", "500ms"],
        directory=tmp_path,
        timeout=3 * TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, done.stderr


def test_a_silent_coordinator_ends_the_clients(server, agents, tmp_path):
    flags, started = agents(SOURCES[:1], flags=["--once"])
    load = [*flags, "--clients", "50", "--hold", "60s"]
    process, _ = start_coordinator(tmp_path, server.url, *load)
    until_held(process, 50)
    process.send_signal(signal.SIGSTOP)
    try:
        assert started[0].process.wait(TIMEOUT_SECONDS) == 1
    finally:
        process.kill()
        process.communicate(timeout=TIMEOUT_SECONDS)
    started[0].says("the coordinator is gone (it did not answer in time): 50 clients")


def test_an_agent_without_a_secret_listens_on_loopback_only(tmp_path):
    done = run_throng("flood", "agent", "--listen", "0.0.0.0:0", directory=tmp_path)
    assert done.returncode == 64
    assert "0.0.0.0:0 is not loopback: give --secret-file or THRONG_FLOOD_SECRET" in done.stderr
    short = tmp_path / "short"
    short.write_text("short\n")
    done = run_throng("flood", "agent", "--secret-file", short, directory=tmp_path)
    assert done.returncode == 64
    assert f"{short}: the secret is shorter than 16 bytes" in done.stderr


def test_another_secret_is_refused_by_both_sides(server, agents, flood, tmp_path):
    flags, started = agents(SOURCES[:1])
    other = tmp_path / "other"
    other.write_text("another secret of the same length or so")
    for secret in [["--secret-file", other], []]:
        done, report = flood(server.url, *secret, *flags[2:], check=False)
        sentence(done, f"the agent at {flags[3]} has another secret: see --secret-file")
        assert report is None
    started[0].says("was refused: it has another secret")
    # An impostor, which echoes what it gets, learns nothing that it could use.
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        impostor.settimeout(TIMEOUT_SECONDS)
        address = "127.0.0.1:%d" % impostor.getsockname()[1]
        load = [*flags[:2], "--agents", address, "--agents-wait", "20s"]
        process, _ = start_coordinator(tmp_path, server.url, *load)
        connection, _ = impostor.accept()
        with connection:
            while data := connection.recv(4096):
                connection.sendall(data)
        _, err = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 1
        assert f"the agent at {address} has another secret" in err


def test_the_secret_may_come_from_the_environment(server, secret, tmp_path):
    environment = {**clean_environment(), "THRONG_FLOOD_SECRET": secret.read_text()}
    command = [BINARY, "flood", "agent", "--listen", "127.0.0.1:0", "--once"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as agent:
        address = re.search(r"listens at (\S+)", agent.stderr.readline()).group(1)
        load = ["--clients", "20", "--hold", "500ms"]
        flags = ["--secret-file", secret, "--agents", address]
        done = run_throng(
            "flood", server.url, *flags, *load, directory=tmp_path, timeout=3 * TIMEOUT_SECONDS
        )
        assert done.returncode == 0, done.stderr
        agent.communicate(timeout=TIMEOUT_SECONDS)
        assert agent.returncode == 0


def test_strangers_cost_a_deadline_and_a_small_buffer(server, agents, flood):
    flags, started = agents(SOURCES[:1])
    host, port = flags[3].split(":")

    def stranger():
        connection = socket.create_connection((host, int(port)), TIMEOUT_SECONDS)
        connection.settimeout(TIMEOUT_SECONDS)
        return connection

    def heard(connection):
        """All that an agent says to a stranger."""
        received = b""
        try:
            while data := connection.recv(4096):
                received += data
        except ConnectionResetError:
            pass
        connection.close()
        return received

    # A frame that would be huge, and one that nobody has signed.
    for frame in [b"\xff" * 68, b"\0" * 32 + b"\0\0\0\2" + b"\0" * 32 + b"{}"]:
        connection = stranger()
        connection.sendall(frame)
        assert len(heard(connection)) == 32
    silent = [stranger() for _ in range(30)]
    # The places of silent ones are free after a few seconds.
    assert {len(heard(connection)) for connection in silent} <= {0, 32}
    flood(server.url, *flags, "--clients", "20", "--hold", "500ms")
    assert started[0].counted()[0] == 20


def test_an_agent_keeps_to_its_bounds(server, agents, flood):
    host = server.url.removeprefix("http://")
    bounds = ["--max-clients", "100", "--allow-target", host]
    flags, started = agents(SOURCES[:1], flags=bounds)
    load = ["--hold", "500ms", "--rate", "1000"]
    _, report = flood(server.url, *flags, "--clients", "100", *load)
    assert report["total"]["active"] == 100
    # It says what it is asked for before it starts.
    log = started[0].log()
    assert re.search(r"run [0-9a-f]{8} of 127\.0\.0\.1: agent 1 of 1, up to 100 clients", log), log
    assert f"at {host}, for at most" in log and "rate = 1000" in log, log
    done, report = flood(server.url, *flags, "--clients", "101", *load, check=False)
    assert done.returncode == 1
    assert "it allows 100 and not 101 clients (--max-clients)" in report["cut_short"]
    done, report = flood("http://127.0.0.1:1", *flags, "--clients", "5", *load, check=False)
    assert done.returncode == 1
    assert "it does not allow the target 127.0.0.1:1 (--allow-target)" in report["cut_short"]
    started[0].says("a run was refused")


def test_public_targets_are_refused_unless_allowed(server, agents, flood):
    flags, started = agents(SOURCES[:1])
    # Of a network for documentation: nobody has this address.
    done, report = flood("http://203.0.113.9:80", *flags, "--clients", "5", check=False)
    assert done.returncode == 1
    assert "it does not allow the target 203.0.113.9:80" in report["cut_short"]
    assert "up to" not in started[0].log()


def test_too_few_agents_is_one_message(server, agents, flood):
    flags, started = agents(SOURCES[:1])
    flags[3] += ",127.0.0.1:1"
    # The agent that is there answers within this time, on a busy machine as well.
    flags[-1] = "3s"
    done, _ = flood(server.url, *flags, check=False)
    sentence(done, "1 of 2 agents are there after 3 s: 127.0.0.1:1: Connection refused")
    flags[3] = f"{started[0].address()},{started[0].address()}"
    done, _ = flood(server.url, *flags, check=False)
    assert done.returncode == 64 and "is given twice" in done.stderr
