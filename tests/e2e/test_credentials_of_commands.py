"""`throng serve --dev`, and the token or key that `throng tail` and `throng publish` show."""

import json
import os
import re
import signal
import subprocess
import time

import jwt
import pytest

from conftest import HERE
from support import TIMEOUT_SECONDS
from support.server import BINARY, Server, clean_environment, eventually, run_throng

SECRET = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def children():
    """Processes that end with the test."""
    started = []
    yield started
    for child in started:
        child.kill()
        child.communicate()


@pytest.fixture
def secured(tmp_path):
    """A server with keys; its settings, a token of Ann and a server key."""
    key = run_throng("key", "--name", "app", directory=tmp_path)
    settings = f"[[token-keys]]\nsecret = '{SECRET}'\n{key.stderr}"
    (tmp_path / "throng.toml").write_text(settings)
    made = run_throng("token", "new", "--user", "ann", "--subscribe", "*", directory=tmp_path)
    server = Server(tmp_path, "--drain-window", "200ms", "--log", "trace")
    server.token, server.key = made.stdout.strip(), key.stdout.strip()
    yield server
    server.stop()
    for secret in (SECRET, server.token, server.key):
        assert secret not in server.log()


def tail(children, server, directory, environment, *arguments):
    child = subprocess.Popen(
        [BINARY, "tail", "--url", server.url, *arguments],
        cwd=directory,
        env=clean_environment(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    children.append(child)
    return child


def test_tail_shows_a_token_and_publish_a_key(secured, children, tmp_path):
    child = tail(children, secured, tmp_path, {"THRONG_TOKEN": secured.token}, "a", "--user", "ann")
    assert child.stderr.readline().startswith("note: connected to ")
    by_key = {"THRONG_KEY": secured.key + "\n"}
    for target in (["a"], ["--user", "ann"]):
        command = ["publish", "--url", secured.url, *target, "hello"]
        done = run_throng(*command, directory=tmp_path, environment=by_key)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["subscribers"] == 1
        assert json.loads(child.stdout.readline())["data"] == "hello"
    command = ["publish", "--url", secured.url, "a", "--lines"]
    done = run_throng(*command, directory=tmp_path, environment=by_key, input="1\n2\n")
    assert done.returncode == 0, done.stderr
    assert [json.loads(child.stdout.readline())["data"] for _ in "12"] == ["1", "2"]


def test_a_server_key_follows_if_its_scopes_say_so(secured, tmp_path):
    done = run_throng(
        "tail", "--url", secured.url, "a", directory=tmp_path, environment={"THRONG_KEY": secured.key}
    )
    assert done.returncode == 1
    assert "the scopes of this server key do not include subscribe on a (403)" in done.stderr


HINT = "(401); set THRONG_TOKEN to a token, or THRONG_KEY to a server key"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, HINT),
        ({"THRONG_TOKEN": "hunter2"}, "the token is malformed"),
        ({"THRONG_KEY": "throng_key_hunter2"}, "mistyped"),
        ({"THRONG_TOKEN": ""}, "THRONG_TOKEN is empty, or has characters"),
        ({"THRONG_KEY": "hunter2\nhunter2"}, "THRONG_KEY is empty, or has characters"),
        ({"THRONG_TOKEN": "hunter2", "THRONG_KEY": "b"}, "are both set; unset one of them"),
    ],
)
@pytest.mark.parametrize("command", [["tail", "a"], ["publish", "a", "x"]])
def test_what_the_server_refuses(secured, tmp_path, command, environment, expected):
    command = [command[0], "--url", secured.url, *command[1:]]
    done = run_throng(*command, directory=tmp_path, environment=environment)
    assert done.returncode == 1 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert expected in done.stderr and "hunter2" not in done.stderr


def test_the_commands_that_dev_prints_work_when_pasted(children, tmp_path):
    server = Server(tmp_path, "--dev", "--drain-window", "200ms")
    eventually(lambda: "throng tail" in server.log(), "the commands of --dev")
    lines = [line.strip() for line in server.log().splitlines()]
    first = next(at for at, line in enumerate(lines) if line.startswith("export THRONG_TOKEN="))
    export, assign, follow, publish, follow_by_tail = lines[first : first + 5]
    path = f"{BINARY.parent}{os.pathsep}{os.environ['PATH']}"
    environment = clean_environment({"PATH": path, "NO_PROXY": "*"})

    def paste(command):
        script = f"{export}\n{assign}\nexec {command}\n"
        child = subprocess.Popen(
            ["sh", "-ec", script],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    followers = [paste(follow), paste(follow_by_tail)]

    def reached():
        result, errors = paste(publish).communicate(timeout=TIMEOUT_SECONDS)
        assert '"id"' in result, errors
        return json.loads(result)["subscribers"] == 2

    eventually(reached, "a message that both followers get")
    assert followers[0].stdout.readline() == "hello\n"
    assert json.loads(followers[1].stdout.readline())["data"] == "hello"
    assert server.http.get("/channels/news/history").status_code == 401
    (token,) = re.findall(r"export THRONG_TOKEN=(\S+)", server.log())
    (key,) = re.findall(r"DEV_KEY=(\S+)", server.log())
    status = server.http.get("/status.json", headers={"Authorization": f"Bearer {key}"})
    assert status.status_code == 200
    server.stop()
    assert server.log().count(token) == 2, "the command, and the link of the chat"
    assert server.log().count(key) == 1


def test_sighup_exchanges_the_secret_of_a_running_server(tmp_path):
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text(SECRET)
    (tmp_path / "throng.toml").write_text("[[token-keys]]\nsecret-file = 'secret'\n")
    server = Server(tmp_path, "--drain-window", "200ms")

    def token(secret):
        claims = {"sub": "ann", "exp": int(time.time()) + 60, "throng": {"history": ["a"]}}
        return {"Authorization": "Bearer " + jwt.encode(claims, secret, "HS256")}

    def status(headers):
        return server.http.get("/channels/a/history", headers=headers).status_code

    old, new = token(SECRET), token(SECRET[::-1])
    assert (status(old), status(new)) == (200, 401)
    secret.write_text(SECRET[::-1])
    server.signal(signal.SIGHUP)
    eventually(lambda: "replaced: token keys" in server.log(), "the new secret")
    assert (status(old), status(new)) == (401, 200)
    server.stop()


def test_the_chat_that_dev_prints_works(chromium, tmp_path):
    server = Server(tmp_path, "--dev", "--drain-window", "200ms")
    eventually(lambda: "throng tail" in server.log(), "the banner")
    (link,) = re.findall(r"chat +(http\S+#token=\S+)", server.log())
    done = subprocess.run(
        ["node", HERE / "node" / "chat-token.mjs", chromium, link],
        env=clean_environment({"NO_PROXY": "*"}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS * 6,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr + server.log()
    server.stop()
