# SPDX-License-Identifier: Apache-2.0
"""The bill of materials of the image: Debian's packages as they are in its root, beside the libraries."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builder import installed, vendoring
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.image import containers
from tests.image.containers import Image

STANZA = """\
Package: libssl3
Status: install ok installed
Architecture: amd64
Source: openssl (3.0.1-1)
Version: 3.0.2-1
Depends: libc6 (>= 2.34), other | libz1
Description: a text
 of two lines

"""


@pytest.fixture(scope="module")
def bill(image: Image) -> str:
    return next(image.archive.parent.glob("*.cdx.json")).read_text()


@pytest.fixture(scope="module")
def components(bill: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(bill)["components"]
    return found


@pytest.fixture(scope="module")
def files(image: Image) -> Iterator[Path]:
    with containers.files(image) as root:
        yield root


def test_it_is_valid_and_has_a_licence_for_each_component(
    bill: str, components: list[dict[str, Any]]
) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None
    assert [each["name"] for each in components if not each.get("licenses")] == []


def test_it_names_the_libraries(components: list[dict[str, Any]]) -> None:
    named = {each["name"] for each in components}
    assert vendoring.requirements().keys() | {"pci.ids"} <= named


def test_it_names_each_package_of_the_base_that_left_a_licence_in_the_image(
    components: list[dict[str, Any]], files: Path
) -> None:
    named = {each["name"] for each in components if each.get("purl", "").startswith("pkg:deb/debian/")}
    documented = {path.parent.name for path in (files / "usr/share/doc").glob("*/copyright")}
    assert {"libc6", "libssl3", "python3.11"} <= documented <= named


def test_a_package_has_its_version_source_release_and_hash(
    components: list[dict[str, Any]], files: Path
) -> None:
    (openssl,) = [each for each in components if each["name"] == "libssl3"]
    stanza = (files / installed.EACH / "libssl3").read_text()
    assert f"\nVersion: {openssl['version']}\n" in stanza
    assert openssl["purl"].partition("?")[0] == f"pkg:deb/debian/libssl3@{openssl['version']}"
    assert openssl["purl"].endswith("?arch=amd64&distro=debian-12&upstream=openssl")
    assert [entry["content"] for entry in openssl["hashes"]] == [stanza.split()[-1]]
    assert {"license": {"id": "Apache-2.0"}} in openssl["licenses"]


def test_the_checksums_cover_it(image: Image) -> None:
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    done = subprocess.run(check, cwd=image.archive.parent, capture_output=True, check=True)
    assert done.stdout.count(b": OK") == 2


def test_a_base_with_dpkg_is_read_from_its_own_list(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('ID=debian\nVERSION_ID="13"\n')
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    gone = STANZA.replace("libssl3", "gone").replace("ok installed", "ok config-files")
    other = STANZA.replace("libssl3", "libz1").replace("Source: openssl (3.0.1-1)\n", "")
    (tmp_path / "var/lib/dpkg/status").write_text(STANZA + gone + other)
    file = tmp_path / "usr/share/doc/libssl3/copyright"
    file.parent.mkdir(parents=True)
    file.write_text("Format: 1.0\n\nFiles: *\nLicense: Expat\n\nFiles: x\nLicense: LGPL-2.1+\n")
    _, openssl, zlib = installed.parts(tmp_path)
    assert str(openssl.component.purl).endswith(
        "libssl3@3.0.2-1?arch=amd64&distro=debian-13&upstream=openssl"
    )
    assert {licence.id for licence in openssl.component.licenses} == {"MIT", "LGPL-2.1-or-later"}
    assert openssl.needs == {"libz1"}
    assert {licence.name for licence in zlib.component.licenses} == {"see /usr/share/doc/libz1/copyright"}


def test_a_base_without_a_list_has_no_packages(tmp_path: Path) -> None:
    assert installed.parts(tmp_path) == []
