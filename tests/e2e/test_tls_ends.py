"""How TLS connections begin and end: behind PROXY headers, when the server stops, when a connection is
cut off, when certificates change or break, and when memory is short."""

import asyncio
import contextlib
import shutil
import signal
import ssl

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from support import TIMEOUT_SECONDS
from support.access import server_key
from support.certificates import make_certificate
from support.proxies import header_v1, header_v2
from support.server import eventually
from support.tls_server import read_until, start_tls, stream_request

PROXY = ["--proxy-protocol", "always", "--trusted-proxies", "127.0.0.1"]
ONE = ["--max-connections-per-address", 1]


@pytest.fixture
def start(tmp_path):
    """Starts a server with a TLS listener, which is stopped at the end."""
    with contextlib.ExitStack() as stack:

        def start(*flags):
            tls = start_tls(tmp_path, *flags)
            stack.callback(tls.plain.stop)
            return tls

        yield start


def behind_proxy(tls, header, pieces):
    """A TLS connection behind a PROXY header, which may come in the packet of the handshake."""
    plain = tls.tcp()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = tls.context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    data = header + outgoing.read()
    for at in range(0, len(data), pieces or len(data)):
        plain.sendall(data[at : at + (pieces or len(data))])
    while True:
        try:
            client.do_handshake()
            break
        except ssl.SSLWantReadError:
            incoming.write(plain.recv(1 << 16))
    plain.sendall(outgoing.read())

    def ask(request):
        client.write(request)
        plain.sendall(outgoing.read())

    def read():
        while True:
            try:
                return client.read(1 << 16)
            except ssl.SSLWantReadError:
                incoming.write(plain.recv(1 << 16))

    return plain, ask, read


@pytest.mark.parametrize("pieces", [None, 7])
@pytest.mark.parametrize("header", [header_v1, header_v2])
def test_a_proxy_header_before_tls(start, channel, header, pieces):
    tls = start(*PROXY, *ONE)
    first, ask, read = behind_proxy(tls, header("203.0.113.9"), pieces)
    ask(stream_request(channel))
    read_until(read, b"Throng-Id")
    # The address counts: it has its one connection.
    with pytest.raises(ssl.SSLError, match="(?i)access denied"):
        behind_proxy(tls, header("203.0.113.9"), pieces)
    other, ask, read = behind_proxy(tls, header("203.0.113.10"), pieces)
    ask(stream_request(channel))
    read_until(read, b"Throng-Id")
    for connection in (first, other):
        connection.close()


def test_tls_without_the_proxy_header_is_refused(start):
    tls = start(*PROXY)
    with tls.tcp() as plain, pytest.raises((ssl.SSLError, ConnectionError)):
        tls.context.wrap_socket(plain, server_hostname="localhost")


def test_an_address_beyond_its_limit_is_told_before_its_handshake(start, channel):
    tls = start(*ONE)
    with tls.connect() as connection:
        connection.sendall(stream_request(channel))
        read_until(lambda: connection.recv(4096), b"Throng-Id")
        with tls.tcp() as plain, pytest.raises(ssl.SSLError, match="(?i)access denied"):
            tls.context.wrap_socket(plain, server_hostname="localhost")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_stop_is_told_on_every_transport(tmp_path, channel, version):
    tls = start_tls(tmp_path, "--drain-window", "5s")
    tls.context.minimum_version = tls.context.maximum_version = version
    # An end without `close_notify` would raise.
    sse, stream = (tls.connect(suppress_ragged_eofs=False) for _ in range(2))
    sse.sendall(stream_request(channel))
    stream.sendall(stream_request(channel, "*/*"))
    for connection in (sse, stream):
        read_until(lambda: connection.recv(4096), b"Throng-Id")
    poll = tls.connect(suppress_ragged_eofs=False)
    poll.sendall(stream_request(f"{channel}?wait=60"))

    async def closed():
        url = f"wss://localhost:{tls.port}/channels/{channel}"
        async with connect(url, ssl=tls.context, proxy=None) as socket:
            await asyncio.to_thread(tls.plain.wait_for_connections, channel, 4)
            tls.plain.publish(channel, "the last one")
            tls.plain.signal(signal.SIGTERM)
            async with asyncio.timeout(TIMEOUT_SECONDS):
                assert await socket.recv() == "the last one"
                with pytest.raises(ConnectionClosed) as raised:
                    await socket.recv()
        return raised.value.rcvd

    def rest(connection):
        text = b""
        while piece := connection.recv(4096):
            text += piece
        return text

    close = asyncio.run(closed())
    assert close.code == 1012 and close.reason.startswith("reconnect in ")
    told = rest(sse)
    assert b"data: the last one" in told and b"retry: " in told
    assert b"the last one" in rest(stream)
    assert b"the last one" in rest(poll)
    for connection in (sse, stream, poll):
        connection.close()
    tls.plain.wait()


def test_a_cut_is_counted_and_a_client_resumes_behind_it(start, channel):
    tls = start()
    plain = tls.tcp()
    connection = tls.context.wrap_socket(plain, server_hostname="localhost")
    connection.sendall(stream_request(channel))
    read_until(lambda: connection.recv(4096), b"Throng-Id")
    tls.plain.publish(channel, "one")
    text = read_until(lambda: connection.recv(4096), b"data: one")
    last = text.split(b"id: ")[1].split(b"\n")[0].decode()
    before = tls.metric("tls_truncated_total")
    connection.close()
    eventually(lambda: tls.metric("tls_truncated_total") == before + 1, "the cut connection")
    tls.plain.publish(channel, "two")
    with tls.connect() as again:
        again.sendall(stream_request(f"{channel}?since={last}"))
        text = read_until(lambda: again.recv(4096), b"data: two")
        assert b'"recovered":true' in text and b"data: one" not in text


def certificate_of(tls):
    return ssl.get_server_certificate(("127.0.0.1", tls.port), timeout=TIMEOUT_SECONDS).split()


def test_broken_certificates_change_nothing(start, tmp_path, channel):
    tls = start()
    own, key = tmp_path / "own.pem", tmp_path / "own.key"
    other = tmp_path / "other"
    other.mkdir()
    old = certificate_of(tls)
    new_certificate, new_key = make_certificate(other, "new", "localhost")

    def reload():
        refused = tls.metric('tls_reloads_total{outcome="refused"}')
        tls.plain.signal(signal.SIGHUP)
        eventually(
            lambda: tls.metric('tls_reloads_total{outcome="refused"}') > refused, "the refusal"
        )
        assert certificate_of(tls) == old
        with tls.connect() as connection:
            connection.sendall(stream_request(channel))
            read_until(lambda: connection.recv(4096), b"Throng-Id")

    with tls.connect() as held:
        held.sendall(stream_request(channel))
        read_until(lambda: held.recv(4096), b"Throng-Id")
        # It does not match its key.
        shutil.copy(new_key, key)
        reload()
        # It is half written, then gone.
        own.write_text(new_certificate.read_text()[:200])
        reload()
        own.unlink()
        reload()
        # Those that were there before go on.
        tls.plain.publish(channel, "goes on")
        read_until(lambda: held.recv(4096), b"data: goes on")


def test_unfinished_handshakes_give_way_when_memory_is_short(start, channel):
    tls = start("--max-buffered-bytes", "1MiB")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = tls.context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(tls.tcp()).sendall(hello)
        eventually(lambda: tls.metric('tls_handshakes_total{result="abandoned"}') > 0, "evictions")
        assert tls.metric("tls_handshakes_under_way") < 300
        assert tls.metric("buffered_bytes") <= 1 << 20
        with tls.connect() as connection, tls.http() as http:
            connection.sendall(stream_request(channel))
            read_until(lambda: connection.recv(4096), b"Throng-Id")
            assert http.post(f"/channels/{channel}", content="still").status_code == 201
            read_until(lambda: connection.recv(4096), b"data: still")
    eventually(lambda: tls.metric("tls_handshakes_under_way") == 0, "the end of all")


def test_the_login_of_the_status_page_is_secure(start, tmp_path):
    operator, table = server_key(tmp_path, "operator", "administration")
    (tmp_path / "throng.toml").write_text(table)
    tls = start()
    with tls.http() as http:
        assert http.get("/status").status_code == 401
        # As browsers say where a form comes from.
        page = {"Origin": tls.url}
        refused = http.post("/status/login", data={"key": "throng_key_x"}, headers=page)
        assert refused.status_code in (401, 403) and "set-cookie" not in refused.headers
        answer = http.post("/status/login", data={"key": operator}, headers=page)
        assert answer.status_code == 303
        facts = answer.headers["set-cookie"].split("; ")[1:]
        # Never sent without TLS.
        assert {"Secure", "HttpOnly", "SameSite=Strict"} <= set(facts)
        assert http.get("/status").status_code == 200
        assert http.get("/metrics").status_code == 200
        http.post("/status/logout", headers=page)
        assert http.get("/status").status_code == 401
    assert operator not in tls.plain.log()


def test_operators_log_in_over_tls_in_a_browser(start, node, chromium_program, tmp_path):
    operator, table = server_key(tmp_path, "operator", "administration")
    (tmp_path / "throng.toml").write_text(table)
    tls = start("--allowed-hosts", "throng.example")
    child = node("status-login.mjs", chromium_program, tls.url, environment={"KEY": operator})
    assert child.wait(TIMEOUT_SECONDS * 3) == 0, child.stdout.read()
    assert operator not in tls.plain.log()


def test_a_killed_server_is_no_clean_end(start, tmp_path, channel):
    """What is behind the last record was never sent: a client that took that for the end would
    believe that it has everything."""
    tls = start_tls(tmp_path)

    def follow(server, path):
        connection = server.connect(suppress_ragged_eofs=False)
        connection.sendall(stream_request(path))
        read_until(lambda: connection.recv(4096), b"Throng-Id")
        return connection

    def rest(connection):
        while connection.recv(4096):
            pass

    cut = follow(tls, channel)
    tls.plain.publish(channel, "one")
    text = read_until(lambda: cut.recv(4096), b"data: one")
    last = text.split(b"id: ")[1].split(b"\n")[0].decode()
    tls.plain.kill()
    # Neither the end of TLS nor that of the response.
    with cut, pytest.raises((ssl.SSLEOFError, ConnectionResetError)):
        rest(cut)

    # The logs are gone with the server: the client is told so, and not that it has everything.
    again = start()
    with again.connect() as resumed:
        resumed.sendall(stream_request(f"{channel}?since={last}"))
        text = read_until(lambda: resumed.recv(4096), b"event: resumed\n")
        while b"}" not in text:
            text += resumed.recv(4096)
        assert b'"recovered":false' in text, text
    # An orderly stop is one.
    ended = follow(again, channel)
    again.plain.signal(signal.SIGTERM)
    with ended:
        rest(ended)
    again.plain.wait()
