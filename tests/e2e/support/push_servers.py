"""Push servers of others, for `throng flood` to load: real ones, each with the settings of a test.

Centrifugo and Mercure are in no package registry that the tests use: they are tried where
THRONG_TEST_CENTRIFUGO and THRONG_TEST_MERCURE name their binaries.
"""

import base64
import contextlib
import hashlib
import hmac
import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from . import PATIENCE_SECONDS
from .server import clean_environment

HERE = Path(__file__).parent
NODE_MODULES = HERE.parents[1] / "node_modules"
KEY = "a-secret-of-the-tests-with-32-bytes-or-more"
NCHAN_MODULE = Path("/usr/lib/nginx/modules/ngx_nchan_module.so")
NCHAN = """
load_module {module};
daemon off; worker_processes 1; pid {directory}/pid; error_log {directory}/error.log;
events {{ worker_connections 1000; }}
http {{
  access_log off;
  client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/fastcgi; uwsgi_temp_path {directory}/uwsgi;
  scgi_temp_path {directory}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location ~ ^/pub/(.+)$ {{ nchan_publisher; nchan_channel_id $1; }}
    location ~ ^/sub/(.+)$ {{ nchan_subscriber; nchan_channel_id $1; }}
  }}
}}
"""
MERCURE = """
{{
  admin off
  auto_https off
  persist_config off
}}
http://127.0.0.1:{port} {{
  route {{
    mercure {{
      publisher_jwt {key}
      subscriber_jwt {key}
      anonymous
    }}
    respond "Not Found" 404
  }}
}}
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def named_by(variable, server):
    """The binary that an environment variable names; skips the test, loudly, if there is none."""
    path = os.environ.get(variable)
    if not path:
        pytest.skip(f"{server} is not tried: set {variable} to the path of its binary")
    assert shutil.which(path), f"{variable}={path} is not a program"
    return path


def mercure_token():
    """A publisher's token for all topics, signed with `KEY`."""

    def part(data):
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    claims = {"mercure": {"publish": ["*"]}}
    text = ".".join(part(json.dumps(each).encode()) for each in [{"alg": "HS256"}, claims])
    return f"{text}.{part(hmac.digest(KEY.encode(), text.encode(), hashlib.sha256))}"


@contextlib.contextmanager
def running(command, port, directory, environment=None):
    """A server that is up when the block begins; yields the URL of its port."""
    log = directory / "server.log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            cwd=directory,
            env=clean_environment({"HOME": str(directory), **(environment or {})}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            assert child.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < deadline, log.read_text(errors="replace")
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 0.1).close()
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        child.terminate()
        child.wait()


def nchan(directory):
    """nginx with Nchan as Debian packages it."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None or not NCHAN_MODULE.exists():
        pytest.skip("Nchan is not tried: apt-get install nginx libnginx-mod-nchan")
    port = free_port()
    text = NCHAN.format(module=NCHAN_MODULE, directory=directory, port=port)
    (directory / "nginx.conf").write_text(text)
    files = ["-c", directory / "nginx.conf", "-e", directory / "error.log"]
    return running([nginx, "-p", directory, *files], port, directory)


def bun(directory):
    """A broadcast server on Bun; the package has its binary, so that no install script is needed."""
    binary = next(NODE_MODULES.glob("@oven/*/bin/bun"), None)
    if binary is None:
        pytest.skip("Bun is not tried: scripts/setup installs it on processors that it supports")
    port = free_port()
    script = HERE.parent / "node" / "bun-broadcast.mjs"
    return running([binary, "run", script, str(port)], port, directory)


def centrifugo(directory):
    """Centrifugo, which lets everybody connect and subscribe. Options of version 5 and 6."""
    binary = named_by("THRONG_TEST_CENTRIFUGO", "Centrifugo")
    port = free_port()
    options = {
        "PORT": port,
        "HTTP_SERVER_PORT": port,
        "ADDRESS": "127.0.0.1",
        "HTTP_SERVER_ADDRESS": "127.0.0.1",
        "CLIENT_INSECURE": "true",
        "API_KEY": KEY,
        "HTTP_API_KEY": KEY,
        "UNI_SSE": "true",
        "UNI_SSE_ENABLED": "true",
        # Short enough for a client that answers no pings to be thrown out.
        "PING_INTERVAL": "1s",
        "PONG_TIMEOUT": "500ms",
        "CLIENT_PING_INTERVAL": "1s",
        "CLIENT_PONG_TIMEOUT": "500ms",
    }
    environment = {f"CENTRIFUGO_{name}": str(value) for name, value in options.items()}
    return running([binary], port, directory, environment)


def mercure(directory):
    """A Mercure hub, which lets everybody subscribe."""
    binary = named_by("THRONG_TEST_MERCURE", "Mercure")
    port = free_port()
    (directory / "Caddyfile").write_text(MERCURE.format(port=port, key=KEY))
    command = [binary, "run", "--config", "Caddyfile", "--adapter", "caddyfile"]
    return running(command, port, directory)
