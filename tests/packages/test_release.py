"""The files of a release: which there are, their checksums, and what the programs are made of."""

import json
import re
import subprocess

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from conftest import ARCHITECTURE, ROOT, output, run


@pytest.fixture(scope="module")
def names(version):
    """What a release has for this architecture."""
    architecture = output("dpkg", "--print-architecture").strip()
    programs = ["throng", "throng-flood", "throng-bench"]
    return {
        *(f"{part}-{ARCHITECTURE}-linux.tar.gz" for part in ("throng", "throng-lab")),
        *(f"{part}_{version}_{architecture}.deb" for part in ("throng", "throng-lab")),
        *(f"{part}-{ARCHITECTURE}-linux.cdx.json" for part in ("throng", "throng-lab")),
        *(f"{program}-{ARCHITECTURE}-linux.debug" for program in programs),
        f"throng-image-{ARCHITECTURE}.tar.gz",
        f"throng-push-client-{version}.tgz",
        f"throng_client-{version}-py3-none-any.whl",
        f"throng_client-{version}.tar.gz",
        f"throng-go-{version}.zip",
        "install.sh",
    }


def test_a_release_is_complete_and_its_checksums_are_right(files, names):
    assert {path.name for path in files.iterdir()} == {*names, "SHA256SUMS"}
    output("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=files)
    listed = [line.split("  ")[1] for line in (files / "SHA256SUMS").read_text().splitlines()]
    assert sorted(names) == listed


def test_the_readme_of_the_packages_names_each_file(names, version):
    readme = (ROOT / "packaging" / "README.md").read_text()
    architecture = output("dpkg", "--print-architecture").strip()
    for name in names:
        general = name.replace(version, "VERSION").replace(ARCHITECTURE, "ARCH").replace(architecture, "ARCH")
        assert general in readme, general


BILLS = {"throng": ["throng"], "throng-lab": ["throng-flood", "throng-bench"]}


@pytest.mark.parametrize("name", BILLS)
def test_a_bill_of_materials_has_every_crate(files, name):
    text = (files / f"{name}-{ARCHITECTURE}-linux.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    listed = {entry["purl"]: entry for entry in bill["components"]}
    assert {entry["ref"] for entry in bill["dependencies"]} <= {*listed, bill["metadata"]["component"]["purl"]}
    assert any(purl.startswith("pkg:generic/glibc@") for purl in listed)
    for program in BILLS[name]:
        tree = output(
            *["cargo", "tree", "--locked", "--offline", "--package", program],
            *["--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}"],
            cwd=ROOT,
        )
        for crate, version in re.findall(r"^(\S+) v(\S+)", tree, re.MULTILINE):
            entry = listed[f"pkg:cargo/{crate}@{version}"]
            assert "hashes" in entry or crate.startswith("throng"), crate


def test_a_package_without_a_program_has_no_bill():
    done = run(ROOT / "packaging" / "sbom", "nothing", "no-such-package", stderr=subprocess.PIPE)
    assert done.returncode != 0 and "no package is called no-such-package" in done.stderr
