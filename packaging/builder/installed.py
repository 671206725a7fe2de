# SPDX-License-Identifier: Apache-2.0
"""The Debian packages of a root, as parts of an artefact.

Read from dpkg's list of what is installed, or, in a root that was made without dpkg, from ``status.d``, which
has a stanza for each package, as in other images without a package manager. Licences are told as copyright
files name them: of everything in the source, in Debian's words where SPDX has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

from cyclonedx.model.component import Component, ComponentType
from packageurl import PackageURL

from builder import sbom
from builder.sbom import Part

EACH = "var/lib/dpkg/status.d"
_LIST = "var/lib/dpkg/status"
_GNU = re.compile(r"(GPL|LGPL|AGPL|GFDL)-(\d)(\.\d)?(\+?)")
_NAMES = {"Expat": "MIT", "Apache-2": "Apache-2.0"}
# sources whose copyright file is a text for people
_IN_WORDS = {
    "base-files": "GPL-2.0-or-later",
    "gcc-12": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "glibc": "LGPL-2.1-or-later",
    "krb5": "MIT",
    "libselinux": "public domain",
    "libxcrypt": "LGPL-2.1-or-later",
    "python3.11": "PSF-2.0",
}

Stanza = Message
Release = Mapping[str, str]


def parts(root: Path) -> list[Part]:
    """All packages of a root, and the release that they are of; none if it has no list of them."""
    stanzas = list(_stanzas(root))
    if not stanzas:
        return []
    told = release(root)
    sources = _copyrights(root, stanzas)
    names = frozenset(stanza["Package"] for stanza in stanzas)
    found = [Part(_component(stanza, told, sources), _needs(stanza) & names) for stanza in stanzas]
    return [_system(told), *found]


def release(root: Path) -> Release:
    """What a root says that it is: os-release(5)."""
    return dict(re.findall(r'^(\w+)="?([^"\n]*)', (root / "etc/os-release").read_text(), re.M))


def purl(fields: Mapping[str, str] | Stanza, told: Release) -> PackageURL:
    """The name by which scanners know a package; ``upstream`` is its source, after which flaws are filed."""
    qualifiers = {"arch": fields["Architecture"], "distro": f"{told['ID']}-{told['VERSION_ID']}"}
    if (of := _source(fields)) != fields["Package"]:
        qualifiers["upstream"] = of
    return PackageURL("deb", told["ID"], fields["Package"], fields["Version"], qualifiers)


def _stanzas(root: Path) -> Iterator[Stanza]:
    files = [root / _LIST, *sorted((root / EACH).glob("*"))]
    texts = [text for file in files if file.is_file() for text in file.read_text().strip().split("\n\n")]
    for stanza in (HeaderParser().parsestr(text) for text in texts):
        # those of status.d have no state
        if stanza["Package"] and stanza.get("Status", "installed").endswith("installed"):
            yield stanza


def _component(stanza: Stanza, told: Release, sources: Mapping[str, list[str]]) -> Component:
    name = purl(stanza, told)
    return Component(
        name=stanza["Package"],
        version=stanza["Version"],
        licenses=sbom.licences(sources.get(_source(stanza)) or [_elsewhere(stanza)]),
        hashes=sbom.hashes(stanza.get_all("SHA256", [])),
        purl=name,
        bom_ref=str(name),
    )


def _system(told: Release) -> Part:
    system = Component(
        name=told["ID"],
        version=told["VERSION_ID"],
        type=ComponentType.OPERATING_SYSTEM,
        licenses=sbom.licences(["those of its packages"]),
        bom_ref=f"{told['ID']}-{told['VERSION_ID']}",
    )
    return Part(system, direct=True)


def _needs(stanza: Stanza) -> frozenset[str]:
    named = f"{stanza.get('Depends', '')},{stanza.get('Pre-Depends', '')}"
    return frozenset(re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9.+-]+)", named))


def _source(fields: Mapping[str, str] | Stanza) -> str:
    """The source of a package; its version goes unsaid where it is the package's."""
    return str(fields.get("Source") or fields["Package"]).partition(" ")[0]


def _elsewhere(stanza: Stanza) -> str:
    return f"see /usr/share/doc/{stanza['Package']}/copyright"


def _copyrights(root: Path, stanzas: list[Stanza]) -> dict[str, list[str]]:
    """Source → licences, where known; packages of one source often share one file, by a link."""
    found = {name: [licence] for name, licence in _IN_WORDS.items()}
    for stanza in stanzas:
        file = root / "usr/share/doc" / stanza["Package"] / "copyright"
        if file.is_file() and (named := _named(file.read_text(errors="replace"))):
            found[_source(stanza)] = named
    return found


def _named(text: str) -> list[str]:
    """The licences of a copyright file that a machine can read; none otherwise."""
    if not text.startswith("Format:"):
        return []
    return sorted({_spdx(name) for name in re.findall(r"^License:[ \t]*(\S.*?)[ \t]*$", text, re.M)})


def _spdx(name: str) -> str:
    """SPDX's word for a licence, where it has one."""
    if found := _GNU.fullmatch(name):
        kind, major, minor, later = found.groups()
        return f"{kind}-{major}{minor or '.0'}-{'or-later' if later else 'only'}"
    return _NAMES.get(name, name)
