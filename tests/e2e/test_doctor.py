"""`throng doctor`. Tests change settings only in their own network namespace."""

import json
import re
import resource
import shutil
import subprocess

import pytest

from support import TIMEOUT_SECONDS
from support.server import BINARY, clean_environment, run_throng

SOMAXCONN = "/proc/sys/net/core/somaxconn"
# Settings that each namespace has its own copy of: tests may change no others.
PRIVATE = ("net.core.somaxconn", "net.ipv4.")
# A namespace in which three settings are too low for a server of a thousand connections.
SHORT = f"""
    echo 64 > {SOMAXCONN}
    echo 64 > /proc/sys/net/ipv4/tcp_max_syn_backlog
    echo 1024 65535 > /proc/sys/net/ipv4/ip_local_port_range
"""


def doctor(directory, *arguments):
    return run_throng("doctor", *arguments, directory=directory)


def in_namespace(script):
    """Runs a shell script with network settings of its own; $THRONG is the binary."""
    return subprocess.run(
        ["unshare", "-n", "--", "sh", "-ec", script],
        env=clean_environment({"THRONG": str(BINARY)}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def test_any_machine_can_hold_a_thousand_connections(tmp_path):
    done = doctor(tmp_path, "--connections", "1k")
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("1,000 connections are possible here")
    assert "\x1b" not in done.stdout, "colours are for terminals"
    assert "the server runs here" in done.stdout and "--role both" in done.stdout


def test_too_many_connections_are_refused_with_reasons(tmp_path):
    done = doctor(tmp_path, "--connections", "4000M")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith("4,000,000,000 connections are not possible here yet: ")
    assert any(line.startswith("must     memory ") for line in lines), done.stdout
    assert "  take a machine with more memory, or several" in lines


def test_clients_need_addresses(tmp_path):
    done = doctor(tmp_path, "--connections", "200k", "--role", "clients", "--json")
    assert done.returncode == 1
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["source addresses"]["verdict"] == "must"
    assert "net.core.somaxconn" not in checks, "a queue of the server's machine"
    assert json.loads(done.stdout)["tls_handshakes_per_second"] is None, "the server's work"
    enough = ["--role", "clients", "--addresses", "8"]
    done = doctor(tmp_path, "--connections", "200k", *enough, "--json")
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["source addresses"]["verdict"] == "ok"


def test_json_has_the_same_content(tmp_path):
    done = doctor(tmp_path, "--connections", "1000", "--role", "both", "--json")
    found = json.loads(done.stdout)
    assert (found["connections"], found["role"], found["possible"]) == (1000, "both", True)
    assert found["capacity"]["connections"] >= 1000
    assert "applied" not in found
    rates = found["tls_handshakes_per_second"]
    assert rates.keys() == {"ecdsa_p256", "rsa_2048", "resumed"} and min(rates.values()) > 0
    for check in found["checks"]:
        assert check["verdict"] in ("ok", "unknown", "should", "must")
        assert check["why"] and check["needed"], check
        # A value that cannot be read is unknown, never sufficient.
        assert (check["verdict"] == "unknown") == (check["found"] is None), check
        if check["change"]:
            assert check["change"]["command"].split()[0] in ("sysctl", "echo")


def test_bad_input_is_one_clear_message(tmp_path):
    for number in ["1x", "0", "-5", "1.5", "5000M", ""]:
        done = doctor(tmp_path, f"--connections={number}")
        assert (done.returncode, done.stdout) == (64, ""), number
        assert "is not a whole number from 1 to 4,294,967,295" in done.stderr.splitlines()[0]
    for arguments in [
        ["--apply"],
        ["--sysctl-file"],
        ["--connections", "10", "--role", "nobody"],
        ["--connections", "10", "--addresses", "2"],
        ["--connections", "10", "--apply", "--sysctl-file"],
    ]:
        assert doctor(tmp_path, *arguments).returncode == 64, arguments


def test_a_file_for_the_next_boot_is_written(tmp_path):
    done = doctor(tmp_path, "--connections", "1M", "--sysctl-file")
    assert done.returncode == 0
    lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    settings = dict(line.split(" = ") for line in lines)
    found = json.loads(doctor(tmp_path, "--connections", "1M", "--json").stdout)
    changes = {c["change"]["setting"]: c["change"]["to"] for c in found["checks"] if c["change"]}
    # It counts files that are open now, of which other programs have more or fewer a moment later.
    files = [int(values.pop("fs.file-max", 0)) for values in (settings, changes)]
    assert settings == changes and files[0] == pytest.approx(files[1], rel=0.01)


def test_without_a_number_it_prints_the_capacity(tmp_path):
    done = doctor(tmp_path)
    assert done.returncode == 0, done.stdout
    assert re.match(r"up to [\d,]+ connections are possible here", done.stdout), done.stdout
    fits = json.loads(doctor(tmp_path, "--json").stdout)
    assert fits["possible"] and fits["connections"] >= 1000
    too_many = doctor(tmp_path, "--connections", str(2 * fits["connections"]), "--json")
    assert not json.loads(too_many.stdout)["possible"]


@pytest.fixture(scope="module")
def short():
    """The settings that the doctor finds too low in a namespace with low settings, by name."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is missing")
    done = in_namespace(f'{SHORT} "$THRONG" doctor --connections 1000 --json')
    if not done.stdout:
        pytest.skip(f"network namespaces cannot be made here: {done.stderr}")
    checks = json.loads(done.stdout)["checks"]
    found = {check["name"]: check["change"] for check in checks if check["change"]}
    if not all(name.startswith(PRIVATE) for name in found):
        pytest.skip(f"--apply would change the machine itself: {found}")
    return found


def test_the_file_has_only_the_settings_that_must_change(short):
    done = in_namespace(f'{SHORT} "$THRONG" doctor --connections 1000 --sysctl-file')
    lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert lines == [f"{name} = {change['to']}" for name, change in short.items()]


def test_apply_raises_low_settings_and_prints_how_to_revert(short):
    done = in_namespace(f"""
        {SHORT}
        "$THRONG" doctor --connections 1000 --apply --json
        echo ,
        cat {SOMAXCONN}
    """)
    assert done.returncode == 0, done.stderr
    after, somaxconn = json.loads(f"[{done.stdout}]")
    applied = {change["setting"]: change for change in after["applied"]}
    assert applied.keys() == short.keys() and len(short) >= 3
    assert all(change["error"] is None for change in applied.values()), applied
    assert applied["net.core.somaxconn"]["from"] == "64"
    assert applied["net.core.somaxconn"]["to"] == str(somaxconn)
    assert applied["net.core.somaxconn"]["undo"] == "sysctl -w net.core.somaxconn=64"
    assert applied["net.ipv4.ip_local_reserved_ports"]["to"] == "8080"
    assert after["possible"] and not any(check["change"] for check in after["checks"])


@pytest.mark.usefixtures("short")
def test_apply_never_lowers():
    done = in_namespace(f"""
        {SHORT}
        echo 60000 > {SOMAXCONN}
        "$THRONG" doctor --connections 1000 --apply > /dev/null
        cat {SOMAXCONN}
    """)
    assert (done.returncode, done.stdout) == (0, "60000\n"), done.stderr


@pytest.mark.usefixtures("short")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is missing")
def test_apply_without_privileges_prints_what_to_run():
    # By descriptor: other users may have no access to the folders above the build.
    done = in_namespace(f"""
        {SHORT}
        cd /
        exec 3< "$THRONG"
        setpriv --reuid 65534 --clear-groups /proc/self/fd/3 doctor --connections 1000 --apply
        cat {SOMAXCONN}
    """)
    assert done.returncode == 0, done.stderr
    refused = "net.core.somaxconn: not permitted; run `sudo sysctl -w net.core.somaxconn=1024`"
    assert refused in done.stdout
    assert done.stdout.endswith("\n64\n"), done.stdout


def test_a_server_with_too_high_a_limit_names_the_doctor(tmp_path):
    def few_descriptors():
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))

    done = subprocess.run(
        [BINARY, "serve", "--listen", "127.0.0.1:0", "--max-connections", "1000000"],
        cwd=tmp_path,
        env=clean_environment(),
        preexec_fn=few_descriptors,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert "throng doctor --connections 1M" in done.stderr
