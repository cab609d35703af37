"""All transports over TLS, with clients that we did not write, in both versions and every suite."""

import re
import ssl
import subprocess

import pytest

from support import TIMEOUT_SECONDS
from support.server import ROOT, clean_environment, eventually
from support.tls_server import read_until, start_tls, stream_request

GO_PROGRAM = ROOT / ".cache/go/golang-transports"
# By the names of OpenSSL, and those of the standard, which the metric has.
SUITES_OF_TLS13 = {
    "TLS_AES_128_GCM_SHA256": "tls13_aes_128_gcm",
    "TLS_AES_256_GCM_SHA384": "tls13_aes_256_gcm",
    "TLS_CHACHA20_POLY1305_SHA256": "tls13_chacha20_poly1305",
}
SUITES_OF_TLS12 = {
    "ECDHE-ECDSA-AES128-GCM-SHA256": "tls12_aes_128_gcm",
    "ECDHE-ECDSA-AES256-GCM-SHA384": "tls12_aes_256_gcm",
    "ECDHE-ECDSA-CHACHA20-POLY1305": "tls12_chacha20_poly1305",
}
SUITES = {**SUITES_OF_TLS13, **SUITES_OF_TLS12}
NAMES_OF_GO = {
    "ECDHE-ECDSA-AES128-GCM-SHA256": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305": "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
}


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    running = start_tls(tmp_path_factory.mktemp("tls"))
    yield running
    running.plain.stop()


def connections(tls, suite):
    return tls.metric(f'tls_connections_established_total{{suite="{SUITES[suite]}"}}')


def url(tls):
    return f"https://localhost:{tls.port}"


@pytest.mark.parametrize("suite", SUITES)
def test_node(tls, node, channel, suite):
    before = connections(tls, suite)
    version = "--tls-min-v1.3" if suite in SUITES_OF_TLS13 else "--tls-max-v1.2"
    child = node(
        "transports.mjs",
        url(tls),
        channel,
        options=[version, f"--tls-cipher-list={suite}"],
        environment={"NODE_EXTRA_CA_CERTS": str(tls.certificate)},
    )
    assert child.wait(TIMEOUT_SECONDS) == 0, child.stdout.read()
    assert connections(tls, suite) >= before + 4


@pytest.mark.parametrize("suite", ["", *SUITES_OF_TLS12])
def test_go(tls, channel, suite):
    # Its suites of TLS 1.3 cannot be chosen.
    version = "1.2" if suite else "1.3"
    command = [GO_PROGRAM, url(tls), channel, tls.certificate, version]
    before = connections(tls, suite) if suite else 0
    done = subprocess.run(
        [*command, *filter(None, [NAMES_OF_GO.get(suite)])],
        env=clean_environment({"NO_PROXY": "*"}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS * 2,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not suite or connections(tls, suite) >= before + 4


@pytest.mark.parametrize("version", ["tls1.2", "tls1.3"])
def test_chromium(tls, node, chromium_program, channel, version):
    flags = [f"--ssl-version-max={version}"]
    suites = SUITES_OF_TLS12 if version == "tls1.2" else SUITES_OF_TLS13
    before = sum(connections(tls, suite) for suite in suites)
    child = node("tls-page.mjs", chromium_program, url(tls), channel, *flags)
    assert child.wait(TIMEOUT_SECONDS * 3) == 0, child.stdout.read()
    # Its page, its WebSocket, and the streams that are open at a time.
    assert sum(connections(tls, suite) for suite in suites) >= before + 4


@pytest.mark.parametrize("suite", SUITES_OF_TLS12)
def test_python(tls, channel, suite):
    context = ssl.create_default_context(cafile=tls.certificate)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(suite)
    with context.wrap_socket(tls.tcp(), server_hostname="localhost") as connection:
        assert connection.cipher()[0] == suite
        # On one connection, to the control plane and back to a worker.
        body = "x" * 50_000
        head = f"POST /channels/{channel} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall((head + body).encode())
        id = re.search(rb'"id":"([^"]+)"', read_until(lambda: connection.recv(4096), b"}"))
        since = f"{id.group(1).decode().rpartition('-')[0]}-0"
        connection.sendall(stream_request(f"{channel}?wait=5&since={since}"))
        read_until(lambda: connection.recv(1 << 16), body[-40_000:].encode())
        connection.sendall(stream_request(channel))
        eventually(lambda: tls.plain.presence(channel)["connections"] == 1, "the subscriber")
        tls.plain.publish(channel, "live")
        read_until(lambda: connection.recv(4096), b"data: live")


def read_from(client, text):
    return read_until(lambda: client.stdout.read(4096), text)


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("accept", ["text/event-stream", "*/*"])
def test_openssl(tls, channel, suite, accept):
    version = "-tls1_3" if suite in SUITES_OF_TLS13 else "-tls1_2"
    choice = ["-ciphersuites" if suite in SUITES_OF_TLS13 else "-cipher", suite]
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{tls.port}", version, *choice]
    command += ["-servername", "localhost", "-CAfile", tls.certificate, "-verify_return_error"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
    ) as client:
        body = b"Host: localhost\r\nContent-Length: 4\r\n\r\nsent"
        client.stdin.write(f"POST /channels/{channel} HTTP/1.1\r\n".encode() + body)
        read_from(client, b"subscribers")
        client.stdin.write(stream_request(channel, accept))
        read_from(client, b"Throng-Id")
        # `k`: it goes on with another key. `K`: it asks the server for the same.
        for command in "kK" if suite in SUITES_OF_TLS13 else "":
            client.stdin.write(f"{command}\n".encode())
            read_from(client, b"KEYUPDATE")
            tls.plain.publish(channel, f"behind {command}")
            read_from(client, f"behind {command}".encode())
        tls.plain.publish(channel, "at last")
        read_from(client, b"at last")
        client.kill()
