"""`throng doctor --nats` against real nats-servers."""

import json
import re

import pytest

from support.access import SECRET
from support.nats import connected
from support.nats_client import NatsClient
from support.nats_cluster import NatsCluster
from support.server import ROOT, closed_port, eventually, run_throng


@pytest.fixture
def doctor(tmp_path):
    """Runs the doctor; returns the exit code and its report."""

    def run(*flags):
        done = run_throng("doctor", *flags, "--json", directory=tmp_path)
        assert done.stdout, done.stderr
        report = json.loads(done.stdout)
        assert report["usable"] == (done.returncode == 0)
        report["by_name"] = {check["name"]: check for check in report["checks"]}
        report["verdicts"] = {name: one["verdict"] for name, one in report["by_name"].items()}
        return done.returncode, report

    return run


def permissions():
    """What the guide lists, by verb."""
    guide = (ROOT / "docs" / "guides" / "nodes.md").read_text()
    rows = re.findall(r"^\| (publish|subscribe) \| (.*) \|$", guide, re.MULTILINE)
    return {verb: re.findall(r"`([^`]+)`", cell) for verb, cell in rows}


def guarded(permissions):
    """The configuration of a server with a user that has these permissions."""
    allowed = ", ".join(f"{verb}: {json.dumps(found)}" for verb, found in permissions.items())
    return f"authorization {{ users: [ {{ user: a, password: b, permissions: {{ {allowed} }} }} ] }}"


def streams(port):
    """The names of all streams of a server without a login."""
    with NatsClient(port) as client:
        return client.request("$JS.API.STREAM.NAMES")["streams"]


def test_a_server_that_is_ready_and_has_nothing_yet(doctor, brokers):
    server = brokers()
    code, report = doctor("--nats", server.url)
    assert code == 0, report
    found = report["by_name"]
    assert found["stream"]["found"] == "throng-channels is not there: the first node creates it"
    assert found["JetStream"]["verdict"] == found["publish"]["verdict"] == "ok"
    # A single server may lose what it has acknowledged, and clients cannot see whether.
    assert found["sync"]["verdict"] == "unknown" and found["clock"]["verdict"] == "unknown"
    assert report["round_trip"]["count"] == 50 and report["stored"] is None
    assert not streams(server.upstream), "nothing is created"


def test_nothing_is_stored_unless_that_is_asked_for(doctor, brokers, start_node, channel):
    server = brokers()
    one = connected(start_node(server))
    one.publish(channel, "x")

    def stored():
        with NatsClient(server.upstream) as client:
            state = client.request("$JS.API.STREAM.INFO.throng-channels")["state"]
            bucket = client.request("$JS.API.STREAM.INFO.KV_throng-epochs")["state"]
            return state["last_seq"], bucket["messages"], streams(server.upstream)

    before = stored()
    code, report = doctor("--nats", server.url)
    assert code == 0 and stored() == before, report
    assert report["verdicts"]["stream"] == report["verdicts"]["bucket"] == "ok"
    assert abs(report["clock_ahead_ms"]) < 60_000
    code, report = doctor("--nats", server.url, "--nats-store", "3")
    assert code == 0 and stored()[0] == before[0] + 6, report
    assert report["stored"]["count"] == report["republished"]["count"] == 3
    assert "panicked" not in one.log() and not re.search(r"WARN|ERROR", one.log()), one.log()


def test_people_are_told_what_to_do(tmp_path, brokers):
    server = brokers()
    done = run_throng("doctor", "--nats", server.url, directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"nodes can use NATS at {server.url}\n"), done.stdout
    assert "nothing was stored, created or changed" in done.stdout
    assert "unknown  sync " in done.stdout and "By hand:\n  sync: " in done.stdout
    assert "\x1b" not in done.stdout, "colours are for terminals"


def test_jetstream_that_is_not_enabled(doctor, brokers, start_node):
    server = brokers(jetstream=False)
    code, report = doctor("--nats", server.url)
    assert code == 1
    check = report["by_name"]["JetStream"]
    assert check["verdict"] == "must" and check["found"] == "not enabled for these servers"
    assert "-js" in check["by_hand"][0] and "stream" not in report["by_name"]
    # A node says so as well.
    one = start_node(server)
    said = "no server answers requests of JetStream: it is not enabled there"
    eventually(lambda: said in one.log(), one.log())


def test_jetstream_that_is_not_enabled_for_the_account(doctor, brokers):
    accounts = "accounts { A { users: [ { user: a, password: b } ] } }\nno_auth_user: a"
    code, report = doctor("--nats", brokers(accounts).url)
    assert code == 1 and report["verdicts"]["JetStream"] == "must", report


def test_each_permission_that_is_missing_is_named(tmp_path, doctor, brokers):
    login = tmp_path / "login"
    login.write_text("a:b")
    login.chmod(0o600)
    whole = permissions()
    assert sum(map(len, whole.values())) >= 10
    server = brokers(guarded(whole))
    code, report = doctor("--nats", server.url, "--nats-login", login)
    assert code == 0, report
    assert report["verdicts"]["publish"] == report["verdicts"]["subscribe"] == "ok"
    # Only the doctor asks for that.
    assert report["verdicts"]["JetStream"] == "unknown"
    # One of each at a time: every second one of publish, and the same of subscribe.
    for parity in (0, 1):
        some = {verb: found[parity::2] for verb, found in whole.items()}
        lacking = {verb: found[1 - parity :: 2] for verb, found in whole.items()}
        server = brokers(guarded({verb: [*found, "a"] for verb, found in some.items()}))
        code, report = doctor("--nats", server.url, "--nats-login", login)
        assert code == 1
        for verb, expected in lacking.items():
            check = report["by_name"][verb]
            assert check["verdict"] == "must", (verb, check)
            assert check["by_hand"] == [f"allow this user to {verb} to: {', '.join(expected)}"]


def test_a_stream_that_differs_is_shown_with_each_difference(doctor, brokers, start_node):
    server = brokers()
    connected(start_node(server, "--history-messages", "7"))
    code, report = doctor("--nats", server.url)
    check = report["by_name"]["stream"]
    assert (code, check["verdict"]) == (1, "must")
    expected = "throng-channels: max_msgs_per_subject is 8, but should be 101"
    assert expected in check["by_hand"], check


def test_the_settings_of_a_node_are_those_of_its_file(tmp_path, doctor, brokers, start_node):
    server = brokers()
    connected(start_node(server, "--history-messages", "7", "--nats-prefix", "p"))
    file = tmp_path / "node.toml"
    file.write_text(
        f"engine = 'nats'\nnats = '{server.url}'\nnats-prefix = 'p'\n[history]\nmessages = 7\n"
    )
    code, report = doctor("--nats", "--config", file)
    assert code == 0, report
    assert report["by_name"]["stream"]["found"] == "p-channels is as the settings have it"


def test_the_bucket_of_nodes_with_keys_is_compared(tmp_path, doctor, brokers, start_node):
    server = brokers()
    file = tmp_path / "throng.toml"
    file.write_text(f"nats = '{server.url}'\n[[token-keys]]\nsecret = '{SECRET}'\n")
    connected(start_node(server))
    code, report = doctor("--nats", "--config", file)
    found = report["by_name"]["revocations"]["found"]
    assert (code, found) == (0, "KV_throng-revocations is as the settings have it"), report
    file.write_text("max-token-age = '48h'\n" + file.read_text())
    code, report = doctor("--nats", "--config", file)
    check = report["by_name"]["revocations"]
    assert (code, check["verdict"]) == (1, "must")
    assert "KV_throng-revocations: max_age is " in check["by_hand"][0], check
    # Without keys a node has none.
    file.write_text(f"nats = '{server.url}'\n")
    assert "revocations" not in doctor("--nats", "--config", file)[1]["by_name"]


def test_what_only_monitoring_shows(doctor, brokers):
    server = brokers("http: 127.0.0.1:-1\nmax_connections: 100")
    code, report = doctor("--nats", server.url, "--nats-monitor", server.monitor)
    assert code == 0, report
    found = report["by_name"]
    assert found["sync"]["verdict"] == "should" and "every" in found["sync"]["found"]
    assert found["connections"]["found"].endswith(" of 100")
    assert found["storage"]["found"].endswith(" free")
    code, report = doctor("--nats", server.url, "--nats-monitor", "http://127.0.0.1:1")
    assert code == 0 and report["verdicts"]["monitor"] == "unknown", report


def test_a_server_that_syncs_always_and_one_that_is_too_small(doctor, brokers):
    server = brokers("http: 127.0.0.1:-1", store="sync_interval: always")
    _, report = doctor("--nats", server.url, "--nats-monitor", server.monitor)
    assert report["by_name"]["sync"] | {"why": ""} == {
        "name": "sync",
        "verdict": "ok",
        "found": "always",
        "needed": "sync_interval: always",
        "why": "",
        "by_hand": [],
    }
    small = brokers("http: 127.0.0.1:-1\nmax_payload: 1024", store="max_file_store: 1MB")
    code, report = doctor("--nats", small.url, "--nats-monitor", small.monitor)
    assert code == 1
    assert report["verdicts"]["storage"] == "must"
    assert report["verdicts"]["max_payload"] == "should"


def test_limits_of_an_account_are_compared_with_a_demand(doctor, brokers):
    limits = "limits { max_subscriptions: 500, max_connections: 1 }"
    jetstream = "jetstream: { max_streams: 2, max_file: 4GB }"
    users = "users: [ { user: a, password: b } ]"
    server = brokers(f"accounts {{ A {{ {users}\n{jetstream}\n{limits} }} }}\nno_auth_user: a")
    code, report = doctor("--nats", server.url, "--connections", "400", "--channels", "50")
    assert code == 1 and report["verdicts"]["channels"] == "ok", report
    assert report["by_name"]["channels"]["needed"] == "458, 8 of them the node's own"
    assert report["verdicts"]["streams"] == "must" and report["verdicts"]["storage"] == "ok"
    assert "max_streams" in report["by_name"]["streams"]["by_hand"][0]
    assert report["verdicts"]["connections"] == "should"
    assert "max_connections" in report["by_name"]["connections"]["by_hand"][0]
    _, report = doctor("--nats", server.url, "-n", "400", "--channels", "100")
    check = report["by_name"]["channels"]
    assert check["verdict"] == "should" and "max_subscriptions" in check["by_hand"][0], check
    _, report = doctor("--nats", brokers().url, "--channels", "20k")
    assert report["verdicts"]["channels"] == "ok" and "streams" not in report["verdicts"]


def test_servers_that_cannot_be_used_are_named_with_the_reason(tmp_path, doctor, brokers):
    server = brokers()
    guard = brokers(guarded(permissions()))
    with closed_port() as port:
        dead = f"nats://127.0.0.1:{port}"
        code, report = doctor("--nats", f"{dead},{server.url}")
        assert code == 0 and report["server"] == server.url
        check = report["by_name"]["servers"]
        assert (check["verdict"], check["found"]) == ("should", "1 of 2 can be used")
        assert check["by_hand"] == [f"{dead}: cannot connect: connection refused"]
        code, report = doctor("--nats", f"{dead},{guard.url}")
        assert (code, report["verdicts"]) == (1, {"servers": "must"})
        assert "asks for a login" in report["by_name"]["servers"]["by_hand"][1]
    done = run_throng("doctor", "--nats", "http://a", directory=tmp_path)
    assert done.returncode == 64 and "a NATS server" in done.stderr
    for flags in (["--nats", "a", "--role", "both"], ["--nats-store", "3"], ["--channels", "5"]):
        assert run_throng("doctor", *flags, directory=tmp_path).returncode == 64, flags
    done = run_throng("doctor", "--nats", directory=tmp_path)
    assert done.returncode == 78 and "set nats" in done.stderr, done


def test_a_cluster(tmp_path, doctor):
    cluster = NatsCluster(tmp_path)
    try:
        first = cluster.members[0]
        url = f"nats://127.0.0.1:{first.port}"
        code, report = doctor("--nats", url, "--nats-replicas", "3")
        assert code == 0 and report["verdicts"]["replicas"] == "ok", report
        assert "sync" not in report["by_name"]
    finally:
        cluster.stop()
