"""Settings of access control: what is refused at the start, and that no output has a secret."""

import os
import signal

import pytest

from support.server import Server, eventually, run_throng

CONFIGURATION = 78
SECRET = "0123456789abcdef0123456789abcdef"
HASH = "sha256:" + 64 * "0"
SERVER_KEY = f"[[server-keys]]\nname = 'app'\nhash = '{HASH}'\nscopes = ['publish']\n"
TOKEN_KEY = f"[[token-keys]]\nsecret = '{SECRET}'\n"


def refused(directory, text, *flags):
    """The one sentence with which `serve` and `check` refuse settings."""
    (directory / "throng.toml").write_text(text)
    arguments = flags if "--listen" in flags else ("--listen", "127.0.0.1:0", *flags)
    done = run_throng("serve", *arguments, directory=directory)
    assert done.returncode == CONFIGURATION, (done.returncode, done.stdout, done.stderr)
    assert "listening" not in done.stdout and "panicked" not in done.stderr
    checked = run_throng("check", *arguments, directory=directory)
    assert (checked.returncode, checked.stderr) == (CONFIGURATION, done.stderr)
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("error: ")
    return done.stderr


FILES = {
    "no key": ("[[token-keys]]\nid = 'a'\n", "[[token-keys]] number 1 has no key; add one of"),
    "a short secret": ("[[token-keys]]\nsecret = 'hunter2'\n", "has a secret of 7 bytes"),
    "a number as secret": ("[[token-keys]]\nsecret = 271828\n", "line 2, column 10: secret: "),
    "a secret without quotes": ("[[token-keys]]\nsecret = hunter2\n", "line 2, column 10: a secret"),
    "an unknown algorithm": (TOKEN_KEY + "algorithm = 'none'\n", "unknown algorithm"),
    "a missing file": ("[[token-keys]]\nsecret-file = 'none'\n", "cannot be read: no such file"),
    "a key in place of its hash": (
        "[[server-keys]]\nname = 'a'\nhash = 'throng_key_hunter2'\nscopes = ['publish']\n",
        "has the key itself as its hash",
    ),
    "no scopes": (f"[[server-keys]]\nname = 'a'\nhash = '{HASH}'\n", "has no scopes"),
    "two keys of one name": (2 * SERVER_KEY, "the same name or the same hash"),
    "rules without keys": ("[access]\npublish = 'user'\n", "[access] has no effect"),
    "a rule without keys": ("[[channels]]\nmatch = 'a'\npublish = 'user'\n", "number 1 has access rules"),
    "an unknown word": (TOKEN_KEY + "[access]\npublish = 'all'\n", '"all" is not one of "anyone"'),
    "keys over plain HTTP": ("token-key-urls = ['http://a.example/k']\n", "is not the URL of a key"),
    "an audience without keys": ("token-audience = 'a'\n", "token-audience has no effect"),
}


@pytest.mark.parametrize("case", FILES)
def test_bad_settings_are_refused_in_one_sentence(tmp_path, case):
    text, expected = FILES[case]
    said = refused(tmp_path, text)
    assert expected in said
    for secret in ("hunter2", "271828", SECRET):
        assert secret not in said


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_an_address_that_others_can_reach_needs_keys(tmp_path, address):
    said = refused(tmp_path, "", "--listen", address)
    assert "run `throng key`" in said and "--allow-anyone" in said


@pytest.mark.parametrize("keys", [TOKEN_KEY, SERVER_KEY])
def test_with_keys_the_server_listens_where_others_can_reach_it(tmp_path, keys):
    (tmp_path / "throng.toml").write_text(keys)
    server = Server(tmp_path, listen="0.0.0.0")
    server.host = "127.0.0.1"  # it prints the address it is bound to
    assert server.http.get("/channels/a/history").status_code == 401
    server.stop()
    assert "warning" not in server.log(), server.log()


def test_the_admin_listener_of_others_needs_server_keys(tmp_path):
    said = refused(tmp_path, TOKEN_KEY, "--admin-listen", "0.0.0.0:0")
    assert "throng key --scopes administration" in said and "--admin-allow-anyone" in said


def test_secrets_are_not_printed(tmp_path):
    (tmp_path / "throng.toml").write_text(TOKEN_KEY)
    done = run_throng("check", directory=tmp_path)
    assert done.returncode == 0 and "not shown" in done.stdout
    assert SECRET not in done.stdout + done.stderr
    assert "`throng check` does not print it" in refused(tmp_path, done.stdout)
    (tmp_path / "throng.toml").write_text(TOKEN_KEY)
    server = Server(tmp_path, "--log", "trace")
    server.http.get("/channels/a/history")
    server.stop()
    assert SECRET not in server.log()


def test_a_table_that_never_applies_causes_a_warning(tmp_path):
    text = "[[channels]]\nmatch = 'shop/*'\n[[channels]]\nmatch = 'shop/private-*'\nresume = 'at-least-once'\n"
    (tmp_path / "throng.toml").write_text(text)
    expected = '[[channels]] number 2 ("shop/private-*") never applies: number 1 ("shop/*") matches all that it matches'
    assert expected in run_throng("check", directory=tmp_path).stderr
    server = Server(tmp_path)
    server.stop()
    assert expected in server.log()


def test_a_secret_that_others_can_read_causes_a_warning(tmp_path):
    (tmp_path / "secret").write_text(SECRET + "\n")
    (tmp_path / "throng.toml").write_text("[[token-keys]]\nsecret-file = 'secret'\n")
    os.chmod(tmp_path / "secret", 0o644)
    expected = "every user of this machine can read the secret in secret; run: chmod o-r secret"
    assert expected in run_throng("check", directory=tmp_path).stderr
    server = Server(tmp_path)
    server.stop()
    assert expected in server.log()
    os.chmod(tmp_path / "secret", 0o640)
    assert run_throng("check", directory=tmp_path).stderr == ""


def test_sighup_reads_the_files_of_keys_again(tmp_path):
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text(SECRET)
    (tmp_path / "throng.toml").write_text("[[token-keys]]\nsecret-file = 'secret'\n")
    server = Server(tmp_path)
    for text, expected in [
        (SECRET, "nothing that a reload can replace has changed"),
        (SECRET[::-1], "replaced: token keys"),
        (
            "hunter2",
            "everything stays as it was: throng.toml, [[token-keys]] number 1 has a secret",
        ),
    ]:
        secret.write_text(text)
        server.signal(signal.SIGHUP)
        eventually(lambda: expected in server.log(), expected)
    server.stop()
    assert "hunter2" not in server.log() and SECRET not in server.log()


def test_a_new_key_and_its_table(tmp_path):
    done = run_throng("key", "--name", "app", "--scopes", "publish", directory=tmp_path)
    assert done.returncode == 0
    key = done.stdout.strip()
    assert key.startswith("throng_key_") and key not in done.stderr
    assert run_throng("key", directory=tmp_path).stdout.strip() != key
    again = run_throng(
        "key", "--hash", "--scopes", "publish", directory=tmp_path, environment={"THRONG_KEY": key}
    )
    assert again.stdout.strip() == done.stderr.strip()
    (tmp_path / "throng.toml").write_text(done.stderr)
    checked = run_throng("check", directory=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert done.stderr.strip() in checked.stdout


@pytest.mark.parametrize(
    ("arguments", "input", "expected"),
    [
        (["--scopes", "all"], None, "this is none of publish"),
        (["--name", "a b"], None, "a name is 1 to 64"),
        (["--hash"], "", "there is no key on standard input"),
        (["--hash"], "throng_key_hunter2", "this server key is mistyped or cut off"),
        (["--hash"], "hunter2", "a server key begins with throng_key_"),
    ],
)
def test_bad_arguments_of_key(tmp_path, arguments, input, expected):
    done = run_throng("key", *arguments, directory=tmp_path, input=input)
    assert done.returncode != 0 and done.stdout == ""
    assert expected in done.stderr and "hunter2" not in done.stderr
