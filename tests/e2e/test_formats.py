"""Written formats: what all versions have written is read, and what builds from before 0.1.0 left is refused, as
it is."""

import json
import os
import shutil
import signal
import socket
import tarfile
from pathlib import Path

import pytest

from support import TIMEOUT_SECONDS
from support.access import SECRET, bearer, server_key, token
from support.nats import ailments
from support.raw import RawWebSocket
from support.server import BINARY, Server, eventually, run_throng
from support.upgrades import FAILED

# `data-N.tar.xz` has a data directory of format N, and beside it the key of its server. That of a new
# format is written by `THRONG_KEEP=1 pytest tests/e2e/test_formats.py -k kept`; no kept one is written anew.
KEPT = Path(__file__).parent / "kept"
FORMATS = [1, 2, 3, 4, 5, 6]

SETTINGS = f"""
[[channels]]
match = "kept"
durable = true
age = "36500d"

[[channels]]
match = "erased"
durable = true
messages = 2
age = "36500d"

[[channels]]
match = "held"
durable = true
age = "36500d"

[[channels]]
users = "*"
durable = true
age = "36500d"

[[token-keys]]
secret = '{SECRET}'
"""
BODIES = [b"plain text, \xc3\xa9", b'{"n":1}', b"\x00\x01\xff"]
TYPES = ["text/plain", "application/json", "image/png"]


def serving(directory, table):
    (directory / "throng.toml").write_text(SETTINGS + table)
    return Server(directory, "--data", directory / "data")


def keep(directory):
    """Fills a data directory, and keeps it."""
    scopes = ("publish", "state", "history", "subscribe", "subscriptions", "administration", "erase")
    key, table = server_key(directory, "app", *scopes)
    server = serving(directory, table)
    answers = [
        server.http.post("/channels/kept", content=body, headers={"Content-Type": type, **bearer(key)})
        for body, type in zip(BODIES, TYPES)
    ]
    answers += [server.http.post("/users/ann", content=body, headers=bearer(key)) for body in (b"1", b"2")]
    read = answers[-2].json()["id"]
    answers.append(server.http.put(f"/users/ann/read?id={read}", headers=bearer(key)))
    channels = {"channels": ["a", "b/c"]}
    answers.append(server.http.put("/users/ann/subscriptions", json=channels, headers=bearer(key)))
    answers.append(server.http.post("/revocations/users/bob", headers=bearer(key)))
    assert all(answer.status_code in (200, 201) for answer in answers), [it.text for it in answers]
    state = "/users/bob/state"
    answers += [server.http.put(f"{state}/{key_of}", content=b"x", headers=bearer(key)) for key_of in "ab"]
    answers.append(server.http.delete(f"{state}/a", headers=bearer(key)))
    assert all(answer.status_code == 201 for answer in answers[-3:]), [it.text for it in answers]
    ids = [answer.json()["id"] for answer in answers[:5]]
    erased = server.http.post("/channels/erased", content=b"x", headers=bearer(key)).json()["id"]
    assert server.http.delete(f"/channels/erased/messages/{erased}", headers=bearer(key)).status_code == 200
    revoked_s = answers[-4].json()["before"]
    user = bearer(token(sub="eve", throng={right: ["held"] for right in ("publish", "state", "create")}))
    made = [server.http.put("/channels/held/creation", headers=user)]
    made.append(server.http.put("/channels/held/state/a", content=b"x", headers=user))
    assert [answer.status_code for answer in made] == [201, 201], [answer.text for answer in made]
    server.stop()
    (directory / "facts.json").write_text(json.dumps({"key": key, "table": table, "ids": ids, "revoked_s": revoked_s}))
    KEPT.mkdir(exist_ok=True)
    with tarfile.open(KEPT / f"data-{FORMATS[-1]}.tar.xz", "w:xz") as archive:
        for name in ("data", "facts.json"):
            archive.add(directory / name, name)


@pytest.mark.parametrize("format", FORMATS)
def test_a_kept_data_directory_is_opened(tmp_path, format):
    kept = KEPT / f"data-{format}.tar.xz"
    if format == FORMATS[-1] and not kept.exists() and os.environ.get("THRONG_KEEP"):
        (tmp_path / "new").mkdir()
        keep(tmp_path / "new")
    with tarfile.open(kept) as archive:
        archive.extractall(tmp_path, filter="data")
    facts = json.loads((tmp_path / "facts.json").read_text())
    key, ids = facts["key"], facts["ids"]
    checked = run_throng("data", "check", tmp_path / "data", directory=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    noted = tmp_path / "data" / "format"
    assert noted.read_text() == f"throng data {format}\n", "a check writes nothing"
    server = serving(tmp_path, facts["table"])
    get = lambda path: server.http.get(path, headers=bearer(key)).json()
    messages = get("/channels/kept/history?limit=9")["messages"]
    assert [message["id"] for message in messages] == ids[:3]
    assert [message.get("data") for message in messages[:2]] == [BODIES[0].decode(), {"n": 1}]
    inbox = get("/users/ann/history?limit=9")["messages"]
    assert [message["id"] for message in inbox] == ids[3:]
    assert sorted(get("/users/ann/subscriptions")["channels"]) == ["a", "b/c"]
    assert get("/users/ann/read") == {"user": "ann", "read": ids[3], "unread": 1}
    if format >= 4:
        # Format 3 and those before have no states.
        page = get("/users/bob/state")["messages"]
        assert [(it["state_key"], it["data"]) for it in page] == [("b", "x")]
        page = get("/users/bob/history?limit=9")["messages"]
        assert [it.get("tombstone") for it in page] == [None, None, True]
    if format >= 5:
        # Format 4 and those before do not count notices and erased messages apart.
        after = [server.http.post("/channels/erased", content=body, headers=bearer(key)) for body in (b"1", b"2")]
        assert all(answer.status_code == 201 for answer in after)
        page = get("/channels/erased/history?limit=9")["messages"]
        assert [it.get("data", it["type"]) for it in page] == ["erased", "1", "2"]
    if format >= 6:
        # Format 5 and those before do not say whose values and creations are.
        assert [it["data"] for it in get("/channels/held/state")["messages"]] == ["x"]
        assert "created" in get("/channels/held/creation")
    # The revocation is forgotten a day after it was made, and its file is read nevertheless.
    assert get("/revocations")["revocations"] in ([], [{"user": "bob", "before": facts["revoked_s"]}])
    after = server.http.post("/channels/kept", content=b"after", headers=bearer(key)).json()["id"]
    assert after.split("-")[0] == ids[0].split("-")[0] and after.endswith("-4"), after
    assert noted.read_text() == f"throng data {FORMATS[-1]}\n"
    server.stop()


def test_a_data_directory_of_another_format_stays_as_it_is(tmp_path):
    server = Server(tmp_path, "--data", tmp_path / "data")
    server.stop()
    stamps = lambda: {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")}
    format = tmp_path / "data" / "format"
    assert format.read_text() == "throng data 6\n"
    serve = ("serve", "--listen", "127.0.0.1:0", "--data", tmp_path / "data")
    check = ("data", "check", tmp_path / "data")
    refusals = [
        ("has format 7, and this version reads up to format 6; use the version", "throng data 7\n"),
        ("is of a build of Throng from before version 0.1.0, which this version does not read;", None),
    ]
    for reason, text in refusals:
        format.write_text(text) if text else format.unlink()
        before = stamps()
        for command in (serve, check):
            done = run_throng(*command, directory=tmp_path)
            assert done.returncode == 78, done.stderr
            assert f"the data directory {tmp_path}/data {reason}" in done.stderr
        assert stamps() == before


@pytest.mark.parametrize(
    "script, reason",
    [
        # The new process is told that the running one is a build whose protocol had the number 4.
        (
            f'#!/bin/sh\nTAKE_OVER_FROM_THRONG=4 exec "{BINARY}" "$@"\n',
            "the new process refuses: the running server is of a build from before version 0.1.0",
        ),
        # The new process greets as such a build.
        (
            "#!/usr/bin/env python3\nimport socket, struct\n"
            'hello = struct.pack("<IBHHHI", 8, 1, 0, 1, 4, 0)\n'
            "channel = socket.socket(fileno=0)\nchannel.sendall(hello)\nchannel.recv(1)\n",
            "it is of a build from before version 0.1.0; restart instead",
        ),
    ],
    ids=["from", "to"],
)
def test_no_upgrade_from_or_to_an_unreleased_build(upgradable, tmp_path, monkeypatch, script, reason):
    copy = tmp_path / "throng"
    shutil.copy(BINARY, copy)
    monkeypatch.setattr("support.server.BINARY", copy)
    server = upgradable()
    with RawWebSocket(server, "/channels/a") as client:
        server.wait_for_connections("a", 1)
        (tmp_path / "new").write_text(script)
        (tmp_path / "new").chmod(0o755)
        os.replace(tmp_path / "new", copy)
        server.signal(signal.SIGUSR2)
        eventually(lambda: FAILED in server.log(), "the refusal")
        said = server.log().rpartition(FAILED)[2].splitlines()[0]
        assert reason in said and "this process continues" in said, said
        server.publish("a", "still here")
        client.read_until(b"still here")


def make_stream(broker, name, **configuration):
    """Creates a stream with a client of one request."""
    body = json.dumps({"name": name, **configuration}).encode()
    with socket.create_connection(("127.0.0.1", broker.upstream), TIMEOUT_SECONDS) as client:
        subject = f"$JS.API.STREAM.CREATE.{name}".encode()
        client.sendall(b'CONNECT {"verbose":false}\r\nSUB answer 1\r\n')
        client.sendall(b"PUB %s answer %d\r\n%s\r\n" % (subject, len(body), body))
        said = b""
        while b"MSG answer" not in said or not said.endswith(b"}\r\n"):
            said += client.recv(65536)
    assert b'"error"' not in said, said


@pytest.mark.parametrize(
    "metadata, reason",
    [
        ({"throng.format": "1"}, "no released version of Throng has made it; remove it, or set another"),
        ({"throng.version": "2"}, "its format is 2, and this version reads 1"),
    ],
    ids=["unreleased", "later"],
)
def test_streams_of_another_format_are_refused(broker, start_node, metadata, reason):
    bucket = {"subjects": ["$KV.throng-epochs.>"], "max_msgs_per_subject": 1, "max_bytes": 1 << 20}
    flags = {"discard": "new", "allow_direct": True, "allow_rollup_hdrs": True, "deny_delete": True}
    make_stream(broker, "KV_throng-epochs", **bucket, **flags, metadata=metadata)
    one = start_node(broker)
    eventually(lambda: reason in one.log(), lambda: one.log())
    assert "KV_throng-epochs" in one.says(reason)
    eventually(lambda: ailments(one), "what is wrong")
