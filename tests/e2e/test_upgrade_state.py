"""What a new process takes over beside connections and logs."""

import json
import re
import signal
import ssl

import pytest
import websockets.sync.client

from support import TIMEOUT_SECONDS
from support.access import SECRET, bearer, server_key, token
from support.raw import Raw, RawWebSocket
from support.server import Server, eventually
from support.upgrades import FAILED

GRANTS = {"publish": ["rooms/*"], "subscribe": ["rooms/*"]}


class Keyed:
    """A server that keeps revocations, and its operator."""

    def __init__(self, upgradable, directory):
        self.operator, table = server_key(directory, "operator", "administration")
        settings = f"revocations-file = 'revoked'\n[[token-keys]]\nsecret = '{SECRET}'\n"
        (directory / "throng.toml").write_text(settings + table)
        self.server = upgradable("--config", "throng.toml")

    def revoke(self, subject):
        made = self.server.http.post(f"/revocations/{subject}", headers=bearer(self.operator))
        assert made.status_code == 201, made.text

    def publish(self, credential):
        path = "/channels/rooms%2Fa"
        return self.server.http.post(path, content="x", headers=bearer(credential)).status_code


def test_revocations_hold_over_upgrades_and_are_made_after_them(upgradable, tmp_path):
    keyed = Keyed(upgradable, tmp_path)
    tokens = {name: token(jti=name, throng=GRANTS) for name in ("t1", "t2", "t3")}
    keyed.revoke("tokens/t1")
    keyed.server.upgrade()
    assert [keyed.publish(one) for one in tokens.values()] == [401, 201, 201]
    keyed.revoke("tokens/t2")
    keyed.server.upgrade()
    assert [keyed.publish(one) for one in tokens.values()] == [401, 401, 201]
    lifted = keyed.server.http.delete("/revocations/tokens/t1", headers=bearer(keyed.operator))
    assert lifted.status_code == 204, lifted.text
    assert [keyed.publish(one) for one in tokens.values()] == [201, 401, 201]
    keyed.server.stop()
    # All of it is in the file.
    again = upgradable("--config", "throng.toml")
    for name, status in [("t1", 201), ("t2", 401), ("t3", 201)]:
        headers = bearer(tokens[name])
        answer = again.http.post("/channels/rooms%2Fa", content="x", headers=headers)
        assert answer.status_code == status, name


def test_a_revocation_ends_a_connection_that_was_taken_over(upgradable, tmp_path):
    keyed = Keyed(upgradable, tmp_path)
    url = f"{keyed.server.ws}/channels/rooms%2Fa"
    headers = bearer(token(jti="t1", throng=GRANTS))
    with websockets.sync.client.connect(url, additional_headers=headers, compression=None) as client:
        keyed.server.upgrade()
        keyed.revoke("tokens/t1")
        with pytest.raises(websockets.exceptions.ConnectionClosed):
            client.recv(TIMEOUT_SECONDS)


def test_the_file_of_revocations_has_one_owner_after_an_upgrade(upgradable, tmp_path):
    keyed = Keyed(upgradable, tmp_path)
    keyed.server.upgrade()
    with pytest.raises(RuntimeError, match="another server uses the revocations-file"):
        Server(tmp_path, "--config", "throng.toml")


def test_an_upgrade_that_fails_leaves_revocations_as_they_were(upgradable, tmp_path):
    keyed = Keyed(upgradable, tmp_path)
    keyed.revoke("tokens/t1")
    settings = (tmp_path / "throng.toml").read_text()
    # The new process is ready, and finds only then that it cannot use its own file.
    (tmp_path / "no-file").mkdir()
    (tmp_path / "throng.toml").write_text(settings.replace("'revoked'", "'no-file'"))
    keyed.server.signal(signal.SIGUSR2)
    eventually(lambda: FAILED in keyed.server.log(), "the failure of the upgrade")
    assert "cannot open the revocations-file no-file" in keyed.server.log(), keyed.server.log()
    (tmp_path / "throng.toml").write_text(settings)
    keyed.revoke("tokens/t2")
    tokens = [token(jti=name, throng=GRANTS) for name in ("t1", "t2", "t3")]
    assert [keyed.publish(one) for one in tokens] == [401, 401, 201]
    keyed.server.upgrade()
    assert [keyed.publish(one) for one in tokens] == [401, 401, 201]


def test_the_certificate_of_dev_tls_stays(upgradable, tmp_path):
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    server = upgradable("--dev-tls", "--tls-listen", "127.0.0.1:0", environment=state)
    eventually(lambda: "TLS listener on https://" in server.log(), "the TLS listener")
    port = int(re.search(r"TLS listener on \S+:(\d+)", server.log())[1])
    shown = ssl.get_server_certificate(("127.0.0.1", port))
    server.upgrade()
    assert ssl.get_server_certificate(("127.0.0.1", port)) == shown


def watch(server, channel, user):
    """A WebSocket that follows a channel and its presence events."""
    url = f"{server.ws}/channels/{channel}?presence=true&user={user}"
    return websockets.sync.client.connect(url, compression=None, proxy=None)


def until(client, condition):
    """The presence events of a connection up to the first one for which this holds."""
    events = []
    while not (events and condition(events[-1])):
        told = json.loads(client.recv(TIMEOUT_SECONDS))
        events += [told] if told["type"] == "presence" else []
    return events


def changes(events):
    """Who has joined and left, as told in these events."""
    left = [user["user"] for told in events for user in told["left"]]
    return [user for told in events for user in told["joined"]], left


def test_presence_events_go_on_after_an_upgrade(upgradable):
    server = upgradable("--presence-events", "--presence-grace", "0s")
    with watch(server, "room", "ann") as ann:
        until(ann, lambda told: told["users"] == ["ann"])
        with watch(server, "room", "bob") as bob:
            for client in (ann, bob):
                until(client, lambda told: told["users"] == ["ann", "bob"])
            events = server.metrics()["throng_presence_events_total"]
            server.upgrade()
            with watch(server, "room", "cy") as cy:
                until(cy, lambda told: told["users"] == ["ann", "bob", "cy"])
                # What was told before is not told again.
                assert changes(until(ann, lambda told: "cy" in told["users"])) == (["cy"], [])
            assert changes(until(ann, lambda told: told["users"] == ["ann", "bob"])) == ([], ["cy"])
            assert server.metrics()["throng_presence_events_total"] > events
        # One that has come before the upgrade and leaves after it.
        assert changes(until(ann, lambda told: told["users"] == ["ann"])) == ([], ["bob"])


def growing(server):
    """The metrics that only grow."""
    page, grows, found = server.http.get("/metrics").text, False, {}
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            grows = line.rsplit(" ", 1)[1] in ("counter", "histogram")
        elif grows and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name] = float(value)
    return found


def test_no_metric_goes_back_and_the_charts_go_on(upgradable):
    server = upgradable("--history-messages", "10")
    with RawWebSocket(server, "/channels/a") as client:
        for number in range(5):
            server.publish("a", f"message {number}")
        client.read_until(b"message 4")
    assert server.http.post("/channels/a?since=x", content="x").status_code == 400
    assert server.http.get("/nowhere").status_code == 404
    rows = lambda: server.http.get("/status.json", params={"history": 900}).json()["history"]["time_ms"]
    eventually(lambda: len(rows()) >= 3, "some rows")
    assert server.http.get("/status.json").json()["upgrade"] is None
    # More than one: what was carried once is carried on.
    for count in range(1, 3):
        before, times = growing(server), rows()
        server.upgrade()
        after = growing(server)
        lower = {name: (value, after.get(name)) for name, value in before.items() if after.get(name, -1) < value}
        assert not lower
        # And nothing counts twice: the requests of the test itself are few.
        for name in ["throng_log_messages_published_total", 'throng_http_refused_total{code="not_found"}']:
            assert after[name] == before[name], name
        assert after["throng_http_requests_total"] - before["throng_http_requests_total"] < 50

        def status():
            return server.http.get("/status.json").json()

        eventually(lambda: status()["upgrade"] and status()["upgrade"]["pause_ms"] is not None, "the outcome")
        sample = status()
        assert sample["upgrade"]["state"] == "done" and str(server.pid) in sample["upgrade"]["message"]
        assert sample["refused"]["not_found"] == before['throng_http_refused_total{code="not_found"}']
        assert sample["messages_in"]["total"] == 5 and sample["messages_in"]["per_s"] == 0, "no sudden rate"
        assert rows()[: len(times) - 1] == times[:-1], "the charts have what was before"


def test_logs_come_in_memory_that_both_processes_map(upgradable):
    server = upgradable("--history-messages", "1000", "--workers", "2")
    bodies = [f"{number} {'x' * 2000}" for number in range(2000)]
    lines = [{"channel": f"logs/{number % 5}", "data": body} for number, body in enumerate(bodies)]
    server.publish_batch(lines)

    def logs():
        return [server.history(f"logs/{number}", limit=1000) for number in range(5)]

    before = logs()
    assert sum(len(log["messages"]) for log in before) == len(bodies)
    # The second time most messages are in that memory still.
    for _ in range(2):
        server.upgrade()
        with open(f"/proc/{server.pid}/maps", encoding="utf-8") as maps:
            assert "memfd:throng-logs" in maps.read()
        assert logs() == before
        server.publish("logs/5", "one more")
    assert len(server.history("logs/5")["messages"]) == 2


def test_what_clients_have_used_of_their_rates_counts_after_upgrades(upgradable, tmp_path):
    settings = tmp_path / "throng.toml"
    settings.write_text("[per-address]\npublish-byte-rate = '1k'\n")
    server = upgradable("--config", "throng.toml")

    def publish(source, size):
        with Raw(server, source=source) as client:
            client.request("POST", "/channels/a", {"Connection": "close"}, b"x" * size)
            return client.read_response()

    # A message that is longer than what may come in a second delays what follows.
    assert publish("127.0.0.2", 60_000).status == 201
    for _ in range(2):
        server.upgrade()
        refused = publish("127.0.0.2", 1)
        # The minute that it takes is longer than the test.
        assert refused.status == 429 and int(refused.header("retry-after")) >= 1
    assert publish("127.0.0.3", 1).status == 201
    # Another rate gives it back at its pace.
    settings.write_text("[per-address]\npublish-byte-rate = '1M'\n")
    server.upgrade()
    assert publish("127.0.0.2", 1).status == 201


def test_a_login_at_the_status_page_outlives_upgrades(upgradable, tmp_path):
    keyed = Keyed(upgradable, tmp_path)
    assert keyed.server.http.get("/status.json").status_code == 401
    page = {"Origin": keyed.server.url}
    shown = keyed.server.http.post("/status/login", data={"key": keyed.operator}, headers=page)
    assert shown.status_code in (200, 303), shown.text
    # The client keeps the cookie.
    for _ in range(2):
        keyed.server.upgrade()
        assert keyed.server.http.get("/status.json").status_code == 200
