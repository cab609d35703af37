"""The Debian package, installed, upgraded and removed in a container that boots systemd.

The container's file system is this machine's with a layer on top, so that nothing stays. It has a
network of its own. It needs root, overlayfs and systemd-nspawn.
"""

import os
import re
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

from conftest import HERE, ROOT, output, run

BUILD = ROOT / "packaging" / "debian" / "build-deb"
CHANGED = "# A line that a later version of the package has.\n"
# `systemd-analyze security` counts what a unit may do; 0 is nothing, 100 everything.
EXPOSURE_MAX = 20


@pytest.fixture(scope="module")
def packages(files, built, tmp_path_factory):
    """A directory with the packages of the release, and a later one of the server with other settings."""
    folder = tmp_path_factory.mktemp("packages")
    for package in files.glob("*.deb"):
        shutil.copy2(package, folder)
    later = tmp_path_factory.mktemp("later")
    shutil.copytree(built, later, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.debug"))
    with (later / "throng.toml").open("a") as settings:
        settings.write(CHANGED)
    output(BUILD, "--version", "99.0", later, folder, env={**os.environ, "DEB_COMPRESSION": "none"})
    return folder


PATHS = {
    "throng": [
        "./usr/bin/throng",
        "./etc/throng.toml",
        "./usr/lib/systemd/system/throng.service",
        "./usr/lib/systemd/system/throng.socket",
        "./usr/share/man/man1/throng-serve.1.gz",
        "./usr/share/bash-completion/completions/throng",
        "./usr/share/zsh/vendor-completions/_throng",
        "./usr/share/fish/vendor_completions.d/throng.fish",
        "./usr/share/doc/throng/copyright",
        "./usr/share/throng/html/index.html",
    ],
    "throng-lab": [
        "./usr/bin/throng-flood",
        "./usr/bin/throng-bench",
        "./usr/share/man/man1/throng-flood.1.gz",
        "./usr/share/man/man1/throng-bench.1.gz",
        "./usr/share/bash-completion/completions/throng-flood",
        "./usr/share/zsh/vendor-completions/_throng-bench",
        "./usr/share/doc/throng-lab/copyright",
    ],
}


@pytest.mark.parametrize("name", PATHS)
def test_a_package_has_what_debian_expects(files, name):
    (package,) = files.glob(f"{name}_*.deb")
    contents = output("dpkg-deb", "--contents", package)
    assert {line.split()[1] for line in contents.splitlines()} == {"root/root"}
    for path in PATHS[name]:
        assert re.search(f" {re.escape(path)}$", contents, re.MULTILINE), path
    settings = "/etc/throng.toml\n" if name == "throng" else ""
    assert run("dpkg-deb", "--info", package, "conffiles").stdout == settings


def test_the_packages_share_no_file(files):
    contents = [output("dpkg-deb", "--contents", package) for package in files.glob("*.deb")]
    names = [set(re.findall(r"^-.* (\./\S+)$", lines, re.MULTILINE)) for lines in contents]
    assert len(names) == 2 and all(names) and not set.intersection(*names)


@contextmanager
def control_groups():
    """Control groups of their own for a container; yields the commands that enter them."""
    bases = [Path("/sys/fs/cgroup", name) for name in ("systemd", "unified", ".")]
    bases = [base for base in bases if (base / "cgroup.procs").exists()]
    made = [base / f"throng-packages-{os.getpid()}" for base in bases]
    try:
        for group in made:
            group.mkdir()
        yield [f"echo $$ > {group}/cgroup.procs" for group in made]
    finally:
        for group in made:
            for directory, _, _ in os.walk(group, topdown=False):
                os.rmdir(directory)


def missing():
    """Why no container can be started here, or None."""
    if os.geteuid() != 0:
        return "needs root, to start a container"
    if not shutil.which("systemd-nspawn"):
        return "needs systemd-nspawn: scripts/setup"
    if run("unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt").returncode != 0:
        return "this machine does not allow mounts"
    return None


@pytest.fixture
def boot(tmp_path):
    """Boots a container that runs one script of this directory; returns what it printed."""

    def start(script, folder):
        if reason := missing():
            pytest.skip(reason)
        with control_groups() as enter:
            commands = ["set -e", *enter, f"exec {HERE}/container {script} {folder} {tmp_path}"]
            done = run("unshare", "--mount", "bash", "-c", "\n".join(commands))
        log = tmp_path / "output"
        text = log.read_text() if log.exists() else ""
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        return text

    return start


def test_it_is_installed_runs_is_upgraded_and_removed(packages, boot):
    text = boot("installation", packages)
    assert text.splitlines()[-1] == "all steps passed", text


def test_the_unit_is_valid_and_allows_little(built, tmp_path):
    unit = tmp_path / "throng.service"
    text = (built / "throng.service").read_text()
    # Here the program is not installed.
    unit.write_text(text.replace("/usr/bin/throng", str(built / "throng")))
    done = run("systemd-analyze", "verify", "--man=no", unit)
    findings = [line for line in done.stderr.splitlines() if "throng.service" in line]
    assert (done.returncode, findings) == (0, []), done.stderr
    done = run("systemd-analyze", "security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", unit)
    assert done.returncode == 0, done.stdout
