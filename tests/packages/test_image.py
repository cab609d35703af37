"""The image of a release, run as it says, on a root that is read-only."""

import gzip
import json
import os
import shlex
import shutil
import ssl
import subprocess
import tarfile
from pathlib import Path

import pytest

from conftest import ARCHITECTURE, output, run

AUTHORITIES = Path("etc/ssl/certs/ca-certificates.crt")


@pytest.fixture(scope="module")
def buildah(tmp_path_factory):
    """The beginning of a command of buildah, whose images end with the test."""
    if os.geteuid() != 0:
        pytest.skip("buildah needs root here, to give files of the image to its user")
    if shutil.which("buildah") is None:
        pytest.skip("there is no buildah; scripts/setup installs it")
    if run("unshare", "--net", "--mount", "true").returncode != 0:
        pytest.skip("needs namespaces of networks and mounts")
    store = tmp_path_factory.mktemp("images")
    command = ["buildah", "--storage-driver", "vfs", "--root", store / "root", "--runroot", store / "run"]
    yield command
    run(*command, "umount", "--all")


@pytest.fixture(scope="module")
def image(files, buildah, tmp_path_factory):
    """The directory of the image's files, and its settings."""
    # `docker load` and `podman load` take it compressed, but Debian's buildah does not.
    archive = tmp_path_factory.mktemp("image") / "image.tar"
    with gzip.open(files / f"throng-image-{ARCHITECTURE}.tar.gz") as compressed:
        archive.write_bytes(compressed.read())
    name = output(*buildah, "from", "--quiet", f"docker-archive:{archive}").strip()
    settings = json.loads(output(*buildah, "inspect", "--type", "container", name))["Docker"]["config"]
    return Path(output(*buildah, "mount", name).strip()), settings


def test_its_name_is_that_of_the_compose_file_and_the_manifest(files, version):
    with tarfile.open(files / f"throng-image-{ARCHITECTURE}.tar.gz") as archive:
        (manifest,) = json.load(archive.extractfile("manifest.json"))
    assert [name.rpartition("/")[2] for name in manifest["RepoTags"]] == [f"throng:{version}"]


def test_the_image_has_the_server_and_nothing_else(image):
    root, settings = image
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    html = {file for file in files if file.startswith("usr/share/throng/html/")}
    assert "usr/share/throng/html/index.html" in html
    assert files - html == {"usr/bin/throng", "licenses.txt", str(AUTHORITIES)}
    user, group = map(int, settings["User"].split(":"))
    assert user != 0 and group != 0
    state = (root / settings["WorkingDir"].lstrip("/")).stat()
    assert (state.st_uid, state.st_gid, state.st_mode & 0o777) == (user, group, 0o700)
    text = (root / AUTHORITIES).read_text()
    assert ssl.create_default_context(cadata=text).cert_store_stats()["x509_ca"] > 0


SCRIPT = """
    set -e
    mount --bind "$root" "$root"
    mount -o remount,ro,bind "$root"
    ip link set lo up
    as_user=(setpriv --no-new-privs chroot --userspec="$user" "$root")
    inside=(env -i "${variables[@]}" "${as_user[@]}")
    # Nobody can write, not even root.
    ! touch "$root/written" 2>/dev/null
    ! "${inside[@]}" "${start[@]}" 2>&1
    inside=(env -i "${variables[@]}" THRONG_ALLOW_ANYONE=true "${as_user[@]}")
    "${inside[@]}" "${start[@]}" &
    server=$!
    until "${inside[@]}" "${check[@]}"; do
        kill -0 $server
        sleep 0.1
    done
    "${inside[@]}" /usr/bin/throng health
    grep -E '^(Uid|CapEff|NoNewPrivs):' /proc/$server/status
    kill $server
    wait $server
    ! "${inside[@]}" "${check[@]}"
"""


def test_the_image_runs_and_its_health_check_sees_it(image):
    root, settings = image
    kind, *check = settings["Healthcheck"]["Test"]
    assert kind == "CMD"
    arrays = {
        "variables": settings["Env"],
        "start": settings["Entrypoint"] + settings["Cmd"],
        "check": check,
        "root": [str(root)],
        "user": [settings["User"]],
    }
    names = "\n".join(f"{name}=({shlex.join(words)})" for name, words in arrays.items())
    alone = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    done = run(*alone, "bash", "-c", f"{names}\n{SCRIPT}", stderr=subprocess.STDOUT)
    seen = done.stdout
    assert done.returncode == 0, seen
    assert "refusing to listen on [::]:8080" in seen, seen
    assert '"status":"live"' in seen and "\nok\n" in seen, seen
    user = settings["User"].split(":")[0]
    facts = dict(line.split(":\t", 1) for line in seen.splitlines() if ":\t" in line)
    assert set(facts["Uid"].split()) == {user} and int(facts["CapEff"], 16) == 0, facts
    assert facts["NoNewPrivs"] == "1", facts
