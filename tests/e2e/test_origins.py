"""Which pages may connect, and what they may read."""

import pytest

from support.raw import Raw, handshake_headers

FOREIGN = "https://evil.example"
LISTED = "https://app.example"
REQUESTS = {
    "stream": ("GET", "/channels/x", {}),
    "sse": ("GET", "/channels/x", {"Accept": "text/event-stream"}),
    "poll": ("GET", "/channels/x?wait=0", {}),
    "websocket": ("GET", "/channels/x", None),
    "publish": ("POST", "/channels/x", {}),
    "batch": ("POST", "/publish", {}),
    "history": ("GET", "/channels/x/history", {}),
    "presence": ("GET", "/channels/x/presence", {}),
}


def ask(server, what, origin, host=None):
    """Sends one of the requests, with or without an origin; returns the head of the response."""
    method, path, headers = REQUESTS[what]
    headers = handshake_headers() if headers is None else dict(headers)
    with Raw(server) as connection:
        if host:
            connection.host = host
        if origin:
            headers["Origin"] = origin
        connection.request(method, path, headers, b"x" * (method == "POST"))
        head = connection.read_head()
        if head.status >= 400:
            head.body = connection.read(int(head.header("Content-Length")))
        return head


@pytest.mark.parametrize("what", REQUESTS)
def test_a_foreign_page_is_refused(server, what):
    response = ask(server, what, FOREIGN)
    assert response.status == 403 and response.json()["error"] == "origin_refused"
    # The page may read why, and nothing with credentials.
    assert response.header("Access-Control-Allow-Origin") == FOREIGN
    assert response.header("Access-Control-Allow-Credentials") is None


@pytest.mark.parametrize("origin", ["null", "https://", "garbage", "http://127.0.0.1.evil.example"])
def test_origins_similar_to_the_servers_are_refused(server, origin):
    assert ask(server, "sse", origin).status == 403


@pytest.mark.parametrize("what", REQUESTS)
def test_own_and_loopback_pages_are_answered(server, what):
    for origin in (server.url, "http://localhost:3000", "http://[::1]:9"):
        assert ask(server, what, origin).status < 400, origin


def test_a_name_that_resolves_to_loopback_is_a_foreign_origin(server, serve):
    """The owner of a name can point it at 127.0.0.1, so the same host proves little."""
    origin = "https://push.example"
    assert ask(server, "sse", origin, host="push.example").status == 403
    listed = serve("--allowed-origins", origin)
    assert ask(listed, "sse", origin, host="push.example").status == 200


@pytest.mark.parametrize("what", [*REQUESTS, "/metrics", "/status.json", "/chat", "/"])
def test_a_name_that_resolves_to_loopback_reads_nothing(server, serve, what):
    """A browser sends no `Origin` with a `GET` to the page's own host: rebinding shows in `Host`."""
    server.http.post("/channels/x", content=b"secret")

    def status(asked, host):
        if what in REQUESTS:
            return ask(asked, what, None, host=host)
        with Raw(asked) as connection:
            connection.host = host
            connection.request("GET", what, {})
            head = connection.read_head()
            head.body = connection.read(int(head.header("Content-Length")))
            return head

    for host in (f"evil.example:{server.port}", "evil.example", "127.0.0.1.evil.example"):
        response = status(server, host)
        assert response.status == 403 and response.json()["error"] == "host_refused", host
    for host in (f"localhost:{server.port}", "localhost.", "[::1]", "192.168.0.1:80"):
        assert status(server, host).status < 400 or what == "/status.json", host
    listed = serve("--allowed-hosts", "throng,push.example", "--allowed-origins", LISTED)
    for host in ("throng:8080", "push.example", "app.example"):
        assert status(listed, host).status < 400 or what == "/status.json", host
    assert status(listed, "evil.example").status == 403


def test_requests_refused_by_host_are_counted(server):
    name = 'throng_refused_total{reason="host"}'
    before = server.metrics()[name]
    assert ask(server, "sse", None, host="evil.example").status == 403
    assert server.metrics()[name] == before + 1


def test_requests_without_a_host_are_answered(server):
    """Only HTTP/1.0 allows them, and browsers do not send them."""
    for path in ("/channels/x?wait=0", "/channels/x/history"):
        with Raw(server) as connection:
            connection.send(f"GET {path} HTTP/1.0\r\n\r\n")
            status = connection.read(len("HTTP/1.1 200")).split()[1]
            assert status in (b"200", b"204"), path


def test_health_is_answered_under_every_name(server):
    """Probes use other host names."""
    response = server.http.get("/health", headers={"Host": "10-0-0-7.pod.cluster.local"})
    assert response.status_code == 200


def test_a_server_that_others_reach_answers_under_listed_hosts(serve):
    """In a container it cannot listen on loopback, though its port may be published there alone."""
    server = serve("--allow-anyone", "--allowed-hosts", "push.example", listen="0.0.0.0")
    for what in REQUESTS:
        assert ask(server, what, None, host="push.example").status < 400
        assert ask(server, what, None, host="evil.example").status == 403
        assert ask(server, what, "http://evil.example", host="evil.example").status == 403


def test_loopback_pages_are_foreign_to_a_public_name(server):
    assert ask(server, "sse", "http://localhost:3000", host="push.example").status == 403


@pytest.mark.parametrize("what", REQUESTS)
def test_a_listed_page_is_answered_and_may_read(serve, what):
    server = serve("--allowed-origins", f"{LISTED},https://other.example")
    response = ask(server, what, LISTED)
    assert response.status < 400
    if what != "websocket":
        assert response.header("Access-Control-Allow-Origin") == LISTED
        exposed = response.header("Access-Control-Expose-Headers").lower()
        assert {"throng-id", "throng-recovered", "throng-connection"} <= {
            name.strip() for name in exposed.split(",")
        }
    assert ask(server, what, FOREIGN).status == 403


@pytest.mark.parametrize("what", ["sse", "publish", "websocket"])
def test_any_page_is_answered_with_the_setting(serve, what):
    server = serve("--allowed-origins", "*")
    response = ask(server, what, FOREIGN)
    assert response.status < 400
    if what != "websocket":
        assert response.header("Access-Control-Allow-Origin") in ("*", FOREIGN)


def test_a_preflight_is_answered(serve):
    server = serve("--allowed-origins", LISTED)
    asked = {
        "Origin": LISTED,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type, idempotency-key, throng-exclude",
    }
    response = server.http.options("/channels/x", headers=asked)
    assert response.status_code in (200, 204)
    assert response.headers["Access-Control-Allow-Origin"] == LISTED
    methods = response.headers["Access-Control-Allow-Methods"]
    assert {"POST", "PUT"} <= {method.strip() for method in methods.split(",")}
    allowed = response.headers["Access-Control-Allow-Headers"].lower()
    assert {"content-type", "idempotency-key", "throng-exclude", "last-event-id"} <= {
        name.strip() for name in allowed.split(",")
    }
    asked["Origin"] = FOREIGN
    assert server.http.options("/channels/x", headers=asked).status_code == 403


def test_an_error_can_be_read_by_a_listed_page(serve):
    server = serve("--allowed-origins", LISTED)
    for path in ("/channels/%00", "/channels/x?since=nonsense", "/channels/x/history?limit=-1"):
        response = server.http.get(path, headers={"Origin": LISTED})
        assert response.status_code == 400
        assert response.headers["Access-Control-Allow-Origin"] == LISTED, path


def test_listed_pages_may_set_the_headers_that_they_ask_for(serve):
    server = serve("--allowed-origins", f"{LISTED},*")
    asked = "baggage,content-type,sentry-trace"
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": asked}
    for origin, is_listed in ((LISTED, True), ("https://other.example", False)):
        answer = server.http.options("/channels/a", headers={**preflight, "Origin": origin})
        allowed = answer.headers["Access-Control-Allow-Headers"].lower().split(", ")
        assert answer.status_code == 204 and "content-type" in allowed
        assert ("baggage" in allowed, "sentry-trace" in allowed) == (is_listed, is_listed)
    many = ",".join(f"x-{n}" for n in range(33))
    for long in (many, "x" * 2000, "a b"):
        headers = {**preflight, "Origin": LISTED, "Access-Control-Request-Headers": long}
        allowed = server.http.options("/channels/a", headers=headers)
        assert "x-1" not in allowed.headers["Access-Control-Allow-Headers"].lower().split(", ")
