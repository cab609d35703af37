"""What no ordinary client of TLS sends, by tlslite-ng: records that are too long, empty or of a wrong
type, floods of key updates, handshakes in small pieces, and what is not wanted after or before a
handshake. Each has its alert, and harms nobody else."""

import socket

import pytest
from tlslite.api import HandshakeSettings, TLSConnection
from tlslite.constants import AlertDescription, ContentType, KeyUpdateMessageType
from tlslite.errors import TLSAbruptCloseError, TLSLocalAlert, TLSRemoteAlert
from tlslite.extensions import TLSExtension
from tlslite.messages import ClientHello, Message

from support import TIMEOUT_SECONDS
from support.server import eventually
from support.tls_server import read_until, start_tls, stream_request

TLS12, TLS13 = (3, 3), (3, 4)
SUITES = [
    (version, cipher)
    for version in (TLS12, TLS13)
    for cipher in ("aes128gcm", "aes256gcm", "chacha20-poly1305")
]
CONTENT_BYTES_MAX = 1 << 14
# Records in a row that bring no content.
WITHOUT_DATA_MAX = 32


def named(value):
    return value if isinstance(value, str) else ".".join(map(str, value))


every_suite = pytest.mark.parametrize("version, cipher", SUITES, ids=named)


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    running = start_tls(tmp_path_factory.mktemp("tls"))
    yield running
    running.plain.stop()


class Client:
    """A client of tlslite-ng, of which each record can be sent by hand."""

    def __init__(self, tls, version=TLS13, cipher="aes128gcm", kind=TLSConnection):
        self.socket = socket.create_connection(("127.0.0.1", tls.port), TIMEOUT_SECONDS)
        self.tls = kind(self.socket)
        self.settings = HandshakeSettings()
        self.settings.minVersion = self.settings.maxVersion = version
        self.settings.cipherNames = [cipher]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def shake_hands(self):
        self.tls.handshakeClientCert(settings=self.settings, serverName="localhost")
        return self

    def record(self, content_type, content):
        """Sends one record, as it is."""
        for _ in self.tls._recordLayer.sendRecord(Message(content_type, bytearray(content))):
            pass

    def update_key(self, asks=False):
        kind = "update_requested" if asks else "update_not_requested"
        for _ in self.tls.send_keyupdate_request(getattr(KeyUpdateMessageType, kind)):
            pass

    def read(self, end):
        return read_until(lambda: bytes(self.tls.read(max=1 << 14)), end)

    def alert(self):
        """The alert that the server ends the connection with, by name."""
        with pytest.raises(TLSRemoteAlert) as raised:
            while self.tls.read(max=1 << 14):
                pass
        return AlertDescription.toStr(raised.value.description)


@pytest.fixture
def healthy(tls, channel):
    """A subscriber beside the test, which must get what is published after it."""
    with tls.connect() as connection:
        connection.sendall(stream_request(channel))
        read_until(lambda: connection.recv(4096), b"\r\n\r\n")
        yield
        tls.plain.publish(channel, "for the others")
        read_until(lambda: connection.recv(4096), b"for the others")


pytestmark = pytest.mark.usefixtures("healthy")


@every_suite
def test_all_transports(tls, channel, version, cipher):
    with Client(tls, version, cipher).shake_hands() as client, tls.http() as http:
        assert client.tls.version == version
        body = b"x" * 40_000
        head = f"POST /channels/{channel} HTTP/1.1\r\nHost: localhost\r\n"
        client.tls.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert client.read(b"subscribers").startswith(b"HTTP/1.1 201 ")
        client.tls.write(stream_request(f"{channel}?history=1"))
        assert body in client.read(body)
        assert http.post(f"/channels/{channel}", content="at last").status_code == 201
        client.read(b"at last")


@every_suite
def test_a_record_over_the_limit(tls, version, cipher):
    with Client(tls, version, cipher).shake_hands() as client:
        client.record(ContentType.application_data, b"x" * (CONTENT_BYTES_MAX + 1))
        assert client.alert() == "record_overflow"
    with Client(tls, version, cipher).shake_hands() as client:
        # As long as may be; what it has is no request.
        client.record(ContentType.application_data, b"\r" * CONTENT_BYTES_MAX)
        assert client.read(b"\r\n\r\n").startswith(b"HTTP/1.1 4")


@every_suite
@pytest.mark.parametrize("content_type", [0, 24, 255])
def test_records_of_another_type(tls, version, cipher, content_type):
    with Client(tls, version, cipher).shake_hands() as client:
        client.record(content_type, b"\1")
        assert client.alert() == "unexpected_message"


@every_suite
def test_empty_records(tls, channel, version, cipher):
    with Client(tls, version, cipher).shake_hands() as client:
        for part in (stream_request(channel)[:20], stream_request(channel)[20:]):
            for _ in range(WITHOUT_DATA_MAX):
                client.record(ContentType.application_data, b"")
            client.record(ContentType.application_data, part)
        client.read(b"Throng-Id")
        for _ in range(WITHOUT_DATA_MAX + 1):
            client.record(ContentType.application_data, b"")
        assert client.alert() == "unexpected_message"


@pytest.mark.parametrize("asks", [False, True])
def test_a_flood_of_key_updates(tls, channel, asks):
    with Client(tls).shake_hands() as client:
        client.tls.write(stream_request(channel))
        client.read(b"Throng-Id")
        # More than the limit in all, but not in a row: what is sent to the client counts, too. Messages
        # may overtake the updates of a round.
        for number in range(6):
            for _ in range(WITHOUT_DATA_MAX // 3):
                client.update_key(asks)
            tls.plain.publish(channel, f"number {number}")
            client.read(f"number {number}".encode())
        for _ in range(WITHOUT_DATA_MAX + 1):
            client.update_key()
        assert client.alert() == "unexpected_message"


def test_key_updates_of_a_client_that_does_not_read(tls, channel):
    """Each is answered at most once for each time that data is sent: nothing piles up."""
    # The healthy subscriber does not read meanwhile.
    channel = f"{channel}-apart"
    with Client(tls).shake_hands() as client:
        client.tls.write(stream_request(channel))
        client.read(b"Throng-Id")
        before = tls.metric("buffered_bytes")
        for number in range(100):
            for _ in range(WITHOUT_DATA_MAX - 1):
                client.update_key(asks=True)
            if number % 10 == 0:
                tls.plain.publish(channel, "x" * 60_000)
            client.record(ContentType.application_data, b"\r\n")
        assert tls.metric("buffered_bytes") < before + 200_000
        tls.plain.publish(channel, "the last one")
        client.read(b"the last one")


@pytest.mark.parametrize("cipher", ["aes128gcm", "aes256gcm", "chacha20-poly1305"])
def test_no_renegotiation(tls, cipher):
    with Client(tls, TLS12, cipher).shake_hands() as client:
        hello = ClientHello().create(TLS12, bytearray(32), bytearray(), [0xC02B])
        client.record(ContentType.handshake, hello.write())
        assert client.alert() == "no_renegotiation"


@pytest.mark.parametrize("message", [[1, 0, 0, 0], [24, 0, 0, 1], [24, 0, 0, 1, 2], [13, 0, 0, 0], []])
def test_handshake_messages_after_the_handshake(tls, message):
    with Client(tls).shake_hands() as client:
        client.record(ContentType.handshake, message)
        expected = "illegal_parameter" if message[4:] == [2] else "unexpected_message"
        assert client.alert() == expected


@every_suite
def test_what_follows_the_end_is_ignored(tls, channel, version, cipher):
    with Client(tls, version, cipher).shake_hands() as client:
        body = b"Host: localhost\r\nContent-Length: 5\r\n\r\n"
        post = f"POST /channels/{channel} HTTP/1.1\r\n".encode() + body
        client.record(ContentType.application_data, post + b"first")
        client.record(ContentType.alert, [1, AlertDescription.close_notify])
        client.record(ContentType.application_data, post + b"later")
        assert client.read(b"subscribers").startswith(b"HTTP/1.1 201 ")
    assert [one["data"] for one in tls.plain.history(channel)["messages"]] == ["first"]


@every_suite
def test_a_fatal_alert_ends_the_connection(tls, version, cipher):
    before = tls.metric('tls_alerts_total{direction="received"}')
    with Client(tls, version, cipher).shake_hands() as client:
        client.record(ContentType.alert, [2, AlertDescription.internal_error])
        with pytest.raises((TLSAbruptCloseError, ConnectionError)):
            client.tls.read(min=1)
    eventually(
        lambda: tls.metric('tls_alerts_total{direction="received"}') == before + 1, "the alert"
    )


@pytest.mark.parametrize("version", [TLS12, TLS13], ids=named)
@pytest.mark.parametrize("size, is_served", [(1, False), (16, True), (100, True)])
def test_a_handshake_in_small_pieces(tls, version, size, is_served):
    """Records of a few bytes: as many as a handshake may have, which the smallest exceed."""
    with Client(tls, version) as client:
        client.tls.recordSize = size
        if is_served:
            client.shake_hands()
            client.tls.write(stream_request("pieces"))
            client.read(b"Throng-Id")
            return
        # Its own handshake has not begun; those of other tests have ended, and are counted.
        eventually(lambda: tls.metric("tls_handshakes_under_way") == 0, "the end of handshakes")
        before = tls.metric('tls_handshakes_total{result="failed"}')
        with pytest.raises((TLSRemoteAlert, TLSAbruptCloseError, ConnectionError)):
            client.shake_hands()
    eventually(
        lambda: tls.metric('tls_handshakes_total{result="failed"}') == before + 1, "the failure"
    )


class Inserting(TLSConnection):
    """Sends records before and after its own messages of a handshake."""

    before, behind, extensions = [], [], []

    def _sendMsg(self, message, *arguments, **options):
        if isinstance(message, ClientHello):
            message.extensions[0:0] = self.extensions
            for record in self.before:
                yield from self._recordLayer.sendRecord(record)
        yield from super()._sendMsg(message, *arguments, **options)
        if isinstance(message, ClientHello):
            for record in self.behind:
                yield from self._recordLayer.sendRecord(record)


CHANGE = Message(ContentType.change_cipher_spec, bytearray([1]))


def inserting(**what):
    return type("Inserting", (Inserting,), what)


def test_a_change_of_ciphers_is_ignored_within_a_handshake_only(tls):
    """Middleboxes want to see it (RFC 8446, appendix D.4)."""
    with Client(tls, kind=inserting(behind=[CHANGE])).shake_hands() as client:
        client.tls.write(stream_request("changed"))
        client.read(b"Throng-Id")
        client.record(ContentType.change_cipher_spec, [1])
        assert client.alert() == "unexpected_message"
    with Client(tls, kind=inserting(before=[CHANGE])) as client:
        # What begins with it is no TLS.
        with pytest.raises((TLSLocalAlert, TLSRemoteAlert, TLSAbruptCloseError)):
            client.shake_hands()
    with Client(tls, TLS12).shake_hands() as client:
        client.record(ContentType.change_cipher_spec, [1])
        assert client.alert() == "unexpected_message"


def test_early_data_is_never_acted_upon(tls, channel):
    """What could be replayed: the server takes none, whatever the client claims."""
    early = TLSExtension(extType=42).create(bytearray())
    head = f"POST /channels/{channel} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n"
    data = Message(ContentType.application_data, bytearray(head.encode() + b"early"))
    with Client(tls, kind=inserting(extensions=[early], behind=[data])).shake_hands() as client:
        client.tls.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.read(b"HTTP/1.1 200 ")
    assert tls.plain.history(channel)["messages"] == []
