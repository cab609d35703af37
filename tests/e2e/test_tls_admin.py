"""The admin listener over TLS."""

import signal
import socket
import ssl
from urllib.parse import urlsplit

import httpx
import pytest

from support import TIMEOUT_SECONDS
from support.certificates import make_certificate, trusting
from support.server import eventually, run_throng

ADMIN = ["--admin-listen", "127.0.0.1:0", "--admin-tls"]


@pytest.fixture
def admin(serve, tmp_path):
    """A server whose admin listener speaks TLS, the address of that, and who trusts it."""
    certificate, key = make_certificate(tmp_path, "own", "localhost")
    server = serve(*ADMIN, "--tls-cert", certificate, "--tls-key", key)
    eventually(lambda: "admin listener on https://" in server.log(), "the admin listener")
    line = next(line for line in server.output if "admin listener on" in line)
    return server, line.split()[-1], trusting(certificate)


def https(url, context):
    return httpx.Client(base_url=url, verify=context, timeout=TIMEOUT_SECONDS, trust_env=False)


def test_operators_see_status_and_metrics_and_publish(admin, channel):
    server, url, context = admin
    with https(url, context) as client:
        assert client.get("/status").status_code == 200
        assert "throng_connections" in client.get("/metrics").text
        answer = client.post(f"/channels/{channel}", content="over TLS")
        assert answer.status_code == 201
        text = "x" * 60_000
        for _ in range(10):
            assert client.post(f"/channels/{channel}", content=text).status_code == 201
        page = client.get(f"/channels/{channel}/history").json()
        assert [one["data"] for one in page["messages"]] == ["over TLS", *[text] * 10]
    assert len(server.history(channel)["messages"]) == 11


def test_plain_http_is_told_to_use_tls(admin):
    _, url, _ = admin
    with httpx.Client(trust_env=False, timeout=TIMEOUT_SECONDS) as client:
        answer = client.get(url.replace("https", "http") + "/status")
    assert answer.status_code == 400
    assert answer.json()["message"] == "this port speaks TLS; use https"


def test_sessions_are_resumed_and_the_end_is_said(admin):
    _, url, context = admin
    address = urlsplit(url)
    session = None
    for is_resumed in (False, True):
        plain = socket.create_connection((address.hostname, address.port), TIMEOUT_SECONDS)
        with context.wrap_socket(
            plain,
            server_hostname="localhost",
            session=session,
            suppress_ragged_eofs=False,
        ) as connection:
            assert connection.session_reused is is_resumed
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
            connection.sendall(b"Connection: close\r\n\r\n")
            text = b""
            # Without `close_notify` it would raise.
            while part := connection.recv(4096):
                text += part
            assert text.startswith(b"HTTP/1.1 200 ")
            session = connection.session


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_are_spoken(admin, version):
    _, url, context = admin
    context.minimum_version = context.maximum_version = version
    with https(url, context) as client:
        assert client.get("/health").status_code == 200


def shown(url):
    """The certificate that the server shows now."""
    address = urlsplit(url)
    return ssl.get_server_certificate((address.hostname, address.port), timeout=TIMEOUT_SECONDS)


def test_new_files_hold_after_sighup_and_broken_ones_change_nothing(admin, tmp_path):
    server, url, context = admin
    with https(url, context) as client:
        old = shown(url)
        expiry = 'throng_tls_certificate_not_after_timestamp_seconds{certificate="localhost"} '

        def metric(name):
            lines = client.get("/metrics").text.splitlines()
            return float(next(line for line in lines if line.startswith(name)).split()[-1])

        before = metric(expiry)
        assert "degraded" not in client.get("/health/ready").text
        (tmp_path / "own.key").write_text("-----BEGIN NOTHING-----")
        server.signal(signal.SIGHUP)
        eventually(lambda: "everything stays as it was" in server.log(), "the error")
        assert metric('throng_tls_reloads_total{outcome="refused"}') == 1
        assert "certificate_refused" in client.get("/health/ready").text
        assert shown(url) == old

        (tmp_path / "own.key").unlink()
        server.signal(signal.SIGHUP)
        eventually(lambda: "there is no file" in server.log(), "the error")
        assert shown(url) == old

        certificate, _ = make_certificate(tmp_path, "own", "localhost", days=90)
        server.signal(signal.SIGHUP)
        eventually(lambda: "replaced: certificates" in server.log(), "the new files")
        assert shown(url).split() == certificate.read_text().split()
        # The connection from before stays open, and tells the new expiry.
        assert metric(expiry) > before + 50 * 86400
        assert "certificate_refused" not in client.get("/health/ready").text


def test_broken_files_are_one_sentence(tmp_path):
    certificate, key = make_certificate(tmp_path, "own", "localhost")
    _, other = make_certificate(tmp_path, "other", "localhost")

    def refused(*flags):
        done = run_throng("serve", "--listen", ":0", *flags, directory=tmp_path)
        assert done.returncode == 78, done
        assert run_throng("check", *flags, directory=tmp_path).returncode == 78
        return done.stderr

    assert f"tls-key: {other} is not the key of the certificate in {certificate}" in refused(
        *ADMIN, "--tls-cert", certificate, "--tls-key", other
    )
    missing = tmp_path / "none.pem"
    assert f"tls-cert: there is no file {missing}" in refused(
        *ADMIN, "--tls-cert", missing, "--tls-key", key
    )
    assert "tls-cert names" in refused("--tls-cert", certificate)
    assert "admin-tls needs a certificate" in refused(*ADMIN)
