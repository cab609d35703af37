"""The admin listener, read-only clients, and what each listener serves."""

import json
import socket
from types import SimpleNamespace

import pytest

from conftest import HERE
from support.commands import run
from support.raw import TEXT, Raw, RawWebSocket, frame
from support.server import Server, eventually, run_throng

ADMIN = ("--admin-listen", "127.0.0.1:0")
PUBLIC = ("--allow-anyone", "--admin-listen", "127.0.0.1:0")
STATUS = ["/status", "/status.json", "/status/stream", "/metrics"]


def refusal(response):
    """Status and code of an error response."""
    return response.status_code, response.json()["error"]


def first_sample(client, **headers):
    """The first event of /status/stream."""
    with client.stream("GET", "/status/stream", headers=headers) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: "):
                return json.loads(line[len("data: ") :])
    raise AssertionError("the stream has ended")


def test_an_admin_listener_that_trusts_everyone_beside_keys_is_warned_of(serve, tmp_path):
    keys = tmp_path / "throng.toml"
    keys.write_text(f'[[token-keys]]\nsecret = "{"s" * 40}"\n')
    keys.chmod(0o600)
    for address, is_warned in (("0.0.0.0:0", True), ("[::]:0", True), ("127.0.0.1:0", False)):
        server = serve("--admin-listen", address, "--admin-allow-anyone")
        with server.admin() as admin:
            assert admin.get("/health").status_code == 200
        found = [line for line in server.log().splitlines() if "trusts every client that reaches it" in line]
        assert len(found) == is_warned and all(" WARN " in line for line in found), server.log()
        assert run_throng("check", directory=tmp_path).returncode == 0


@pytest.mark.parametrize("listen", ["127.0.0.1", "0.0.0.0"])
def test_only_the_admin_listener_serves_status_and_metrics(serve, listen):
    server = serve(*PUBLIC, listen=listen)
    with server.admin() as admin:
        assert admin.get("/health").text == "ok\n"
        assert admin.get("/", follow_redirects=False).headers["Location"] == "/status"
        assert "Throng status" in admin.get("/status").text
        assert admin.get("/status.json").json()["connections"]["capacity"] > 0
        assert "throng_connections " in admin.get("/metrics").text
        assert admin.head("/status/stream").status_code == 200
        assert first_sample(admin)["connections"]["status"] == 1
    for path in STATUS:
        response = server.http.get(path)
        assert refusal(response) == (403, "forbidden"), path
        assert "--admin-listen" in response.json()["message"]
    assert server.http.get("/health").text == "ok\n"


def test_without_an_admin_listener_only_loopback_serves_status_and_metrics(serve):
    open_to_all = serve("--allow-anyone", listen="0.0.0.0")
    for path in STATUS:
        response = open_to_all.http.get(path)
        assert refusal(response) == (403, "forbidden"), path
        assert "--admin-listen" in response.json()["message"]
    local = serve()
    assert "throng_connections " in local.http.get("/metrics").text
    assert first_sample(local.http)["connections"]["status"] == 1


def test_a_kept_alive_connection_may_request_the_status_stream(serve):
    server = serve(*PUBLIC)
    with server.admin() as admin:
        address = SimpleNamespace(host=admin.base_url.host, port=admin.base_url.port)
    with Raw(address) as client:
        client.request("GET", "/health")
        assert client.read_response().status == 200
        client.request("GET", "/status/stream")
        assert client.read_head().status == 200
        text = b""
        while b"data: " not in text:
            text += client.read_chunk()


def test_the_admin_listener_refuses_other_origins_and_rebound_names(serve):
    server = serve(*PUBLIC, "--allowed-origins", "*", "--allowed-hosts", "*,throng")
    with server.admin() as admin:
        port = admin.base_url.port
        for path in [*STATUS, "/channels/a/history"]:
            rebound = {"Host": f"evil.example:{port}"}
            assert refusal(admin.get(path, headers=rebound)) == (403, "host_refused"), path
            origin = {"Origin": "https://evil.example"}
            assert refusal(admin.get(path, headers=origin)) == (403, "origin_refused"), path
        # A page of another program on the operator's machine.
        neighbour = {"Host": f"localhost:{port}", "Origin": "http://localhost:3000"}
        response = admin.post("/channels/a", content="x", headers=neighbour)
        assert refusal(response) == (403, "origin_refused")
        own = {"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}"}
        assert admin.post("/channels/a", content="x", headers=own).status_code == 201
        page = {"Host": f"evil.example:{port}", "Origin": f"http://evil.example:{port}"}
        response = admin.post("/channels/a", content="x", headers=page)
        assert refusal(response) == (403, "origin_refused")
        # Names that a scraper in a container and a tunnel use.
        for name in ("throng", "localhost", "127.0.0.1", "[::1]"):
            headers = {"Host": f"{name}:{port}"}
            assert admin.get("/metrics", headers=headers).status_code == 200, name
            assert first_sample(admin, **headers)["version"]


def test_the_admin_listener_serves_no_subscriptions_to_channels(serve, channel):
    server = serve(*PUBLIC)
    with server.admin() as admin:
        for path in (f"/channels/{channel}", f"/subscribe?channel={channel}", "/users/ann?wait=1"):
            assert refusal(admin.get(path)) == (404, "not_found"), path
            assert admin.head(path).status_code == 404
        assert refusal(admin.get("/channels/%00")) == (400, "bad_name")
        for path in ("/chat", "/chat.js", "/nowhere"):
            assert refusal(admin.get(path)) == (404, "not_found"), path


def test_an_application_publishes_and_reads_at_the_admin_listener(serve, channel):
    server = serve(*PUBLIC)
    with server.admin() as admin, RawWebSocket(server, f"/channels/{channel}") as websocket:
        assert admin.post(f"/channels/{channel}", content="one").status_code == 201
        lines = json.dumps({"channel": channel, "data": "two"})
        assert admin.post("/publish", content=lines).status_code == 200
        assert [websocket.read_message() for _ in range(2)] == [b"one", b"two"]
        history = admin.get(f"/channels/{channel}/history").json()
        assert [message["data"] for message in history["messages"]] == ["one", "two"]
        assert admin.get(f"/channels/{channel}/presence").json()["connections"] == 1


def test_read_only_clients_cannot_publish(serve, channel):
    server = serve(*ADMIN, "--clients-publish=false")
    for method, path in [
        ("POST", f"/channels/{channel}"),
        ("PUT", f"/channels/{channel}"),
        ("POST", "/users/ann"),
        ("POST", "/publish"),
    ]:
        line = json.dumps({"channel": channel, "data": "x"})
        assert refusal(server.http.request(method, path, content=line)) == (403, "forbidden"), path
    with RawWebSocket(server, f"/channels/{channel}") as plain:
        plain.send(frame(TEXT, "from a client"))
        code, reason = plain.read_close()
        assert code == 1008 and "may only read" in reason
    with RawWebSocket(server, f"/subscribe?channel={channel}", protocol="throng.v1") as many:
        assert json.loads(many.read_message())["type"] == "welcome"
        assert json.loads(many.read_message())["type"] == "subscribed"
        command = {"type": "publish", "channel": channel, "data": "x", "ref": 1}
        many.send(frame(TEXT, json.dumps(command)))
        error = json.loads(many.read_message())
        assert (error["type"], error["code"], error["ref"]) == ("error", "forbidden", 1)
        with server.admin() as admin:
            answer = admin.post(f"/channels/{channel}", content="from the application")
            assert (answer.status_code, answer.json()["subscribers"]) == (201, 1)
        assert json.loads(many.read_message())["data"] == "from the application"
    assert [message["data"] for message in server.history(channel)["messages"]] == ["from the application"]


def test_the_admin_listener_serves_during_a_drain(tmp_path, channel):
    server = Server(tmp_path, *ADMIN, "--drain-window", "0", "--drain-timeout", "10m")
    path = f"/channels/{channel}"
    with server.admin() as admin:
        # A drain closes connections that wait for a next request.
        admin.headers["Connection"] = "close"
        # A client that does not read, and is within its lag limit, keeps the drain going until it
        # has left.
        reader = RawWebSocket(server, path, receive_buffer_bytes=4096)
        server.publish_batch([{"channel": channel, "data": "x" * 60000} for _ in range(16)])
        server.signal()
        eventually(lambda: "SIGTERM: stopping" in server.log(), "the drain")
        # Readiness ends first, publishing is refused when the drain begins after that.
        eventually(lambda: "\nthrong_draining 1\n" in admin.get("/metrics").text, "the drain to show")
        assert admin.get("/health").status_code == 503

        def publish():
            return admin.post("/channels/a", content="x")

        eventually(lambda: publish().status_code == 503, "publishing to end")
        assert refusal(publish()) == (503, "draining")
        reader.reset()
    assert server.wait() == 0, server.log()


def test_contradicting_settings_are_refused(tmp_path):
    def refused(*flags):
        done = run_throng("serve", "--listen", "127.0.0.1:0", *flags, directory=tmp_path)
        return done.returncode, done.stderr

    code, message = refused("--admin-listen", "0.0.0.0:0")
    assert code == 78 and "--admin-allow-anyone" in message
    code, message = refused("--clients-publish=false")
    assert code == 78 and "--admin-listen" in message
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, message = refused("--admin-listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert code == 1 and "choose another port with --admin-listen" in message


def test_the_admin_listener_can_be_reached_from_outside_a_container(serve):
    server = serve(*PUBLIC[:1], "--admin-listen", "0.0.0.0:0", "--admin-allow-anyone")
    with server.admin() as admin:
        assert admin.get("/metrics").status_code == 200
        rebound = {"Host": "evil.example"}
        assert refusal(admin.get("/metrics", headers=rebound)) == (403, "host_refused")


def test_the_status_page_works_at_the_admin_listener(serve, chromium, tmp_path):
    server = serve("--allow-anyone", *ADMIN, listen="0.0.0.0")
    with server.admin() as admin:
        url = str(admin.base_url).rstrip("/")
    picture = tmp_path / "status.png"
    run("node", HERE / "node" / "status.mjs", chromium, url, "admin", picture)
    assert picture.stat().st_size > 0


def test_the_demo_is_served_on_loopback_only_by_default(serve):
    local, open_to_all = serve(), serve("--allow-anyone", listen="0.0.0.0")
    without = serve("--demo", "off")
    with_it = serve("--allow-anyone", "--demo", "on", listen="0.0.0.0")
    # In a read-only chat no message could be sent.
    read_only = serve("--clients-publish=false", *ADMIN)
    servers = [(local, 1), (open_to_all, 0), (without, 0), (with_it, 1), (read_only, 0)]
    for server, has_demo in servers:
        root = server.http.get("/", follow_redirects=False)
        assert root.status_code == (302 if has_demo else 200)
        for path in ("/chat", "/chat.js", "/chat.css", "/chat-view.js"):
            assert server.http.get(path).status_code == (200 if has_demo else 404), path
        for path in ("/throng.js", "/favicon.ico", "/icon.svg", "/status.md"):
            assert server.http.get(path).status_code == 200, path
    icon = local.http.get("/favicon.ico")
    assert icon.headers["Content-Type"] == "image/svg+xml"
    assert "/throng.js" in without.http.get("/").text
