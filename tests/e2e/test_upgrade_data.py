"""A data directory goes from one process to the next, and no client notices."""

import signal
import threading

import httpx
import pytest
from websockets.sync.client import connect

from support import TIMEOUT_SECONDS
from support.access import SECRET
from support.durable import SETTINGS
from support.floods import finish_flood, flooding
from support.server import Server, eventually
from support.transports import subscribe
from support.upgrades import FAILED

WAITS = "wait for `throng upgrade` or a restart: channels (history and lag), channels (journal)"


@pytest.fixture
def start(upgradable, tmp_path):
    """Starts a server with durable channels that can be upgraded."""
    (tmp_path / "throng.toml").write_text(SETTINGS)
    return lambda place=("--data", "data"): upgradable("--config", "throng.toml", *place)


class Publisher(threading.Thread):
    """Publishes numbers until it is stopped."""

    def __init__(self, server, channel):
        super().__init__()
        self.url, self.ids, self.error = f"{server.url}/channels/{channel}", [], None
        self._end = threading.Event()
        self.start()

    def run(self):
        try:
            with httpx.Client(timeout=TIMEOUT_SECONDS, trust_env=False) as client:
                while not self._end.is_set():
                    answer = client.post(self.url, content=str(len(self.ids)))
                    assert answer.status_code == 201, answer.text
                    self.ids.append(answer.json()["id"])
        except Exception as error:  # The test reports it.
            self.error = error

    def wait_for_more(self, count=20):
        wanted = len(self.ids) + count
        eventually(lambda: self.error or len(self.ids) >= wanted, "publications")

    def finish(self):
        self._end.set()
        self.join(TIMEOUT_SECONDS)
        assert self.error is None, self.error
        return self.ids


def test_durable_channels_go_on_over_upgrades_and_a_restart(start):
    server = start()
    with subscribe("sse", server, "/channels/kept") as subscriber:
        publisher = Publisher(server, "kept")
        for _ in range(4):
            publisher.wait_for_more()
            server.upgrade()
        publisher.wait_for_more()
        ids = publisher.finish()
        assert [subscriber.next() for _ in ids] == [(id, str(n)) for n, id in enumerate(ids)]
    with subscribe("sse", server, "/channels/kept", since=ids[3]) as subscriber:
        assert subscriber.recovered is True
        assert subscriber.next()[0] == ids[4]
    server.stop()
    again = start()
    with subscribe("sse", again, "/channels/kept", since=ids[0]) as subscriber:
        assert subscriber.recovered is True
        assert [subscriber.next()[0] for _ in ids[1:]] == ids[1:]


def test_a_flood_of_durable_channels_is_whole(start, tmp_path):
    server = start()
    load = ["--channel", "kept-{run}-{stream}", "--transport", "websocket"]
    load += ["--clients", "40", "--hold", "8s", "--publish", "100"]
    flood = flooding(tmp_path, server.url, *load)
    for _ in range(4):
        eventually(lambda: server.metrics().get("throng_messages_published_total", 1) > 0, "load")
        server.upgrade()
    finish_flood(flood)


def test_publications_over_websockets_are_answered_and_published_once(start):
    server = start()
    count = 400
    with connect(f"{server.ws}/channels/kept", subprotocols=["throng.v1"], compression=None) as client:

        def publish():
            for number in range(count):
                command = f'{{"type":"publish","channel":"kept","data":"{number}","ref":{number}}}'
                client.send(command)

        publishing = threading.Thread(target=publish)
        publishing.start()
        server.upgrade()
        server.upgrade()
        publishing.join(TIMEOUT_SECONDS)
        answers, heard = [], []
        while len(answers) < count or len(heard) < count:
            message = client.recv(TIMEOUT_SECONDS)
            assert '"type":"error"' not in message, message
            answers += [message] if '"type":"published"' in message else []
            heard += [message] if '"type":"message"' in message else []
    page = server.http.get("/channels/kept/history", params={"limit": 1000}).json()
    assert [message["data"] for message in page["messages"]] == [str(n) for n in range(count)]


def test_what_users_follow_and_have_read_goes_on(start):
    server = start()
    followed = server.http.put("/users/ann/subscriptions", json={"channels": ["kept-a"]})
    assert followed.status_code == 200, followed.text
    ids = [server.http.post("/users/ann", content=f"letter {n}").json()["id"] for n in range(3)]
    server.http.put("/users/ann/read", params={"id": ids[1]})
    server.upgrade()
    assert server.http.get("/users/ann/subscriptions").json()["channels"] == ["kept-a"]
    read = server.http.get("/users/ann/read").json()
    assert (read["read"], read["unread"]) == (ids[1], 1)
    followed = server.http.put("/users/ann/subscriptions", json={"channels": ["kept-b"]})
    assert followed.status_code == 200, followed.text
    server.stop()
    again = start()
    assert again.http.get("/users/ann/subscriptions").json()["channels"] == ["kept-b"]


def fails(server):
    """Asks for an upgrade that fails. Returns why."""
    failures = server.log().count(FAILED)
    server.signal(signal.SIGUSR2)
    eventually(lambda: server.log().count(FAILED) > failures, "the failure of the upgrade")
    return server.log().rpartition(FAILED)[2].splitlines()[0]


def test_an_upgrade_that_fails_leaves_the_directory_to_the_old_process(start, tmp_path):
    server = start()
    settings = tmp_path / "throng.toml"
    (tmp_path / "no-file").mkdir()
    with subscribe("sse", server, "/channels/kept") as subscriber:
        ids = [server.publish("kept", "0")["id"]]
        for number in range(1, 4):
            # It finds that only after it has opened the directory.
            broken = f"revocations-file = 'no-file'\n[[token-keys]]\nsecret = '{SECRET}'\n"
            settings.write_text(broken + SETTINGS)
            opened = server.log().count("opened the data directory")
            assert "cannot open the revocations-file" in fails(server)
            assert server.log().count("opened the data directory") == opened + 1
            settings.write_text(SETTINGS)
            ids.append(server.publish("kept", str(number))["id"])
            if number == 2:
                server.upgrade()
        assert [subscriber.next() for _ in ids] == [(id, str(n)) for n, id in enumerate(ids)]
    with pytest.raises(RuntimeError, match="is in use by another server"):
        Server(tmp_path, "--data", "data")


def test_a_new_process_with_another_directory_is_refused(start, tmp_path):
    settings = tmp_path / "throng.toml"
    settings.write_text("data = 'data'\n" + SETTINGS)
    server = start(place=())
    settings.write_text("data = 'other'\n" + SETTINGS)
    assert "is not the one of the running server" in fails(server)
    settings.write_text("")
    assert "the running server has a data directory, and this one no data directory" in fails(server)
    settings.write_text("data = 'data'\n" + SETTINGS)
    server.publish("kept", "0")
    server.upgrade()
    assert server.http.get("/channels/kept/history").json()["messages"][0]["data"] == "0"


def test_a_channel_in_use_becomes_durable_with_an_upgrade(start, tmp_path):
    server = start()
    settings = tmp_path / "throng.toml"
    more = SETTINGS.replace('match = "kept*"', 'match = "*"')
    with subscribe("sse", server, "/channels/news") as subscriber:
        ids = [server.publish("news", "0")["id"]]
        settings.write_text(more)
        server.signal(signal.SIGHUP)
        eventually(lambda: WAITS in server.log(), "the reload")
        ids.append(server.publish("news", "1")["id"])
        assert [subscriber.next() for _ in ids] == [(id, str(n)) for n, id in enumerate(ids)]
        server.upgrade()
        assert "channels in use that have another journal now: 1;" in server.log()
    with subscribe("sse", server, "/channels/news", since=ids[-1]) as subscriber:
        assert subscriber.recovered is False
        ids = [server.publish("news", str(number))["id"] for number in range(2)]
        server.upgrade()
        assert [subscriber.next() for _ in ids] == [(id, str(n)) for n, id in enumerate(ids)]
    server.stop()
    again = start()
    with subscribe("sse", again, "/channels/news", since=ids[0]) as subscriber:
        assert subscriber.recovered is True and subscriber.take(1) == ["1"]


def test_a_table_in_front_of_a_durable_one_waits_for_an_upgrade(start, tmp_path):
    server = start()
    in_front = '[[channels]]\nmatch = "kept-not"\nmessages = 5\n'
    (tmp_path / "throng.toml").write_text(in_front + SETTINGS)
    server.signal(signal.SIGHUP)
    eventually(lambda: WAITS in server.log(), "the reload")
