"""The packages of the clients, installed without a network and used against the packaged server."""

import json
import os
import sys
import zipfile
from pathlib import Path

import httpx
import pytest

from conftest import ROOT, output

GO_MODULE = "github.com/throng-push/throng/clients/go"
GO_MODULES = ROOT / ".cache" / "go" / "mod"

NODE_PROGRAM = """
import { Throng } from "@throng-push/client";
import { createRequire } from "node:module";
const { Throng: Common } = createRequire(import.meta.url)("@throng-push/client");
for (const Client of [Throng, Common]) {
  const throng = new Client(process.argv[2]);
  await throng.publish("news", "hello");
  throng.close();
}
"""
PYTHON_PROGRAM = """
import sys
from throng_client import Throng

with Throng(sys.argv[1]) as throng:
    throng.publish("news", "hello")
"""
GO_PROGRAM = """
package main

import (
	"context"
	"os"

	throng "github.com/throng-push/throng/clients/go"
)

func main() {
	client, err := throng.New(os.Args[1], throng.Options{})
	if err != nil {
		panic(err)
	}
	if _, err := client.Publish(context.Background(), throng.Channel("news"), "hello"); err != nil {
		panic(err)
	}
}
"""


def alone(**variables):
    """The environment without proxies, and with these variables."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return {**kept, **{name: str(value) for name, value in variables.items()}}


def published(url):
    """The messages of the channel that the programs publish to."""
    page = httpx.get(f"{url}/channels/news/history", trust_env=False).json()
    return [message["data"] for message in page["messages"]]


def test_the_tarball_works_as_a_module_and_in_common_js(files, served, tmp_path):
    (tarball,) = files.glob("throng-push-client-*.tgz")
    (tmp_path / "package.json").write_text('{"private": true}')
    (tmp_path / "hello.mjs").write_text(NODE_PROGRAM)
    offline = ["--offline", "--ignore-scripts", "--no-audit", "--no-fund", "--omit=peer"]
    output("npm", "install", *offline, tarball, cwd=tmp_path)
    output("node", "hello.mjs", served, cwd=tmp_path, env=alone())
    assert published(served) == ["hello", "hello"]


@pytest.mark.parametrize("pattern", ["*.whl", "throng_client-*.tar.gz"])
def test_pip_installs_the_wheel_and_the_source(files, served, tmp_path, pattern):
    (package,) = files.glob(pattern)
    installed = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    output(*pip, "--no-build-isolation", "--target", installed, package)
    assert (installed / "throng_client" / "py.typed").exists()
    output(sys.executable, "-c", PYTHON_PROGRAM, served, env=alone(PYTHONPATH=installed))
    assert published(served) == ["hello"]


def as_go_proxy(archive, version, folder):
    """Lays the zip of a module out as a proxy of modules has it, as packaging/README.md says."""
    versions = folder / GO_MODULE / "@v"
    versions.mkdir(parents=True)
    (versions / "list").write_text(f"v{version}\n")
    (versions / f"v{version}.info").write_text(json.dumps({"Version": f"v{version}"}))
    with zipfile.ZipFile(archive) as module:
        (versions / f"v{version}.mod").write_bytes(module.read(f"{GO_MODULE}@v{version}/go.mod"))
    (versions / f"v{version}.zip").write_bytes(archive.read_bytes())
    return f"file://{folder}"


def test_go_gets_the_zip_of_the_module_from_a_proxy(files, served, tmp_path, version):
    proxy = as_go_proxy(files / f"throng-go-{version}.zip", version, tmp_path / "proxy")
    environment = alone(
        # What the client needs comes from where scripts/setup has put it.
        GOPROXY=f"{proxy},file://{GO_MODULES}/cache/download,off",
        GOMODCACHE=tmp_path / "modules",
        GOCACHE=ROOT / ".cache" / "go" / "build",
        GOFLAGS="-modcacherw -mod=mod -buildvcs=false",
        GONOSUMDB="*",
        GOTOOLCHAIN="local",
        CGO_ENABLED=0,
    )
    program = tmp_path / "hello"
    program.mkdir()
    (program / "main.go").write_text(GO_PROGRAM)
    output("go", "mod", "init", "hello", cwd=program, env=environment)
    output("go", "get", f"{GO_MODULE}@v{version}", cwd=program, env=environment)
    output("go", "run", ".", served, cwd=program, env=environment)
    assert published(served) == ["hello"]
    assert (Path(tmp_path) / "modules" / f"{GO_MODULE}@v{version}" / "LICENSE").exists()


@pytest.mark.parametrize("pattern", ["throng-push-client-*.tgz", "throng_client-*.tar.gz"])
def test_links_of_a_readme_lead_somewhere_outside_the_repository(files, pattern):
    (package,) = files.glob(pattern)
    readme = output("tar", "--extract", "--wildcards", "--to-stdout", "--file", package, "*/README.md")
    assert "/blob/v" in readme and "](../" not in readme
