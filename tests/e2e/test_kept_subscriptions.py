"""Subscriptions that the server keeps, against the real binary."""

import json
from contextlib import ExitStack

import pytest

from support.access import SECRET, bearer, server_key, token
from support.raw import Raw
from support.transports import TRANSPORTS, subscribe


def change(server, method, user, body=None, **parameters):
    response = server.http.request(
        method, f"/users/{user}/subscriptions", json=body, params=parameters
    )
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_transport_follows_kept_channels(server, channel, transport):
    user = f"u-{channel}"
    changed = change(server, "PUT", user, {"channels": [channel, f"{channel}-b"]})
    assert changed == {"user": user, "channels": 2, "added": 2, "removed": 0}
    with subscribe(transport, server, f"/users/{user}") as subscriber:
        connected = 0 if transport == "poll" else 1
        assert server.publish(channel, "one")["subscribers"] == connected
        assert subscriber.take(1) == ["one"]


def test_a_change_acts_on_open_connections_before_it_is_answered(server, channel):
    user = f"u-{channel}"
    with subscribe("sse", server, f"/users/{user}") as subscriber:
        change(server, "POST", user, {"add": [channel]})
        server.publish(channel, "followed")
        change(server, "DELETE", user, channel=channel)
        assert server.publish(channel, "not followed")["subscribers"] == 0
        server.publish_to_user(user, "to the inbox")
        assert subscriber.take(2) == ["followed", "to the inbox"]


def test_one_id_resumes_all_channels(server, channel):
    user = f"u-{channel}"
    names = [f"{channel}-{number}" for number in range(300)]
    change(server, "PUT", user, {"channels": names})
    with subscribe("sse", server, f"/users/{user}") as first:
        for name in names[:3]:
            server.publish(name, name)
        for name in names[:2]:
            id, data = first.next()
            assert data == name and id.startswith("~") and len(id) <= 64
    for name in names[3:6]:
        server.publish(name, name)
    with subscribe("sse", server, f"/users/{user}", since=id) as second:
        assert second.recovered is True
        assert second.take(4) == names[2:6]


def test_envelopes_carry_the_position(server, channel):
    user = f"u-{channel}"
    change(server, "PUT", user, {"channels": [channel]})
    with Raw(server) as client:
        client.request("GET", f"/users/{user}?envelope=true&wait=30")
        server.wait_for_connections(channel, 1)
        server.publish(channel, "hello")
        answer = client.read_response()
        position = answer.header("Throng-Id")
        assert position.startswith("~") and answer.json()["channel"] == channel
        client.request("GET", f"/users/{user}?wait=0&since={position}")
        assert client.read_response().status == 204


def test_lists_are_paged(server, channel):
    lines = [json.dumps({"user": f"{channel}-{n}", "add": [channel]}) for n in range(250)]
    answer = server.http.post("/subscriptions", content="\n".join(lines)).json()
    assert answer == {"lines": 250, "added": 250, "removed": 0, "errors": []}
    found, after = [], {}
    while after is not None:
        page = server.http.get(f"/channels/{channel}/followers", params=after).json()
        assert page["count"] == 250
        found += page["followers"]
        after = {"after": page["after"]} if page["more"] else None
    assert sorted(found) == sorted(f"{channel}-{n}" for n in range(250))
    page = server.http.get(f"/users/{channel}-7/subscriptions").json()
    assert page == {"user": f"{channel}-7", "channels": [channel], "count": 1, "more": False}


def test_wrong_lines_are_named_and_all_or_nothing_is_a_choice(server, channel):
    lines = [
        json.dumps({"user": f"{channel}-a", "channels": [channel]}),
        "not json",
        "",
        json.dumps({"user": f"{channel}-b", "add": ["a//b"]}),
    ]
    body = "\n".join(lines)

    def post(**parameters):
        return server.http.post("/subscriptions", content=body, params=parameters).json()

    for parameters in ({"atomic": "true"}, {"check": "true"}):
        answer = post(**parameters)
        assert [error["line"] for error in answer["errors"]] == [2, 4]
        assert answer["lines"] == 0
    assert server.http.get(f"/channels/{channel}/followers").json()["count"] == 0
    answer = post()
    assert (answer["lines"], answer["added"]) == (1, 1)
    assert [error["error"] for error in answer["errors"]] == ["bad_json", "bad_name"]


def test_all_or_nothing_adds_up_the_lines_of_a_user(server, channel):
    names = [f"{channel}-{number}" for number in range(10_001)]
    parts = (names[:6000], names[6000:])
    lines = [{"user": f"u-{channel}", "add": part} for part in parts]
    body = "\n".join(json.dumps(line) for line in lines)
    answer = server.http.post("/subscriptions", content=body, params={"atomic": "true"}).json()
    assert (answer["lines"], answer["added"]) == (0, 0)
    assert [(error["line"], error["error"]) for error in answer["errors"]] == [
        (2, "too_many_channels")
    ]
    assert server.http.get(f"/users/u-{channel}/subscriptions").json()["count"] == 0
    body += "\n" + json.dumps({"user": f"u-{channel}", "remove": names[:1]})
    between = "\n".join(body.split("\n")[line] for line in (0, 2, 1))
    answer = server.http.post("/subscriptions", content=between, params={"atomic": "true"}).json()
    assert (answer["lines"], answer["added"], answer["removed"]) == (3, 10_001, 1)


def test_a_key_changes_and_counts_what_it_sees(tmp_path, serve):
    key, table = server_key(tmp_path, "friends", "subscriptions", channels=["friends/*"])
    app, app_table = server_key(tmp_path, "app", "subscriptions")
    (tmp_path / "throng.toml").write_text(table + app_table)
    server, path = serve(), "/users/ann/subscriptions"
    narrow = bearer(key)
    all_of_ann = {"channels": ["secret/1", "friends/a", "secret/2", "friends/b"]}
    assert server.http.put(path, json=all_of_ann, headers=bearer(app)).json()["channels"] == 4
    seen = server.http.get(path, params={"limit": 2}, headers=narrow).json()
    assert sorted(seen["channels"]) == ["friends/a", "friends/b"]
    assert (seen["count"], seen["more"]) == (2, False)
    added = server.http.post(path, json={"add": ["friends/c"]}, headers=narrow).json()
    assert added == {"user": "ann", "channels": 3, "added": 1, "removed": 0}
    # A line for which the key does not count refuses all of them.
    lines = [{"user": "bob", "add": ["friends/a"]}, {"user": "ann", "channels": ["friends/a"]}]
    answer = server.http.post(
        "/subscriptions",
        content="\n".join(json.dumps(line) for line in lines),
        params={"atomic": "true"},
        headers=narrow,
    ).json()
    assert (answer["lines"], [error["line"] for error in answer["errors"]]) == (0, [2])
    assert server.http.get("/users/bob/subscriptions", headers=narrow).json()["count"] == 0


def test_keys_need_the_scope_and_cover_the_channels(tmp_path, serve):
    key, table = server_key(tmp_path, "friends", "subscriptions", channels=["friends/*"])
    other, other_table = server_key(tmp_path, "publisher", "publish")
    (tmp_path / "throng.toml").write_text(table + other_table)
    server = serve()
    path = "/users/ann/subscriptions"

    def put(key, channels):
        return server.http.put(path, json={"channels": channels}, headers=bearer(key)).status_code

    assert server.http.put(path, json={"channels": ["friends/bob"]}).status_code == 401
    assert put(other, ["friends/bob"]) == 403
    assert put(key, ["secrets"]) == 403
    assert put(key, ["friends/bob"]) == 200
    deleted = server.http.delete(path, params={"channel": "secrets"}, headers=bearer(key))
    assert deleted.status_code == 403


def test_only_the_user_gets_the_kept_channels_with_the_inbox(tmp_path, serve):
    app, table = server_key(tmp_path, "app", "subscriptions", "publish", "subscribe")
    (tmp_path / "throng.toml").write_text(f"[[token-keys]]\nsecret = '{SECRET}'\n" + table)
    server, key = serve(), bearer(app)
    path = "/users/ann/subscriptions"
    assert server.http.put(path, json={"channels": ["a"]}, headers=key).status_code == 200
    support = bearer(token(sub="support", throng={"subscribe": [{"users": "*"}]}))
    shown = [bearer(token(sub="ann")), support, key]

    def subscribers(channel):
        answer = server.http.post(f"/channels/{channel}", content="x", headers=key)
        return answer.json()["subscribers"]

    with ExitStack() as open_streams:
        for headers in shown:
            stream = open_streams.enter_context(Raw(server))
            stream.request("GET", "/users/ann", {"Accept": "text/event-stream", **headers})
            assert stream.read_head().status == 200
        to_inbox = server.http.post("/users/ann", content="x", headers=key)
        assert to_inbox.json()["subscribers"] == 3
        assert subscribers("a") == 1
        assert server.http.post(path, json={"add": ["b"]}, headers=key).status_code == 200
        assert subscribers("b") == 1
