"""Clients whose certificates name them as users, in both planes."""

import re
import signal

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as websocket

from support import TIMEOUT_SECONDS
from support.access import SECRET, bearer, server_key, token
from support.certificates import Authority, make_certificate, trusting
from support.server import eventually

ADDRESS = re.compile(r"TLS listener on https://[\d.]+:(\d+)")
KEYS = f"""
[[token-keys]]
secret = "{SECRET}"
[[channels]]
match = "rooms/*"
publish = "user"
subscribe = "user"
"""


def granting(user=None, **grants):
    return bearer(token(sub=user, throng=grants))


class Secure:
    """A server that asks for certificates, and the clients that have them."""

    def __init__(self, serve, directory, settings=KEYS, user="cn", flags=()):
        self.certificate, key = make_certificate(directory, "own", "localhost")
        self.authority = Authority(directory)
        self.crl = self.authority.revoke()
        (directory / "throng.toml").write_text(settings)
        self.server = serve(
            *("--tls-listen", "127.0.0.1:0", "--tls-cert", self.certificate, "--tls-key", key),
            *("--tls-client-ca", self.authority.certificate, "--tls-client-auth", "optional"),
            *("--tls-client-crl", self.crl, "--tls-client-user", user, *flags),
        )
        eventually(lambda: ADDRESS.search(self.server.log()), "the TLS listener")
        self.port = int(ADDRESS.search(self.server.log()).group(1))

    def http(self, own=None, **headers):
        return httpx.Client(
            base_url=f"https://localhost:{self.port}",
            verify=trusting(self.certificate, own),
            timeout=TIMEOUT_SECONDS,
            trust_env=False,
            headers=headers,
        )

    def follow(self, path, own=None, **headers):
        context = trusting(self.certificate, own)
        url = f"wss://localhost:{self.port}{path}"
        return websocket(url, ssl=context, additional_headers=headers, proxy=None)


@pytest.fixture
def secure(serve, tmp_path):
    return lambda *arguments, **options: Secure(serve, tmp_path, *arguments, **options)


def status(answer):
    return answer.status_code, answer.json().get("message", "")


def test_a_certificate_is_a_user_in_both_planes(secure):
    server = secure()
    ann = server.authority.sign("ann")
    with server.http(ann) as http, server.follow("/users/ann", ann) as inbox:
        # The connection goes to the control plane, and back to a worker as a subscriber.
        assert http.post("/channels/rooms%2Fa", content="x").status_code == 201
        with http.stream("GET", "/channels/rooms%2Fa") as stream:
            assert stream.status_code == 200
        with http.stream("GET", "/users/bob") as stream:
            assert stream.status_code == 403
        assert http.post("/channels/other", content="x").status_code == 403
        with server.http(**granting(publish=[{"users": "*"}])) as sender:
            assert sender.post("/users/ann", content="for ann").status_code == 201
        assert inbox.recv(TIMEOUT_SECONDS) == "for ann"
    with server.http() as http:
        code, message = status(http.post("/channels/rooms%2Fa", content="x"))
        assert code == 401 and message.startswith("this needs a token") and "publish on rooms/a" in message


@pytest.mark.parametrize("user", ["cn", "dns", "email", "uri"])
def test_the_field_is_a_setting(secure, user):
    server = secure(user=user)
    names = {"cn": "ann", "dns": "ann.example", "email": "ann@example.org", "uri": "urn:ann"}
    own = server.authority.sign("ann", "DNS:ann.example", "email:ann@example.org", "URI:urn:ann")
    with server.http(own) as http:
        for name in names.values():
            with http.stream("GET", f"/users/{name}") as stream:
                assert stream.status_code == (200 if name == names[user] else 403)


def test_a_token_may_add_grants_and_not_another_user(secure):
    server = secure()
    ann = server.authority.sign("ann")
    for user, expected in (("ann", 201), (None, 201), ("bob", 403)):
        with server.http(ann, **granting(user, publish=["{user}/*"])) as http:
            answer = http.post("/channels/ann%2Fx", content="x")
            assert answer.status_code == expected, answer.text
            with http.stream("GET", "/channels/rooms%2Fa") as stream:
                assert stream.status_code == (403 if expected == 403 else 200)
                if expected == 403:
                    text = "the token is of another user than the certificate"
                    assert text in stream.read().decode()


def test_pages_of_others_do_not_use_the_certificate(secure):
    server = secure()
    ann = server.authority.sign("ann")
    foreign = {"origin": "https://elsewhere.example", "sec-fetch-site": "cross-site"}
    with server.http(ann, **foreign) as http:
        assert http.post("/channels/rooms%2Fa", content="x").status_code == 403
        with http.stream("GET", "/channels/rooms%2Fa") as stream:
            assert stream.status_code == 403


def test_revoked_certificates_and_revoked_users_stay_out(secure, tmp_path):
    key, table = server_key(tmp_path, "app", "administration")
    server = secure(KEYS + table, flags=("--revocations-file", tmp_path / "revocations"))
    ann, bob = server.authority.sign("ann"), server.authority.sign("bob")
    with server.http(bob) as http:
        assert http.post("/channels/rooms%2Fa", content="x").status_code == 201
    server.authority.revoke(bob[0])
    server.server.signal(signal.SIGHUP)
    eventually(lambda: "replaced: certificates" in server.server.log(), "the list is read")
    with pytest.raises(httpx.TransportError), server.http(bob) as http:
        http.get("/health")
    with server.http(ann) as http, server.follow("/users/ann", ann) as inbox:
        answer = http.post("/revocations/users/ann", headers=bearer(key))
        assert answer.status_code < 300, answer.text
        with pytest.raises(ConnectionClosed):
            inbox.recv(TIMEOUT_SECONDS)
        code, message = status(http.post("/channels/rooms%2Fa", content="x"))
        assert (code, message) == (
            401,
            "certificates of this user that are as old as this one are revoked",
        )
