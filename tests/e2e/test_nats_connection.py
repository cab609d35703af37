"""How nodes come in to NATS: TLS, logins, and other servers when one is lost."""

import contextlib
import datetime
import json
import socket
import threading
from pathlib import Path

import pytest

from support import tls as tls_in_python
from support.certificates import Authority
from support.nats import user_of_the_guide
from support.nats_keys import USER, Key, Operator
from support.server import closed_port, eventually, run_throng
from support.transports import subscribe


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """An authority with certificates of a server and of a node."""
    directory = tmp_path_factory.mktemp("authority")
    found = Authority(directory)
    found.sign("server", "IP:127.0.0.1", "DNS:localhost", usage="serverAuth,clientAuth")
    found.sign("named", "DNS:nats.example", usage="serverAuth")
    found.sign("node", "DNS:node")
    return found


def tls(authority, certificate="server", more=""):
    """The part of a server's configuration."""
    place = authority.directory
    files = f'cert_file: "{place}/{certificate}.pem"\nkey_file: "{place}/{certificate}.key"'
    return f'tls {{ {files}\nca_file: "{authority.certificate}"\n{more} }}'


def over_tls(broker):
    return broker.url.replace("nats://", "tls://")


def works(node, channel):
    """Waits until the node is connected, and sends a message through the stream."""
    eventually(lambda: node.metrics()["throng_nats_connected"] == 1, lambda: f"NATS:\n{node.log()}")
    with subscribe("sse", node, f"/channels/{channel}") as here:
        sent = node.publish(channel, "x")["id"]
        assert here.next() == (sent, "x")


def says(node, text):
    """Waits until the log has a text, and the probe says that NATS is away."""
    eventually(lambda: text in node.log(), lambda: f"{text} in\n{node.log()}")
    reasons = [one["reason"] for one in node.http.get("/health/ready").json()["reasons"]]
    assert "nats_away" in reasons


@pytest.mark.parametrize("scheme", ["tls", "nats"])
def test_both_ends_show_their_certificates(brokers, start_node, authority, channel, scheme):
    server = brokers(tls(authority, more="verify: true"))
    place = authority.directory
    own = ["--nats-cert", place / "node.pem", "--nats-key", place / "node.key"]
    url = server.url.replace("nats://", f"{scheme}://")
    works(start_node(url, "--nats-ca", authority.certificate, *own), channel)


def test_tls_begins_first(brokers, start_node, authority, channel):
    server = brokers(tls(authority, more="handshake_first: true"))
    trusting = ["--nats-ca", authority.certificate]
    works(start_node(over_tls(server), "--nats-tls-first", *trusting), channel)
    works(start_node(server.url.replace("nats://", "tls-first://"), *trusting), channel)


def test_a_server_that_expects_tls_first_is_found_out(brokers, start_node, authority, channel):
    server = brokers(tls(authority, more="handshake_first: true"))
    one = start_node(over_tls(server), "--nats-ca", authority.certificate)
    works(one, channel)
    one.says("the server expects TLS first (handshake_first)")
    says(start_node(server.url), "if it expects TLS first (handshake_first), name it with tls-first://")


def test_a_server_that_cannot_be_trusted_is_named_with_the_reason(
    tmp_path, brokers, start_node, authority
):
    other = Authority(authority.directory, "other").certificate
    server = brokers(tls(authority))
    trusting = ["--nats-ca", authority.certificate]
    untrusted = start_node(over_tls(server), "--nats-ca", other)
    says(
        untrusted,
        "no trusted authority has signed it; name the file of its authority with nats-",
    )
    untrusted.says(over_tls(server))
    named = brokers(tls(authority, "named"))
    says(start_node(over_tls(named), *trusting), "it is for another host name")
    another = tls_in_python.Authority(tmp_path)
    both = another.issue("127.0.0.1", age=datetime.timedelta(days=2))
    expired = brokers(f'tls {{ cert_file: "{both}", key_file: "{both}" }}')
    says(start_node(over_tls(expired), "--nats-ca", another.file), "it has expired")
    verifying = brokers(tls(authority, more="verify: true"))
    says(start_node(over_tls(verifying), *trusting), "a client certificate")
    plain = brokers("")
    says(
        start_node(over_tls(plain), *trusting),
        "the server does not speak TLS, which the settings",
    )
    says(start_node(plain.url, *trusting), "the server does not speak TLS, which the settings")


def test_a_key_of_a_user_logs_in(tmp_path, brokers, start_node, channel):
    key, other = Key(USER), Key(USER)
    server = brokers(f"authorization {{ users: [ {{ nkey: {key.public} }} ] }}")
    login = tmp_path / "login"
    login.write_text(f"{key.seed}\n")
    login.chmod(0o600)
    known = start_node(server.url, "--nats-login", login)
    works(known, channel)
    seed = tmp_path / "other"
    seed.write_text(other.seed)
    stranger = start_node(server.url, "--nats-login", seed)
    says(
        stranger,
        "it knows no such nkey: compare nats-login with the users of the server",
    )
    anonymous = start_node(server.url)
    says(anonymous, "the server asks for a login (authorization violation)")
    assert "every user of this machine can read the secret" in stranger.log()
    assert "every user of this machine can read" not in known.log()
    for one, secret in ((known, key.seed), (stranger, other.seed)):
        command = Path(f"/proc/{one.process.pid}/cmdline").read_text()
        status = one.http.get("/status.json").text
        shown = one.log() + one.http.get("/metrics").text + command + status
        assert secret not in shown


def test_credentials_that_expire_are_replaced_in_their_file(tmp_path, brokers, start_node, channel):
    operator = Operator()
    server = brokers(operator.configuration)
    login = tmp_path / "node.creds"
    login.write_text(operator.credentials(expires=-60))
    login.chmod(0o600)
    late = start_node(server.url, "--nats-login", login)
    says(late, "the server refuses the login")
    whole = tmp_path / "new.creds"
    whole.write_text(operator.credentials())
    whole.chmod(0o600)
    whole.rename(login)
    works(late, channel)


def test_a_file_of_a_login_that_is_damaged_is_refused_without_its_text(tmp_path):
    seed = Key(USER).seed
    login = tmp_path / "login"
    flags = ["--engine", "nats", "--nats", "a", "--nats-login", login]
    for text, expected in (
        (seed[:20] + "2222" + seed[24:], "the seed of the nkey is damaged"),
        (Operator().credentials()[:-120], "is not a whole .creds file"),
        ("", "is empty"),
    ):
        login.write_text(text)
        done = run_throng("check", *flags, directory=tmp_path)
        assert done.returncode == 78, done.stdout
        assert expected in done.stderr and done.stderr.startswith("error: nats-login: ")
        assert seed[4:20] not in done.stderr and "eyJ" not in done.stderr


class Announcer:
    """Says that it is a NATS server and that there is another one, and hangs up after the login."""

    def __init__(self, *others):
        info = {"headers": True, "version": "2.15.2", "connect_urls": others}
        self.info = b"INFO " + json.dumps(info).encode() + b"\r\n"
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self.listener.getsockname()[1]}"
        self.logins = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                with connection, connection.makefile("rwb") as lines:
                    lines.write(self.info)
                    lines.flush()
                    while (line := lines.readline()) and line != b"PING\r\n":
                        pass
                    self.logins += 1
                    lines.write(b"PONG\r\n")
                    lines.flush()


def test_a_node_goes_to_servers_that_another_one_announces(brokers, start_node, channel):
    server = brokers("")
    announcer = Announcer(server.url.removeprefix("nats://"))
    works(start_node(announcer.url), channel)
    assert announcer.logins > 0
    announcer.listener.close()


def test_a_node_tries_one_server_after_the_other(brokers, start_node, channel):
    first, second = brokers(""), brokers("")
    with closed_port() as port:
        one = start_node(f"nats://127.0.0.1:{port},{first.url},{second.url}")
        works(one, channel)
        one.says("cannot connect: connection refused")
        first.kill()
        # It knows nothing of the first one's messages.
        eventually(lambda: "the stream in NATS has lost messages" in one.log(), one.log())
        works(one, channel)


def test_a_node_works_with_exactly_the_permissions_of_the_guide(tmp_path, brokers, start_node, channel):
    server = brokers(f"authorization {{ users: [ {user_of_the_guide()} ] }}")
    login = tmp_path / "login"
    login.write_text("node:s3")
    both = [start_node(server.url, "--nats-login", login) for _ in range(2)]
    for one in both:
        works(one, channel)
    with subscribe("sse", both[1], f"/channels/{channel}", history="10") as there:
        ids = [both[0].publish(channel, str(n))["id"] for n in range(3)]
        assert there.take(5)[2:] == ["0", "1", "2"]
        both[0].http.post(f"/channels/{channel}", params={"volatile": "true"}, content="typing")
        assert next(event for event in there.events if event.data).data == "typing"
    assert [one["id"] for one in both[1].history(channel)["messages"]][-3:] == ids
    assert both[0].publish_to_user("ann", "x")["id"]
    assert not [one.log() for one in both if "Permissions Violation" in one.log()]
