"""The frames, requests and signatures of tests/pusher, against this server, plain and over TLS."""

import os
import subprocess
import sys

import pytest

from support.pusher import APP, TABLE
from support.server import ROOT, clean_environment
from support.tls_server import start_tls

RUN = ROOT / "tests" / "pusher" / "run"


@pytest.mark.parametrize("is_tls", [False, True])
def test_what_is_written_happens(tmp_path, serve, is_tls):
    (tmp_path / "throng.toml").write_text(TABLE)
    more = {"NO_PROXY": "*", "PATH": os.environ["PATH"]}
    if is_tls:
        tls = start_tls(tmp_path)
        url, more["SSL_CERT_FILE"] = f"https://localhost:{tls.port}", str(tls.certificate)
    else:
        url = serve().url
    command = [sys.executable, RUN, url, *(part for name, value in APP.items() for part in (f"--{name}", value))]
    done = subprocess.run(command, env=clean_environment(more), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    if is_tls:
        tls.plain.stop()
