"""Clients over TLS at the public listener: requests, subscriptions, and the way between the planes."""

import re
import socket
import ssl
import subprocess

import httpx
import pytest

from support import TIMEOUT_SECONDS
from support.certificates import Authority, make_certificate, trusting
from support.server import eventually, on_free_port

ADDRESS = re.compile(r"TLS listener on https://[\d.]+:(\d+)")


def port(server):
    eventually(lambda: ADDRESS.search(server.log()), "the TLS listener")
    return int(ADDRESS.search(server.log()).group(1))


@pytest.fixture
def secure(serve, tmp_path):
    """Starts a server with TLS and a certificate for localhost; returns its port, too."""
    certificate, key = make_certificate(tmp_path, "own", "localhost")

    def start(*flags, **options):
        flags = ["--tls-listen", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key, *flags]
        server = serve(*flags, **options)
        return server, port(server), certificate

    return start


def client(number, context):
    url = f"https://localhost:{number}"
    return httpx.Client(base_url=url, verify=context, timeout=TIMEOUT_SECONDS, trust_env=False)


def connect(number, context, name="localhost", **options):
    plain = socket.create_connection(("127.0.0.1", number), TIMEOUT_SECONDS)
    return context.wrap_socket(plain, server_hostname=name, **options)


def read_until(connection, end):
    text = b""
    while end not in text:
        part = connection.recv(4096)
        assert part, text
        text += part
    return text


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_connection_publishes_and_subscribes_then(secure, channel, version):
    server, number, certificate = secure()
    context = trusting(certificate)
    context.minimum_version = context.maximum_version = version
    with connect(number, context) as connection:
        for text in ("one", "two"):
            head = f"POST /channels/{channel} HTTP/1.1\r\nHost: localhost\r\n"
            connection.sendall(f"{head}Content-Length: 3\r\n\r\n{text}".encode())
            assert read_until(connection, b"subscribers").startswith(b"HTTP/1.1 201")
        head = f"GET /channels/{channel} HTTP/1.1\r\nHost: localhost\r\n"
        connection.sendall(f"{head}Accept: text/event-stream\r\n\r\n".encode())
        server.wait_for_connections(channel, 1)
        server.publish(channel, "to the subscriber")
        assert b"data: to the subscriber" in read_until(connection, b"subscriber\n")


def test_pages_history_and_large_answers(secure, channel):
    _, number, certificate = secure()
    with client(number, trusting(certificate)) as http:
        text = "x" * 60_000
        for _ in range(12):
            assert http.post(f"/channels/{channel}", content=text).status_code == 201
        page = http.get(f"/channels/{channel}/history").json()
        assert all(one["data"] == text for one in page["messages"])
        assert http.get("/status").status_code == 200
        assert http.get("/throng.js").status_code == 200


def test_each_name_has_its_certificate(secure, tmp_path):
    first, second = (make_certificate(tmp_path, name, f"{name}.example") for name in "ab")
    table = f"[[certificates]]\ncert = '{first[0]}'\nkey = '{first[1]}'\n"
    table += f"[[certificates]]\ncert = '{second[0]}'\nkey = '{second[1]}'\n"
    (tmp_path / "throng.toml").write_text(table)
    _, number, own = secure()
    for certificate, name in [
        (own, "localhost"),
        (first[0], "a.example"),
        (second[0], "b.example"),
    ]:
        with connect(number, trusting(certificate), name):
            pass
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(number, trusting(first[0]), "b.example")


def test_openssl_resumes_a_session(secure, tmp_path):
    _, number, certificate = secure()
    for version in ("-tls1_2", "-tls1_3"):
        session = tmp_path / f"session{version}"
        command = ["openssl", "s_client", "-connect", f"127.0.0.1:{number}", version]
        command += ["-servername", "localhost", "-CAfile", certificate, "-ign_eof", "-crlf"]
        request = "GET /health HTTP/1.1\nHost: localhost\nConnection: close\n\n"

        def run(*more):
            done = subprocess.run(
                [*command, *more],
                input=request,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
            assert "HTTP/1.1 200 OK" in done.stdout, done.stdout + done.stderr
            return done.stdout

        assert "\nNew, " in run("-sess_out", session)
        assert "\nReused, " in run("-sess_in", session)


def test_clients_show_certificates(serve, tmp_path, channel):
    certificate, key = make_certificate(tmp_path, "own", "localhost")
    authority = Authority(tmp_path)
    good, bad = authority.sign("ann"), authority.sign("bob")
    stranger = Authority(tmp_path, "other").sign("eve")
    crl = authority.revoke(bad[0])
    server = serve(
        *("--tls-listen", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key),
        *("--tls-client-ca", authority.certificate, "--tls-client-crl", crl),
    )
    number = port(server)
    with client(number, trusting(certificate, good)) as http:
        assert http.post(f"/channels/{channel}", content="x").status_code == 201
    for own in (None, bad, stranger):
        with pytest.raises(httpx.TransportError):
            client(number, trusting(certificate, own)).get("/health")


def test_http_is_redirected(secure, channel):
    (_, number, certificate), plain = on_free_port(
        lambda port: secure("--redirect-http", f"127.0.0.1:{port}")
    )
    with httpx.Client(trust_env=False, timeout=TIMEOUT_SECONDS) as http:
        answer = http.get(f"http://localhost:{plain}/channels/{channel}?wait=1")
    assert answer.status_code == 308
    assert answer.headers["location"] == f"https://localhost:{number}/channels/{channel}?wait=1"
    context = trusting(certificate)
    with httpx.Client(verify=context, trust_env=False, timeout=TIMEOUT_SECONDS) as http:
        url = f"http://localhost:{plain}/channels/{channel}"
        assert http.post(url, content="x", follow_redirects=True).status_code == 201


def test_dev_tls_makes_a_certificate_that_curl_trusts(serve, tmp_path):
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    certificates = []
    for _ in range(2):
        server = serve("--dev-tls", "--tls-listen", "127.0.0.1:0", environment=environment)
        number = port(server)
        eventually(lambda: "--cacert" in server.log(), "the command")
        path = re.search(r"--cacert '([^']+)'", server.log()).group(1)
        certificates.append(open(path).read())
        done = subprocess.run(
            ["curl", "-sS", "--cacert", path, f"https://localhost:{number}/health"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        server.stop()
    assert certificates[0] == certificates[1], "what was told to trust it still does"
    key = tmp_path / "state" / "throng" / "dev-tls" / "key.pem"
    assert key.stat().st_mode & 0o777 == 0o600
