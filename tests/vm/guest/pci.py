# SPDX-License-Identifier: Apache-2.0
"""PCI in the guest: where the devices are, and what an administrator does to them through sysfs.

Bus numbers shift between kernels, so functions are found by the fixed slot of the root port above them.
``provoke`` is for writes that may wait for a holder: they belong to a process of their own.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

BUS = Path("/sys/bus/pci")
VFIO = "vfio-pci"
# PCI Express Base Specification, 7.5.3.10 (Slot Control Register); offsets as in linux/pci_regs.h
_CAPABILITIES, _PCI_EXPRESS, _SLOT_CONTROL, _POWER_OFF = 0x34, 0x10, 0x18, 0x400


def below(slot: int) -> list[str]:
    """The functions below the root port in that slot, in address order."""
    port = BUS / f"devices/0000:00:{slot:02x}.0"
    return sorted(path.name for path in port.glob("0000:??:??.?"))


def path(address: str, name: str) -> Path:
    """A file of a function."""
    return BUS / "devices" / address / name


def exists(address: str) -> bool:
    """True while the function is listed."""
    return path(address, "").exists()


def driver(address: str) -> str | None:
    """The driver to which it is bound; it may be changing just now."""
    try:
        return path(address, "driver").readlink().name
    except FileNotFoundError:
        return None


def group(address: str) -> int:
    """The number of its IOMMU group."""
    return int(path(address, "iommu_group").readlink().name)


def opened(address: str) -> int:
    """How often it is open, if a VFIO driver has it."""
    return int(path(address, "enable").read_text())


def unbind(address: str) -> None:
    """Take it from its driver, if it has one."""
    if (name := driver(address)) is not None:
        (BUS / "drivers" / name / "unbind").write_text(address)


def bind(address: str, name: str) -> None:
    """Give it to a driver; raises AssertionError if the driver does not take it."""
    path(address, "driver_override").write_text(f"{name}\n")
    if driver(address) != name:
        unbind(address)
        (BUS / "drivers_probe").write_text(address)
    assert driver(address) == name, f"{address} is on {driver(address)}, not on {name}"


def override(address: str) -> str | None:
    """The driver that alone may take it; None: any that knows it."""
    name = path(address, "driver_override").read_text().strip()
    return None if name in ("", "(null)") else name


def home(address: str) -> None:
    """Give it to the driver that takes it without a word, as after a boot; to none, if none does."""
    path(address, "driver_override").write_text("\n")
    unbind(address)
    (BUS / "drivers_probe").write_text(address)


def interface(address: str) -> str:
    """The network interface that its driver has made."""
    (name,) = (each.name for each in path(address, "net").iterdir())
    return name


def disk(address: str) -> str:
    """The name of the disk that its driver has made."""
    (name,) = (each.name for each in path(address, "nvme").glob("nvme*/nvme*n1"))
    return name


def coming(physical: str, count: int) -> list[str]:
    """The addresses that virtual functions will have, on the bus of their physical one."""
    offset, stride = (int(path(physical, f"sriov_{name}").read_text()) for name in ("offset", "stride"))
    return [f"{physical[:8]}{at >> 3:02x}.{at & 7}" for at in range(offset, offset + count * stride, stride)]


def put(address: str, name: str | None) -> None:
    """Give it to a driver, or to none."""
    if name is None:
        unbind(address)
    else:
        bind(address, name)


def remove(address: str) -> None:
    """Take it off the bus."""
    path(address, "remove").write_text("1")


def rescan() -> None:
    """Find what is on the bus."""
    (BUS / "rescan").write_text("1")


def synthetic(address: str, count: int = 1) -> None:
    """Make the kernel send ``change`` events of the function."""
    with path(address, "uevent").open("w") as uevent:
        for _ in range(count):
            uevent.write("change")
            uevent.flush()


def sleeps(address: str) -> bool:
    """True while runtime power management has put it to sleep."""
    return path(address, "power/runtime_status").read_text().strip() == "suspended"


def awake_for(address: str) -> int:
    """Milliseconds for which it was awake so far."""
    return int(path(address, "power/runtime_active_time").read_text())


def power(address: str, *, on: bool) -> None:
    """Switch the slot of a function on or off, past the kernel: in the Slot Control register of its port."""
    port = path(address, "").resolve().parent / "config"
    with port.open("r+b", buffering=0) as config:
        at = _capability(config.read(256), _PCI_EXPRESS) + _SLOT_CONTROL
        config.seek(at)
        control = int.from_bytes(config.read(2), "little")
        config.seek(at)
        config.write((control & ~_POWER_OFF if on else control | _POWER_OFF).to_bytes(2, "little"))


def _capability(space: bytes, wanted: int) -> int:
    """Where a capability begins in a configuration space."""
    at = space[_CAPABILITIES]
    while space[at] != wanted:
        at = space[at + 1]
    return at


def provoke(target: Path, text: str) -> subprocess.Popen[bytes]:
    """Write in a process of its own, which waits as long as the kernel makes it wait."""
    return subprocess.Popen(["sh", "-c", 'printf "$1" >"$2"', "sh", text, str(target)])


def modprobe(*arguments: str) -> None:
    """Run modprobe; raises CalledProcessError."""
    subprocess.run(["modprobe", *arguments], check=True)
