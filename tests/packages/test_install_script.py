"""packaging/install.sh, with releases from a server of this machine."""

import functools
import http.server
import os
import shutil
import threading

import pytest

from conftest import ARCHITECTURE, ROOT, output, run

SCRIPT = ROOT / "packaging" / "install.sh"
ARCHIVE = f"throng-{ARCHITECTURE}-linux.tar.gz"
LABORATORY = f"throng-lab-{ARCHITECTURE}-linux.tar.gz"


@pytest.fixture
def release(files, tmp_path):
    """The files of a release that the script needs, served over HTTP; returns directory and URL."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    folder = tmp_path / "release"
    folder.mkdir()
    for name in (ARCHIVE, LABORATORY, "SHA256SUMS"):
        shutil.copy2(files / name, folder)
    handler = functools.partial(Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def install(tmp_path, release):
    """Runs the script; returns it and the directory that it installs into."""
    prefix = tmp_path / "prefix"
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}

    def start(*arguments, source=release[1]):
        command = ["sh", SCRIPT, "--from", source, "--prefix", prefix, *arguments]
        return run(*command, env={**kept, "TMPDIR": str(tmp_path)}), prefix

    return start


def test_a_release_is_installed(install, release):
    done, prefix = install()
    assert done.returncode == 0, done.stderr
    assert "throng 0." in done.stdout and f"Add {prefix}/bin to PATH." in done.stdout
    assert output(prefix / "bin" / "throng", "version").startswith("throng ")
    assert (prefix / "share" / "man" / "man1" / "throng-serve.1").exists()
    assert (prefix / "share" / "zsh" / "site-functions" / "_throng").exists()
    assert (prefix / "share" / "throng" / "html" / "index.html").exists()
    # Once more, over what is there, from a directory.
    again, _ = install(source=release[0])
    assert again.returncode == 0, again.stderr


def test_the_laboratory_is_installed_beside_the_server(install):
    install()
    done, prefix = install("--laboratory")
    assert done.returncode == 0, done.stderr
    assert "throng-flood 0." in done.stdout and "throng-bench 0." in done.stdout
    assert "Usage: throng bench" in output(prefix / "bin" / "throng", "bench", "--help")
    assert (prefix / "share" / "man" / "man1" / "throng-flood.1").exists()
    assert (prefix / "share" / "throng-lab" / "licenses.txt").exists()


def replace_line(folder, line):
    (folder / "SHA256SUMS").write_text(line)


FAULTS = {
    "a wrong checksum": (
        lambda folder: replace_line(folder, f"{'0' * 64}  {ARCHIVE}\n"),
        "SHA256SUMS says 000000",
    ),
    "a changed archive": (
        lambda folder: (folder / ARCHIVE).open("ab").write(b"x"),
        "nothing was installed",
    ),
    "no line for the archive": (
        lambda folder: replace_line(folder, f"{'0' * 64}  other-{ARCHIVE}\n"),
        "has no line for",
    ),
    "no checksums": (lambda folder: (folder / "SHA256SUMS").unlink(), "cannot get"),
    "no archive": (lambda folder: (folder / ARCHIVE).unlink(), "cannot get"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_installed_with(install, release, tmp_path, fault):
    change, message = FAULTS[fault]
    change(release[0])
    done, prefix = install()
    assert done.returncode == 1 and message in done.stderr, done.stderr
    assert not prefix.exists()
    assert not list(tmp_path.glob("tmp.*"))


def test_a_wrong_option_is_named(install):
    done, _ = install("--versoin", "1")
    assert done.returncode == 1 and "'--versoin' is no option" in done.stderr


def test_the_help_names_the_options(install):
    done, prefix = install("--help")
    assert done.returncode == 0, done.stderr
    for option in ("--version", "--prefix", "--laboratory", "--from"):
        assert option in done.stdout
    assert not prefix.exists()
