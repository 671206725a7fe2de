# SPDX-License-Identifier: Apache-2.0
"""``make binary``: the daemon with an interpreter of its own, for hosts without Python 3.11, as an archive.

PyInstaller puts the code of the packages and this machine's Python into one directory. It runs where the C
library is as new as here, on this kind of processor. Security fixes of Python and OpenSSL need a new build.
"""

from __future__ import annotations

import argparse
import gzip
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from builder import bundled, payload, release, sbom, source, vendored
from builder.sbom import Part
from nodeagent.kernel.apply import write_file

_OPTIONS = ("--noconfirm", "--log-level=WARN", "--onedir", "--strip", "--name=nodeagent")
# features are imported by name, pci.ids is read from the package, betterproto2 asks for its own version
_HOLDING = ("--collect-submodules=nodeagent", "--collect-data=nodeagent", "--copy-metadata=betterproto2")
# nodeagent/cluster/kube_client.py imports these by name
_BEHIND_THE_DOOR = tuple(
    f"--hidden-import={name}"
    for name in (
        "aiohttp",
        "kubernetes_asyncio.config",
        "kubernetes_asyncio.client.api_client",
        "kubernetes_asyncio.client.configuration",
    )
)
# what libraries use if it is there, and what is there only because this is where nodeagent is developed
_OF_DEVELOPMENT = (
    *("certifi", "google", "pytest", "_pytest", "packaging", "readline", "trio"),
    *("setuptools", "_distutils_hack", "trove_classifiers"),
)
_WITHOUT = tuple(f"--exclude-module={name}" for name in _OF_DEVELOPMENT)
_NOTICE = """\
Beside the libraries below, this holds parts of Python ({python}) and the libraries that this uses: {others}.
PyInstaller's loader is GPL-2.0-or-later with an exception for what is built with it.


"""
# the executable is two programs: nodeagent, and the one that nodeagent runs for a write that may block
_ENTRY = f"""\
import sys

if sys.argv[1:2] == [{write_file.NAME!r}]:
    from nodeagent.kernel.apply.write_file import main
else:
    from nodeagent.__main__ import main

main()
"""


def main(arguments: list[str]) -> int:
    """Build; the exit code."""
    parser = argparse.ArgumentParser(prog="builder.binary", description="Builds the executable.")
    release.options(parser)
    options = parser.parse_args(arguments)
    target = options.to.resolve()
    target.mkdir(parents=True, exist_ok=True)
    os.umask(0o022)
    try:
        with tempfile.TemporaryDirectory(prefix="nodeagent-packages-") as folder:
            made = build(Path(folder), target)
        release.finish(target, made, options.key and options.key.resolve())
    except (sbom.NoLicence, release.NoSignature) as error:
        print(f"builder.binary: {error}", file=sys.stderr)
        return 1
    return 0


def build(stage: Path, target: Path) -> list[Path]:
    """Build the archive, and its bill of materials; ``stage`` is an empty directory."""
    laid_out = payload.lay_out(stage)
    (stage / "entry.py").write_text(_ENTRY)
    environ = os.environ | {
        "PYTHONPATH": str(laid_out.daemon / payload.PLACE / laid_out.code),
        "PYTHONHASHSEED": "0",
        "SOURCE_DATE_EPOCH": str(source.time()),
    }
    command = [sys.executable, "-P", "-m", "PyInstaller", *_OPTIONS, *_HOLDING, *_BEHIND_THE_DOOR, *_WITHOUT]
    command.append("entry.py")
    subprocess.run(command, cwd=stage, env=environ, check=True)
    made = stage / "dist/nodeagent"
    bill = sbom.write(made / sbom.SHIPPED_AS, _parts(stage, made))
    (made / "third-party-notices").write_text(_notice() + laid_out.notices)
    for name in ("nodeagent.service", "nodeagent-http.socket", "tmpfiles.conf", "config.yaml", "copyright"):
        (made / name).write_bytes((source.PACKAGING / name).read_bytes())
    name = f"nodeagent-{source.version()}-{platform.machine()}"
    beside = Path(shutil.copyfile(bill, target / f"{name}.cdx.json"))
    return [_archive(made, name, target / f"{name}.tar.gz"), beside]


def _parts(stage: Path, made: Path) -> Iterator[Part]:
    collected = stage / "build/nodeagent/COLLECT-00.toc"
    yield from (*vendored.parts(), *bundled.parts(bundled.files(collected, made / "_internal")))


def _notice() -> str:
    others = [f"{name} ({licence})" for name, licence in bundled.LICENCES.items() if name != "python"]
    return _NOTICE.format(python=bundled.LICENCES["python"], others=", ".join(others))


def _archive(tree: Path, name: str, archive: Path) -> Path:
    """Pack the tree below ``name``, with one time for all and files in order."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.mtime, info.uid, info.gid, info.uname, info.gname = source.time(), 0, 0, "root", "root"
        return info

    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", 9, file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        tar.add(tree, name, filter=plain)  # sorted by tarfile itself
    return archive


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
