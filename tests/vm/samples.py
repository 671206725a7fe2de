# SPDX-License-Identifier: Apache-2.0
"""Drivers built for an unpacked kernel: its own samples for mdevs (mtty, mdpy), and those in ``drivers``.

Debian ships mdev.ko but no driver that makes mediated devices. The sources are those of samples/vfio-mdev
in the kernel's linux-source package; headers and sources are unpacked, never installed.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.vm import kernels
from tests.vm.kernels import Missing

OURS = Path(__file__).parent / "drivers"
DRIVERS = ("mtty", "mdpy", "stubborn")


def build(kind: str) -> Path:
    """The folder that holds the modules for that kernel, built if they are not there yet. Raises Missing."""
    kernel = kernels.kernel(kind)
    folder = kernel.tree.parent / "samples"
    if not all((folder / f"{name}.ko").exists() for name in DRIVERS):
        with tempfile.TemporaryDirectory(dir=kernel.tree.parent) as scratch:
            _build(kind, kernel.version, Path(scratch), folder)
    return folder


def _build(kind: str, version: str, scratch: Path, folder: Path) -> None:
    tree = scratch / "tree"
    source = "linux-source-" + ".".join(version.split(".")[:2])
    headers = f"linux-headers-{version}"
    kernels.unpack(kind, [headers, *kernels.depends(kind, headers, "linux-(?:headers|kbuild)"), source], tree)
    _sources(tree / f"usr/src/{source}.tar.xz", scratch / "build")
    makefile = tree / f"usr/src/{headers}/Makefile"
    makefile.write_text(makefile.read_text().replace("include /usr/src", f"include {tree}/usr/src", 1))
    _make(makefile.parent, scratch / "build")
    folder.mkdir(exist_ok=True)
    for name in DRIVERS:
        shutil.copy(scratch / f"build/{name}.ko", folder)


def _sources(archive: Path, folder: Path) -> None:
    """Take the samples out of the archive; only they are unpacked."""
    folder.mkdir()
    options = ["-C", str(folder), "--strip-components=3", "--wildcards"]
    subprocess.run(["tar", "-xf", str(archive), *options, "*/samples/vfio-mdev/*.[ch]"], check=True)
    shutil.copytree(OURS, folder, dirs_exist_ok=True)
    modules = " ".join(f"{name}.o" for name in DRIVERS)
    (folder / "Makefile").write_text(f"obj-m += {modules}\n")


def _make(headers: Path, folder: Path) -> None:
    """Build outside the kernel's tree, without the type information that would need pahole."""
    done = subprocess.run(
        ["make", "-s", "-C", str(headers), f"M={folder}", "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Missing(
            f"the sample drivers cannot be built (make and the gcc of that kernel are needed):\n{done.stderr}"
        )
