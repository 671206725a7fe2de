# SPDX-License-Identifier: Apache-2.0
"""What the executable holds besides our code and the vendored libraries: Python, its C libraries, the loader.

Of a C library that Debian's dpkg knows, the version and the package are told; of another one its name and the
hash of the file. Each one's licence stands here, for the notices as well.
"""

from __future__ import annotations

import ast
import hashlib
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from cyclonedx.model.component import Component
from packageurl import PackageURL

from builder import installed, sbom
from builder.sbom import Part

LICENCES = {
    "python": "PSF-2.0",
    "openssl": "Apache-2.0",
    "libffi": "MIT",
    "zlib": "Zlib",
    "bzip2": "bzip2-1.0.6",
    "liblzma": "public domain, 0BSD since version 5.6",
    "libuuid": "BSD-3-Clause",
    "expat": "MIT",
    "libmpdec": "BSD-2-Clause",
}
_PROJECTS = {
    "libpython": "python",
    "libssl": "openssl",
    "libcrypto": "openssl",
    "libffi": "libffi",
    "libz": "zlib",
    "libbz": "bzip2",
    "liblzma": "liblzma",
    "libuuid": "libuuid",
    "libexpat": "expat",
    "libmpdec": "libmpdec",
}
_LOADER = "(GPL-2.0-or-later WITH Bootloader-exception) AND Apache-2.0"
_FIELDS = ("Package", "Version", "Architecture", "Source")


class File(NamedTuple):
    """A bundled library, and where this machine has it."""

    bundled: Path
    original: Path


def parts(files: Iterable[File]) -> Iterator[Part]:
    """The C libraries with Python, and the loader. :raises NoLicence: if one of the files is not known."""
    of: dict[str, list[File]] = {}
    for file in files:
        of.setdefault(_project(file), []).append(file)
    for project, its in sorted(of.items()):
        yield Part(_library(project, its), direct=project == "python")
    yield Part(_loader(), direct=True)


def files(table: Path, tree: Path) -> Iterator[File]:
    """The shared libraries in ``tree``, by the table in which PyInstaller notes what it collected."""
    for name, original, kind in ast.literal_eval(table.read_text())[0]:
        if kind == "BINARY":
            yield File(tree / name, Path(original))


def _project(file: File) -> str:
    stem = re.sub(r"[\d.]*\.so.*", "", file.bundled.name)
    if stem not in _PROJECTS:
        raise sbom.NoLicence(
            f"the executable would hold {file.bundled.name}, whose licence is not known\n"
            "Name its project and licence in packaging/builder/bundled.py, or leave it out there"
        )
    return _PROJECTS[stem]


def _library(project: str, its: list[File]) -> Component:
    digests = [hashlib.sha256(file.bundled.read_bytes()).hexdigest() for file in its]
    owner = _owner(its[0].original)
    version = platform.python_version() if project == "python" else owner.get("Version")
    purl = PackageURL("generic", name=project, version=version)
    if owner:
        purl = installed.purl(owner, installed.release(Path("/")))
    return Component(
        name=project,
        version=version,
        licenses=sbom.licences([LICENCES[project]]),
        hashes=sbom.hashes(digests),
        purl=purl,
        cpe=f"cpe:2.3:a:python:python:{version}:*:*:*:*:*:*:*" if project == "python" else None,
        bom_ref=str(purl),
    )


def _owner(original: Path) -> dict[str, str]:
    """The fields of the Debian package that a file is of; none where there is none."""
    real = original.resolve()
    for line in _told("dpkg-query", "--search", f"*/{real.name}"):
        package, _, path = line.partition(": ")
        if Path(path).resolve() == real:
            shown = "".join(f"${{{field}}}\n" for field in _FIELDS)
            told = _told("dpkg-query", "--show", f"--showformat={shown}", package)
            return {field: value for field, value in zip(_FIELDS, told, strict=True) if value}
    return {}


def _told(*command: str) -> list[str]:
    """The lines that a command says; none where it fails or is not there."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    except FileNotFoundError:
        return []


def _loader() -> Component:
    purl = PackageURL("pypi", name="pyinstaller", version=(version := metadata.version("pyinstaller")))
    return Component(
        name="pyinstaller",
        version=version,
        licenses=sbom.licences([_LOADER]),
        purl=purl,
        bom_ref=str(purl),
    )
