"""Settings that the server refuses before it binds: the message and the exit code."""

import socket
import tomllib

import pytest

from support.raw import Raw
from support.server import Server, run_throng

USAGE, CONFIGURATION, RUNTIME = 64, 78, 1


def refused(code, directory, *flags, environment=None):
    """Runs `serve`, which must fail; returns its standard error."""
    arguments = flags if "--listen" in flags else ("--listen", "127.0.0.1:0", *flags)
    done = run_throng("serve", *arguments, directory=directory, environment=environment)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert "listening" not in done.stdout + done.stderr
    assert "panicked" not in done.stderr
    return done.stderr


FILES = {
    "unknown key": ("heartbeat = '5s'\nhartbeat = '5s'\n", 2, "hartbeat"),
    "unknown table": ("\n\n[histroy]\nmessages = 1\n", 3, "histroy"),
    "unknown key in a table": ("[history]\nmessages = 1\nmesages = 2\n", 3, "mesages"),
    "a number as words": ("[history]\nmessages = 'many'\n", 2, "messages"),
    "a time as words": ("\nheartbeat = 'often'\n", 2, "heartbeat"),
    "a size as words": ("max-message-bytes = 'big'\n", 1, "max-message-bytes"),
    "a negative number": ("max-connections = -1\n", 1, "max-connections"),
    "a policy that is none": ("[lag]\npolicy = 'shrug'\n", 2, "policy"),
    "a listen address": ("listen = 'nowhere'\n", 1, "listen"),
    "not TOML": ("welcome = true\nthis is not toml\n", 2, "neither `key = value` nor a [table]"),
    "a value without quotes": ("\nlisten = 127.0.0.1:80\n", 2, 'listen = "127.0.0.1:80"'),
    "a text that is not closed": ("log = 'info\n", 1, "`log` has no closing quotation mark"),
    "a key twice": ("log = 'info'\nlog = 'warn'\n", 2, "`log` is set a second time"),
    "unknown key of a channel": ("[[channels]]\nmatch = 'a'\nmesages = 1\n", 3, "mesages"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_bad_file_is_refused_with_its_line(tmp_path, case):
    text, line, word = FILES[case]
    (tmp_path / "throng.toml").write_text(text)
    arguments = ["serve"] if case == "a listen address" else ["serve", "--listen", "127.0.0.1:0"]
    done = run_throng(*arguments, directory=tmp_path)
    assert done.returncode == CONFIGURATION, done.stderr
    assert "throng.toml" in done.stderr and word in done.stderr
    assert f"line {line}" in done.stderr or f"throng.toml:{line}" in done.stderr, done.stderr


def test_a_missing_configuration_file_is_refused(tmp_path):
    assert "missing.toml" in refused(CONFIGURATION, tmp_path, "--config", "missing.toml")


def test_misspelt_variables_are_refused(tmp_path):
    said = refused(CONFIGURATION, tmp_path, environment={"THRONG_HARTBEAT": "5s"})
    assert "THRONG_HARTBEAT" in said


def test_variables_of_somebody_else_stop_no_command(tmp_path):
    environment = {
        "THRONG_ADMIN_PORT": "tcp://10.0.0.1:8081",
        "THRONG_PASSWORD": "secret",
        "THRONG_TOKEN_SECRET": "secret",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
        "ALL_PROXY": "socks5://127.0.0.1:9",
        "TOKIO_WORKER_THREADS": "many",
        "RUST_LOG": "trace",
    }
    server = Server(tmp_path, environment=environment)
    try:
        warnings = [line for line in server.log().splitlines() if "THRONG_" in line]
        assert len(warnings) == 1 and "THRONG_PASSWORD is no setting" in warnings[0], warnings
        assert "secret" not in warnings[0]
        listen = f"127.0.0.1:{server.port}"
        for command in (
            ["check"],
            ["health", "--url", f"http://{listen}"],
            ["publish", "news", "hello", "--url", f"http://{listen}"],
            ["reload", "--listen", listen],
            ["drain", "--listen", listen],
        ):
            done = run_throng(*command, directory=tmp_path, environment=environment)
            assert done.returncode == 0, (command, done.stderr)
    finally:
        server.kill()


def test_bad_variables_are_refused_by_name(tmp_path):
    said = refused(CONFIGURATION, tmp_path, environment={"THRONG_HEARTBEAT": "often"})
    assert "THRONG_HEARTBEAT" in said and "often" in said


@pytest.mark.parametrize(
    "flags", [["--no-such-flag"], ["--heartbeat", "often"], ["--lag-policy", "shrug"], ["extra"]]
)
def test_bad_flags_are_refused(tmp_path, flags):
    assert flags[-1] in refused(USAGE, tmp_path, *flags)


def test_no_command_and_unknown_commands_are_usage_errors(tmp_path):
    assert run_throng(directory=tmp_path).returncode == USAGE
    assert run_throng("dance", directory=tmp_path).returncode == USAGE
    assert run_throng("--help", directory=tmp_path).returncode == 0
    assert run_throng("--version", directory=tmp_path).stdout.startswith("throng ")


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_another_address_than_loopback_needs_a_setting(tmp_path, address):
    assert "allow-anyone" in refused(CONFIGURATION, tmp_path, "--listen", address)


def test_another_address_than_loopback_is_accepted_with_the_setting(tmp_path):
    server = Server(tmp_path, "--allow-anyone", listen="0.0.0.0")
    server.host = "127.0.0.1"  # it prints the address it is bound to
    with Raw(server) as connection:
        connection.request("GET", "/health")
        assert connection.read_response().status == 200
    server.stop()
    assert f"warning    others can reach 0.0.0.0:{server.port}, and without keys" in server.log()


def test_a_development_server_gets_no_hints_about_kernel_settings(tmp_path):
    server = Server(tmp_path)
    server.stop()
    assert "warning" not in server.log(), server.log()


def test_allowing_anyone_on_loopback_warns_that_only_this_machine_can_reach_it(tmp_path):
    server = Server(tmp_path, "--allow-anyone")
    server.stop()
    assert f"add --listen 0.0.0.0:{server.port}" in server.log()


def test_a_port_in_use_is_one_clear_message(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        done = run_throng("serve", "--listen", address, directory=tmp_path)
    assert done.returncode == RUNTIME, done.stderr
    assert address in done.stderr and "in use" in done.stderr.lower()
    assert len([line for line in done.stderr.splitlines() if "in use" in line.lower()]) == 1


def test_flags_win_over_variables_and_variables_over_the_file(tmp_path, channel):
    (tmp_path / "throng.toml").write_text("max-message-bytes = 10\n[history]\nmessages = 1\n")
    environment = {"THRONG_HISTORY_MESSAGES": "2", "THRONG_MAX_MESSAGE_BYTES": "20"}
    server = Server(tmp_path, "--history-messages", "3", environment=environment)
    for _ in range(5):
        server.publish(channel, "x" * 20)
    assert len(server.history(channel)["messages"]) == 3
    assert server.http.post(f"/channels/{channel}", content="x" * 21).status_code == 413
    server.stop()


def test_settings_apply_per_channel(tmp_path):
    (tmp_path / "throng.toml").write_text(
        "[[channels]]\nmatch = 'chat:*'\nmessages = 2\n\n[[channels]]\nusers = '*'\nmessages = 1\n"
    )
    server = Server(tmp_path)
    for _ in range(4):
        server.publish("chat:a", "x")
        server.publish("other", "x")
        server.publish_to_user("u", "x")
    assert len(server.history("chat:a")["messages"]) == 2
    assert len(server.history("other")["messages"]) == 4
    assert len(server.http.get("/users/u/history").json()["messages"]) == 1
    server.stop()


def test_a_check_prints_paths_that_mean_the_same_from_everywhere(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/secret").write_text("0" * 32)
    (tmp_path / "etc/secret").chmod(0o600)
    text = "revocations-file = 'revoked'\n[[token-keys]]\nsecret-file = 'secret'\n"
    (tmp_path / "etc/throng.toml").write_text(text)
    done = run_throng("check", "--config", "etc/throng.toml", directory=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = tomllib.loads(done.stdout)
    assert printed["token-keys"][0]["secret-file"] == str(tmp_path / "etc/secret")
    assert printed["revocations-file"] == str(tmp_path / "etc/revoked")
