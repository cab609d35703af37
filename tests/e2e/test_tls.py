"""TLS listeners: the same server over `https` and `wss`, for clients that we did not write, and for
those that break TLS."""

import asyncio
import http.client
import json
import os
import socket
import ssl
import subprocess
import threading

import httpx
import pytest
from websockets.asyncio.client import connect

from support import TIMEOUT_SECONDS
from support.certificates import trusting
from support.server import eventually
from support.tls_server import read_until, start_tls, stream_request

# A ClientHello that offers TLS 1.3 is a record of this type.
HANDSHAKE = 22


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """A server with a TLS listener, shared by the tests of the module."""
    running = start_tls(tmp_path_factory.mktemp("tls"))
    yield running
    running.plain.stop()


@pytest.fixture
def counting(tmp_path):
    """A server whose metrics no connection of another test changes."""
    running = start_tls(tmp_path)
    yield running
    running.plain.stop()


@pytest.mark.parametrize("accept", ["text/event-stream", "*/*"])
def test_streams_and_publishing(tls, channel, accept):
    with tls.connect() as connection, tls.http() as publisher:
        connection.sendall(stream_request(channel, accept))
        read_until(lambda: connection.recv(4096), b"\r\n\r\n")
        for text in ("one", "x" * 60_000, "three"):
            assert publisher.post(f"/channels/{channel}", content=text).status_code == 201
            read_until(lambda: connection.recv(1 << 16), text[-200:].encode())


def test_long_poll_and_pages_on_one_connection(tls, channel):
    connection = http.client.HTTPSConnection(
        "localhost", tls.port, timeout=TIMEOUT_SECONDS, context=tls.context
    )
    # The connection goes to the control plane, to a worker, and back.
    for text in ("first", "second"):
        connection.request("POST", f"/channels/{channel}", body=text)
        answer = connection.getresponse()
        assert answer.status == 201
        message = json.loads(answer.read())
        epoch, _, offset = message["id"].rpartition("-")
        since = f"{epoch}-{int(offset) - 1}"
        connection.request("GET", f"/channels/{channel}?wait=5&since={since}")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, text.encode())
    connection.close()


def test_websockets(tls, channel):
    url = f"wss://localhost:{tls.port}/channels/{channel}"
    options = {"ssl": tls.context, "proxy": None, "open_timeout": TIMEOUT_SECONDS}

    # Not the client with threads: it reads in one and writes in another, which OpenSSL does not allow
    # with one connection, and now and then its request is not sent.
    async def talk():
        async with connect(url, **options) as one, connect(url, **options) as other:
            await asyncio.to_thread(tls.plain.wait_for_connections, channel, 2)
            async with asyncio.timeout(TIMEOUT_SECONDS):
                for text in ("short", "x" * 50_000):
                    await one.send(text)
                    assert await other.recv() == text
                await (await one.ping())

    asyncio.run(talk())


@pytest.mark.parametrize(
    "options",
    [
        ["-tls1_3", "-ciphersuites", "TLS_AES_128_GCM_SHA256"],
        ["-tls1_3", "-ciphersuites", "TLS_AES_256_GCM_SHA384"],
        ["-tls1_3", "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"],
        ["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256"],
        ["-tls1_2", "-cipher", "ECDHE-ECDSA-CHACHA20-POLY1305"],
    ],
    ids=lambda options: options[-1],
)
def test_openssl_with_key_updates(tls, channel, options):
    address = ["-connect", f"127.0.0.1:{tls.port}", "-servername", "localhost"]
    verify = ["-CAfile", str(tls.certificate), "-verify_return_error"]
    with subprocess.Popen(
        ["openssl", "s_client", *address, *verify, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
    ) as client:
        # Whatever goes wrong, the test ends.
        watch = threading.Timer(TIMEOUT_SECONDS, client.kill)
        watch.start()
        client.stdin.write(stream_request(channel))
        read_until(lambda: client.stdout.read(4096), b"Throng-Id")
        # `k`: it goes on with another key. `K`: it asks the server for the same.
        for command in ["", *("KkKKk" if "-tls1_3" in options else "")]:
            if command:
                client.stdin.write(f"{command}\n".encode())
                read_until(lambda: client.stdout.read(4096), b"KEYUPDATE")
            text = os.urandom(8).hex()
            tls.plain.publish(channel, text)
            read_until(lambda: client.stdout.read(4096), text.encode())
        watch.cancel()
        client.kill()


def test_curl(tls, channel):
    with subprocess.Popen(
        ["curl", "-sSN", "--http1.1", "--cacert", tls.certificate, "--max-time", "30"]
        + [f"https://localhost:{tls.port}/channels/{channel}"],
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as client:
        tls.plain.wait_for_connections(channel, 1)
        tls.plain.publish(channel, "for curl")
        read_until(lambda: client.stdout.read(4096), b"for curl")
        client.kill()


def test_plain_http_is_told_to_use_tls(tls):
    url = f"http://127.0.0.1:{tls.port}/channels/a"
    answer = httpx.get(url, timeout=TIMEOUT_SECONDS, trust_env=False)
    assert answer.status_code == 400
    assert answer.json()["message"] == "this address speaks TLS: use https:// or wss://"


def test_a_client_without_a_common_protocol_is_told_so(counting):
    tls = counting
    context = trusting(tls.certificate)
    context.set_alpn_protocols(["h2"])
    with tls.tcp() as plain, pytest.raises(ssl.SSLError, match="(?i)no.application.protocol"):
        context.wrap_socket(plain, server_hostname="localhost")
    assert tls.metric('tls_handshakes_total{result="failed"}') == 1


def client_hello():
    """What a client sends first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()
    assert hello[0] == HANDSHAKE
    return hello


def test_handshakes_that_stop_anywhere_harm_nobody(tls, channel):
    hello = client_hello()
    stopped = []
    for length in [*range(1, 12), *range(12, len(hello), 40), len(hello)]:
        connection = tls.tcp()
        connection.sendall(hello[:length])
        stopped.append(connection)
    test_streams_and_publishing(tls, channel, "*/*")
    for connection in stopped:
        connection.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\xff\xff" + b"x" * 100,
        b"\x16\x03\x01\x00\x05hello",
        b"\x16\x03\x03\x00\x00" * 99,
    ],
    ids=["too-long", "no-hello", "empty-records"],
)
def test_garbage_in_a_handshake_ends_it(counting, garbage):
    with counting.tcp() as connection:
        connection.sendall(garbage)
        answer = b""
        while piece := connection.recv(100):
            answer += piece
        # An alert, if there is one for it.
        assert not answer or (answer[0], len(answer)) == (21, 7)
    assert counting.metric('tls_handshakes_total{result="failed"}') == 1


def shake_hands(tls, plain):
    """A client whose records the test carries over `plain` itself, and its two directions."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = tls.context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    while True:
        try:
            client.do_handshake()
            return client, incoming, outgoing
        except ssl.SSLWantReadError:
            plain.sendall(outgoing.read())
            incoming.write(plain.recv(1 << 16))


@pytest.mark.parametrize("kind", ["tag", "long", "type"])
def test_a_broken_record_ends_its_connection_only(tls, channel, kind):
    """A proxy between client and server, which changes what follows the handshake."""
    with tls.connect() as healthy:
        healthy.sendall(stream_request(channel))
        read_until(lambda: healthy.recv(4096), b"\r\n\r\n")
        with tls.tcp() as plain:
            client, incoming, outgoing = shake_hands(tls, plain)
            finished = outgoing.read()
            client.write(stream_request(channel))
            record = bytearray(outgoing.read())
            if kind == "tag":
                record[-1] ^= 1
            elif kind == "long":
                record[3:5] = b"\x50\x00"
            else:
                record[0] = HANDSHAKE
            plain.sendall(finished + record)
            while piece := plain.recv(1 << 16):
                incoming.write(piece)
            with pytest.raises(ssl.SSLError, match="(?i)alert|mac|overflow|unexpected"):
                client.read(100)
        tls.plain.publish(channel, "goes on")
        read_until(lambda: healthy.recv(4096), b"goes on")


@pytest.mark.parametrize("path", ["/channels/ends", "/health"])
@pytest.mark.parametrize("is_broken", [False, True])
def test_an_end_in_the_packet_of_the_request_is_seen(tls, path, is_broken):
    """No event comes for a record that was read with others."""
    with tls.tcp() as plain:
        client, incoming, outgoing = shake_hands(tls, plain)
        client.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        records = outgoing.read()
        if is_broken:
            records += b"\x17\x03\x03\x00\x20" + bytes(32)
        else:
            with pytest.raises(ssl.SSLWantReadError):
                client.unwrap()
            records += outgoing.read()
        plain.sendall(records)
        # The client does not end its side before the server does.
        while piece := plain.recv(1 << 16):
            incoming.write(piece)
        incoming.write_eof()
        if is_broken:
            with pytest.raises(ssl.SSLError, match="(?i)alert bad record mac"):
                while client.read(1 << 16):
                    pass


def test_a_cut_connection_is_told_from_an_orderly_end(counting):
    tls = counting
    with tls.connect() as connection:
        connection.sendall(b"GET /channels/cut HTTP/1.1\r\nHost: localhost\r\n")
        # The end of TLS is not said.
        socket.socket.shutdown(connection, socket.SHUT_WR)
    eventually(lambda: tls.metric("tls_truncated_total") == 1, "the cut connection")
    with tls.connect() as connection:
        connection.sendall(stream_request("orderly"))
        read_until(lambda: connection.recv(4096), b"\r\n\r\n")
        connection.unwrap()
    tls.plain.wait_for_connections("orderly", 0)
    assert tls.metric("tls_truncated_total") == 1
