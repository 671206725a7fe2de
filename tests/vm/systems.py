# SPDX-License-Identifier: Apache-2.0
"""Installed systems on disks: Debian with systemd-udevd, kmod, and a real maker of initramfs.

The tree of a system is made once and kept; each test has a disk of its own, with the modules of the kernel
that it boots. ``renewed`` runs the maker in the system, as its administrator would. What it packs is named in
its own configuration, for all that a machine could need takes minutes to pack and to unpack without KVM.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from builder import cache, debian

from tests.vm.kernels import Kernel, Missing

TOOLS = ("initramfs-tools", "dracut")
_CODENAME = "bookworm"
_PACKAGES = "systemd,udev,kmod,python3,zstd"
_SIZE = "2G"
_FIRST = "usr/local/lib/booted"
WORDS = f'intel_iommu=on root=/dev/vda ro init=/{_FIRST} log_buf_len=4M dyndbg="func really_probe +p"'
_MODULES = ("virtio_pci", "virtio_blk", "ext4", "e1000e", "nvme")
_PACKED = {
    "etc/initramfs-tools/initramfs.conf": "MODULES=list\nBUSYBOX=auto\nCOMPRESS=zstd\n",
    "etc/initramfs-tools/modules": "\n".join(_MODULES) + "\n",
    "etc/dracut.conf.d/10-test.conf": f'hostonly=no\ndrivers=" {" ".join(_MODULES)} "\ncompress="zstd -1"\n',
}


@dataclass(frozen=True)
class System:
    """A disk with an installed system, and what a machine needs to boot it."""

    kernel: Kernel
    folder: Path

    @property
    def disk(self) -> Path:
        """The image of the disk, with one file system and no partitions."""
        return self.folder / "system.img"

    @property
    def initramfs(self) -> Path:
        """That which was made last."""
        return self.folder / "initrd.img"

    def renewed(self, command: str) -> str:
        """Run the maker in the system; what it said. Its newest initramfs is that of the next boot."""
        with self._mounted() as tree:
            said = _run("chroot", str(tree), "sh", "-c", f"PATH=/usr/sbin:/usr/bin:/sbin:/bin {command} 2>&1")
            shutil.copy(next((tree / "boot").glob("initr*")), self.initramfs)
        return said

    @contextlib.contextmanager
    def _mounted(self) -> Iterator[Path]:
        """The disk's files, with the mounts that a chroot needs, in a mount namespace that is everybody's."""
        tree = self.folder / "mounted"
        tree.mkdir(exist_ok=True)
        _run("mount", "-o", "loop", str(self.disk), str(tree))
        try:
            for name in ("proc", "sys", "dev"):
                _run("mount", "--bind", f"/{name}", str(tree / name))
            yield tree
        finally:
            _run("umount", "--recursive", str(tree))


def made(tool: str, kernel: Kernel, folder: Path) -> System:
    """A fresh system in that folder, without an initramfs. :raises Missing: if it cannot be made."""
    tree = cache.made(cache.place("vm") / f"system-{tool}", lambda making: _make(tool, making))
    system = System(kernel, folder)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        above = Path(scratch) / "above"
        _own(above, tool, kernel)
        merged = Path(scratch) / "merged"
        for name in ("work", "merged"):
            (Path(scratch) / name).mkdir()
        layers = f"lowerdir={tree},upperdir={above},workdir={scratch}/work"
        _run("mount", "-t", "overlay", "-o", layers, "overlay", str(merged))
        try:
            _run("mke2fs", "-q", "-t", "ext4", "-L", "root", "-d", str(merged), str(system.disk), _SIZE)
        finally:
            _run("umount", str(merged))
    return system


def _make(tool: str, tree: Path) -> None:
    print(f"making a system with {tool} ...", flush=True)
    try:
        debian.make(_CODENAME, tree, "--variant=minbase", f"--include={_PACKAGES},{tool}")
    except debian.NoTree as error:
        shutil.rmtree(tree)
        raise Missing(str(error)) from error


def _own(above: Path, tool: str, kernel: Kernel) -> None:
    """The files of one system: its kernel's, and what the test has it run."""
    shutil.copytree(kernel.modules, above / "usr/lib/modules", symlinks=True)
    (above / "boot").mkdir()
    shutil.copy(kernel.tree / f"boot/config-{kernel.version}", above / "boot")
    shutil.copy(kernel.image, above / f"boot/vmlinuz-{kernel.version}")
    for path, text in _PACKED.items():
        if path.split("/")[1].startswith(tool):
            (above / path).parent.mkdir(parents=True, exist_ok=True)
            (above / path).write_text(text)
    (above / _FIRST).parent.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("booted.sh"), above / _FIRST)
    (above / _FIRST).chmod(0o755)
    for name in ("job", "host"):
        (above / name).mkdir()


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout
