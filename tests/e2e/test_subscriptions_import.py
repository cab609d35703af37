"""`throng subscriptions import`, against the real binary."""

import json

import pytest

from support.access import SECRET, server_key
from support.server import Server, run_throng


def load(server, directory, *arguments, input=None, **environment):
    """Runs the import. Returns the completed process and what it printed."""
    done = run_throng(
        "subscriptions",
        "import",
        *arguments,
        "--url",
        server.url,
        directory=directory,
        input=input,
        environment=environment,
    )
    return done, json.loads(done.stdout) if done.stdout else None


def write(directory, lines):
    path = directory / "changes.ndjson"
    path.write_text("".join(line if line.endswith("\n") else f"{line}\n" for line in lines))
    return path


def kept(server, user):
    answer = server.http.get(f"/users/{user}/subscriptions").json()
    return sorted(answer["channels"])


def test_a_file_of_many_parts_is_imported_and_wrong_lines_are_named(server, channel, tmp_path):
    lines = [json.dumps({"user": f"{channel}-{n}", "add": [channel]}) for n in range(25_000)]
    lines[4_999] = ""
    lines[12_345] = "not JSON"
    lines[24_000] = json.dumps({"user": f"{channel}-24000", "add": [""]})
    done, result = load(server, tmp_path, write(tmp_path, lines))
    assert result == {"lines": 24_997, "added": 24_997, "removed": 0, "errors": 2}
    assert done.returncode == 1
    named = [line for line in done.stderr.splitlines() if line.startswith("error: line ")]
    assert [line.split(":")[1] for line in named] == [" line 12346", " line 24001"]
    assert "2 lines are wrong; all others are applied" in done.stderr
    followers = server.http.get(f"/channels/{channel}/followers").json()
    assert followers["count"] == 24_997
    done, result = load(server, tmp_path, write(tmp_path, ["{}"]))
    assert result == {"lines": 0, "added": 0, "removed": 0, "errors": 1}
    assert "1 line is wrong; nothing was changed" in done.stderr
    again, result = load(server, tmp_path, write(tmp_path, lines[:10]))
    assert again.returncode == 0
    assert result == {"lines": 10, "added": 0, "removed": 0, "errors": 0}


def test_atomic_changes_nothing_if_any_line_is_wrong(server, channel, tmp_path):
    right = [json.dumps({"user": f"{channel}-{n}", "channels": [channel]}) for n in range(10_001)]
    path = write(tmp_path, [*right, "{}"])
    for flag in ("--atomic", "--check"):
        done, result = load(server, tmp_path, flag, path)
        assert done.returncode == 1 and result is None
        assert "error: line 10002: the line has no `user`" in done.stderr
        assert "1 line is wrong; nothing was changed" in done.stderr
        assert kept(server, f"{channel}-0") == []
    path = write(tmp_path, right)
    done, result = load(server, tmp_path, "--check", path)
    assert (done.returncode, result) == (0, {"lines": 10_001, "errors": 0}), done.stderr
    assert kept(server, f"{channel}-0") == []
    done, result = load(server, tmp_path, "--atomic", path)
    assert result == {"lines": 10_001, "added": 10_001, "removed": 0, "errors": 0}, done.stderr
    assert kept(server, f"{channel}-10000") == [channel]


def test_a_line_that_no_server_takes_is_named(server, channel, tmp_path):
    names = [f"{n:0250}" for n in range(40_000)]
    long = json.dumps({"user": channel, "channels": names})
    assert len(long) > 10_000_000
    right = [json.dumps({"user": f"{channel}-{n}", "add": [channel]}) for n in range(2)]
    done, result = load(server, tmp_path, write(tmp_path, [right[0], long, right[1]]))
    assert done.returncode == 1
    assert result == {"lines": 2, "added": 2, "removed": 0, "errors": 1}, done.stderr
    assert "error: line 2: the server refused: the request body is larger" in done.stderr
    assert kept(server, f"{channel}-1") == [channel]


def test_files_of_other_systems_are_read(server, channel, tmp_path):
    path = tmp_path / "changes.ndjson"
    line = json.dumps({"user": channel, "add": [channel]})
    path.write_bytes(f"\ufeff{line}\r\n\r\n{line}".encode())
    done, result = load(server, tmp_path, path)
    assert result == {"lines": 2, "added": 1, "removed": 0, "errors": 0}, done.stderr
    # Its elements are not taken for the fields, in their order.
    path.write_text(f'["{channel}",["b"],null,null]\n{line}x\n')
    done, result = load(server, tmp_path, path)
    assert result == {"lines": 0, "added": 0, "removed": 0, "errors": 2}, done.stderr
    assert "error: line 1: this is not a JSON object" in done.stderr
    assert "error: line 2: " in done.stderr and "line 1 column" not in done.stderr
    assert kept(server, channel) == [channel]


def test_standard_input_can_be_read_once(server, channel, tmp_path):
    lines = json.dumps({"user": channel, "channels": ["a", "b"]})
    done, result = load(server, tmp_path, "-", input=lines)
    assert result == {"lines": 1, "added": 2, "removed": 0, "errors": 0}, done.stderr
    done, _ = load(server, tmp_path, "--atomic", "-", input=lines)
    assert done.returncode == 1 and "name a file" in done.stderr


def test_parts_fit_what_the_server_takes(tmp_path):
    server = Server(tmp_path, "--max-batch-bytes", "65536", "--max-message-bytes", "1024")
    try:
        lines = [json.dumps({"user": f"u{n}", "add": ["x" * 200]}) for n in range(2000)]
        lines[1500] = json.dumps({"user": "long", "add": [f"{n:0200}" for n in range(400)]})
        done, result = load(server, tmp_path, write(tmp_path, lines))
        assert result == {"lines": 1999, "added": 1999, "removed": 0, "errors": 1}
        assert "line 1501: the server refused: the request body is larger than 65536 bytes" in done.stderr
    finally:
        server.stop()


@pytest.mark.parametrize("scope", ["subscriptions", "publish"])
def test_a_key_needs_the_scope(tmp_path, serve, scope):
    key, table = server_key(tmp_path, "app", scope)
    (tmp_path / "throng.toml").write_text(f"[[token-keys]]\nsecret = '{SECRET}'\n{table}")
    server = serve()
    path = write(tmp_path, [json.dumps({"user": "ann", "add": ["news"]})])
    done, _ = load(server, tmp_path, path, THRONG_KEY=key)
    assert done.returncode == (0 if scope == "subscriptions" else 1)
    if scope == "publish":
        assert "the scope `subscriptions` (403)" in done.stderr
        assert "the import ended at lines 1 to 1" in done.stderr
    missing, _ = load(server, tmp_path, tmp_path / "missing", THRONG_KEY=key)
    assert missing.returncode == 1 and "cannot open" in missing.stderr
