"""What is erased is in no file of the data directory after a while, though the server goes on."""

import threading

import pytest
from support.durable import SETTINGS
from support.server import Server, eventually

# Each is found as it is, however the store compresses others.
ONE, TWO, INBOX = "q7Zk0vXw3Lr9", "J5hT8dYb2NsM", "c4GfPqU6eAiB"


def in_files(directory, text):
    """Whether a file of the directory has a text. A file that is not needed any more goes at any time."""
    for path in directory.rglob("*"):
        try:
            if path.is_file() and text.encode() in path.read_bytes():
                return True
        except FileNotFoundError:
            pass
    return False


@pytest.fixture
def start(tmp_path):
    started = []

    def start(*flags):
        (tmp_path / "throng.toml").write_text(SETTINGS)
        started.append(
            Server(tmp_path, "--config", tmp_path / "throng.toml", "--data", tmp_path / "data", *flags)
        )
        return started[-1]

    yield start
    for server in started:
        server.kill()


def test_a_running_server_rewrites_the_files(tmp_path, start):
    server = start("--erase-within", "2s")
    assert server.metrics()["throng_data_erased_seconds"] == 0
    ids = [server.publish("kept", text)["id"] for text in (ONE, "stays", TWO)]
    server.publish_to_user("ann", INBOX)
    assert all(in_files(tmp_path / "data", text) for text in (ONE, TWO, INBOX))
    is_over = threading.Event()

    def publish():
        n = 0
        while not is_over.is_set():
            server.publish("kept-too", str(n))
            n += 1

    other = threading.Thread(target=publish)
    other.start()
    for one in (ids[0], ids[2]):
        assert server.http.delete(f"/channels/kept/messages/{one}").status_code == 200
    assert server.http.post("/users/ann/erasure").status_code in (200, 202)
    eventually(lambda: server.http.get("/users/ann/erasure").json()["state"] == "done", "the report")
    eventually(lambda: not any(in_files(tmp_path / "data", text) for text in (ONE, TWO, INBOX)), server.log)
    is_over.set()
    other.join()
    assert server.metrics()['throng_data_rewrites_total{outcome="done"}'] >= 1
    assert server.metrics()['throng_data_rewrites_total{outcome="failed"}'] == 0
    kept = [it["data"] for it in server.history("kept")["messages"] if "data" in it]
    assert kept == ["stays"]
    server.stop()


def test_a_time_of_zero_leaves_them(tmp_path, start):
    server = start("--erase-within", "0")
    one = server.publish("kept", ONE)["id"]
    assert server.http.delete(f"/channels/kept/messages/{one}").status_code == 200
    assert server.metrics()["throng_data_erased_seconds"] == 0
    server.stop()
    # It is noted nevertheless, for a server with a time.
    server = start("--erase-within", "2s")
    eventually(lambda: "the files of the data directory are rewritten" in server.log(), server.log)
    assert not in_files(tmp_path / "data", ONE)
    server.stop()
