# SPDX-License-Identifier: Apache-2.0
"""Debian's kernels, downloaded and unpacked but never installed.

``release`` is the kernel of the machine's own release, from its own sources; ``newer`` comes from another
suite of the same mirror (``NODEAGENT_VM_SUITE``, by default the release's backports), through apt directories
in the cache: the machine's own apt is only read. What is unpacked is used again; remove it to renew it.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

KINDS = ("release", "newer")
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_PARTS = ("image", "binary", "modules", "base")  # from 7.x on linux-image is an empty shell around the others


class Missing(Exception):
    """Raised when something is not on this machine; the text says what to do."""


@dataclass(frozen=True)
class Kernel:
    """An unpacked kernel: ``tree`` holds ``lib/modules/<version>`` with its modules.dep."""

    version: str
    image: Path
    tree: Path

    @property
    def modules(self) -> Path:
        """What the guest mounts on /lib/modules."""
        return self.tree / "lib/modules"


def cache() -> Path:
    """Where this tier keeps what it downloads; ``NODEAGENT_CACHE`` moves it."""
    base = os.environ.get("NODEAGENT_CACHE") or str(Path.home() / ".cache/nodeagent")
    return Path(base) / "vm"


def kernel(kind: str) -> Kernel:
    """The kernel of that kind, downloaded if it is not there yet. Raises Missing."""
    folder = _folder(kind)
    if not (folder / "version").exists():
        _download(kind, folder)
    version = (folder / "version").read_text()
    tree = folder / "tree"
    images = (tree / f"boot/vmlinuz-{version}", tree / f"lib/modules/{version}/vmlinuz")
    return Kernel(version, next(image for image in images if image.exists()), tree)


def depends(kind: str, package: str, pattern: str) -> list[str]:
    """The packages that one needs, as far as their names match. Raises Missing."""
    said = _run(["apt-cache", *_options(kind), "depends", package])
    return re.findall(rf"Depends: ({pattern}\S*)", said)


def unpack(kind: str, packages: Sequence[str], tree: Path) -> None:
    """Download packages and unpack them below ``tree``; nothing is installed. Raises Missing."""
    with tempfile.TemporaryDirectory(dir=tree.parent) as folder:
        _run(["apt-get", *_options(kind), "-qq", "download", *packages], Path(folder))
        for package in sorted(Path(folder).iterdir()):
            _run(["dpkg-deb", "-x", str(package), str(tree)])


def _folder(kind: str) -> Path:
    return cache() / (_suite(kind) or "release")


def _suite(kind: str) -> str | None:
    """The suite to take it from; None: what the machine's apt has."""
    if kind == "release":
        return None
    return os.environ.get("NODEAGENT_VM_SUITE") or f"{_codename()}-backports"


def _codename() -> str:
    try:
        return platform.freedesktop_os_release()["VERSION_CODENAME"]
    except (OSError, KeyError) as error:
        raise Missing("this is no Debian: its kernels are taken with apt-get") from error


def _download(kind: str, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _update(kind, folder)
    found = depends(kind, "linux-image-amd64", "linux-image-")
    if not found:
        raise Missing(f"apt knows no linux-image-amd64 for {folder.name}: try apt-get update")
    version = found[0].removeprefix("linux-image-")
    known = set(_run(["apt-cache", *_options(kind), "pkgnames", "linux-"]).split())
    unpack(kind, [name for part in _PARTS if (name := f"linux-{part}-{version}") in known], folder / "tree")
    _index(folder / "tree", version)
    (folder / "version").write_text(version)


def _index(tree: Path, version: str) -> None:
    """Make the modules findable: kmod looks below lib, and packages bring no modules.dep."""
    if not (tree / "lib/modules").exists():
        (tree / "lib").symlink_to("usr/lib")
    _run(["depmod", "-b", str(tree), version])


def _update(kind: str, folder: Path) -> None:
    """Fetch the lists of a foreign suite; those of the machine are its administrator's."""
    if (suite := _suite(kind)) is None:
        return
    (folder / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {_mirror()} {suite} main\n")
    (folder / "lists/partial").mkdir(parents=True)
    _run(["apt-get", *_options(kind), "-qq", "update"])


def _options(kind: str) -> list[str]:
    """Options that make apt work on a sources list and lists of its own; none for the machine's release."""
    if _suite(kind) is None:
        return []
    folder = _folder(kind)
    settings = {
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
    }
    return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]


def _mirror() -> str:
    """The mirror from which the machine has its release."""
    text = _run(["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages"])
    for codename, uri in (line.split() for line in text.splitlines()):
        if codename == _codename():
            return uri
    raise Missing(f"apt has no source for {_codename()}: nothing to derive a newer suite from")


def _run(argv: Sequence[str], cwd: Path | None = None) -> str:
    """A program's output. Raises Missing with what it said if it fails."""
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"{' '.join(argv[:1])} failed:\n{done.stderr.strip()}")
    return done.stdout
