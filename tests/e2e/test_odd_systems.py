"""Systems that lack something: socket options, addresses of IPv4."""

import os
import re
import shutil
import signal
import subprocess

import pytest

from support import TIMEOUT_SECONDS
from support.networks import needs_networks
from support.server import BINARY, LISTENING, clean_environment

# What a server asks for and can do without.
OPTIONS = {
    *["TCP_NODELAY", "TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_NOTSENT_LOWAT"],
    *["TCP_DEFER_ACCEPT", "SO_REUSEADDR"],
}
MISSING = re.compile(r"the socket option (\w+) cannot be set")
# Calls of setsockopt(2) until a server with one worker has its listeners, and some more.
CALLS = 14


def start_without(directory, call, error):
    """Starts a server whose call of setsockopt(2) with this number fails in each thread. Returns what it
    says until it listens or ends, and whether it listens."""
    inject = f"inject=setsockopt:error={error}:when={call}"
    traced = ["strace", "-f", "-qq", "-o", directory / "trace", "-e", "trace=setsockopt", "-e", inject]
    flags = ["--listen", "127.0.0.1:0", "--workers", "1", "--control", "none"]
    # Opened by the thread that has looked for a free port: its calls have higher numbers.
    flags += ["--admin-listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*traced, BINARY, "serve", *flags],
        cwd=directory,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    said, listens = "", False
    try:
        for line in process.stdout:
            said += line
            # The last line of a start.
            listens = "started version" in line
            if listens:
                break
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(TIMEOUT_SECONDS)
    return said, listens


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is missing")
@pytest.mark.parametrize("error", ["ENOPROTOOPT", "EINVAL", "EPERM"])
def test_a_server_starts_without_each_optional_socket_option(tmp_path, error):
    missing = set()
    for call in range(1, CALLS):
        said, listens = start_without(tmp_path, call, error)
        # Without it only one worker could listen.
        assert listens or "the socket option SO_REUSEPORT is needed" in said, (call, said)
        missing.update(MISSING.findall(said))
    assert missing >= OPTIONS


# As in the image and the manifests.
PACKAGED = {
    "BINARY": str(BINARY),
    "THRONG_LISTEN": "[::]:8080",
    "THRONG_ADMIN_LISTEN": "[::]:8081",
    "THRONG_ALLOW_ANYONE": "true",
    "THRONG_ADMIN_ALLOW_ANYONE": "true",
}


def in_network(script):
    """Runs a shell script in a network of its own, whose loopback device is up; $BINARY is the binary."""
    return subprocess.run(
        ["unshare", "--net", "--", "sh", "-ec", f"ip link set lo up\n{script}"],
        env=clean_environment(PACKAGED),
        capture_output=True,
        text=True,
        timeout=3 * TIMEOUT_SECONDS,
        check=False,
    )


SERVED = """
    "$BINARY" serve --control none --canary-interval 100ms >/dev/null 2>&1 &
    server=$!
    trap 'kill $server; wait $server || true' EXIT
    until "$BINARY" health 2>/dev/null; do kill -0 $server; sleep 0.1; done
"""


@needs_networks
def test_a_pod_with_ipv6_alone_is_served(tmp_path):
    done = in_network(f"""
        cd {tmp_path}
        ip -4 address flush dev lo
        {SERVED}
        "$BINARY" publish --url 'http://[::1]:8080' news hello
        "$BINARY" publish --url 'http://[::1]:8081' news hello
        "$BINARY" health --url 'http://[::1]:8080'
    """)
    assert done.returncode == 0 and done.stdout.count("ok\n") == 2, done.stdout + done.stderr


@needs_networks
def test_all_addresses_are_those_of_ipv4_too(tmp_path):
    done = in_network(f"""
        cd {tmp_path}
        echo 1 > /proc/sys/net/ipv6/bindv6only
        {SERVED}
        "$BINARY" publish --url http://127.0.0.1:8080 news hello
        "$BINARY" publish --url http://127.0.0.1:8081 news hello
    """)
    assert done.returncode == 0, done.stdout + done.stderr
