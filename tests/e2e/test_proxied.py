"""Requests through a proxy to a server without keys, which is for its machine only."""

import pytest

from support.raw import Raw
from support.server import Server

HEADERS = {
    "Forwarded": "for=192.0.2.1",
    "Via": "1.1 proxy",
    "X-Forwarded-For": "192.0.2.1",
    "x-forwarded-proto": "https",
}
PATHS = ["/channels/a", "/channels/a/history", "/status", "/metrics", "/throng.js"]


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("path", PATHS)
def test_a_server_without_keys_refuses_them(server, path, header):
    response = server.http.get(path, headers={header: HEADERS[header]})
    assert response.status_code == 403
    error = response.json()
    assert error["error"] == "forwarded_refused" and header.lower() in error["message"].lower()
    assert "throng key" in error["message"] and "--allow-anyone" in error["message"]


def test_a_publication_is_refused_also_on_a_kept_connection(server, channel):
    assert server.http.post(f"/channels/{channel}", content="a").status_code == 201
    headers = {"Via": "1.1 proxy"}
    assert server.http.post(f"/channels/{channel}", content="b", headers=headers).status_code == 403
    assert len(server.history(channel)["messages"]) == 1


def test_probes_are_answered(server):
    response = server.http.get("/health", headers={"X-Forwarded-For": "192.0.2.1"})
    assert response.status_code == 200


def test_a_websocket_is_refused_with_the_sentence(server):
    with Raw(server) as connection:
        connection.request(
            "GET",
            "/channels/a",
            {
                "Upgrade": "websocket",
                "Connection": "Upgrade",
                "Sec-WebSocket-Version": "13",
                "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
                "X-Forwarded-For": "192.0.2.1",
            },
        )
        assert connection.read_response().status == 403


def test_the_admin_listener_refuses_them_too(tmp_path):
    server = Server(tmp_path, "--admin-listen", "127.0.0.1:0", "--allow-anyone")
    headers = {"X-Forwarded-For": "192.0.2.1"}
    assert server.http.get("/channels/a/history", headers=headers).status_code == 200
    with server.admin() as admin:
        assert admin.get("/metrics", headers=headers).status_code == 403
        assert admin.get("/metrics").status_code == 200
    server.stop()


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("allow-anyone = true\n", 200),
        ("[[token-keys]]\nsecret = '0123456789abcdef0123456789abcdef'\n", 401),
    ],
)
def test_with_keys_or_by_a_setting_they_are_served(tmp_path, text, status):
    (tmp_path / "throng.toml").write_text(text)
    server = Server(tmp_path)
    response = server.http.get("/channels/a/history", headers={"X-Forwarded-For": "192.0.2.1"})
    assert response.status_code == status
    server.stop()
