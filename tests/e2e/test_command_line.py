"""`throng publish` and `throng tail`, as scripts use them."""

import json
import subprocess

import pytest

from support.server import BINARY, Server, clean_environment, run_throng

QUICK = ["--drain-window", "100ms"]


@pytest.fixture
def tail(tmp_path):
    """Starts `throng tail`; what it prints is read through a pipe."""
    children = []

    def start(url, *arguments):
        child = subprocess.Popen(
            [BINARY, "tail", "--server", url, *arguments],
            cwd=tmp_path,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


def publish(server, directory, *arguments, input=None):
    done = run_throng(
        "publish", "--server", server.url, *arguments, directory=directory, input=input
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_publish_and_tail(server, tmp_path, tail, channel):
    child = tail(server.url, channel)
    server.wait_for_connections(channel, 1)
    publish(server, tmp_path, channel, "from the command line")
    message = json.loads(child.stdout.readline())
    assert message["data"] == "from the command line"
    assert message["channel"] == channel and message["id"].endswith("-1")


def test_publish_reads_standard_input(server, tmp_path, channel):
    publish(server, tmp_path, channel, "-", input="from a pipe")
    assert server.history(channel)["messages"][-1]["data"] == "from a pipe"


def test_publish_says_where_it_went_wrong(server, tmp_path):
    done = run_throng("publish", "--server", server.url, "a/../b", "x", directory=tmp_path)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    done = run_throng("publish", "--server", "http://127.0.0.1:1", "a", "x", directory=tmp_path)
    assert done.returncode == 1 and "127.0.0.1:1" in done.stderr
    assert run_throng("publish", directory=tmp_path).returncode == 64


def test_tail_comes_back_after_a_restart(tmp_path, tail, channel):
    first = Server(tmp_path, *QUICK)
    child = tail(first.url, channel)
    first.wait_for_connections(channel, 1)
    first.publish(channel, "before")
    assert json.loads(child.stdout.readline())["data"] == "before"
    first.stop()
    second = Server(tmp_path, *QUICK, port=first.port)
    second.publish(channel, "after")
    lines = iter(child.stdout.readline, "")
    message = next(found for found in map(json.loads, lines) if found["type"] == "message")
    assert message["data"] == "after"
    second.stop()
