"""Commands that take a URL, over TLS by OpenSSL: whom they trust, and what they say if not."""

import subprocess

import pytest

from support import TIMEOUT_SECONDS
from support.server import BINARY, clean_environment, run_throng
from support.tls import Authority, TlsProxy


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def proxy(authority, server):
    started = TlsProxy(authority.context("localhost", "127.0.0.1"), server.port)
    yield started
    started.stop()


def test_publish_and_tail(proxy, authority, channel, tmp_path):
    trusted = ["--ca", authority.file]
    tail = subprocess.Popen(
        [BINARY, "tail", "--url", f"wss://localhost:{proxy.port}", *trusted, channel],
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        # It says so when it follows the channel.
        assert tail.stderr.readline()
        url = f"https://127.0.0.1:{proxy.port}"
        for flags in [trusted, ["--insecure"]]:
            published = run_throng(
                "publish", "--url", url, *flags, channel, "hello", directory=tmp_path
            )
            assert published.returncode == 0, published.stderr
            assert '"subscribers":1' in published.stdout
            assert "hello" in tail.stdout.readline()
    finally:
        tail.kill()
        tail.communicate(timeout=TIMEOUT_SECONDS)


def test_other_commands(proxy, authority, tmp_path):
    url = f"https://localhost:{proxy.port}"
    for command in [["health"], ["channels"]]:
        done = run_throng(*command, "--url", url, "--ca", authority.file, directory=tmp_path)
        assert done.returncode == 0, done.stderr


def test_who_is_not_trusted(server, proxy, authority, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    url = f"https://localhost:{proxy.port}"
    plain = server.url.replace("http:", "https:")
    named = TlsProxy(authority.context("push.test"), server.port)
    for arguments, words in [
        ([url, "--ca", Authority(other).file], "no trusted authority has signed it (--ca names"),
        ([f"https://localhost:{named.port}", "--ca", authority.file], "for another host name"),
        ([url, "--ca", tmp_path / "no.pem"], "no.pem: there is no such file"),
        ([plain, "--insecure"], "does not speak TLS there"),
        ([server.url, "--insecure"], "--ca and --insecure are for https:// URLs"),
    ]:
        done = run_throng("publish", "--url", *arguments, "a", "hello", directory=tmp_path)
        assert done.returncode == 1 and words in done.stderr, done.stderr
        assert "panicked" not in done.stderr
    named.stop()
