"""Names that stand in the query, for proxies that do not pass `%2F` in paths on."""

import pytest

NAME = "rooms/ä +&%2F?"
LISTED = {"Origin": "https://app.example.com"}


def test_what_is_below_a_channel_is_found_by_its_name(server, channel):
    name = {"channel": f"{channel}/{NAME}"}
    answer = server.http.post("/publish", params=name, content="hello")
    assert answer.status_code == 201
    put = server.http.put("/publish", params=name, content="again", headers={"Idempotency-Key": "k"})
    page = server.http.get("/history", params={**name, "limit": 1}).json()
    assert page["channel"] == name["channel"] and page["id"] == put.json()["id"]
    assert [message["data"] for message in page["messages"]] == ["again"] and page["more"]
    assert server.http.head("/history", params=name).headers["Throng-Id"] == page["id"]
    assert server.http.get("/presence", params=name).json()["connections"] == 0
    assert server.http.get("/connections", params=name).json()["count"] == 0
    assert server.http.delete("/connections", params=name).json() == {"disconnected": 0}
    assert server.http.get("/followers", params=name).json()["channel"] == name["channel"]


def test_what_is_below_a_user_is_found_by_its_name(server, channel):
    name = {"user": f"{channel}/{NAME}"}
    id = server.http.post("/publish", params=name, json={"n": 1}).json()["id"]
    assert server.http.get("/history", params=name).json()["messages"][0]["user"] == name["user"]
    assert server.http.put("/read", params={**name, "id": id}).json()["unread"] == 0
    assert server.http.get("/read", params=name).json()["read"] == id
    added = server.http.post("/subscriptions", params=name, json={"add": ["a", "b"]})
    assert added.status_code == 200, added.text
    server.http.delete("/subscriptions", params={**name, "channel": "a"})
    kept = server.http.get("/subscriptions", params=name).json()
    assert kept["channels"] == ["b"]


def test_a_batch_has_no_name_in_its_query(server, channel):
    answer = server.http.post("/publish", content=f'{{"channel":"{channel}","data":"x"}}')
    assert answer.status_code == 200 and "id" in answer.json()
    answer = server.http.get("/connections", params={"sort": "behind"})
    assert answer.json()["count"] == 0


@pytest.mark.parametrize(
    "method, target, status, error",
    [
        ("GET", "/history", 400, "bad_parameter"),
        ("GET", "/history?channel=a&user=b", 400, "bad_parameter"),
        ("GET", "/history?channel=a&channel=a", 400, "bad_parameter"),
        ("GET", "/history?channel=a&sinec=3", 400, "bad_parameter"),
        ("GET", "/history?channel=", 400, "bad_name"),
        ("GET", "/history?channel=a%2F..", 400, "bad_name"),
        ("GET", "/read?channel=a", 400, "bad_parameter"),
        ("DELETE", "/connections", 400, "bad_parameter"),
        ("PATCH", "/history?channel=a", 405, "method_not_allowed"),
        ("GET", "/publish?channel=a", 405, "method_not_allowed"),
        ("GET", "/channels/a/history?channel=b", 400, "bad_parameter"),
    ],
)
def test_anything_but_one_name_is_refused(server, method, target, status, error):
    answer = server.http.request(method, target)
    assert (answer.status_code, answer.json()["error"]) == (status, error)


def test_pages_may_use_them_and_metrics_count_them_alike(serve):
    server = serve("--allowed-origins", "https://app.example.com")
    asks = {**LISTED, "Access-Control-Request-Method": "POST"}
    for target in ("/publish?channel=a%2Fb", "/history?user=u", "/history"):
        answer = server.http.options(target, headers=asks)
        assert answer.status_code == 204, answer.text
        assert answer.headers["Access-Control-Allow-Origin"] == LISTED["Origin"]
    answer = server.http.get("/history", headers=LISTED)
    assert answer.headers["Access-Control-Allow-Origin"] == LISTED["Origin"]
    server.http.get("/history?channel=a%2Fb")
    # The preflight is one of them.
    counted = 'throng_http_request_duration_seconds_count{route="history"} 2'
    assert counted in server.http.get("/metrics").text
