"""The portable binary: it needs nothing of the machine but the kernel."""

import re
import sys
import urllib.request

import pytest

from conftest import HERE, TIMEOUT_SECONDS, in_root, output, run, started, without_variables


def test_it_is_static_and_stripped_and_its_symbols_are_apart(built):
    headers = output("readelf", "--wide", "--program-headers", "--dynamic", built / "throng")
    assert "INTERP" not in headers and "(NEEDED)" not in headers
    sections = output("readelf", "--wide", "--sections", built / "throng")
    assert ".symtab" not in sections and ".debug_info" not in sections
    link = output("readelf", "--string-dump=.gnu_debuglink", built / "throng")
    assert "throng.debug" in link
    assert ".debug_line" in output("readelf", "--wide", "--sections", built / "throng.debug")
    builds = {build_id(built / name) for name in ("throng", "throng.debug")}
    assert len(builds) == 1


def build_id(path):
    return re.search(r"Build ID: (\w+)", output("readelf", "--notes", path)).group(1)


def test_kernels_of_the_last_eight_years_run_it(built):
    note = re.search(r"OS: Linux, ABI: (\d+)\.(\d+)", output("readelf", "--notes", built / "throng"))
    assert (int(note.group(1)), int(note.group(2))) <= (4, 4)


def test_the_server_runs_with_nothing_but_the_binary(empty_root):
    command = [*in_root(empty_root), "/throng", "serve", "--listen", "127.0.0.1:0"]
    with started(command) as url:
        done = run(*in_root(empty_root), "/throng", "health", "--url", url, env=without_variables())
        assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
        with urllib.request.urlopen(f"{url}/channels/a", b"hello", TIMEOUT_SECONDS) as response:
            assert response.status == 201


NAMES = {
    "the file of hosts": ("in-hosts.test", None),
    "the name server": ("in-dns.test", None),
    "names that a plugin would hide": ("in-hosts.test", "hosts: absent [UNAVAIL=return] files dns\n"),
}


@pytest.mark.parametrize("case", NAMES)
def test_it_resolves_names(empty_root, case):
    name, sources = NAMES[case]
    etc = empty_root / "etc"
    etc.mkdir()
    (etc / "hosts").write_text("127.0.0.1 in-hosts.test\n")
    (etc / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    if sources:
        (etc / "nsswitch.conf").write_text(sources)
    # A network of its own, so that the port of name servers is free.
    alone = ["unshare", "--map-root-user", "--net"]
    if run(*alone, "true").returncode != 0:
        pytest.skip("needs namespaces of users and networks")
    script = [sys.executable, "-B", HERE / "names.py", empty_root, name]
    done = run(*alone, *script, env=without_variables())
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    unknown = run(*alone, *script[:-1], "unknown.test", env=without_variables())
    assert unknown.returncode == 1 and "there is no such host" in unknown.stderr
