"""Proxies and certificates from the environment: one rule for HTTP and WebSockets."""

import asyncio

import pytest
from throng_client import AsyncThrong, Throng
from throng_client.network import network_of
from throng_client.options import Options

NAMES = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD"]
FAR = "http://push.example.com"


@pytest.fixture
def environment(monkeypatch):
    """Sets variables; all others about proxies and certificates are not set."""
    for name in [*NAMES, "SSL_CERT_FILE", "SSL_CERT_DIR"]:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)

    def given(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return given


def proxy_of(url, **options):
    return network_of(url, Options(**options)).proxy


def test_the_variable_of_the_scheme_comes_first(environment):
    environment(HTTP_PROXY="http://plain:1", HTTPS_PROXY="secure:2", ALL_PROXY="http://all:3")
    assert proxy_of(FAR) == "http://plain:1"
    assert proxy_of("https://push.example.com") == "http://secure:2"
    environment(http_proxy="http://lower:4")
    assert proxy_of(FAR) == "http://lower:4"


def test_a_cgi_program_does_not_trust_a_header(environment):
    environment(HTTP_PROXY="http://plain:1", REQUEST_METHOD="GET")
    assert proxy_of(FAR) is None


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.9.1:8080", "localhost", "[::1]:9", "a.localhost"]
)
def test_a_server_on_this_machine_has_no_proxy(environment, host):
    environment(ALL_PROXY="socks://127.0.0.1:1", NO_PROXY="[::1],fe80::/10")
    Throng(f"http://{host}").close()


@pytest.mark.parametrize(
    ("host", "exceptions", "is_direct"),
    [
        ("push.example.com", "push.example.com", True),
        ("push.example.com", "EXAMPLE.com", True),
        ("push.example.com", ".example.com, other", True),
        ("push.example.com", "*.example.com", True),
        ("push.example.com", "ample.com", False),
        ("push.example.com", "*", True),
        ("push.example.com:8080", "push.example.com:8080", True),
        ("push.example.com:8080", "push.example.com:9090", False),
        ("10.1.2.3", "10.0.0.0/8", True),
        ("11.1.2.3", "10.0.0.0/8", False),
        ("10.1.2.3", "10.1.2.3", True),
        ("[fe80::1]", "localhost fe80::/10", True),
        ("[2001:db8::1]:80", "[2001:db8::1]", True),
        ("[2001:db8::1]:81", "[2001:db8::1]:80", False),
        ("push.example.com", "300.1.2.3/99,[,:::,::/,/8", False),
    ],
)
def test_no_proxy_has_names_addresses_and_networks(environment, host, exceptions, is_direct):
    environment(ALL_PROXY="http://proxy:3128", NO_PROXY=exceptions)
    assert proxy_of(f"http://{host}") == (None if is_direct else "http://proxy:3128")


@pytest.mark.parametrize("kind", [Throng, AsyncThrong])
@pytest.mark.parametrize(
    "proxy", ["socks://127.0.0.1:1", "socks5://127.0.0.1:1", "ftp://a", "http://", "http://a:x"]
)
def test_an_error_names_the_variable(environment, kind, proxy):
    environment(all_proxy=proxy)
    with pytest.raises(ValueError, match=r"the variable all_proxy .*proxy=None"):
        kind(FAR)


def test_an_option_is_stronger_than_the_environment(environment):
    environment(ALL_PROXY="socks://127.0.0.1:1")
    assert proxy_of(FAR, proxy=None) is None
    assert proxy_of("http://127.0.0.1", proxy="http://proxy:1") == "http://proxy:1"
    with pytest.raises(ValueError, match="the option proxy"):
        Throng(FAR, proxy="gopher://proxy")


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
def test_certificates_that_are_not_there_are_named(environment, name):
    environment(**{name: "/does/not/exist"})
    with pytest.raises(ValueError, match=f"the variable {name} names '/does/not/exist'"):
        Throng("https://push.example.com")
    # Without TLS there is nothing to verify.
    Throng("http://127.0.0.1:1").close()


def test_a_file_without_certificates_is_named(environment, tmp_path):
    (tmp_path / "empty.pem").write_text("")
    environment(SSL_CERT_FILE=str(tmp_path / "empty.pem"))
    with pytest.raises(ValueError, match="SSL_CERT_FILE"):
        Throng("https://push.example.com")


@pytest.mark.parametrize("transport", ["websocket", "sse", "poll"])
def test_all_transports_go_through_the_proxy(environment, server, transport):
    """The server takes the place of a proxy: it refuses what is meant for another host."""
    environment(ALL_PROXY=server.url)

    async def run():
        heard = asyncio.Queue()
        async with AsyncThrong("http://push.invalid", transports=[transport]) as client:
            following = asyncio.ensure_future(
                anext(client.subscribe("a", on_state=heard.put_nowait))
            )
            while (state := await heard.get()).name not in ("waiting", "closed"):
                pass
            following.cancel()
            (ended,) = await asyncio.gather(following, return_exceptions=True)
            return f"{state.reason} {ended}"

    # No name is looked up here; what the server says of the host has come through the proxy.
    said = asyncio.run(run())
    assert "host_refused" in said or "proxy" in said.lower()
