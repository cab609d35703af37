"""`throng flood`: against Throng, against other servers, and against servers that misbehave."""

import base64
import hmac
import json
import re
import shutil
import signal
import socket
import struct
import subprocess
import threading

import pytest

from conftest import HERE
from support import TIMEOUT_SECONDS, push_servers
from support.commands import run
from support.floods import assert_delivered
from support.server import BINARY, clean_environment, closed_port, run_throng

# Small: the tests check that measurements are right, not that they are large.
SMALL = ["--clients", "50", "--hold", "1s", "--publish", "10"]
WHOLE = [
    *["lost == 0", "missed == 0", "duplicated == 0", "reordered == 0"],
    *["failures == 0", "received > 0"],
]
TOKENS = {
    "centrifugo": ["--publish-header", "X-API-Key: secret"],
    "centrifugo-sse": ["--publish-header", "X-API-Key: secret"],
    "mercure": ["--publish-header", "Authorization: Bearer secret"],
    "pusher": ["--publish-by", "websocket"],
    "broadcast": [],
}
# Those whose servers send pings, and close a client that answers none of them.
PINGING = {"centrifugo", "pusher"}


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


@pytest.fixture
def misbehave():
    """Starts a server that treats each connection as a function says; returns its URL."""
    listeners = []

    def start(treat):
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        listeners.append(listener)
        kept = []

        def serve():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                try:
                    treat(connection, kept)
                except OSError:
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in listeners:
        # Closing alone does not wake a thread that waits in accept().
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def asserting(*assertions):
    return [flag for each in assertions for flag in ("--assert", each)]


@pytest.mark.parametrize("transport", ["websocket", "sse", "stream", "long-poll"])
def test_every_transport_of_throng_loses_nothing(server, flood, transport):
    _, report = flood(server.url, "--transport", transport, *SMALL, *asserting(*WHOLE))
    total = report["total"]
    assert total["published"] == 10
    assert_delivered(total, transport, 500)
    assert total["delivery"]["count"] == total["received"] and total["connect"]["count"] == 50


def test_many_streams_lose_nothing(server, flood):
    for streams in ["7", "own", "friends:5"]:
        _, report = flood(server.url, "--streams", streams, *SMALL, *asserting("lost == 0"))
        assert report["total"]["active"] == 50, streams


@pytest.mark.parametrize("transport", ["websocket", "sse"])
def test_clients_with_several_channels_are_measured_each(server, flood, transport):
    several = ["--channels-per-client", "20", "--streams", "40", "--transport", transport]
    load = ["--clients", "10", "--hold", "1s", "--publish", "200"]
    figures = asserting("behind.max < 5s", "reader_p99.max > 0ms", "bytes_per_delivery > 64")
    done, report = flood(server.url, *several, *load, *asserting(*WHOLE), *figures)
    # Five of the ten clients follow each channel.
    assert report["total"]["received"] == 1000
    assert report["total"]["reader_p50"]["count"] == 10
    assert "p99 of a reader" in done.stdout


def test_a_slow_reader_is_behind_and_gets_everything(server, flood):
    # The socket buffers hold what such a reader leaves.
    load = ["--clients", "2", "--channels-per-client", "5", "--publish", "200", "--size", "500"]
    slow = ["--hold", "2s", "--slow", "50%", "--slow-speed", "10KB"]
    _, report = flood(server.url, *load, *slow, *asserting("behind.max > 500ms", *WHOLE))
    behind = report["total"]["behind"]
    assert behind["count"] == 2 and behind["min"] < behind["max"]


def test_clients_recover_from_a_storm(server, flood):
    storm = ["--storm", "20s", *asserting("storm.recovered < 20s", "lost == 0")]
    done, report = flood(server.url, *SMALL, *storm)
    assert report["total"]["attempts"] == 100
    assert "all clients were back after" in done.stdout


def test_messages_that_left_the_history_are_missed_and_not_lost(serve, flood):
    # Between a long-poll's response and its next request, more is published than the history keeps.
    load = ["--transport", "long-poll", "--clients", "300", "--hold", "1s", "--publish", "500"]
    assertions = asserting("missed > 0", "lost == 0", "failures == 0")
    done, report = flood(serve("--history-messages", "1").url, *load, *assertions)
    total = report["total"]
    assert total["received"] + total["missed"] == total["expected"]
    assert "missed (told by the server)" in done.stdout


def test_the_server_process_is_found_and_measured(server, flood):
    figures = asserting("server.bytes > 1MiB", "server.cpu < 60s")
    _, report = flood(server.url, *SMALL, "--server-pid", "auto", *figures)
    assert report["total"]["server"]["pss_bytes"] > 0


@pytest.fixture
def neighbour(tmp_path):
    """Another program that keeps a core busy; its name."""
    program = tmp_path / "busy-neighbour"
    shutil.copy("/bin/sh", program)
    process = subprocess.Popen([program, "-c", "while :; do :; done"])
    yield program.name
    process.kill()
    process.wait()


@pytest.mark.usefixtures("neighbour")
def test_the_whole_machine_is_measured_without_other_programs(server, flood):
    load = ["--clients", "200", "--hold", "3s", "--publish", "100", "--server-pid", "auto"]
    done, report = flood(server.url, *load, *asserting("machine.cpu < 60s"))
    machine = report["total"]["machine"]
    # The server is no other program, nor is the generator.
    assert machine["busy_s"] > machine["others_s"] > 0
    # What has no name may be as busy as before the run, or less: then nothing is left.
    rest = machine["busy_s"] - machine["others_s"] - machine["unseen_s"]
    assert machine["cpu_s"] == pytest.approx(max(rest, 0), abs=1e-6)
    each = machine["cpu_us_per_delivery"]
    # Absent where noise dominates: on a machine with hundreds of cores.
    assert each is None or each == pytest.approx(machine["cpu_s"] * 1e6 / 60_000)
    assert "whole machine" in done.stdout and "Other programs (" in done.stdout
    assert all(sample["machine_cores"] is not None for sample in report["series"])


@pytest.mark.parametrize("kind", list(TOKENS))
def test_other_servers_are_measured(flood, node, kind):
    child = node("push-servers.mjs", kind)
    port = child.stdout.readline().strip()
    profile = "websocket" if kind == "broadcast" else kind
    # Two channels each, where one connection may follow several.
    several = ["--channels-per-client", "2"] if kind not in {"broadcast", "pusher"} else []
    path = "/app/key" if kind == "pusher" else ""
    url = f"http://127.0.0.1:{port}{path}"
    # Long enough for the server to close a client that answers no pings.
    hold, rate = ("4s", "5") if kind in PINGING else ("1s", "20")
    load = ["--clients", "50", "--hold", hold, "--publish", rate, *TOKENS[kind], *several]
    _, report = flood(url, "--profile", profile, *load, *asserting(*WHOLE))
    assert report["total"]["received"] == 1000


def test_clients_ping_before_a_server_of_pusher_takes_them_for_gone(flood, node):
    port = node("push-servers.mjs", "pusher", "silent").stdout.readline().strip()
    # The server closes those that it has not heard for two seconds.
    load = ["--clients", "20", "--hold", "6s", "--publish", "0"]
    url = f"ws://127.0.0.1:{port}/app/key"
    _, report = flood(url, "--profile", "pusher", *load, *asserting("failures == 0"))
    # What the server says to pings is no message.
    assert report["total"]["unmarked"] == 40, "one for the connection, one for the subscription"


def test_a_refused_publish_is_counted(flood, node):
    port = node("push-servers.mjs", "mercure").stdout.readline().strip()
    wrong = ["--publish-header", "Authorization: Bearer wrong", *asserting("publish_failures == 0")]
    url = f"http://127.0.0.1:{port}"
    done, report = flood(url, "--profile", "mercure", *SMALL, *wrong, check=False)
    assert done.returncode == 1
    assert report["total"]["publish_failures"] == {"status 401: no token": 10}


@pytest.mark.parametrize("transport", ["websocket", "sse", "stream", "long-poll"])
def test_nchan(flood, transport):
    with push_servers.running("nchan") as (url, flags):
        _, report = flood(url, *flags[transport], *SMALL, *asserting(*WHOLE))
    assert_delivered(report["total"], transport, 500)


def test_all_processes_of_a_server_are_measured(flood):
    with push_servers.running("nchan") as (url, flags):
        found = [*flags["sse"], "--server-pid", "auto", *asserting("server.bytes > 1MiB")]
        _, report = flood(url, *found, *SMALL)
        # The master and its workers, which share the socket.
        pids = report["plan"]["server_pids"]
        assert len(pids) > 1
        named = ["--server-pid", ",".join(map(str, pids))]
        _, again = flood(url, *flags["sse"], *named, *SMALL)
    assert again["plan"]["server_pids"] == pids


def test_bun(flood):
    with push_servers.running("bun") as (url, _):
        _, report = flood(url, "--profile", "websocket", *SMALL, *asserting(*WHOLE))
    assert report["total"]["received"] == 500


@pytest.mark.parametrize("transport", ["websocket", "sse"])
def test_centrifugo(flood, transport):
    # Short enough for the server to close a client that answers no pings. Versions 5 and 6.
    pings = {"PING_INTERVAL": "1s", "PONG_TIMEOUT": "500ms"}
    pings |= {f"CLIENT_{name}": value for name, value in pings.items()}
    environment = {f"CENTRIFUGO_{name}": value for name, value in pings.items()}
    with push_servers.running("centrifugo", environment) as (url, flags):
        load = ["--clients", "50", "--hold", "3s", "--publish", "5"]
        _, report = flood(url, *flags[transport], *load, *asserting(*WHOLE))
        assert report["total"]["received"] == 750
        # It sends several messages in a frame when there are many.
        many = ["--clients", "10", "--channels-per-client", "100", "--hold", "1s", "--publish", "2000"]
        _, report = flood(url, *flags[transport], *many, *asserting(*WHOLE))
        assert report["total"]["received"] == 20_000
        # It answers with status 200 to a channel that no client may follow.
        refused = ["--publish-body", '{{"data":"{payload}"}', "--streams", "one"]
        done, report = flood(url, *flags[transport], *SMALL, *refused, check=False)
    assert sum(report["total"]["publish_failures"].values()) == 10, done.stdout


def test_mercure(flood):
    with push_servers.running("mercure") as (url, flags):
        _, report = flood(url, *flags["sse"], *SMALL, *asserting(*WHOLE))
    assert report["total"]["received"] == 500


def test_the_protocol_error_of_a_hub_is_reported(flood, node):
    port = node("push-servers.mjs", "mercure").stdout.readline().strip()
    token = ["--publish-header", "Authorization: Bearer secret"]
    old = ["--profile", "mercure-0", *SMALL, *token]
    done, report = flood(f"http://127.0.0.1:{port}", *old, check=False)
    assert done.returncode == 1
    assert report["total"]["failures"] == {'status 400: use "match"': 50}
    assert 'none of 50 attempts became subscribed: status 400: use "match"' in done.stderr
    assert 'status 400: use "match"' in done.stdout


def test_different_errors_are_counted_up_to_a_limit(flood, misbehave):
    count = iter(range(1000))

    def treat(connection, kept):
        answer(400, b"request %d" % next(count))(connection, kept)

    load = ["--clients", "60", "--hold", "1s", "--publish", "0"]
    _, report = flood(misbehave(treat), *load, check=False)
    failures = report["total"]["failures"]
    assert sum(failures.values()) == 60
    assert len(failures) == 21 and failures["status 400"] == 40


def test_an_error_with_status_200_counts_as_an_error(flood, node):
    port = node("push-servers.mjs", "centrifugo", "refuse").stdout.readline().strip()
    key = ["--publish-header", "X-API-Key: secret"]
    url = f"http://127.0.0.1:{port}"
    # At once, and not after the handshake's timeout, which would be a failure of another name.
    load = ["--clients", "50", "--hold", "1s", "--publish", "10", "--handshake-timeout", "50s"]
    done, report = flood(url, "--profile", "centrifugo", *load, *key, check=False)
    total = report["total"]
    assert done.returncode == 1
    said = "the server says "
    assert total["failures"] == {said + '{"id":2,"error":{"code":103,"message":"no"}}': 50}
    assert total["publish_failures"] == {said + '{"error":{"code":102,"message":"no"}}': 10}


def test_a_connect_without_a_subscription_counts_as_an_error(flood, node):
    port = node("push-servers.mjs", "centrifugo-sse", "refuse").stdout.readline().strip()
    load = [*SMALL, "--publish-header", "X-API-Key: secret"]
    url = f"http://127.0.0.1:{port}"
    done, report = flood(url, "--profile", "centrifugo-sse", *load, check=False)
    assert done.returncode == 1
    said = 'the server says {"connect":{"client":"c","ping":25}}'
    assert report["total"]["failures"] == {said: 50}


def test_clients_of_a_closed_loop_reconnect(server, flood, misbehave):
    load = ["--clients", "20", "--hold", "2s", "--publish", "0", "--keep"]
    done, report = flood(misbehave(answer(503)), *load, check=False)
    assert done.returncode == 1
    assert report["total"]["failures"]["status 503"] > 20
    done, report = flood(server.url, *SMALL[2:], "--keep", "--steps", "10,50,20")
    assert (report["total"]["active"], report["total"]["attempts"]) == (20, 50)


def answer(status, body=b""):
    def treat(connection, _):
        connection.recv(4096)
        head = b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        connection.sendall(head + body)
        connection.close()

    return treat


def reset(connection, _):
    connection.recv(10)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def hang(connection, kept):
    kept.append(connection)


def close_half_way(connection, _):
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 101 Switching Pro")
    connection.close()


def not_http(connection, kept):
    kept.append(connection)
    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n" * 1000)


@pytest.mark.parametrize(
    ("treat", "reason"),
    [
        (answer(404), "status 404"),
        (answer(503), "status 503"),
        (answer(400, b'use "match"\nnot "topic"'), 'status 400: use "match"'),
        (answer(400, b"\x1b[2J\x07gone\x00 " + b"x" * 5000), "status 400: [2J gone " + "x" * 151 + "…"),
        (reset, "reset"),
        (hang, "timeout in the handshake"),
        (close_half_way, "closed in the handshake"),
        (not_http, None),
    ],
)
def test_failures_of_a_bad_target_are_counted_by_reason(flood, misbehave, treat, reason):
    load = ["--clients", "20", "--hold", "1s", "--publish", "0"]
    if treat in (hang, not_http):
        load += ["--handshake-timeout", "1s"]
    done, report = flood(misbehave(treat), *load, check=False)
    assert done.returncode == 1
    failures = report["total"]["failures"]
    assert sum(failures.values()) == 20
    assert reason is None or failures == {reason: 20}
    assert "none of 20 attempts became subscribed: " in done.stderr


def test_a_target_that_refuses_connections(flood):
    load = ["--clients", "20", "--hold", "1s", "--publish", "0"]
    with closed_port() as port:
        done, report = flood(f"http://127.0.0.1:{port}", *load, check=False)
    assert done.returncode == 1
    assert report["total"]["failures"] == {"refused": 20}


def verified(token, secret):
    """The claims of a token, whose HS256 signature must be right."""
    head, claims, signature = token.split(".")

    def decoded(part):
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))

    expected = hmac.digest(secret, f"{head}.{claims}".encode(), "sha256")
    assert hmac.compare_digest(decoded(signature), expected)
    assert json.loads(decoded(head))["alg"] == "HS256"
    return json.loads(decoded(claims))


@pytest.mark.parametrize(
    ("place", "transport", "pattern"),
    [
        ("header", "websocket", r"\r\nAuthorization: Bearer (\S+)\r\n"),
        ("query", "sse", r"^GET /channels/a\?token=(\S+) HTTP"),
        ("subprotocol", "websocket", r"\r\nSec-WebSocket-Protocol: throng.plain, throng.token.(\S+)\r\n"),
    ],
)
def test_each_client_shows_a_token_of_its_own(flood, misbehave, tmp_path, place, transport, pattern):
    heads = []

    def record(connection, _):
        heads.append(connection.recv(4096).decode())
        connection.sendall(b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n")
        connection.close()

    secret = b"0123456789abcdef0123456789abcdef"
    (tmp_path / "secret").write_bytes(secret + b"\n")
    signed = ["--token-secret-file", "secret", "--token-user", "ann-{i}", "--token-in", place]
    claims = ["--token-claims", '{"aud": "chat"}', "--token-lifetime", "10m"]
    page = ["--html", tmp_path / "report.html", "--transport", transport, "--clients", "5", "--hold", "0"]
    url = misbehave(record) + "/channels/a"
    done, report = flood(url, *signed, *claims, *page, check=False)
    assert report["total"]["failures"]["status 401"] == 5
    tokens = [re.search(pattern, head).group(1) for head in heads]
    found = [verified(token, secret) for token in tokens]
    assert sorted(each["sub"] for each in found) == [f"ann-{number}" for number in range(5)]
    assert {(each["aud"], each["exp"] - each["iat"]) for each in found} == {("chat", 600)}
    shown = done.stdout + done.stderr + json.dumps(report) + (tmp_path / "report.html").read_text()
    assert not any(part in shown for token in tokens for part in token.split(".")[1:])
    assert secret.decode() not in shown


def test_tokens_of_a_file_are_shown_line_by_line(flood, misbehave, tmp_path):
    heads = []

    def record(connection, _):
        heads.append(connection.recv(4096).decode())
        connection.close()

    (tmp_path / "tokens").write_text("first.a.b\nsecond.c.d\n")
    done, report = flood(misbehave(record), "--tokens", "tokens", "--clients", "4", "--hold", "0", check=False)
    shown = [re.search(r"\r\nAuthorization: Bearer (\S+)\r\n", head).group(1) for head in heads]
    assert sorted(shown) == ["first.a.b", "first.a.b", "second.c.d", "second.c.d"]
    assert "second.c.d" not in done.stdout + done.stderr + json.dumps(report)


def test_a_plan_in_a_file(server, flood, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(
        """
        name = "from a file"
        assertions = ["lost == 0", "p99 < 10s"]
        [target]
        transport = "sse"
        [[phases]]
        do = "ramp"
        to = 20
        [[phases]]
        do = "hold"
        time = "1s"
        publish = { rate = 10 }
        [[phases]]
        do = "churn"
        time = "1s"
        rate = 20
        [[phases]]
        do = "slow"
        share = "10%"
        time = "1s"
        """
    )
    _, report = flood(server.url, "--plan", plan)
    assert report["name"] == "from a file"
    assert [phase["name"].split()[0] for phase in report["phases"]] == [
        "ramp", "hold", "churn", "slow",
    ]
    assert all(each["holds"] for each in report["assertions"])


def test_every_typo_of_a_plan_is_reported(flood, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text('nmae = "x"\n[target]\nprofile = "nchn"\n[[phases]]\ndo = "ram"\n')
    done, report = flood("http://127.0.0.1:1", "--plan", plan, check=False)
    assert (done.returncode, report) == (78, None)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 3
    assert lines[0].endswith('line 1, column 1: unknown key "nmae"; did you mean "name"?')
    assert 'did you mean "nchan"?' in lines[1] and 'did you mean "ramp"?' in lines[2]


def test_usage_errors(flood):
    for arguments in [["--hold", "five"], ["--assert", "lots == 0"], ["--size", "10"], ["--urls", "x"]]:
        done, report = flood("http://127.0.0.1:1", *arguments, check=False)
        assert (done.returncode, report) == (64, None), arguments
        assert done.stderr.startswith("error: ")


def test_the_plan_of_a_dry_run_runs(server, flood, tmp_path):
    line = ["flood", server.url, *SMALL, "--dry-run"]
    done = run_throng(*line, directory=tmp_path)
    assert done.returncode == 0 and "connections fit" in done.stdout
    (tmp_path / "again.toml").write_text(done.stdout)
    again = run_throng("flood", "--plan", "again.toml", "--dry-run", directory=tmp_path)
    assert again.stdout == done.stdout


def test_an_assertion_that_fails_sets_the_exit_code(server, flood):
    done, report = flood(server.url, *SMALL, *asserting("p99 < 1ns"), check=False)
    assert done.returncode == 1
    assert not report["assertions"][0]["holds"]


def test_ctrl_c_prints_the_report_so_far(server, tmp_path):
    command = [BINARY, "flood", server.url, "--clients", "50", "--hold", "10m", "--json", "so-far.json"]
    child = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in child.stderr:
        if "hold" in line and "50 of 50 clients active" in line:
            break
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=TIMEOUT_SECONDS)
    assert child.returncode == 130
    report = json.loads((tmp_path / "so-far.json").read_text())
    assert report["cut_short"] and report["total"]["active"] == 50
    assert report["cut_short"] in out


def test_a_full_disk_loses_only_the_files_on_it(server, flood, tmp_path):
    done, report = flood(server.url, *SMALL, "--html", "/dev/full", check=False)
    assert done.returncode == 1
    assert report["total"]["received"] == 500, "the other result is written"
    assert "/dev/full" in done.stderr and "delivery" in done.stdout


def test_a_report_names_the_server_and_the_plan(server, flood, tmp_path):
    secret = ["--header", "Authorization: Bearer secret-1", "--publish-header", "X-API-Key: secret-2"]
    load = ["--clients", "20", "--hold", "1s", "--publish", "5", "--transport", "sse"]
    done, report = flood(server.url, *load, *secret, "--html", "run.html")
    description = report["description"]
    assert description["target"].startswith(f"{server.url}/channels/")
    assert (description["transport"], description["profile"], description["clients"]) == ("sse", "throng", 20)
    assert description["command"].startswith(f"throng flood {server.url} --clients 20 --hold 1s")
    html = (tmp_path / "run.html").read_text()
    for text in [done.stdout, html, (tmp_path / "report.json").read_text()]:
        assert text.index(description["target"]) < text.index("connect")
        assert "secret-" not in text and "(left out)" in text
    # The plan that the page shows runs.
    shown = json.loads(html.split('id="page">')[1].split("</script>")[0])
    [plan] = [part["listing"] for section in shown["sections"] for part in section["parts"] if "listing" in part]
    assert plan == description["plan"]
    (tmp_path / "plan.toml").write_text(plan)
    again = run_throng("flood", "--plan", "plan.toml", directory=tmp_path)
    assert again.returncode == 0, again.stderr


def test_no_text_is_markup_on_the_page(flood, misbehave, chromium, tmp_path):
    evil = "</script><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"

    def refuse(connection, _):
        connection.recv(4096)
        body = evil.encode()
        connection.sendall(b"HTTP/1.1 400 Bad\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        connection.close()

    load = ["--clients", "5", "--hold", "0", "--name", evil, "--html", "page.html"]
    _, report = flood(misbehave(refuse) + "/channels/a", *load, check=False)
    assert any("<img src=x" in reason for reason in report["total"]["failures"]), report["total"]
    page = tmp_path / "page.html"
    found = json.loads(run("node", HERE / "node" / "page.mjs", chromium, page))
    assert found["title"] == evil
    assert (found["complaints"], found["markup"], found["isTooWide"]) == ([], 0, False)


def test_results_are_compared(server, flood, tmp_path):
    for name in ["a", "b"]:
        flood(server.url, *SMALL)
        (tmp_path / "report.json").rename(tmp_path / f"{name}.json")
    compare = ["flood", "compare", "a.json", "b.json", "--html", "compared.html"]
    done = run_throng(*compare, directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert '"title":"a against b"' in (tmp_path / "compared.html").read_text()
    assert run_throng("flood", "compare", "a.json", "no.json", directory=tmp_path).returncode == 1
