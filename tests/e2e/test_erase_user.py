"""Erasure of all of a user: messages, inbox, subscriptions, tokens and connections."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from support import TIMEOUT_SECONDS
from support.access import SECRET, bearer, server_key, token
from support.nats import connected
from support.server import Server, eventually
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

RULES = f"""
[[token-keys]]
secret = "{SECRET}"

[[channels]]
match = "names"
from = "name"

[[channels]]
match = "*"
from = "user"
keys = 10
read-markers = true

[[channels]]
users = "*"
from = "user"
"""
RIGHTS = {name: ["*", {"users": "*"}] for name in ("subscribe", "publish", "history", "state")}


class Site:
    """A server with keys and the users `ann` and `bo`."""

    def __init__(self, directory, start, rules=RULES):
        self.operator, table = server_key(
            directory, "operator", "administration", "erase", "subscriptions", "history", "subscribe",
            "presence",
        )
        (directory / "throng.toml").write_text(rules + table)
        self.start = start
        self.server = start()
        self.by = {
            user: bearer(token(sub=user, name=user, throng=RIGHTS)) for user in ("ann", "bo")
        }

    def publish(self, user, path, text, **options):
        options = {"content": text, "headers": self.by[user], **options}
        answer = self.server.http.request(options.pop("method", "POST"), path, **options)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()["id"]

    def kept(self, path):
        page = self.server.http.get(f"{path}/history", headers=bearer(self.operator)).json()
        return [it["data"] for it in page["messages"] if it["type"] == "message"]

    def erase(self, user="ann"):
        answer = self.server.http.post(f"/users/{user}/erasure", headers=bearer(self.operator))
        assert answer.status_code in (200, 202), answer.text
        eventually(lambda: self.report(user)["state"] == "done", "the erasure")
        return self.report(user)

    def report(self, user="ann"):
        answer = self.server.http.get(f"/users/{user}/erasure", headers=bearer(self.operator))
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(params=["memory", "disk", "nats"])
def site(request, tmp_path):
    started = []
    if request.param == "nats":
        broker, start_node = map(request.getfixturevalue, ("broker", "start_node"))
        flags = ["--config", tmp_path / "throng.toml"]
        yield Site(tmp_path, lambda: connected(start_node(broker, *flags)))
        return
    rules, flags = RULES, ["--config", tmp_path / "throng.toml"]
    if request.param == "disk":
        rules = RULES.replace(' = "*"\n', ' = "*"\ndurable = true\n')
        flags += ["--data", tmp_path / "data"]

    def start():
        started.append(Server(tmp_path, *flags))
        return started[-1]

    yield Site(tmp_path, start, rules)
    for server in started:
        server.stop()


def test_nothing_of_the_user_is_left(site):
    for channel in ("a", "b"):
        site.publish("ann", f"/channels/{channel}", "by ann")
        site.publish("bo", f"/channels/{channel}", "by bo")
    letter = site.publish("bo", "/users/ann", "to ann")
    read = site.server.http.put("/users/ann/read", params={"id": letter}, headers=site.by["ann"])
    assert read.json()["read"] == letter
    for user in ("ann", "bo"):
        last = site.publish("bo", "/channels/marked", "x")
        path = f"/channels/marked/read?id={last}"
        assert site.server.http.put(path, headers=site.by[user]).json()["unread"] == 0
    site.publish("ann", "/users/bo", "from ann")
    site.publish("ann", "/channels/names", "by a name")
    with connect(
        f"{site.server.ws}/users/ann", additional_headers=site.by["ann"]
    ) as socket:
        report = site.erase()
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(TIMEOUT_SECONDS)
        assert closed.value.rcvd.code in (4004, 4500)
    assert [site.kept(f"/channels/{channel}") for channel in ("a", "b")] == [["by bo"]] * 2
    assert (site.kept("/users/ann"), site.kept("/users/bo")) == ([], [])
    # A name is not the name of one user.
    assert site.kept("/channels/names") == ["by a name"]
    # The servers of NATS do not count what they erase.
    assert report["erased"]["published"] == 3 and report["erased"]["inbox"] in (1, None)
    assert report["erased"]["markers"] == 1
    marked = [
        site.server.http.get(f"/channels/marked/read?reader={user}", headers=bearer(site.operator)).json()
        for user in ("ann", "bo")
    ]
    assert marked == [{"channel": "marked", "unread": 2}, {"channel": "marked", "read": last, "unread": 0}]
    refused = site.server.http.get("/channels/a/history", headers=site.by["ann"])
    # A server in memory keeps no revocations, and the report says so.
    assert any("backups" in copy for copy in report["copies"])
    named = [left["what"] for left in report["left"]]
    assert (refused.status_code, named) in [(401, []), (200, ["the tokens of the user"])]
    # The read marker is gone as well.
    site.publish("bo", "/users/ann", "anew")
    read = site.server.http.get("/users/ann/read", headers=bearer(site.operator)).json()
    assert (read.get("read"), read.get("unread")) == (None, 1), read
    # Once more: there is nothing but what has come since.
    assert site.erase()["erased"]["published"] == 0
    erased = site.erase()["erased"]
    assert not any(erased.values()), erased


def test_the_server_keeps_no_subscriptions_of_the_user(site):
    path, operator = "/users/ann/subscriptions", bearer(site.operator)
    kept = site.server.http.put(path, json={"channels": ["a", "b"]}, headers=operator)
    assert kept.status_code == 200, kept.text
    assert site.erase()["erased"]["subscriptions"] == 2
    assert site.server.http.get(path, headers=operator).json()["channels"] == []


def test_who_may_not_is_refused(site, tmp_path):
    for credential in (site.by["ann"], {}):
        answer = site.server.http.post("/users/ann/erasure", headers=credential)
        assert answer.status_code in (401, 403), answer.text
        answer = site.server.http.get("/users/ann/erasure", headers=credential)
        assert answer.status_code in (401, 403), answer.text
    answer = site.server.http.get("/users/ann/erasure", headers=bearer(site.operator))
    assert (answer.status_code, answer.json()["error"]) == (404, "not_found")


@pytest.mark.parametrize(
    "scopes, patterns",
    [
        (["administration"], {}),
        (["erase"], {}),
        (["administration", "erase"], {"channels": ["a*"], "users": ["*"]}),
    ],
)
def test_a_key_for_less_than_all_erases_nobody(serve, tmp_path, scopes, patterns):
    key, table = server_key(tmp_path, "less", *scopes, **patterns)
    (tmp_path / "throng.toml").write_text(RULES + table)
    server = serve("--config", tmp_path / "throng.toml")
    answer = server.http.post("/users/ann/erasure", headers=bearer(key))
    assert (answer.status_code, answer.json()["error"]) == (403, "forbidden")


def test_values_of_a_state_are_erased(site):
    for user in ("ann", "bo"):
        site.publish(user, f"/channels/a/state/{user}", f"of {user}", method="PUT")
    assert site.erase()["erased"]["published"] == 1
    page = site.server.http.get("/channels/a/state", headers=bearer(site.operator)).json()
    assert [it["data"] for it in page["messages"]] == ["of bo"]


def test_keys_that_the_user_has_removed_name_nobody(site):
    before = site.publish("bo", "/channels/a/state/k", "x", method="PUT")
    site.publish("ann", "/channels/a/state/k", "", method="DELETE")
    for path in ("/channels/a/history", f"/channels/a?wait=0&state=true&since={before}"):
        found = site.server.http.get(path, headers=bearer(site.operator))
        assert '"from":"ann"' in found.text, (path, found.text)
    site.erase()
    for path in ("/channels/a/history", f"/channels/a?wait=0&state=true&since={before}"):
        found = site.server.http.get(path, headers=bearer(site.operator))
        assert '"ann"' not in found.text, (path, found.text)
    # The key is gone all the same.
    lines = [json.loads(line) for line in found.text.splitlines()]
    assert [it["state_key"] for it in lines if it.get("tombstone")] == ["k"], found.text


def test_the_user_leaves_the_members_of_channels(serve, tmp_path):
    rules = RULES.replace("keys = 10\n", 'keys = 10\nmembers = "user"\nmembers-grace = "1h"\n')
    site = Site(tmp_path, lambda: serve("--config", tmp_path / "throng.toml"), rules)

    def members():
        page = site.server.http.get("/channels/room/presence", headers=bearer(site.operator))
        return page.json()["members"]

    with connect(f"{site.server.ws}/channels/room", additional_headers=site.by["ann"]):
        assert members() == [{"user": "ann"}]
        site.erase()
        assert members() == []


def test_what_a_killed_server_has_not_erased_the_next_one_erases(tmp_path):
    rules = RULES.replace(' = "*"\n', ' = "*"\ndurable = true\n')
    flags = ["--config", tmp_path / "throng.toml", "--data", tmp_path / "data"]
    site = Site(tmp_path, lambda: Server(tmp_path, *flags), rules)
    lines = [json.dumps({"channel": f"c{n % 50}", "data": str(n)}) for n in range(3_000)]
    answer = site.server.http.post("/publish", content="\n".join(lines), headers=site.by["ann"])
    assert answer.status_code == 200, answer.text
    begun = site.server.http.post("/users/ann/erasure", headers=bearer(site.operator))
    assert begun.status_code in (200, 202), begun.text
    site.server.kill()
    site.server = site.start()
    found = lambda: sum(len(site.kept(f"/channels/c{n}")) for n in range(50))
    eventually(lambda: found() == 0, "the erasure of the rest")
    site.server.stop()


def test_an_erasure_and_its_report_go_on_over_upgrades(upgradable, tmp_path):
    site = Site(tmp_path, lambda: upgradable("--config", tmp_path / "throng.toml"))
    lines = [json.dumps({"channel": f"c{n % 50}", "data": str(n)}) for n in range(3_000)]
    answer = site.server.http.post("/publish", content="\n".join(lines), headers=site.by["ann"])
    assert answer.status_code == 200, answer.text
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(site.erase)
        site.server.upgrade()
        assert asked.result()["state"] == "done"
    assert sum(len(site.kept(f"/channels/c{n}")) for n in range(50)) == 0
    report = site.report()
    site.server.upgrade()
    assert site.report() == report
