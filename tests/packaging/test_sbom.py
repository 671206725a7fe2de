# SPDX-License-Identifier: Apache-2.0
"""The bills of materials of the packages and of the executable: true, complete, valid, the same each time."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from builder import bundled, sbom, source, vendored, vendoring
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from PyInstaller.archive.readers import CArchiveReader

from tests.facts import names
from tests.packaging import building
from tests.packaging.building import ROOT, Packages

Components = dict[str, dict[str, Any]]


def components(text: str) -> Components:
    return {each["name"]: each for each in json.loads(text)["components"]}


def pins() -> dict[str, str]:
    """What the lock of the daemon has, without what is in no artefact."""
    found = re.findall(r"^([a-z0-9._-]+)==(\S+)", vendoring.LOCK.read_text(), re.M)
    return {name: version for name, version in found if name not in vendoring.LEFT_OUT}


def purl(name: str) -> str:
    return f"pkg:pypi/{name}@{pins()[name]}"


def is_valid(text: str) -> bool:
    return JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def without_licence(text: str) -> list[str]:
    return [name for name, each in components(text).items() if not each.get("licenses")]


@pytest.fixture(scope="session")
def bill(packages: Packages) -> str:
    return next(packages.deb.parent.glob("*.cdx.json")).read_text()


@pytest.fixture(scope="session")
def executable(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked archive."""
    folder = tmp_path_factory.mktemp("executable")
    with tarfile.open(binary) as tar:
        tar.extractall(folder, filter="data")
    return next(folder.iterdir())


@pytest.fixture(scope="session")
def bill_of_the_executable(binary: Path) -> str:
    return next(binary.parent.glob("*.cdx.json")).read_text()


def test_it_is_valid(bill: str) -> None:
    assert is_valid(bill)
    assert not is_valid(bill.replace('"MIT"', '"No such licence"'))


def test_it_says_what_it_is_of(bill: str) -> None:
    metadata = json.loads(bill)["metadata"]
    assert metadata["component"]["name"] == "nodeagent"
    assert metadata["component"]["version"] == source.version()
    assert metadata["component"]["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    assert metadata["authors"] and metadata["timestamp"] and metadata["tools"]


def test_it_names_each_library_of_the_lock_and_nothing_that_is_not_shipped(bill: str) -> None:
    libraries = {name: each["version"] for name, each in components(bill).items() if name != "pci.ids"}
    assert libraries == pins()
    for name, each in components(bill).items():
        assert name == "pci.ids" or each["purl"] == purl(name)


def test_what_it_names_is_what_is_in_the_package(bill: str, packages: Packages) -> None:
    command = ["dpkg-deb", "--contents", str(packages.deb)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    shipped = set(re.findall(r" \./usr/lib/nodeagent/[^/]+/([A-Za-z0-9_]+)(?:/|\.py)", listed))
    assert shipped == (modules_of(bill) - {"pci.ids"}) | {"nodeagent"}


def modules_of(bill: str) -> set[str]:
    """The modules of all libraries that it names; PyYAML and attrs have two."""
    otherwise = {"pyyaml": "yaml", "python-dateutil": "dateutil"}
    return {otherwise.get(name, name).replace("-", "_") for name in components(bill)} | {"_yaml", "attr"}


def test_each_component_has_a_licence(bill: str) -> None:
    assert without_licence(bill) == []
    assert components(bill)["hyperframe"]["licenses"] == [{"license": {"id": "MIT"}}]
    assert components(bill)["typing-extensions"]["licenses"] == [{"license": {"id": "PSF-2.0"}}]


def test_libraries_have_hashes_of_the_lock_and_pci_ids_its_own(bill: str) -> None:
    locked = vendoring.requirements()
    built = vendoring.BUILT
    for name, each in components(bill).items():
        hashes = {entry["content"] for entry in each["hashes"]}
        if name == "pci.ids":
            own = (ROOT / "nodeagent/data/pci.ids").read_bytes()
            assert hashes == {hashlib.sha256(own).hexdigest()}
            assert each["licenses"] == [{"license": {"id": "BSD-3-Clause"}}]
            assert f"Version: {each['version']}" in own.decode()[:300]
        else:
            known = set(re.findall(r"sha256:([0-9a-f]{64})", locked[name]))
            assert hashes <= known
            assert len(hashes) == (len(known) if name == built else 1)


def test_it_tells_what_needs_what(bill: str) -> None:
    needs = {each["ref"]: each.get("dependsOn", []) for each in json.loads(bill)["dependencies"]}
    assert {purl("hpack"), purl("hyperframe")} == set(needs[purl("h2")])
    ours = needs[json.loads(bill)["metadata"]["component"]["bom-ref"]]
    assert purl("anyio") in ours
    assert purl("hpack") not in ours


def test_the_checksums_cover_it(bill: str, packages: Packages) -> None:
    listed = (packages.deb.parent / "SHA256SUMS").read_text()
    assert (
        f"{hashlib.sha256(bill.encode()).hexdigest()}  nodeagent-{source.version()}.packages.cdx.json"
        in listed
    )


def test_both_packages_have_it_where_scanners_look(bill: str, packages: Packages, tmp_path: Path) -> None:
    place = "usr/share/doc/nodeagent/nodeagent.cdx.json"
    subprocess.run(["dpkg-deb", "--extract", str(packages.deb), str(tmp_path)], check=True)
    assert (tmp_path / place).read_text() == bill
    query = ["rpm", "--query", "--docfiles", "--package", str(packages.rpm)]
    assert f"/{place}" in subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()


def test_two_builds_are_the_same_bytes_and_another_content_has_another_number(
    bill: str, packages: Packages, tmp_path: Path
) -> None:
    again = building.build(tmp_path)
    assert next(again.deb.parent.glob("*.cdx.json")).read_text() == bill
    other = sbom.document([*vendored.parts()][1:])
    assert json.loads(other)["serialNumber"] != json.loads(bill)["serialNumber"]


def wheel(folder: Path, *fields: str) -> None:
    """A wheel of a library that the lock does not have."""
    lines = ("Metadata-Version: 2.4", "Name: newcomer", "Version: 1.0", *fields, "", "")
    with zipfile.ZipFile(folder / "newcomer-1.0-py3-none-any.whl", "w") as file:
        file.writestr("newcomer-1.0.dist-info/METADATA", "\n".join(lines))


LOCKED = {"newcomer": f"newcomer==1.0 \\\n    --hash=sha256:{'0' * 64}\n    # via -r runtime.in\n"}


def test_a_library_without_a_licence_ends_the_build_with_what_to_do(tmp_path: Path) -> None:
    wheel(tmp_path, "License: as you like it")
    with pytest.raises(sbom.NoLicence) as raised:
        list(vendored.libraries(LOCKED, tmp_path))
    told, advice = str(raised.value).splitlines()
    names(told, "newcomer 1.0", '"as you like it"', "SPDX")
    assert "packaging/builder/vendored.py" in advice


def test_a_library_with_a_licence_needs_nothing(tmp_path: Path) -> None:
    wheel(tmp_path, "License-Expression: MIT OR Apache-2.0")
    (found,) = vendored.libraries(LOCKED, tmp_path)
    assert str(found.component.purl) == "pkg:pypi/newcomer@1.0"


def test_a_library_of_the_lock_without_a_wheel_is_no_silent_gap(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="newcomer"):
        list(vendored.libraries(LOCKED, tmp_path))


def test_the_command_says_it_in_two_lines(tmp_path: Path) -> None:
    building.next_version(tmp_path / "source", "99.0.0")
    module = tmp_path / "source/packaging/builder/vendored.py"
    module.write_text(module.read_text().replace('"hyperframe"', '"nobody"'))
    environ = os.environ | {"PYTHONPATH": f"{tmp_path}/source/packaging:{tmp_path}/source"}
    command = [sys.executable, "-P", "-m", "builder", "--to", str(tmp_path / "dist")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 2
    assert done.stderr.startswith("builder: hyperframe ")


def test_the_executable_has_one_of_its_own(bill_of_the_executable: str, executable: Path) -> None:
    assert is_valid(bill_of_the_executable)
    assert without_licence(bill_of_the_executable) == []
    assert (executable / "nodeagent.cdx.json").read_text() == bill_of_the_executable
    assert (
        pins().items()
        <= {name: each.get("version") for name, each in components(bill_of_the_executable).items()}.items()
    )
    assert components(bill_of_the_executable)["pyinstaller"]["version"]


def test_all_that_is_bundled_is_in_it(bill_of_the_executable: str, executable: Path) -> None:
    hashes = {
        entry["content"]
        for each in components(bill_of_the_executable).values()
        for entry in each.get("hashes", ())
    }
    libraries = list((executable / "_internal").glob("lib*.so*"))
    assert [
        path.name for path in libraries if hashlib.sha256(path.read_bytes()).hexdigest() not in hashes
    ] == []
    python = components(bill_of_the_executable)["python"]
    assert python["version"] == ".".join(map(str, sys.version_info[:3]))


def test_no_module_of_the_executable_comes_from_elsewhere(
    bill_of_the_executable: str, executable: Path
) -> None:
    modules = CArchiveReader(str(executable / "nodeagent")).open_embedded_archive("PYZ.pyz").toc
    known = modules_of(bill_of_the_executable) | {"nodeagent"} | sys.stdlib_module_names
    found = {name.partition(".")[0] for name in modules} - known
    assert {name for name in found if not name.startswith("_sysconfigdata_")} <= {"_pyi_rth_utils"}


def test_a_bundled_library_that_nobody_knows_ends_the_build(tmp_path: Path) -> None:
    (library := tmp_path / "libsurprise.so.1").write_bytes(b"")
    with pytest.raises(sbom.NoLicence, match=r"libsurprise\.so\.1"):
        list(bundled.parts([bundled.File(library, library)]))


def test_the_checksums_of_the_executable_cover_it(binary: Path) -> None:
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    done = subprocess.run(check, cwd=binary.parent, capture_output=True, check=True)
    assert done.stdout.count(b": OK") == 2
