"""packaging/install.sh, with releases from a server of this machine."""

import functools
import hashlib
import http.server
import os
import platform
import shutil
import threading
from pathlib import Path

import pytest

from conftest import ROOT, output, run

SCRIPT = ROOT / "packaging" / "install.sh"
ARCHIVE = f"throng-{platform.machine()}-linux.tar.gz"


@pytest.fixture(scope="module")
def archive(built, tmp_path_factory):
    """The archive of a release."""
    folder = tmp_path_factory.mktemp("dist")
    ignore = shutil.ignore_patterns("*.deb", "*.debug", "*.gz")
    shutil.copytree(built, folder, dirs_exist_ok=True, ignore=ignore)
    return Path(output(ROOT / "packaging" / "archive", folder).strip())


@pytest.fixture
def release(archive, tmp_path):
    """The files of a release, served over HTTP; returns directory and URL."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    folder = tmp_path / "release"
    folder.mkdir()
    shutil.copy2(archive, folder)
    right = hashlib.sha256(archive.read_bytes()).hexdigest()
    other = hashlib.sha256(b"other").hexdigest()
    (folder / "SHA256SUMS").write_text(f"{other}  other-{ARCHIVE}\n{right}  {ARCHIVE}\n")
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
    for option in ("--version", "--prefix", "--from"):
        assert option in done.stdout
    assert not prefix.exists()
