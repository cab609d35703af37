"""The client's address behind proxies: PROXY headers, HAProxy, Forwarded and X-Forwarded-For."""

import pytest

from support.proxies import LOCAL_V2, haproxy, header_v1, header_v2
from support.raw import Raw
from support.server import eventually
from test_limits import ask, expect_refusal, follow

PROXY = 'throng_refused_total{reason="proxy_header"}'
ALWAYS = ["--proxy-protocol", "always", "--trusted-proxies", "127.0.0.1"]
# An open server on loopback refuses what comes through a proxy, without --allow-anyone.
FORWARDED = ["--client-address-header", "x-forwarded-for", "--trusted-proxies", "127.0.0.1"]
FORWARDED += ["--allow-anyone"]
ONE = ["--max-connections-per-address", 1]


def proxied(server, header, path="/health", source="127.0.0.1", pieces=None):
    """Sends a PROXY header and a request; `pieces` cuts the bytes."""
    client = Raw(server, source=source)
    request = f"GET {path} HTTP/1.1\r\nHost: {client.host}\r\n\r\n".encode()
    data = header + request
    for at in range(0, len(data), pieces or len(data)):
        client.send_anyway(data[at : at + (pieces or len(data))])
    return client


@pytest.mark.parametrize("version", [header_v1, header_v2])
@pytest.mark.parametrize("pieces", [None, 7])
def test_the_address_of_a_proxy_header_is_the_clients(serve, channel, version, pieces):
    server = serve(*ALWAYS, *ONE)
    path = f"/channels/{channel}"
    with proxied(server, version("203.0.113.9"), path, pieces=pieces) as first:
        assert first.read_head().status == 200
        with proxied(server, version("203.0.113.9"), path, pieces=pieces) as second:
            expect_refusal(second.read_response())
        with proxied(server, version("203.0.113.10"), path, pieces=pieces) as other:
            assert other.read_head().status == 200


def test_operators_see_the_client_and_its_proxy(serve, channel):
    server = serve(*ALWAYS, "--log-connections")
    path = f"/channels/{channel}"
    with proxied(server, header_v1("203.0.113.9"), path) as named, proxied(server, LOCAL_V2, path) as unnamed:
        assert named.read_head().status == unnamed.read_head().status == 200
        with proxied(server, LOCAL_V2, f"{path}/connections") as operator:
            found = operator.read_response().json()["connections"]
        [behind] = [each for each in found if "proxy" in each]
        assert behind["address"] == "203.0.113.9" and behind["proxy"].startswith("127.0.0.1:")
        [direct] = [each for each in found if "proxy" not in each]
        assert direct["address"].startswith("127.0.0.1:")
    server.stop()
    ends = [line for line in server.output if "connection ended" in line]
    assert len(ends) == 2
    assert any(f"address=203.0.113.9 proxy={behind['proxy']} " in line for line in ends), ends
    assert any(f"address={direct['address']} seconds=" in line for line in ends), ends


def test_ipv6_clients_share_a_limit_by_their_64(serve, channel):
    server = serve(*ALWAYS, *ONE)
    path = f"/channels/{channel}"
    with proxied(server, header_v2("2001:db8:1:2::1"), path) as first:
        assert first.read_head().status == 200
        with proxied(server, header_v2("2001:db8:1:2:ffff::9"), path) as neighbour:
            expect_refusal(neighbour.read_response())
        # With the additions that balancers make.
        added = header_v2("2001:db8:1:3::1", extra=b"\x04\x00\x01\x00")
        with proxied(server, added, path) as other:
            assert other.read_head().status == 200


def test_the_address_survives_the_control_plane(serve, channel):
    server = serve(*ALWAYS, *ONE)
    with proxied(server, header_v1("203.0.113.9")) as kept:
        assert kept.read_response().status == 200
        with proxied(server, header_v1("203.0.113.9")) as second:
            expect_refusal(second.read_response())
        kept.request("GET", f"/channels/{channel}")
        assert kept.read_head().status == 200
        with proxied(server, header_v1("203.0.113.9")) as second:
            expect_refusal(second.read_response())

    def is_free():
        with proxied(server, header_v1("203.0.113.9")) as client:
            return client.read_response().status == 200

    eventually(is_free, "it has gone")


def test_a_client_that_the_proxy_does_not_name_has_no_limit(serve, channel):
    server = serve(*ALWAYS, *ONE)
    path = f"/channels/{channel}"
    for header in (b"PROXY UNKNOWN\r\n", LOCAL_V2):
        with proxied(server, header, path) as one, proxied(server, header, path) as other:
            assert one.read_head().status == other.read_head().status == 200


@pytest.mark.parametrize(
    "header",
    [b"", b"PROXY TCP4 1.2.3.4\r\n", b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\0", b"proxy "],
    ids=["none", "malformed", "version 3", "lower case"],
)
def test_a_connection_without_a_valid_header_is_closed(serve, header):
    server = serve(*ALWAYS, "--admin-listen", "127.0.0.1:0")
    with proxied(server, header) as client:
        assert client.is_ended()
    with server.admin() as admin:
        assert f"{PROXY} 1" in admin.get("/metrics").text


def test_a_header_that_does_not_come_is_not_awaited_for_ever(serve):
    server = serve(*ALWAYS, "--head-timeout", "1s")
    with Raw(server, source="127.0.0.1") as client:
        client.send(b"PROXY TCP4")
        assert client.is_ended()


def test_a_header_from_a_stranger_is_refused(serve):
    server = serve(*ALWAYS, "--admin-listen", "127.0.0.1:0")
    for header in (header_v1("203.0.113.9"), b""):
        with proxied(server, header, source="127.0.0.2") as client:
            assert client.is_ended()
    with server.admin() as admin:
        assert f"{PROXY} 2" in admin.get("/metrics").text


def test_a_header_where_none_is_expected_is_a_bad_request(serve):
    server = serve("--trusted-proxies", "127.0.0.1")
    with proxied(server, header_v1("203.0.113.9")) as client:
        assert client.read_response().status == 400


@pytest.mark.parametrize("options", ["send-proxy", "send-proxy-v2"])
def test_haproxy_names_its_clients(serve, channel, tmp_path, options):
    server = serve(*ALWAYS, *ONE)
    path = f"/channels/{channel}"
    with haproxy(tmp_path, server, options) as proxy:
        with follow(proxy, path, "127.0.0.2"):
            expect_refusal(ask(proxy, "GET", path, "127.0.0.2"))
            with follow(proxy, path, "127.0.0.3"):
                expect_refusal(ask(proxy, "GET", path, "127.0.0.3"))


HEADERS = [
    ("x-forwarded-for", "X-Forwarded-For", "{}"),
    ("forwarded", "Forwarded", 'for="{}";proto=https'),
]


@pytest.mark.parametrize("setting,name,form", HEADERS)
def test_the_rightmost_address_that_is_no_proxy_is_the_client(serve, channel, setting, name, form):
    trusted = "127.0.0.1,10.0.0.0/8"
    header = ["--client-address-header", setting]
    server = serve("--allow-anyone", "--trusted-proxies", trusted, *header, *ONE)
    path = f"/channels/{channel}"

    def through(*addresses, source="127.0.0.1"):
        client = Raw(server, source=source)
        values = ", ".join(form.format(address) for address in addresses)
        client.request("GET", path, {name: values})
        return client

    with through("203.0.113.9") as first:
        assert first.read_head().status == 200
        # What a client writes itself, before the proxy adds its address, does not count.
        for spoofed in ("198.51.100.1", "10.1.1.1", "garbage"):
            with through(spoofed, "203.0.113.9") as second:
                expect_refusal(second.read_response())
        with through("203.0.113.9", "10.1.1.1") as second:
            expect_refusal(second.read_response())
        with through("203.0.113.9", "203.0.113.10") as other:
            assert other.read_head().status == 200
        # A client that is no proxy speaks for itself.
        with through("203.0.113.9", source="127.0.0.2") as stranger:
            assert stranger.read_head().status == 200
            with through("198.51.100.7", source="127.0.0.2") as again:
                expect_refusal(again.read_response())
        # A proxy that names nobody.
        with through("unknown") as one, through("unknown") as two:
            assert one.read_head().status == two.read_head().status == 200
        with through("1.2.3.4.5") as client:
            assert client.read_response().status == 400


def test_each_poll_through_a_proxy_has_its_own_client(serve, channel):
    server = serve(*FORWARDED, *ONE)
    path = f"/channels/{channel}"
    with Raw(server, source="127.0.0.1") as kept:
        for number in range(4):
            client = {"X-Forwarded-For": f"203.0.113.{number % 2}"}
            kept.request("GET", f"{path}?wait=1", client)
            assert kept.read_response().status == 204
        with Raw(server, source="127.0.0.1") as other:
            other.request("GET", path, {"X-Forwarded-For": "203.0.113.1"})
            assert other.read_head().status == 200


def test_publishing_through_a_proxy_is_limited_by_client(serve, channel):
    server = serve(*FORWARDED, "--publish-rate-per-address", 5)
    path = f"/channels/{channel}"

    def statuses(client, count):
        with Raw(server, source="127.0.0.1") as connection:
            for _ in range(count):
                connection.request("POST", path, {"X-Forwarded-For": f"1.1.1.1, {client}"}, b"x")
                yield connection.read_response().status

    eventually(lambda: 429 in statuses("203.0.113.9", 30), "the limit")
    assert list(statuses("203.0.113.10", 2)) == [201, 201]


def test_a_proxy_that_is_not_listed_is_pointed_out_at_the_start(serve):
    server = serve(*ONE)
    eventually(lambda: "count all clients behind a proxy" in server.log(), "the warning")
