"""Shared by the `start` scripts of the peers: starts a server and prints its description.

A `start` script runs its server on a free port of loopback until its standard input ends or it gets
SIGTERM. As soon as the server answers, it prints one line of JSON (see `README.md`). The server's
log goes to standard error.
"""

import argparse
import contextlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PEERS = Path(__file__).resolve().parent
ROOT = PEERS.parents[1]
NODE_MODULES = ROOT / "tests" / "node_modules"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()

READY_SECONDS_MAX = 20
STOP_SECONDS_MAX = 5
# Another process may take the free port before the server binds it.
ATTEMPTS = 3
# `EX_UNAVAILABLE`: a dependency is not installed.
EXIT_MISSING = 69

# Flags of `throng flood` for a server that broadcasts whatever is posted to `/`.
BROADCAST = [
    "--profile",
    "custom",
    "--transport",
    "websocket",
    "--publish-url",
    "http://127.0.0.1:{port}/",
]


class Missing(SystemExit):
    """A dependency that `install` provides is missing: ends the script with a message."""

    def __init__(self, message):
        print(message, file=sys.stderr)
        super().__init__(EXIT_MISSING)


def arguments(*flags):
    """The arguments of a start script; `flags` are additional boolean ones."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--connections", type=int, default=1000, help="connections that the server must hold")
    parser.add_argument("--tls", action="store_true", help="serve TLS, and nothing else")
    parser.add_argument("--binary", type=Path, help="binary of a server that is in no package registry")
    for flag in flags:
        parser.add_argument(flag, action="store_true")
    return parser.parse_args()


def certificate(directory):
    """Makes a certificate for this machine, with a key on P-256; returns the paths of both."""
    paths = directory / "certificate.pem", directory / "key.pem"
    command = [program("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = subprocess.run([*command, "-out", paths[0], "-keyout", paths[1]], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        sys.exit(f"openssl makes no certificate: {made.stderr}")
    # Workers may run as another user, which reads neither before.
    paths[1].chmod(0o644)
    return paths


def descriptors():
    """The descriptor limit of a process."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def program(*names):
    """The path of the first program found in PATH, .cache, or Debian's directories for root."""
    own = str(ROOT / ".cache" / "venv" / "bin")
    places = os.pathsep.join([os.environ.get("PATH", ""), own, "/usr/local/sbin", "/usr/sbin"])
    found = (shutil.which(str(name), path=places) for name in names)
    path = next(filter(None, found), None)
    if path is None:
        raise Missing(f"{names[0]} is missing")
    return path


def throng():
    """The binary of Throng: the server, and the load generator."""
    return Path(os.environ.get("THRONG_BIN") or TARGET / "release" / "throng").resolve()


def output(*command):
    """What a program prints to standard output, or to standard error if that is empty."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).strip()


def start(command, *, transports, environment=None, path="", **facts):
    """Runs a server until standard input ends.

    `command(port, directory)` is its command line; it may write its files into the directory, and
    serve TLS with what `certificate` makes there.
    `transports` are the flags of `throng flood` by transport, in which `{port}` is filled in;
    `path` is appended to the URL, for profiles that need more than the server.
    With `is_tls`, the server speaks TLS. All other `facts` are printed unchanged.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors(),) * 2)
    with tempfile.TemporaryDirectory(prefix="peer-") as directory:
        # Workers may run as another user.
        os.chmod(directory, 0o711)
        for attempt in range(ATTEMPTS):
            with run(command, Path(directory), environment or {}) as (child, port):
                if await_ready(child, port):
                    describe(child, port, path, transports, facts)
                    return wait(child)
            print(f"not ready, attempt {attempt + 1} of {ATTEMPTS}", file=sys.stderr)
    return sys.exit("the server does not answer")


@contextlib.contextmanager
def run(command, directory, environment):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("THRONG_")}
    child = subprocess.Popen(
        [str(part) for part in command(port, directory)],
        cwd=directory,
        env={**kept, "HOME": str(directory), **environment_at(port, environment)},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        stderr=sys.stderr,
    )
    try:
        yield child, port
    finally:
        child.terminate()
        try:
            child.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def environment_at(port, environment):
    return {name: value.replace("{port}", str(port)) for name, value in environment.items()}


def await_ready(child, port):
    """Whether the server accepts connections within the timeout."""
    deadline = time.monotonic() + READY_SECONDS_MAX
    while child.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        time.sleep(0.02)
    return False


def describe(child, port, path, transports, facts):
    is_tls = facts.pop("is_tls", False)
    scheme, more = ("https", ["--insecure"]) if is_tls else ("http", [])
    flags = {
        name: [flag.replace("{port}", str(port)).replace("http://", f"{scheme}://") for flag in flags] + more
        for name, flags in transports.items()
    }
    url = f"{scheme}://127.0.0.1:{port}{path}"
    line = {"pid": child.pid, "url": url, "transports": flags, **facts}
    print(json.dumps(line), flush=True)


def wait(child):
    """Waits for the end of standard input, or of the server, which is a failure."""
    events = select.poll()
    ended = os.pidfd_open(child.pid)
    events.register(ended, select.POLLIN)
    events.register(sys.stdin, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in events.poll()}
        if ended in ready:
            sys.exit(f"the server exited unexpectedly with status {child.wait()}")
        if not os.read(sys.stdin.fileno(), 4096):
            return
