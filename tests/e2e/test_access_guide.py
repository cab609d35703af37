"""The guide "Let only your users in": its very files and commands, from the login to the message."""

import json
import os
import re
import subprocess
import sys
import threading

import httpx
import pytest
import websockets.sync.client
from websockets.exceptions import ConnectionClosed

from conftest import HERE
from support import TIMEOUT_SECONDS
from support.server import BINARY, ROOT, clean_environment, run_throng

GUIDE = (ROOT / "docs" / "guides" / "access.md").read_text()
DOCUMENTED = "http://127.0.0.1:8080"
FLASK = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")


def block(language, beginning):
    """The block of the guide in a language that begins so."""
    blocks = re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)
    (found,) = [text for text in blocks if text.startswith(beginning)]
    return found


class Application:
    """The Flask application of the guide."""

    def __init__(self, directory):
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "flask", "--app", "app", "run", "--port", "0"],
            cwd=directory,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output, self.url = "", None
        started = threading.Event()

        def read():
            for line in self.process.stdout:
                self.output += line
                if found := FLASK.search(line):
                    self.url = found.group(1)
                    started.set()
            started.set()

        threading.Thread(target=read, daemon=True).start()
        assert started.wait(TIMEOUT_SECONDS) and self.url, self.output

    def http(self, **options):
        """A client of the application."""
        return httpx.Client(
            base_url=self.url, trust_env=False, timeout=TIMEOUT_SECONDS, **options
        )

    def token(self, user, password):
        """Logs in as a browser does, and returns the token."""
        with self.http(follow_redirects=True) as client:
            assert client.get("/push-token").status_code == 401
            answer = client.post("/login", data={"user": user, "password": password})
            assert answer.status_code == 200, answer.text
            return client.get("/push-token").json()["token"]


def shell(command, directory):
    """Runs a command of the guide, where `throng` is the binary under test."""
    path = f"{BINARY.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-ec", command],
        cwd=directory,
        env=clean_environment({"PATH": path, "NO_PROXY": "*"}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def chat(serve, tmp_path):
    """The server and the application of the guide, with the files that it says to make."""
    shell(block("sh", "(umask"), tmp_path)
    settings = block("toml", "[[token-keys]]") + block("toml", "[[channels]]")
    with (tmp_path / "throng.toml").open("a") as file:
        file.write("\n" + settings)
    assert run_throng("check", directory=tmp_path).stderr == "", "no warning, no error"
    server = serve()
    (tmp_path / "app.py").write_text(block("python", '"""A chat'))
    (tmp_path / "page.html").write_text(block("html", "<!doctype").replace(DOCUMENTED, server.url))
    application = Application(tmp_path)
    yield server, application
    application.process.kill()
    application.process.communicate()


def test_a_page_of_a_user_who_is_logged_in_sends_and_receives(chat, chromium, tmp_path):
    server, application = chat
    commands = block("sh", "curl -H").replace(DOCUMENTED, server.url)
    shell(commands, tmp_path)
    done = subprocess.run(
        ["node", HERE / "node" / "login.mjs", chromium, application.url, "ann", "apple", "hi all"],
        env=clean_environment({"NO_PROXY": "*"}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS * 6,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr + server.log()
    assert json.loads(done.stdout) == ["the garden is open", "hi all"]


def test_each_user_gets_what_their_token_grants(chat, tmp_path):
    server, application = chat
    tokens = {"ann": application.token("ann", "apple"), "bob": application.token("bob", "banana")}

    def status(path, user=None):
        headers = {"Authorization": f"Bearer {tokens[user]}"} if user else {}
        return server.http.get(path, headers=headers).status_code

    garden, attic = "/channels/rooms%2Fgarden", "/channels/rooms%2Fattic"
    for path in (garden, attic):
        assert status(f"{path}/history") == 401
        assert status(f"{path}/history", "ann") == 200
    assert status(f"{garden}/history", "bob") == 200
    assert status(f"{attic}/history", "bob") == 403
    assert status("/channels/news/history") == 200, "anyone may"
    for path in ("/channels/news", attic):
        headers = {"Authorization": f"Bearer {tokens['bob']}"}
        assert server.http.post(path, content="x", headers=headers).status_code == 403
    with pytest.raises(ConnectionClosed) as closed:
        url = f"{server.ws}/users/ann?token={tokens['bob']}"
        with websockets.sync.client.connect(url, proxy=None) as socket:
            socket.recv(TIMEOUT_SECONDS)
    assert closed.value.rcvd.code == 4005
    with websockets.sync.client.connect(
        f"{server.ws}/users/ann?token={tokens['ann']}", proxy=None
    ) as socket:
        shell(block("sh", "curl -H").replace(DOCUMENTED, server.url), tmp_path)
        assert socket.recv(TIMEOUT_SECONDS) == "only for ann"
    for token in tokens.values():
        assert token not in server.log() + application.output


@pytest.mark.parametrize(("user", "password"), [("ann", "banana"), ("eve", "apple"), ("", "")])
def test_a_wrong_password_gives_no_token(chat, user, password):
    _, application = chat
    with application.http() as client:
        data = {"user": user, "password": password}
        assert client.post("/login", data=data).status_code == 403
        assert client.get("/push-token").status_code == 401


def test_the_commands_that_explain_a_refusal(chat, tmp_path):
    _, application = chat
    token = application.token("bob", "banana")
    (explain,) = re.findall(r"throng token show TOKEN.*?```", GUIDE, re.DOTALL)
    lines = explain.removesuffix("```").replace("TOKEN", token).splitlines()
    shown, checked, channel = [shell(line, tmp_path) for line in lines]
    assert '"sub": "bob"' in shown
    assert checked.startswith("valid: user bob; ") and "subscribe  rooms/garden\n" in checked
    assert "publish    yes  the token grants rooms/garden\n" in channel
