"""The guide's nginx configuration for public channels, taken from the guide and run: clients read, and only read.

It listens on a Unix socket, so that no port has to be found for it.
"""

import re
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from support import TIMEOUT_SECONDS
from support.raw import TEXT, RawWebSocket, frame, handshake_headers
from support.server import ROOT, eventually

GUIDE = ROOT / "docs" / "guides" / "proxy.md"
HOST = "push.example.com"
READ_ONLY = '        proxy_set_header Connection "";'
FLAGS = ("--allowed-hosts", HOST)


def guide(language):
    """The blocks of one language in the guide's section about proxies."""
    section = GUIDE.read_text().partition("\n## Public channels that can only be read\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def printed():
    """The configuration that the guide prints, and its lines for WebSockets."""
    configuration, websockets = guide("nginx")
    return configuration, websockets


class Connection:
    """Mixin for raw clients: connects to the Unix socket of a proxy."""

    def __init__(self, path, connect=True):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(TIMEOUT_SECONDS)
        self.socket.connect(str(path))
        self.host, self.buffer = HOST, b""


class Client(Connection, RawWebSocket):
    """A client of the proxy; a WebSocket after its handshake."""


@pytest.fixture
def proxy():
    """Starts nginx with a configuration in front of a server; gives the path of its socket."""
    started = []
    with tempfile.TemporaryDirectory(prefix="throng-nginx-") as directory:

        def start(configuration, server):
            path = Path(directory) / "socket"
            for old, new in [
                ("server 127.0.0.1:8080;", f"server {server.host}:{server.port};"),
                ("listen 80;", f"listen unix:{path};"),
                ("/var/log/nginx/throng.log", f"{directory}/access.log"),
                ("/var/log/nginx/throng-error.log", f"{directory}/error.log"),
            ]:
                assert configuration.count(old) == 1, old
                configuration = configuration.replace(old, new)
            stores = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            stores = "".join(f"{name}_temp_path {directory}/{name};\n" for name in stores)
            file = Path(directory) / "nginx.conf"
            file.write_text(
                f"daemon off;\nmaster_process off;\npid {directory}/pid;\n"
                "error_log stderr info;\nevents {}\n"
                f"http {{\naccess_log off;\n{stores}\n{configuration}\n}}\n"
            )
            process = subprocess.Popen(
                ["nginx", "-p", directory, "-c", file, "-e", "stderr"],
                stdin=subprocess.DEVNULL,
            )
            started.append(process)
            eventually(lambda: accepts(path) or process.poll() is not None, "nginx")
            assert process.poll() is None, "nginx has ended: see its words above"
            return path

        yield start
        for process in started:
            process.terminate()
            process.wait(TIMEOUT_SECONDS)


def accepts(path):
    """Whether something listens at the path; a socket that is only bound refuses."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


def ask(path, method, target, headers=None, body=b""):
    """One request through the proxy."""
    with Client(path) as client:
        client.request(method, target, {**(headers or {}), "Connection": "close"}, body)
        return client.read_response()


def messages(server, channel):
    """The history of a channel."""
    return [message["data"] for message in server.history(channel)["messages"]]


def test_nothing_is_published_through_the_printed_block(serve, proxy, channel):
    server = serve(*FLAGS)
    path = proxy(printed()[0], server)
    target = f"/channels/{channel}"
    for method, where in [("POST", target), ("PUT", target), ("POST", "/users/ann")]:
        assert ask(path, method, where, body=b"x").status == 403, (method, where)
    assert ask(path, "POST", "/publish", body=b'{"channel":"%s","data":"x"}').status == 404
    for protocol in (None, "throng.v1"):
        with Client(path) as client:
            client.request("GET", target, handshake_headers(Sec_WebSocket_Protocol=protocol))
            # nginx turns it into a plain stream, over which a client cannot publish.
            assert client.read_head().status != 101
            client.send_anyway(frame(TEXT, "pushed through the proxy"))
            server.publish(channel, f"the last, {protocol}")
            eventually(lambda: f"the last, {protocol}" in messages(server, channel), "the last")
    assert messages(server, channel) == ["the last, None", "the last, throng.v1"]


def test_the_public_reads_through_the_printed_block(serve, proxy, channel):
    server = serve(*FLAGS)
    path = proxy(printed()[0], server)
    encoded = f"{channel}%2Fdeep"
    with Client(path) as stream:
        stream.request("GET", f"/channels/{encoded}", {"Accept": "text/event-stream"})
        assert stream.read_head().status == 200
        server.wait_for_connections(f"{channel}/deep", 1)
        server.publish(f"{channel}/deep", "hello")
        assert b"data: hello\n" in stream.read_until(b"data: hello\n")
    history = ask(path, "GET", f"/channels/{encoded}/history").json()
    assert [message["data"] for message in history["messages"]] == ["hello"]
    assert ask(path, "GET", f"/channels/{encoded}?history=1&wait=1").body == b"hello"
    assert ask(path, "GET", "/health").status == 200
    assert ask(path, "GET", "/throng.js").status == 200
    for hidden in ("/status", "/status.json", "/status/stream", "/metrics", "/chat", "/"):
        assert ask(path, "GET", hidden).status == 404, hidden


def test_the_printed_block_logs_no_token(serve, proxy, channel):
    server = serve(*FLAGS)
    path = proxy(printed()[0], server)
    target = f"/channels/{channel}?history=1&wait=0&token=s3cret"
    referrer = {"Referer": f"http://{HOST}{target}"}
    assert ask(path, "GET", target, referrer).status == 204
    assert ask(path, "POST", target, referrer, b"x").status == 403
    server.stop()
    assert ask(path, "GET", target, referrer).status == 502
    access = path.with_name("access.log")
    eventually(lambda: access.read_text().count(f"/channels/{channel}") == 3, "three lines")
    for log in (access, path.with_name("error.log")):
        assert "s3cret" not in log.read_text(), log


def test_websockets_only_read_with_the_printed_settings(serve, proxy, channel):
    (command,) = guide("sh")
    flags = command.split()
    assert flags[:2] == ["throng", "serve"]
    flags = [flag.replace("127.0.0.1:8081", "127.0.0.1:0") for flag in flags[2:]]
    server = serve(*flags)
    configuration, websockets = printed()
    (line,) = [line for line in configuration.splitlines() if line.startswith(READ_ONLY)]
    path = proxy(configuration.replace(line + "\n", websockets), server)
    with Client(path) as client, server.admin() as admin:
        client.request("GET", f"/channels/{channel}", handshake_headers())
        assert client.read_response().status == 101
        assert admin.post(f"/channels/{channel}", content="hello").status_code == 201
        assert client.read_message() == b"hello"
        client.send(frame(TEXT, "pushed through the proxy"))
        assert client.read_close()[0] == 1008
    assert messages(server, channel) == ["hello"]
