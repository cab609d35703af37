"""The image: what the last stage of the Dockerfile has, run as it says, on a root that is read-only."""

import json
import re
import shutil

import pytest

from conftest import ROOT, run, without_variables

DOCKERFILE = (ROOT / "packaging" / "docker" / "Dockerfile").read_text()
LAST_STAGE = DOCKERFILE.replace("\\\n", " ").split("FROM scratch\n")[1]


def instruction(name):
    """The arguments of the only instruction of that name in the last stage."""
    (found,) = re.findall(rf"^{name} (.*)$", LAST_STAGE, re.MULTILINE)
    return found


@pytest.fixture
def image(built, tmp_path):
    """A directory with the files of the image."""
    root = tmp_path / "image"
    root.mkdir()
    for source, target in re.findall(r"^COPY --from=build (?:--chown=\S+ )?(\S+) (\S+)$", LAST_STAGE, re.M):
        path = root / target.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if source.startswith("/built/"):
            shutil.copy2(built / source.removeprefix("/built/"), path)
        elif source == "/state":
            path.mkdir()
        else:
            path.write_text("")
    return root


def test_the_image_runs_and_its_health_check_sees_it(image):
    user = instruction("USER").split(":")[0]
    # The namespace has nobody but this user, whose number is the image's.
    isolate = ["unshare", f"--map-user={user}", f"--map-group={user}", "--net", "--mount"]
    if run(*isolate, "true").returncode != 0:
        pytest.skip("needs namespaces of users, networks and mounts")
    # `--map-user` gives no rights, so mounting is done in a namespace around it.
    root = image.resolve()
    prepare = f"mount --bind {root} {root} && mount -o remount,ro,bind {root} && ip link set lo up"
    start = " ".join(json.loads(instruction("ENTRYPOINT")) + json.loads(instruction("CMD")))
    check = " ".join(json.loads(instruction("HEALTHCHECK").split(" CMD ")[1]))
    inside = f"unshare --map-user={user} --map-group={user} --root={root}"
    name, listen = instruction("ENV").split("=")
    script = f"""
        set -e
        {prepare}
        ! touch {root}/written 2>/dev/null
        export {name}={listen}
        ! {inside} {start} 2>&1
        export THRONG_ALLOW_ANYONE=true
        {inside} {start} &
        server=$!
        until {inside} {check}; do
            kill -0 $server
            sleep 0.1
        done
        {inside} /usr/bin/throng health
        kill $server
        wait $server
        ! {inside} {check}
    """
    command = ["unshare", "--map-root-user", "--net", "--mount", "bash", "-c", script]
    done = run(*command, env=without_variables())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "refusing to listen on 0.0.0.0:8080" in done.stdout, done.stdout
    assert '"status":"live"' in done.stdout and "\nok\n" in done.stdout, done.stdout
