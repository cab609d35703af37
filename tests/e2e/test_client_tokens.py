"""The JavaScript client with short-lived tokens against the real server, in Node and in Chromium."""

import json
import subprocess
import time

import jwt
import pytest

from conftest import HERE
from support import TIMEOUT_SECONDS
from support.server import clean_environment

SECRET = "a secret of thirty-two bytes or more"
TRANSPORTS = ["websocket", "sse", "poll"]
GRANTS = {"subscribe": ["*"], "publish": ["*"], "history": ["*"]}
# What is left of a token that a test can outlive, with some seconds for a busy machine, and how old it
# is. A WebSocket is told in the last tenth of its life, and has to show another one in time.
LIVES = {"websocket": (10, 90), "sse": (6, 0), "poll": (6, 0)}


@pytest.fixture
def protected(serve, tmp_path):
    """A server that asks for tokens."""
    settings = f'token-leeway = "0s"\n\n[[token-keys]]\nsecret = "{SECRET}"\n'
    (tmp_path / "throng.toml").write_text(settings)
    server = serve()
    server.http.headers["Authorization"] = f"Bearer {token('app', 600, GRANTS)}"
    return server


def token(user, left_seconds, grants, age_seconds=0):
    now = int(time.time())
    claims = {"sub": user, "iat": now - age_seconds, "exp": now + left_seconds, "throng": grants}
    return jwt.encode(claims, SECRET, algorithm="HS256")


class Client:
    """The client in a program; it asks for tokens on its output and gets them on its input."""

    def __init__(self, child, issue):
        self.child, self.issue, self.heard = child, issue, []

    def tell(self, command, **parameters):
        self.child.stdin.write(json.dumps({"command": command, **parameters}) + "\n")
        self.child.stdin.flush()

    def until(self, matches):
        """Reads on until an event matches; returns that one."""
        while True:
            line = self.child.stdout.readline()
            assert line, f"the program has ended after {self.heard}"
            event = json.loads(line)
            self.heard.append(event)
            if event["event"] == "getToken":
                self.tell("token", token=self.issue(len(self.all("getToken"))))
            if matches(event):
                return event

    def until_message(self, data):
        return self.until(lambda it: it["event"] == "message" and it["data"] == data)

    def all(self, name):
        return [event for event in self.heard if event["event"] == name]


@pytest.fixture(params=["node", "chromium"])
def start(request, node, chromium, protected):
    """Starts the client in Node or in a page."""

    def launch(transport, issue):
        page = [chromium] if request.param == "chromium" else []
        child = node("token-client.mjs", protected.url, transport, *page)
        return Client(child, issue)

    return launch


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_nothing_is_lost_or_repeated_while_tokens_expire(start, protected, channel, transport):
    left, age = LIVES[transport]
    client = start(transport, lambda _: token("ann", left, GRANTS, age))
    client.tell("subscribe", channel=channel)
    client.until(lambda it: it["event"] == "state" and it["state"] == "open")
    client.tell("publish", channel=channel, data=0)
    client.until_message(0)
    number = 0
    while len(client.all("getToken")) < 3:
        number += 1
        protected.http.post(f"/channels/{channel}", json=number).raise_for_status()
        client.until_message(number)
    client.tell("publish", channel=channel, data="last")
    client.until_message("last")
    assert [it["data"] for it in client.all("message")] == [*range(number + 1), "last"]
    assert not client.all("gap") and not client.all("error")
    if transport == "websocket":
        assert not [it for it in client.all("state") if it["state"] == "waiting"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_channel_that_is_not_granted_ends_alone(start, protected, channel, transport):
    grants = {"subscribe": [channel], "publish": [channel], "history": [channel]}
    client = start(transport, lambda _: token("ann", 600, grants))
    client.tell("subscribe", channel=f"{channel}-other")
    client.tell("subscribe", channel=channel)
    client.until(lambda it: it["event"] == "refused" and it["code"] == "forbidden")
    client.tell("publish", channel=channel, data="hello")
    client.until_message("hello")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_no_token_and_bad_tokens(start, channel, transport):
    forged = jwt.encode({"sub": "ann", "exp": 2**31}, "x" * 40, algorithm="HS256")
    client = start(transport, lambda calls: [forged, forged, None][calls - 1])
    client.tell("subscribe", channel=channel)
    assert client.until(lambda it: it["event"] == "error")["code"] == "no_token"
    assert client.heard[-2:][0]["event"] in ("state", "getToken")
    assert {it["transport"] for it in client.all("state")} == {transport}


def test_the_chat_takes_a_token_from_its_url_or_its_reader(protected, chromium):
    grants = {kind: ["chat:*"] for kind in (*GRANTS, "presence")}
    tokens = [token("ann", 600, grants), token("bo", 600, grants), "not.a.token"]
    done = subprocess.run(
        ["node", HERE / "node" / "chat-tokens.mjs", chromium, protected.url, *tokens],
        env=clean_environment({"NO_PROXY": "*"}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS * 4,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
