"""Commands that reach a running server at its control socket: who may, which server, what it says."""

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from support import TIMEOUT_SECONDS
from support.server import BINARY, RUNTIME, clean_environment, eventually, run_throng

RUNTIME_ERROR, CONFIGURATION = 1, 78
NOBODY = 65534


@pytest.fixture
def place():
    """A directory whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="throng-", dir="/tmp") as directory:
        yield Path(directory) / "control"


def command(server, *arguments, directory, environment=None):
    """Runs a command for the server that listens at this address."""
    arguments = [*arguments, "--listen", f"{server.host}:{server.port}"]
    return run_throng(*arguments, directory=directory, environment=environment)


def said(path, request):
    """The first line that the server answers."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(TIMEOUT_SECONDS)
        client.connect(str(path))
        # A request that is too long is answered before all of it is read.
        with contextlib.suppress(ConnectionError):
            client.sendall(request)
        return json.loads(client.makefile().readline())


def test_reload_says_what_was_replaced_and_what_waits(serve, tmp_path):
    file = tmp_path / "throng.toml"
    file.write_text("log = 'info'\nworkers = 3\n")
    server = serve()
    done = command(server, "reload", directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "nothing that a reload can replace has changed\n"
    file.write_text("log = 'debug'\nworkers = 2\n")
    done = command(server, "reload", directory=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "replaced: log level; waits for a restart: workers\n"
    eventually(lambda: "throng reload: the settings were read again" in server.log(), "the log")


def test_reload_of_a_wrong_file_changes_nothing_and_names_the_line(serve, tmp_path, place):
    file = tmp_path / "throng.toml"
    file.write_text("welcome = true\n")
    path = place / "server.sock"
    serve("--control", path)
    file.write_text("welcome = true\nlog = 'loud'\n")
    # Asked by path, the command reads no settings: the server says what is wrong.
    done = run_throng("reload", "--control", path, directory=tmp_path)
    assert done.returncode == CONFIGURATION
    assert "everything stays as it was: throng.toml, line 2, column 7" in done.stderr
    # Without a path the command sees it itself.
    done = run_throng("reload", directory=tmp_path)
    assert done.returncode == CONFIGURATION
    assert "throng.toml, line 2" in done.stderr and "The server was not asked" in done.stderr


def test_a_command_needs_no_other_flags_of_the_server_than_its_address(serve, tmp_path):
    (tmp_path / "throng.toml").write_text("[[channels]]\nmatch = 'kept'\ndurable = true\n")
    server = serve("--data", tmp_path / "data")
    done = command(server, "reload", directory=tmp_path)
    assert done.returncode == 0, done.stderr


def test_each_server_of_a_machine_is_reached_by_its_settings(serve, tmp_path):
    one, other = serve(), serve()
    assert command(one, "reload", directory=tmp_path).returncode == 0
    eventually(lambda: "throng reload" in one.log(), "the reload")
    assert "throng reload" not in other.log()
    path = Path(RUNTIME) / f"127.0.0.1:{one.port}.sock"
    one.stop()
    assert not path.exists(), "a server that ends takes its socket with it"
    done = command(one, "reload", directory=tmp_path)
    assert done.returncode == RUNTIME_ERROR
    assert f"no server listens on 127.0.0.1:{one.port}; these run:\n" in done.stderr
    assert f"\n  127.0.0.1:{other.port}  process {other.process.pid}\n" in done.stderr
    assert max(map(len, done.stderr.splitlines())) < 80, done.stderr


def test_a_command_asks_which_of_several_servers_is_meant(serve, tmp_path):
    one, other = serve(), serve()
    done = run_throng("drain", directory=tmp_path)
    assert done.returncode == RUNTIME_ERROR
    first, *lines = done.stderr.splitlines()
    assert first == "error: several servers run:"
    for server in (one, other):
        assert f"  127.0.0.1:{server.port}  process {server.process.pid}" in lines
    assert lines[-1] == "--listen ADDRESS or --control SOCKET says which one."
    environment = {"THRONG_URL": one.url}
    assert run_throng("reload", directory=tmp_path, environment=environment).returncode == 0
    eventually(lambda: "throng reload" in one.log(), "the reload")
    assert "throng reload" not in other.log()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a network namespace")
def test_the_only_server_is_found_without_any_flag(tmp_path):
    """In a network namespace of its own: others may run beside the tests."""
    script = f"""
        "{BINARY}" serve --listen 127.0.0.1:19191 --history-messages 7 > log 2>&1 &
        until grep -q started log; do kill -0 $! || exit 3; done
        "{BINARY}" reload && "{BINARY}" drain && wait $!
    """
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", script],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, done
    assert "nothing that a reload can replace has changed" in done.stdout


def test_a_server_is_found_although_the_file_names_another_address_by_now(serve, tmp_path):
    file = tmp_path / "own.toml"
    file.write_text("welcome = true\n")
    server = serve("--config", file)
    file.write_text("listen = '127.0.0.1:1'\n")
    done = run_throng("reload", "--config", file, directory=tmp_path)
    assert done.returncode == 0, done.stderr
    # Flags override the file, so that the server keeps its address.
    assert done.stdout == "nothing that a reload can replace has changed; waits for `throng upgrade` or a restart: welcome\n"
    eventually(lambda: "throng reload" in server.log(), "the log")


def test_a_path_is_for_one_server_and_free_after_a_crash(serve, tmp_path, place):
    path = place / "server.sock"
    one = serve("--control", path)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    second = run_throng("serve", "--listen", ":0", "--control", path, directory=tmp_path)
    assert second.returncode == CONFIGURATION
    assert "another server has it" in second.stderr
    one.kill()
    assert run_throng("reload", "--control", path, directory=tmp_path).returncode == RUNTIME_ERROR
    serve("--control", path)
    assert run_throng("reload", "--control", path, directory=tmp_path).returncode == 0


def test_a_directory_that_lets_others_in_is_refused(tmp_path, place):
    place.mkdir(mode=0o755)
    place.chmod(0o755)
    arguments = ["serve", "--listen", ":0", "--control", place / "server.sock"]
    done = run_throng(*arguments, directory=tmp_path)
    assert done.returncode == CONFIGURATION
    assert "its mode is 0755" in done.stderr


def test_what_is_no_socket_is_left_alone(tmp_path, place):
    place.mkdir(mode=0o700)
    file = place / "precious.toml"
    file.write_text("log = 'info'\n")
    other = place / "other.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(str(other))
        for path, reason in [(file, "no socket"), (other, "another program has it")]:
            done = run_throng("serve", "--listen", ":0", "--control", path, directory=tmp_path)
            assert done.returncode == CONFIGURATION
            assert reason in done.stderr
            assert path.exists()
    assert file.read_text() == "log = 'info'\n"


@contextlib.contextmanager
def impostor(answer):
    """A server at an address that nobody listens on. It answers each request with this, or not at
    all; yields the address and what it was asked."""
    address, asked = "127.0.0.1:1", []
    with socket.socket(socket.AF_UNIX) as listener:
        path = Path(RUNTIME) / f"{address}.sock"
        listener.bind(str(path))
        listener.listen()

        def serve():
            with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
                while True:
                    client = stack.enter_context(listener.accept()[0])
                    asked.append(json.loads(client.makefile().readline())["request"])
                    if answer:
                        client.sendall(json.dumps(answer).encode() + b"\n")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield address, asked
        finally:
            path.unlink()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(TIMEOUT_SECONDS)


def test_the_same_address_in_another_network_namespace_is_another_server(tmp_path):
    about = {"answer": "server", "process": 2, "version": "", "listen": "", "settings": None}
    with impostor({**about, "network": 1}) as (address, asked):
        done = run_throng("drain", "--listen", address, directory=tmp_path)
        assert done.returncode == RUNTIME_ERROR
        assert "process 2, in another network namespace\n" in done.stderr
        assert f"{address}.sock\n" in done.stderr
        assert set(asked) == {"about"}


def test_a_server_that_stands_still_is_not_awaited(tmp_path):
    with impostor(None) as (address, asked):
        done = run_throng("reload", "--listen", address, directory=tmp_path)
        assert done.returncode == RUNTIME_ERROR
        assert "does not answer" in done.stderr
        assert asked == ["about"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_who_may_not_look_is_told_who_may(serve, tmp_path):
    server = serve()
    command = [BINARY, "reload", "--listen", f"{server.host}:{server.port}"]
    done = subprocess.run(
        ["setpriv", f"--reuid={NOBODY}", "--clear-groups", *command],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.returncode == RUNTIME_ERROR
    assert f"{RUNTIME} is another user's" in done.stderr, done


def test_a_server_without_a_socket_serves(serve, tmp_path):
    server = serve("--control", "none")
    assert server.http.get("/health").text.strip() == "ok"
    done = command(server, "reload", "--control", "none", directory=tmp_path)
    assert done.returncode == RUNTIME_ERROR
    assert "no control socket" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused(serve, place):
    path = place / "server.sock"
    server = serve("--control", path)
    # The mode of the directory is not all that keeps others out.
    for each, mode in [(place.parent, 0o755), (place, 0o755), (path, 0o666)]:
        each.chmod(mode)
    program = """
import contextlib, os, socket, sys
os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
client = socket.socket(socket.AF_UNIX); client.connect(sys.argv[1])
# It may be refused, and the connection closed, before it has asked.
with contextlib.suppress(BrokenPipeError):
    client.sendall(b'{"request":"reload"}\\n')
os.write(1, client.recv(65536))
"""
    arguments = [sys.executable, "-c", program, str(path), str(NOBODY)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    answer = json.loads(done.stdout)
    assert answer["answer"] == "failed" and "may ask" in answer["message"], done
    eventually(lambda: "another user was refused" in server.log(), "the log")
    assert "settings were read" not in server.log()


def test_lines_that_are_no_requests_are_refused(serve, place):
    path = place / "server.sock"
    server = serve("--control", path)
    for line in [b"hello\n", b'{"request":"upset"}\n', b"\xff\n", b"{" * 100_000]:
        answer = said(path, line)
        assert answer["answer"] == "failed" and answer["code"] == 1, answer
    about = said(path, b'{"request":"about"}\n')
    assert (about["answer"], about["process"]) == ("server", server.process.pid)
    assert about["listen"] == f"127.0.0.1:{server.port}"
    # One that says nothing keeps nobody else out.
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(path))
        assert said(path, b'{"request":"about"}\n') == about
