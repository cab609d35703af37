"""All commands share one grammar for numbers, sizes, times and addresses."""

import json

import pytest

from support.server import Server, run_throng

GRAMMAR = {
    "max-connections": ["1000000", "1_000_000", "1,000,000", "1M", "1m"],
    "max-message-bytes": ["65536", "64k", "64KB", "64KiB", "64 kib"],
    "heartbeat": ["90", "90s", "1.5m", "90000ms", "1.5min"],
    "listen": ["8080", ":8080", "localhost:8080", "127.0.0.1:8080"],
    "log": ["trace", "TRACE", "Trace"],
    "welcome": ["true", "yes", "ON", "1"],
}


def check(directory, *flags, environment=None):
    done = run_throng("check", *flags, directory=directory, environment=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("key", GRAMMAR)
def test_a_value_has_the_same_form_in_flag_variable_and_file(tmp_path, key):
    variable = "THRONG_" + key.upper().replace("-", "_")
    printed = set()
    for text in GRAMMAR[key]:
        printed.add(check(tmp_path, f"--{key}={text}"))
        printed.add(check(tmp_path, environment={variable: text}))
        file = tmp_path / "named.toml"
        file.write_text(f"{key} = '{text}'\n")
        printed.add(check(tmp_path, "--config", str(file)))
    assert len(printed) == 1, printed


@pytest.mark.parametrize("number", ["1000", "1_000", "1,000", "1k"])
def test_all_commands_accept_the_numbers_of_the_doctor(tmp_path, number):
    done = run_throng("doctor", "--connections", number, "--json", directory=tmp_path)
    assert json.loads(done.stdout)["connections"] == 1000
    flood = ["flood", ":1", "--clients", number, "--hold", "25", "--size", "1KB", "--dry-run"]
    said = run_throng(*flood, directory=tmp_path).stdout
    assert "to = 1000\n" in said and "http://127.0.0.1:1/" in said, said
    bench = ["bench", "router", "--connections", number, "--time", "2", "--dry-run"]
    assert "1,000" in run_throng(*bench, directory=tmp_path).stdout


def test_a_port_alone_means_this_machine(tmp_path):
    server = Server(tmp_path, listen="localhost")
    assert server.host == "127.0.0.1"
    for address in [str(server.port), f":{server.port}", f"localhost:{server.port}"]:
        done = run_throng("publish", "--url", address, "news", "hello", directory=tmp_path)
        assert done.returncode == 0, done.stderr
    server.stop()


@pytest.mark.parametrize("command", [["tail", "a"], ["publish", "a", "b"]])
def test_a_url_without_a_scheme_gets_a_suggestion(tmp_path, command):
    done = run_throng(*command, "--url", "push.example:80/x", directory=tmp_path)
    assert done.returncode == 64
    meant = '"push.example:80/x" has no scheme; did you mean "http://push.example:80/x"?'
    assert meant in done.stderr
    done = run_throng("flood", "push.example:80/x", directory=tmp_path)
    assert (done.returncode, meant in done.stderr) == (64, True), done.stderr


def test_a_negative_number_is_refused_as_a_value(tmp_path):
    done = run_throng("check", "--max-connections", "-1", directory=tmp_path)
    assert done.returncode == 64
    assert '"-1" is not a whole number of at least 1' in done.stderr


def test_a_channel_together_with_a_user_is_a_usage_error(tmp_path):
    done = run_throng("publish", "news", "hello", "--user", "ann", directory=tmp_path)
    assert done.returncode == 64
    assert done.stderr.startswith("error: give either a channel or --user, not both")


def test_a_host_name_is_refused_as_an_address(tmp_path):
    done = run_throng("serve", "--listen", "push.example:80", directory=tmp_path)
    assert done.returncode == 64
    assert "listen on an IP address" in done.stderr and "0.0.0.0:80" in done.stderr
