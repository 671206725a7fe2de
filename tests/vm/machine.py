# SPDX-License-Identifier: Apache-2.0
"""The emulated machine: its initramfs, its devices, one boot, and what came of it.

The guest's root is this machine's own, read-only over 9p below a tmpfs, so that the checkout and its Python
are simply there. QEMU runs without KVM, niced, and is killed after ``LIMIT`` seconds or with pytest. Device
addresses: the root ports have fixed slots; what lies below them is looked up in the guest.
"""

from __future__ import annotations

import lzma
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.vm.kernels import Kernel

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1]
BUSYBOX = Path("/bin/busybox")
LIMIT = 1500  # seconds for one boot; it takes about 500, and three times as long on a busy machine
_KEEPER = ("setpriv", "--pdeathsig", "TERM", "timeout", "-k", "5", str(LIMIT))
ONLY = os.environ.get("NODEAGENT_VM_ONLY", "").split()  # names of scenarios; none: all
_BOOT_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
_APPLETS = ("sh", "mount", "mkdir", "insmod", "switch_root", "sleep", "cat", "ln", "cp")

_INIT = """#!/bin/sh
mkdir -p /dev /proc /sys /lower /upper /newroot
mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys
for module in $(cat /modules/order); do insmod /modules/$module; done
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,ro,cache=loose root /lower
mount -t tmpfs tmpfs /upper; mkdir /upper/files /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay /newroot
mkdir -p /newroot/lib/modules /newroot/job
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,ro,cache=loose mods /newroot/lib/modules
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=none job /newroot/job
cp /bin/busybox /newroot/busybox
for point in dev proc sys; do mount --move /$point /newroot/$point; done
exec switch_root /newroot /bin/sh /job/start
"""

# The ids of mdevs are made from the machine's id, which fresh and small systems have none of.
_START = """echo 6e6f64656167656e7400000000000001 >/etc/machine-id
for point in /run /dev/shm; do mkdir -p $point; mount -t tmpfs tmpfs $point; done
mkdir -p /dev/pts; mount -t devpts devpts /dev/pts
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/run PYTHONPATH={checkout}
export NODEAGENT_VM_ONLY={only}
ip link set lo up 2>/dev/null
cd /run
{python} -m {program} /job/results >/dev/ttyS1 2>&1
echo $? >/job/code
sync
exec /busybox poweroff -f
"""

# A system on a disk of its own has this machine's files below /host.
_BESIDE = """export PYTHONPATH=/host{checkout}:/host{libraries}
python3 -m {program} /job/results >/dev/ttyS1 2>&1
echo $? >/job/code
"""
_PLACES = {"checkout": CHECKOUT, "libraries": Path(sysconfig.get_path("purelib")).resolve()}

# The IOMMU must come before all other devices; the shares have fixed slots so that they shift nothing.
_MACHINE = """-nodefaults -no-user-config -display none -no-reboot -rtc base=utc -accel tcg
-machine q35 -cpu max -smp 1 -m 1024"""
# On a busy machine the kernel's own test of its timer ends in a panic (arch/x86/kernel/apic/io_apic.c).
_APPEND = """console=ttyS0 loglevel=6 panic=-1 quiet mitigations=off audit=0 random.trust_cpu=on
no_timer_check"""
_DISK, _STICK, _SIZE = "disk", "stick", 16 << 20  # the second is plugged in by scenarios
_DEVICES = """
-device pcie-root-port,id=rp10,chassis=1,addr=0x10 -device e1000e,id=alone,bus=rp10
-device pcie-root-port,id=rp11,chassis=2,addr=0x11 -device e1000e,id=plugged,bus=rp11
-device pcie-root-port,id=rp14,chassis=5,addr=0x14 -device nvme-subsys,id=ns0,nqn=ns0
-device nvme,serial=S1,bus=rp14,subsys=ns0,sriov_max_vfs=4,sriov_vq_flexible=8,sriov_vi_flexible=4
-device pcie-root-port,id=rp15,chassis=6,addr=0x15,disable-acs=true -device e1000e,bus=rp15
-device pcie-root-port,id=rp16,chassis=7,addr=0x16 -device virtio-net-pci,id=faulty,bus=rp16,aer=on
-device pcie-root-port,id=rp17,chassis=8,addr=0x17 -device nvme-subsys,id=ns1,nqn=ns1
-device nvme,serial=S2,bus=rp17,subsys=ns1,sriov_max_vfs=4,sriov_vq_flexible=8,sriov_vi_flexible=4
-device pcie-root-port,id=rp18,chassis=9,addr=0x18 -device e1000e,bus=rp18,addr=0x0.0x0,multifunction=on
-device e1000e,bus=rp18,addr=0x0.0x1 -device pci-testdev,bus=rp18,addr=0x0.0x2
-device pcie-root-port,id=rp19,chassis=10,addr=0x19
-device nvme,serial=S3,drive=disk,bus=rp19,addr=0x0.0x0,multifunction=on -device e1000e,bus=rp19,addr=0x0.0x1
-device qemu-xhci,id=xhci,addr=0x1a
"""


@dataclass(frozen=True)
class Setup:
    """What the guest runs, and what a boot may differ in: words for its kernel, the emulated IOMMU.

    ``initramfs`` is one that somebody else has made, of a system on ``disk``. It runs ``/job/start`` itself.
    """

    program: str = "tests.vm.guest"
    words: str = "intel_iommu=on"
    iommu: str = "-device intel-iommu,intremap=on,caching-mode=on"
    initramfs: Path | None = None
    disk: Path | None = None


@dataclass(frozen=True)
class Boot:
    """What one boot has left: the folder of the job, and how long it took."""

    job: Path
    seconds: float

    @property
    def ended_by_itself(self) -> bool:
        """False after a panic, a hang, or the limit, and if the guest's program failed."""
        code = self.job / "code"
        return code.exists() and code.read_text().strip() == "0"

    def tails(self, lines: int = 25) -> str:
        """The ends of all logs, for the messages of failed tests."""
        parts = []
        for name in ("output.log", "results/daemon.log", "console.log"):
            path = self.job / name
            text = path.read_text(errors="replace") if path.exists() else ""
            parts.append(f"--- {name}\n" + "\n".join(text.splitlines()[-lines:]))
        return "\n".join(parts)


def boot(kernel: Kernel, drivers: Path, job: Path, setup: Setup = Setup()) -> Boot:
    """Boot the kernel with all devices, run the guest's program, wait for the end.

    ``drivers`` is a folder with modules of this kernel that the guest finds in /job/samples.
    """
    (job / "results").mkdir(parents=True, exist_ok=True)
    shutil.copytree(drivers, job / "samples")
    start = _START.format(
        checkout=shlex.quote(str(CHECKOUT)),
        python=shlex.quote(sys.executable),
        only=shlex.quote(" ".join(ONLY)),
        program=setup.program,
    )
    (job / "start").write_text(
        start if setup.disk is None else _BESIDE.format(program=setup.program, **_PLACES)
    )
    for name in (_DISK, _STICK):
        with (job / name).open("wb") as disk:
            disk.truncate(_SIZE)
    initrd = setup.initramfs or _initramfs(kernel, job / "initramfs")
    began = time.monotonic()
    with (job / "output.log").open("wb") as output:
        subprocess.run(
            [*_KEEPER, *_command(kernel, initrd, job, setup)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return Boot(job, time.monotonic() - began)


def _command(kernel: Kernel, initrd: Path, job: Path, setup: Setup) -> list[str]:
    shares = [("root", Path("/"), 0x8, True), ("mods", kernel.modules, 0x9, True), ("job", job, 0xA, False)]
    return [
        *("nice", "qemu-system-x86_64"),
        *_MACHINE.split(),
        *setup.iommu.split(),
        *("-kernel", str(kernel.image), "-initrd", str(initrd)),
        *("-append", " ".join([*_APPEND.split(), setup.words])),
        *("-chardev", f"file,id=console,path={job}/console.log", "-serial", "chardev:console"),
        *("-chardev", "stdio,id=output,signal=off", "-serial", "chardev:output"),
        *("-chardev", f"socket,id=monitor,path={job}/monitor,server=on,wait=off"),
        *("-mon", "chardev=monitor,mode=readline"),
        *("-chardev", f"socket,id=inside,path={job}/monitor,reconnect=1", "-serial", "chardev:inside"),
        *(word for name, path, slot, readonly in shares for word in _share(name, path, slot, readonly)),
        *("-drive", f"if=none,id=disk,file={job}/{_DISK},format=raw"),
        *("-blockdev", f"driver=raw,node-name=stick,file.driver=file,file.filename={job}/{_STICK}"),
        *_DEVICES.split(),
        *_system(setup.disk),
    ]


def _system(disk: Path | None) -> list[str]:
    if disk is None:
        return []
    drive = f"if=none,id=system,file={disk},format=raw,cache=unsafe"
    return ["-drive", drive, "-device", "virtio-blk-pci,drive=system,addr=0xb"]


def _share(name: str, path: Path, slot: int, readonly: bool) -> list[str]:
    mode = ",readonly=on" if readonly else ""
    return [
        "-fsdev",
        f"local,id={name},path={path},security_model=none,multidevs=remap{mode}",
        "-device",
        f"virtio-9p-pci,fsdev={name},mount_tag={name},addr={slot:#x}",
    ]


def _initramfs(kernel: Kernel, folder: Path) -> Path:
    """A busybox and the modules that reach the root; the archive lies beside the folder."""
    (folder / "bin").mkdir(parents=True)
    (folder / "modules").mkdir()
    shutil.copy(BUSYBOX, folder / "bin/busybox")
    for applet in _APPLETS:
        (folder / "bin" / applet).symlink_to("busybox")
    names = [_unpack(module, folder / "modules") for module in _needed(kernel)]
    (folder / "modules/order").write_text("\n".join(names))
    (folder / "init").write_text(_INIT)
    (folder / "init").chmod(0o755)
    archive = folder.with_suffix(".gz")
    subprocess.run(
        ["sh", "-c", 'find . | cpio --quiet -o -H newc | gzip -1 >"$1"', "sh", str(archive)],
        cwd=folder,
        check=True,
    )
    return archive


def _needed(kernel: Kernel) -> Sequence[Path]:
    """The files of the boot's modules and what they depend on, in the order of loading."""
    found: dict[Path, None] = {}
    for module in _BOOT_MODULES:
        said = subprocess.run(
            ["modprobe", "-d", str(kernel.tree), "-S", kernel.version, "--show-depends", module],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        found |= {Path(line.split()[1]): None for line in said.splitlines() if line.startswith("insmod")}
    return list(found)


def _unpack(module: Path, folder: Path) -> str:
    """Busybox loads plain modules only; Debian packs them since 6.12."""
    plain = folder / module.name.removesuffix(".xz").removesuffix(".zst")
    if module.suffix == ".xz":
        plain.write_bytes(lzma.decompress(module.read_bytes()))
    elif module.suffix == ".zst":
        subprocess.run(["zstd", "-dq", str(module), "-o", str(plain)], check=True)
    else:
        shutil.copy(module, plain)
    return plain.name
