"""The proxies of the guides, configured as printed: the JavaScript client in Chromium behind each of them.

Each block is taken from its guide, and only its addresses are replaced.
"""

import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from support import TIMEOUT_SECONDS
from support.access import SECRET, token
from support.server import ROOT, eventually, on_free_port

GUIDES = ROOT / "docs" / "guides"
HOST = "push.example.com"
CHANNEL = "rooms/garden"
# The clients of the page: one over each transport of the client, and an EventSource without it.
CLIENTS = ["websocket", "sse", "poll", "EventSource"]
ALL = ",".join(CLIENTS)
RIGHTS = {"subscribe": ["rooms/*"], "publish": ["rooms/*"], "history": ["rooms/*"], "presence": ["rooms/*"]}


def printed(guide, section, language):
    """The first block of a language in a section of a guide."""
    _, heading, text = (GUIDES / guide).read_text().partition(f"\n## {section}\n")
    assert heading, section
    return re.search(rf"^```{language}\n(.*?)^```$", text.partition("\n## ")[0], re.MULTILINE | re.DOTALL)[1]


def with_places(text, places):
    """The block with other addresses and paths; each of them has to be in it."""
    for old, new in places.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def nginx(directory, server, port):
    places = {
        "server 127.0.0.1:8080;": f"server {server};",
        "listen 80;": f"listen 127.0.0.1:{port};",
        "/var/log/nginx/": f"{directory}/",
    }
    block = with_places(printed("operate.md", "A proxy in front", "nginx"), places)
    stores = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
    stores = "".join(f"{name}_temp_path {directory}/{name};\n" for name in stores)
    file = directory / "nginx.conf"
    file.write_text(
        f"daemon off;\nmaster_process off;\npid {directory}/pid;\nerror_log stderr;\nevents {{}}\n"
        f"http {{\n{stores}\n{block}\n}}\n"
    )
    return ["nginx", "-p", directory, "-c", file, "-e", "stderr"]


def caddy(directory, server, port):
    places = {"push.example.com {": f"http://{HOST}:{port} {{\n    bind 127.0.0.1", "127.0.0.1:8080": server}
    file = directory / "Caddyfile"
    file.write_text("{\n    admin off\n}\n" + with_places(printed("proxy.md", "Caddy", "caddyfile"), places))
    return ["caddy", "run", "--adapter", "caddyfile", "--config", file]


def haproxy(directory, server, port):
    answer = directory / "away.http"
    answer.write_bytes(printed("proxy.md", "HAProxy", "http").replace("\n", "\r\n").encode())
    places = {
        "bind :80 ": f"bind 127.0.0.1:{port} ",
        "127.0.0.1:8080": server,
        "/etc/haproxy/away.http": str(answer),
    }
    file = directory / "haproxy.cfg"
    file.write_text(with_places(printed("proxy.md", "HAProxy", "haproxy"), places))
    return [shutil.which("haproxy") or "/usr/sbin/haproxy", "-db", "-f", file]


def traefik(directory, server, port):
    block = printed("proxy.md", "Traefik", "yaml")
    file = directory / "dynamic.yaml"
    file.write_text(with_places(block, {"http://127.0.0.1:8080": f"http://{server}"}))
    binary = Path(sys.executable).with_name("traefik")
    return [binary, f"--entryPoints.web.address=127.0.0.1:{port}", f"--providers.file.filename={file}"]


PROXIES = {"nginx": nginx, "caddy": caddy, "haproxy": haproxy, "traefik": traefik}


def forwards(port):
    """Whether the proxy has read its configuration, and the server answers through it."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", headers={"Host": HOST}, trust_env=False).is_success
    except httpx.TransportError:
        return False


@contextmanager
def running(proxy, directory, server):
    """Runs a proxy in front of a server; gives its port."""
    log = directory / "log"

    def start(port):
        command = PROXIES[proxy](directory, server, port)
        environment = {"PATH": "/usr/sbin:/usr/bin:/bin", "HOME": str(directory), "NO_PROXY": "*"}
        with log.open("w") as output:
            process = subprocess.Popen(
                [str(part) for part in command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        eventually(lambda: forwards(port) or process.poll() is not None, log.read_text)
        if process.poll() is not None:
            raise RuntimeError(f"{proxy} has ended: {log.read_text()}")
        return process

    process, port = on_free_port(start)
    try:
        yield port
    finally:
        # Asked to end, some wait for their connections.
        process.kill()
        process.wait(TIMEOUT_SECONDS)


class Page:
    """The page of `proxies.mjs`."""

    def __init__(self, node, chromium_program):
        self.process = node("proxies.mjs", chromium_program)
        self.origin = self.process.stdout.readline().strip()

    def tell(self, *words):
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self):
        self.process.stdin.write("end\n")
        self.process.stdin.flush()
        assert self.process.wait(TIMEOUT_SECONDS) == 0


@pytest.mark.parametrize("proxy", PROXIES)
def test_clients_behind_the_printed_proxy(serve, node, chromium_program, tmp_path, proxy):
    page = Page(node, chromium_program)
    settings = tmp_path / "throng.toml"
    settings.write_text(f"[[token-keys]]\nsecret = '{SECRET}'\n")
    flags = ["--config", settings, "--allowed-hosts", HOST, "--allowed-origins", page.origin]
    flags += ["--trusted-proxies", "127.0.0.1", "--client-address-header", "x-forwarded-for"]
    flags += ["--admin-listen", "127.0.0.1:0"]
    server = serve(*flags)
    with running(proxy, tmp_path, f"{server.host}:{server.port}") as port, server.admin() as admin:
        admin.post("/channels/rooms%2Fgarden", content="before")
        given = token(sub="ann", throng=RIGHTS)
        assert page.tell("open", f"http://{HOST}:{port}", given) == "open"
        for transport in CLIENTS[:3]:
            assert page.tell("publish", transport) == "published"
            assert page.tell("await", f"from-{transport}") == ALL
        admin.post("/channels/rooms%2Fgarden", content="first")
        assert page.tell("await", "first") == ALL
        if proxy == "traefik":
            # It cannot answer in place of a server that is away, as the guide says.
            return page.end()
        server.stop()
        again = serve(*flags, port=server.port)
        with again.admin() as admin:
            path = "/channels/rooms%2Fgarden/presence"
            eventually(lambda: admin.get(path).json()["connections"] >= len(CLIENTS), "all clients back")
            admin.post("/channels/rooms%2Fgarden", content="second")
        assert page.tell("await", "second") == ALL
    page.end()
