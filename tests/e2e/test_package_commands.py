"""The commands that packages use: the health check of a container, completions, man pages, licences."""

import re
import socket
import subprocess

import pytest

from support.raw import RawWebSocket
from support.server import BINARY, Server, eventually, run_throng


def health(directory, *arguments, **environment):
    return run_throng("health", *arguments, directory=directory, environment=environment)


def test_a_server_is_healthy_under_the_address_of_its_settings(serve, tmp_path):
    server = serve()
    (tmp_path / "throng.toml").write_text(f'listen = "127.0.0.1:{server.port}"\n')
    settings = health(tmp_path)
    assert (settings.returncode, settings.stdout) == (0, "ok\n"), settings.stderr
    variable = health(tmp_path, THRONG_LISTEN=f"0.0.0.0:{server.port}", THRONG_ALLOW_ANYONE="true")
    assert (variable.returncode, variable.stdout) == (0, "ok\n"), variable.stderr
    url = health(tmp_path, "--url", server.url)
    assert (url.returncode, url.stdout) == (0, "ok\n"), url.stderr
    nobody = "http://127.0.0.1:1"
    (tmp_path / "throng.toml").write_text('listen = "127.0.0.1:1"\n')
    for flags, said in [([], server.url), (["--url", server.url], nobody)]:
        named = health(tmp_path, *flags, THRONG_URL=said)
        assert (named.returncode, named.stdout) == (0, "ok\n"), named.stderr
    file = health(tmp_path, "--config", "throng.toml", THRONG_URL=server.url)
    assert file.returncode == 1 and f"cannot reach {nobody}" in file.stderr
    wrong = health(tmp_path, THRONG_URL="ftp://x")
    assert wrong.returncode == 1 and "the variable THRONG_URL: " in wrong.stderr


def test_a_draining_server_is_not_healthy(tmp_path):
    server = Server(tmp_path, "--admin-listen", "127.0.0.1:0", "--drain-timeout", "60s")
    try:
        # A client that does not read, and is within its lag limit, keeps the drain going.
        with server.admin() as admin, RawWebSocket(server, "/channels/a", receive_buffer_bytes=4096):
            server.publish_batch([{"channel": "a", "data": "x" * 60000} for _ in range(16)])
            server.signal()

            def drains():
                done = health(tmp_path, "--url", str(admin.base_url))
                return done.returncode == 1 and "is not healthy: " in done.stderr

            eventually(drains, "an unhealthy server")
            live = health(tmp_path, "--live", "--url", str(admin.base_url))
            assert live.returncode == 0 and '"live"' in live.stdout, live.stderr
    finally:
        server.process.kill()
        server.wait()


def test_a_server_that_does_not_answer_is_not_healthy(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        late = health(tmp_path, "--url", url, "--timeout", "50ms")
        assert late.returncode == 1 and "does not answer" in late.stderr, late.stderr
    gone = health(tmp_path, "--url", url)
    assert gone.returncode == 1 and "is `throng serve` running there?" in gone.stderr
    wrong = health(tmp_path, THRONG_LISTEN="nowhere")
    assert wrong.returncode == 78, wrong.stderr


@pytest.fixture
def commands(tmp_path):
    """The subcommands that `throng --help` lists."""
    text = run_throng("--help", directory=tmp_path).stdout
    block = text.split("Commands:\n")[1].split("\n\n")[0]
    return set(re.findall(r"^  ([a-z]+) ", block, re.MULTILINE)) - {"help"}


def test_bash_completes_what_the_help_lists(tmp_path, commands):
    script = tmp_path / "throng.bash"
    script.write_text(run_throng("completions", "bash", directory=tmp_path).stdout)
    ask = f"""
        . {script}
        COMP_WORDS=(throng ''); COMP_CWORD=1; _throng throng '' throng; echo "${{COMPREPLY[*]}}"
        COMP_WORDS=(throng serve --listen ''); COMP_CWORD=2
        _throng throng --li serve; printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=False)
    words = set(done.stdout.split())
    assert commands <= words, (commands - words, done.stderr)
    assert "serve-bound" not in words


@pytest.mark.parametrize("shell", ["zsh", "fish", "elvish", "powershell"])
def test_other_shells_get_the_commands(tmp_path, shell, commands):
    text = run_throng("completions", shell, directory=tmp_path).stdout
    assert all(command in text for command in commands)


def test_each_command_has_a_man_page(tmp_path, commands):
    pages = tmp_path / "new" / "man1"
    done = run_throng("man", pages, directory=tmp_path)
    assert done.returncode == 0, done.stderr
    names = {page.name for page in pages.iterdir()}
    # The laboratory's programs bring their own.
    laboratory = {"flood", "bench"}
    assert {"throng.1"} | {f"throng-{command}.1" for command in commands - laboratory} <= names
    assert not names & {f"throng-{command}.1" for command in laboratory}
    assert "\\-\\-max\\-connections" in (pages / "throng-serve.1").read_text()
    shown = run_throng("man", directory=tmp_path).stdout
    assert ".TH throng 1" in shown and "\\fBthrong\\-serve\\fR(1)" in shown
    publish = (pages / "throng-publish.1").read_text()
    for section in ("SYNOPSIS", "EXAMPLES", '"SEE ALSO"'):
        assert f".SH {section}\n" in publish
    assert ".SH EXTRA" not in publish
    (tmp_path / "file").write_text("")
    refused = run_throng("man", tmp_path / "file", directory=tmp_path)
    assert refused.returncode == 1 and "cannot write man pages" in refused.stderr


def test_the_licences_name_what_the_binary_contains(tmp_path):
    text = run_throng("licenses", directory=tmp_path).stdout
    assert re.search(r"^  tokio \d[\d.]* +MIT$", text, re.MULTILINE)
    assert re.search(r"^  ring \d[\d.]* +Apache-2.0 and ISC$", text, re.MULTILINE)
    assert "Copyright (c) Tokio Contributors" in text and "GNU Lesser General" in text
    assert subprocess.run([BINARY, "licenses"], stdout=subprocess.DEVNULL, check=False).returncode == 0
