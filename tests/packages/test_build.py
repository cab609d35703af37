"""What `packaging/build` leaves of what it was given; programs that do nothing stand in for the compiler."""

import os

from conftest import ROOT, run

PROGRAMS = {
    "cargo": '#!/bin/sh\nmkdir -p "$CARGO_TARGET_DIR/debug" && cp "$FAKE/throng" "$CARGO_TARGET_DIR/debug/throng"\n',
    # From the last word but one to the last.
    "objcopy": '#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done\ncp "$1" "$2"\n',
    "throng": '#!/bin/sh\n[ "$1" != man ] || mkdir -p "$2"\necho "$1"\n',
}


def test_documentation_that_lies_where_it_goes_is_kept(tmp_path):
    tools, out = tmp_path / "tools", tmp_path / "out"
    for name, text in PROGRAMS.items():
        tools.mkdir(exist_ok=True)
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    variables = {"PATH": f"{tools}:{os.environ['PATH']}", "FAKE": tools, "CARGO_TARGET_DIR": tmp_path / "target"}
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    given = tmp_path / "given"
    given.mkdir()
    (given / "index.html").write_text("pages")
    # From elsewhere, and then from where they lie.
    for docs in [given, out / "html"]:
        done = run(
            ROOT / "packaging/build", "--profile", "dev", "--docs", docs, out, cwd=tmp_path, env=environment
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert (out / "html/index.html").read_text() == "pages"
    assert (given / "index.html").exists() and (out / "completions/throng.zsh").exists()
