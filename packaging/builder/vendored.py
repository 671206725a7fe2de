# SPDX-License-Identifier: Apache-2.0
"""The parts of every artefact: the vendored libraries, as lock and wheels tell of them, and pci.ids."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterator, Mapping
from email.parser import HeaderParser
from pathlib import Path

from cyclonedx.model.component import Component, ComponentType
from cyclonedx.spdx import fixup_id, is_expression
from packageurl import PackageURL

from builder import sbom, source, vendoring
from builder.sbom import Part

# where a library names its licence otherwise than SPDX does
_MEANT = {"aiosignal": "Apache-2.0", "hyperframe": "MIT"}


def parts() -> Iterator[Part]:
    """All of them. :raises NoLicence: if one has none that is known."""
    yield from libraries(vendoring.requirements(), vendoring.wheels())
    yield _names_of_pci()


def libraries(locked: Mapping[str, str], wheels: Path) -> Iterator[Part]:
    """The libraries of a lock, given as name → its lines.

    :raises NoLicence: if one has none that is known. :raises LookupError: if there is no wheel of it.
    """
    needed_by = {
        name: set(re.findall(r"#\s+(?:via )?([^\s#].*)$", lines, re.M)) for name, lines in locked.items()
    }
    for name, lines in locked.items():
        needs = frozenset(other for other, users in needed_by.items() if name in users)
        yield Part(_library(name, lines, wheels), needs, "-r runtime.in" in needed_by[name])


def _library(name: str, lines: str, wheels: Path) -> Component:
    version = lines.partition("==")[2].partition(" ")[0]
    wheel = next(wheels.glob(f"{name.replace('-', '_')}-{version}-*.whl"), None)
    if wheel is None:
        raise LookupError(f"no wheel of {name} {version} in {wheels}")
    purl = PackageURL("pypi", name=name, version=version)
    return Component(
        name=name,
        version=version,
        licenses=sbom.licences([_licence(f"{name} {version}", _MEANT.get(name), wheel)]),
        hashes=sbom.hashes(_digests(lines, wheel)),
        purl=purl,
        bom_ref=str(purl),
    )


def _digests(lines: str, wheel: Path) -> list[str]:
    """The wheel's own, if the lock has it; of what was built here all of the lock's."""
    locked = re.findall(r"--hash=sha256:([0-9a-f]{64})", lines)
    own = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return [own] if own in locked else locked


def _licence(which: str, meant: str | None, wheel: Path) -> str:
    """The licence that the wheel names, or what it is known to mean."""
    with zipfile.ZipFile(wheel) as file:
        info = next(path for path in file.namelist() if path.endswith(".dist-info/METADATA"))
        fields = HeaderParser().parsestr(file.read(info).decode())
    told = (fields["License-Expression"] or fields["License"] or "").partition("\n")[0]
    licence = meant or told
    if not (fixup_id(licence) or is_expression(licence)):
        raise sbom.NoLicence(
            f'{which} says "{told}", which is no licence of the SPDX list\n'
            "Read it, and name what it is in packaging/builder/vendored.py and packaging/copyright"
        )
    return licence


def _names_of_pci() -> Part:
    content = (source.ROOT / "nodeagent/data/pci.ids").read_bytes()
    found = re.search(rb"^#\s+Version: (\S+)$", content, re.M)
    version = found[1].decode() if found else None
    purl = PackageURL("generic", name="pci.ids", version=version)
    component = Component(
        name="pci.ids",
        version=version,
        type=ComponentType.DATA,
        licenses=sbom.licences(["BSD-3-Clause"]),
        hashes=sbom.hashes([hashlib.sha256(content).hexdigest()]),
        purl=purl,
        bom_ref=str(purl),
    )
    return Part(component, direct=True)
