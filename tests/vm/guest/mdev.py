# SPDX-License-Identifier: Apache-2.0
"""Mediated devices in the guest: what an administrator does with the sample drivers through sysfs.

The drivers come in the folder of the job; each makes one parent, of its own name.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.vm.guest import pci

DRIVERS = ("mtty", "mdpy")
_SAMPLES = Path("/job/samples")
_DEVICES = Path("/sys/bus/mdev/devices")
_PARENTS = Path("/sys/class/mdev_bus")


def load(*drivers: str) -> None:
    """Load sample drivers; raises CalledProcessError."""
    pci.modprobe("mdev")
    for driver in drivers:
        subprocess.run(["insmod", str(_SAMPLES / f"{driver}.ko")], check=True)


def unload(*drivers: str) -> None:
    """Unload those that are loaded, their idle instances with them; raises CalledProcessError."""
    for driver in drivers:
        if Path("/sys/module", driver).exists():
            subprocess.run(["rmmod", driver], check=True)


def unload_all() -> None:
    """Leave nothing of mediated devices in the kernel."""
    unload(*DRIVERS)
    if Path("/sys/module/mdev").exists():
        pci.modprobe("-r", "mdev")


def instances(type_id: str) -> list[str]:
    """The UUIDs of the instances of a type, as the kernel lists them; they may be changing just now."""
    links = sorted(_DEVICES.glob("*/mdev_type"))
    return [link.parent.name for link in links if _target(link) == type_id]


def available(parent: str, type_id: str) -> int:
    """How many more of the type the parent has room for, by its own word."""
    return int((_type(parent, type_id) / "available_instances").read_text())


def create(parent: str, type_id: str, uuid: str) -> None:
    """Make an instance; raises OSError."""
    (_type(parent, type_id) / "create").write_text(uuid)


def removal(uuid: str) -> Path:
    """Where "1" takes the instance away."""
    return _DEVICES / uuid / "remove"


def remove(uuid: str) -> None:
    """Take an instance away that nobody has open."""
    removal(uuid).write_text("1")


def group(uuid: str) -> int:
    """The number of its IOMMU group."""
    return int((_DEVICES / uuid / "iommu_group").readlink().name)


def _target(link: Path) -> str | None:
    try:
        return link.readlink().name
    except FileNotFoundError:
        return None


def _type(parent: str, type_id: str) -> Path:
    return _PARENTS / parent / "mdev_supported_types" / type_id
