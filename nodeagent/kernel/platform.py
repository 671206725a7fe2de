# SPDX-License-Identifier: Apache-2.0
"""The node below its devices, for ``check``: processor, firmware, command line, modules, limits, machine id.

Reads files that nobody is woken by: no device's configuration space, no table of ACPI but its name. What is
not there, or not to be read from a container, is None. May block: for a thread, with a limit outside. What
any of it means is not known here.

Also what this process may do (``read_privileges``): that says nothing of a host below another root. It tries
an instance of inotify, and gives it back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from nodeagent.base import process
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan.pci import DEVICES
from nodeagent.model.host import Host
from nodeagent.model.ids import PciAddress
from nodeagent.model.surroundings import Loader, Modules, Platform, Standing

NODES = {"/dev/kvm": "kvm", "/dev/net/tun": "tun", "/dev/vhost-net": "vhost-net"}
"""What virtual machines need → its name in MISC, which a container sees whatever is in its /dev."""
MISC = "/sys/class/misc"
CMDLINE, CPUINFO, INTERRUPTS = "/proc/cmdline", "/proc/cpuinfo", "/proc/interrupts"
TABLES, IOMMUS = "/sys/firmware/acpi/tables", "/sys/class/iommu"
UNSAFE = "/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts"
MACHINE_ID = "/etc/machine-id"
INOTIFY = "/proc/sys/fs/inotify"

_CPU = re.compile(r"^(?:vendor_id|CPU (implementer))\s*:\s*(\S+)", re.MULTILINE)
_FLAGS = re.compile(r"^flags\s*:(.*)", re.MULTILINE)
_REMAPPING = re.compile(r"\b(?:IR-\S+|ITS-\S+)")
_MODULE = re.compile(r"([^/\s:]+)\.ko(?:\.\w+)?(?=[:\s]|$)")
_CAPABILITIES = {2: "CAP_DAC_READ_SEARCH", 19: "CAP_SYS_PTRACE"}  # include/uapi/linux/capability.h
_CHOWN = 0
_WHOLE = ["0", "0", "4294967295"]  # user_namespaces(7): the machine's own
_MACHINE_ID = re.compile(r"[0-9a-f]{32}")
_MOST = 16 << 20  # bytes of /proc/interrupts and modules.dep on the largest machines
_LOADERS = (
    (Loader.OSTREE, ("/run/ostree-booted",)),
    (Loader.PROXMOX, ("/usr/sbin/proxmox-boot-tool", "/etc/kernel/cmdline")),
    (Loader.GRUBBY, ("/usr/sbin/grubby",)),
    (Loader.UPDATE_GRUB, ("/usr/sbin/update-grub", "/etc/default/grub")),
    (Loader.GRUB_MKCONFIG, ("/usr/sbin/grub2-mkconfig", "/etc/default/grub")),
    (Loader.KERNEL_INSTALL, ("/etc/kernel/cmdline",)),
)
"""Whose files are all there; the narrower one first."""


def read(root: Root, host: Host) -> Platform:
    """All of it. :raises KernelRefused: if nothing can be opened."""
    cpu = root.text(CPUINFO, _MOST)
    words = root.text(CMDLINE)
    flags = None if cpu is None else _FLAGS.search(cpu)
    return Platform(
        cpu=None if cpu is None else _vendor(cpu),
        cpu_flags=None if flags is None else frozenset(flags[1].split()),
        tables=frozenset(root.names(TABLES)) or None,  # empty in a container, which may not see them
        words=None if words is None else tuple(words.split()),
        loader=_loader(root),
        iommus=root.names(IOMMUS),
        remapping=_remapping(root.text(INTERRUPTS, _MOST)),
        express=_express(root, host),
        inotify_instances=_number(root, "max_user_instances"),
        inotify_watches=_number(root, "max_user_watches"),
        nodes=_nodes(root),
        modules=_modules(root, host.release),
    )


def _vendor(cpuinfo: str) -> str | None:
    found = _CPU.search(cpuinfo)
    return None if found is None else "Arm" if found[1] else found[2]


def _loader(root: Root) -> Loader | None:
    return next((loader for loader, files in _LOADERS if all(map(root.exists, files))), None)


def _remapping(interrupts: str | None) -> str | None:
    """The first chip that remaps: on x86 "IR-PCI-MSI", on Arm "ITS-MSI"."""
    if interrupts is None:
        return None
    found = _REMAPPING.search(interrupts)
    return "" if found is None else found[0]


def _express(root: Root, host: Host) -> frozenset[PciAddress] | None:
    """Those that have a link speed; a read of it would wake them (``pcie_dev_attrs_are_visible``)."""
    found = frozenset(
        address for address in host.functions if root.exists(f"{DEVICES}/{address}/max_link_speed")
    )
    return found or None


def _nodes(root: Root) -> frozenset[str] | None:
    """Those that are there or would be if asked for; None without any, where nothing can be seen of them."""
    there = frozenset(
        path for path, name in NODES.items() if root.exists(path) or root.exists(f"{MISC}/{name}")
    )
    return there if there or root.names(MISC) else None


def _number(root: Root, name: str) -> int | None:
    text = root.text(f"{INOTIFY}/{name}") or ""
    return int(text) if text.isdecimal() else None


def _modules(root: Root, release: str | None) -> Modules:
    unsafe = root.text(UNSAFE)
    return Modules(
        present=frozenset(root.names("/sys/module")) or None,
        on_disk=frozenset(_on_disk(root, release)) or None,
        unsafe_interrupts=None if unsafe is None else unsafe in ("Y", "1"),
    )


def _on_disk(root: Root, release: str | None) -> Iterator[str]:
    """What modprobe could load, and what the kernel has in itself; names as in /sys/module."""
    for name in ("modules.dep", "modules.builtin"):
        text = root.text(f"/lib/modules/{release}/{name}", _MOST) if release else None
        yield from (found.replace("-", "_") for found in _MODULE.findall(text or ""))


def read_privileges(root: Root, directories: tuple[str, ...]) -> Standing:
    """What may be done. ``directories``: host paths that are to be written to; one may be absent."""
    effective = process.capabilities() or 0
    return Standing(
        root=os.geteuid() == 0,
        missing_capabilities=tuple(name for bit, name in _CAPABILITIES.items() if not effective >> bit & 1),
        whole_users=_whole_users(),
        read_only=tuple(path for path in directories if _read_only(root.path(path))),
        inotify=_inotify_refusal(),
        owners=owners(effective),
    )


def owners(effective: int) -> bool:
    """True if who has these capabilities may give a file to somebody else (CAP_CHOWN)."""
    return bool(effective >> _CHOWN & 1)


def _whole_users() -> bool | None:
    try:
        words = Path("/proc/self/uid_map").read_text().split()
    except OSError:
        return None
    return words == _WHOLE if words else None


def _read_only(path: str) -> bool:
    """True if the file system below the path, or its nearest ancestor, takes no writes."""
    while not Path(path).exists():
        path = str(Path(path).parent)
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _inotify_refusal() -> str | None:
    """Why the kernel gives no instance to this user; None if it does."""
    import ctypes  # here: nobody else may ever ask

    library = ctypes.CDLL(None, use_errno=True)
    descriptor = library.inotify_init1(os.O_CLOEXEC)
    if descriptor < 0:
        return os.strerror(ctypes.get_errno())
    os.close(descriptor)
    return None


def machine_id(root: Root) -> str:
    """systemd's machine id: the same over reboots, another one on each machine.

    32 hexadecimal digits; "" if there are none: a new system has none yet (machine-id(5)).
    """
    text = (root.text(MACHINE_ID) or "").lower()
    return text if _MACHINE_ID.fullmatch(text) else ""


def parse_machine_id(text: str) -> str:
    """The machine id that a person wrote, also with dashes or in upper case; "" if it is none."""
    digits = text.strip().replace("-", "").lower()
    return digits if _MACHINE_ID.fullmatch(digits) else ""
