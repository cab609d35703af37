"""`throng flood` over TLS, against OpenSSL: versions, certificates, resumption, and what fails."""

import base64
import hashlib
import json
import re
import socket
import ssl
import threading

import pytest

from support import TIMEOUT_SECONDS
from support.floods import assert_delivered
from support.server import run_throng
from support.tls import Authority, TlsProxy
from support.tunnel import needs_tunnel

# A tunnel is a network device.
pytestmark = pytest.mark.usefixtures("a_network_of_its_own")

CLIENTS = 30
SMALL = ["--clients", str(CLIENTS), "--hold", "1s", "--publish", "10"]
WHOLE = [
    *["--assert", "lost == 0", "--assert", "duplicated == 0", "--assert", "reordered == 0"],
    *["--assert", "failures == 0", "--assert", "received > 0"],
]
# What a server appends to a WebSocket's key (RFC 6455).
WEBSOCKET = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TLS12, TLS13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def proxy(authority, server):
    """Starts TLS proxies in front of the server, by default with a certificate for 127.0.0.1."""
    started = []

    def start(*hosts, version=None, treat=None, verify=False):
        context = authority.context(*(hosts or ["127.0.0.1", "localhost"]))
        if version:
            context.minimum_version = context.maximum_version = version
        if verify:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(authority.file)
        started.append(TlsProxy(context, server.port, treat))
        return f"https://127.0.0.1:{started[-1].port}"

    yield start
    for each in started:
        each.stop()


@pytest.fixture
def flood(tmp_path):
    """Runs a flood to its end; returns the completed process and its report, if it made one."""

    def run(url, *arguments, check=True):
        report = tmp_path / "report.json"
        command = ["flood", url, *arguments, "--json", report]
        done = run_throng(*command, directory=tmp_path, timeout=3 * TIMEOUT_SECONDS)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        assert "panicked" not in done.stderr
        return done, json.loads(report.read_text()) if report.exists() else None

    return run


@pytest.mark.parametrize("version", [TLS12, TLS13])
@pytest.mark.parametrize("transport", ["websocket", "sse", "stream", "long-poll"])
def test_every_transport_loses_nothing(proxy, flood, authority, transport, version):
    flags = ["--ca", authority.file, "--transport", transport]
    done, report = flood(proxy(version=version), *flags, *SMALL, *WHOLE)
    total = report["total"]
    assert_delivered(total, transport, 10 * CLIENTS)
    assert total["tls"]["handshakes"] == total["tls"]["handshake"]["count"] == CLIENTS
    assert total["tls"]["resumed"] == 0
    [suite] = total["tls"]["suites"]
    assert suite.startswith("TLS 1.2, " if version == TLS12 else "TLS 1.3, ")
    assert f"{CLIENTS} handshakes, 0 resumed; {suite}" in done.stdout
    assert "\nTLS handshake " in done.stdout


@pytest.mark.parametrize("version", [TLS12, TLS13])
@pytest.mark.parametrize("cipher", ["AES256", "CHACHA20"])
def test_other_suites_carry_messages_of_many_records(
    authority, server, flood, version, cipher
):
    context = authority.context("127.0.0.1")
    context.minimum_version = context.maximum_version = version
    if version == TLS12:
        context.set_ciphers(f"ECDHE+{cipher}")
    proxy = TlsProxy(context, server.port)
    size = ["--size", "48KiB", "--publish", "4"]
    flags = ["--ca", authority.file, "--clients", "10", "--hold", "1s", *size]
    _, report = flood(f"wss://127.0.0.1:{proxy.port}", *flags, *WHOLE)
    proxy.stop()
    assert sum(report["total"]["tls"]["suites"].values()) == 10


@pytest.mark.parametrize("version", [TLS12, TLS13])
@pytest.mark.parametrize("transport", ["websocket", "long-poll"])
def test_clients_resume_when_they_are_asked_to(proxy, flood, authority, transport, version):
    flags = ["--ca", authority.file, "--transport", transport, *SMALL, "--storm", "20s"]
    url = proxy(version=version)
    for resume, expected in [([], 0), (["--tls-resume"], CLIENTS)]:
        _, report = flood(url, *flags, *resume, "--assert", "failures == 0")
        tls = report["total"]["tls"]
        assert (tls["handshakes"], tls["resumed"]) == (2 * CLIENTS, expected)


def test_a_websocket_can_publish(proxy, flood, authority):
    flags = ["--ca", authority.file, "--publish-by", "websocket", *SMALL, *WHOLE]
    _, report = flood(proxy(), *flags)
    assert report["total"]["published"] == 10


def failures(report):
    return report["total"]["failures"]


def test_certificates_are_checked(proxy, flood, authority, tmp_path):
    url = proxy("push.test")
    few = ["--clients", "3", "--hold", "1s", "--publish", "0"]
    who = "TLS: the server's certificate: "
    other = tmp_path / "other"
    other.mkdir()
    for flags, words in [
        (["--ca", Authority(other).file], "no trusted authority has signed it"),
        (["--ca", authority.file], "it is for another host name"),
        (["--ca", authority.file, "--sni", "push.example"], "it is for another host name"),
    ]:
        done, report = flood(url, *flags, *few, check=False)
        assert done.returncode == 1
        [(reason, count)] = failures(report).items()
        assert reason.startswith(who + words) and count == 3
        assert reason in done.stderr
    for flags in [["--ca", authority.file, "--sni", "push.test"], ["--insecure"]]:
        _, report = flood(url, *flags, *few)
        assert report["total"]["subscribed"] == 3


def test_what_speaks_no_tls_is_told_apart(server, flood):
    few = ["--clients", "3", "--hold", "1s", "--publish", "0", "--insecure"]
    url = server.url.replace("http:", "https:")
    _, report = flood(url, *few, check=False)
    assert failures(report) == {"TLS: the server does not speak TLS on this port": 3}


def test_alerts_have_names(proxy, flood, authority):
    few = ["--clients", "3", "--hold", "1s", "--publish", "0", "--ca", authority.file]
    for version, alert in [(TLS13, "certificate_required (116)"), (TLS12, "handshake_failure (40)")]:
        _, report = flood(proxy(version=version, verify=True), *few, check=False)
        assert failures(report) == {f"TLS: the server's alert {alert}": 3}


@pytest.mark.parametrize("says_goodbye", [False, True])
def test_an_end_without_close_notify_is_told_apart(proxy, flood, authority, says_goodbye):
    def treat(secured):
        request = b""
        while not request.endswith(b"\r\n\r\n"):
            request += secured.recv(4096)
        head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        key = re.search(rb"Sec-WebSocket-Key: (\S+)", request)[1] + WEBSOCKET
        accept = base64.b64encode(hashlib.sha1(key).digest()).decode()
        secured.sendall(f"{head}Sec-WebSocket-Accept: {accept}\r\n\r\n".encode())
        if says_goodbye:
            secured.unwrap()
        else:
            secured.shutdown(socket.SHUT_RDWR)

    few = ["--clients", "3", "--hold", "1s", "--publish", "0", "--ca", authority.file]
    _, report = flood(proxy(treat=treat), *few, check=False)
    expected = "closed by the server"
    if not says_goodbye:
        expected = f"TLS: {expected} without close_notify"
    assert failures(report) == {expected: 3}


def test_a_handshake_that_stops_times_out(flood):
    listener = socket.create_server(("127.0.0.1", 0), backlog=16)
    kept = []

    def accept():
        for _ in range(3):
            connection, _ = listener.accept()
            kept.append(connection)
            # The beginning of a record that says that it is longer.
            connection.sendall(bytes([22, 3, 3, 0, 90, 2]))

    threading.Thread(target=accept, daemon=True).start()
    url = f"wss://127.0.0.1:{listener.getsockname()[1]}/"
    few = ["--clients", "3", "--hold", "2s", "--publish", "0", "--insecure"]
    _, report = flood(url, *few, "--handshake-timeout", "1s", check=False)
    assert failures(report) == {"TLS: timeout in the handshake": 3}
    listener.close()


@needs_tunnel
@pytest.mark.parametrize("version", [TLS12, TLS13])
def test_clients_without_sockets_speak_tls_too(proxy, flood, authority, version):
    flags = ["--ca", authority.file, "--network", "tunnel", "--threads", "2", "--tls-resume"]
    _, report = flood(proxy(version=version), *flags, *SMALL, "--storm", "20s", *WHOLE)
    tls = report["total"]["tls"]
    assert (tls["handshakes"], tls["resumed"]) == (2 * CLIENTS, CLIENTS)
