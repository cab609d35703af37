"""Both clients over TLS, with a certificate that only the test trusts."""

import re

import pytest
from support.certificates import make_certificate, trusting
from support.server import eventually
from throng_client import Throng, ThrongError

ADDRESS = re.compile(r"TLS listener on https://[\d.]+:(\d+)")


@pytest.fixture
def secure(serve, tmp_path):
    """The URL of a server with TLS, and its certificate."""
    certificate, key = make_certificate(tmp_path, "own", "localhost")
    flags = ["--tls-listen", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key]
    server = serve(*flags)
    eventually(lambda: ADDRESS.search(server.log()), "the TLS listener")
    return f"https://localhost:{ADDRESS.search(server.log()).group(1)}", certificate


@pytest.mark.parametrize("transport", ["websocket", "sse", "poll"])
def test_it_trusts_the_certificates_of_its_context(secure, channel, transport):
    url, certificate = secure
    context = trusting(certificate)
    with Throng(url, ssl_context=context, transports=[transport]) as client:
        client.publish(channel, "secret")
        assert next(client.subscribe(channel, history=1)).data == "secret"
    with Throng(url, publish_timeout=0.2) as stranger:
        with pytest.raises(ThrongError) as caught:
            stranger.publish(channel, "x")
    assert (caught.value.code, caught.value.outcome) == ("timeout", "unpublished")
