# SPDX-License-Identifier: Apache-2.0
"""Reads one PCI function.

A regular scan reads no attribute that may hang while a device is being unbound (``uevent``,
``driver_override``, ``sriov_numvfs``, ``sriov_vf_total_msix``; on kernel 6.1 or on all), and none that wakes
a sleeping device (``config``, ``*_link_speed``, ``*_link_width``). The configuration space is read only if a
device is open and awake, and just before an Allocate. This module makes no decisions: a partly readable
device is kept with the attributes that could be read; the result is None only if the device does not exist.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Collection, Iterable, Mapping

from nodeagent.kernel.root import Directory, Root, is_gone, read_with_timeout
from nodeagent.kernel.scan import nvidia
from nodeagent.kernel.scan.readers import NOT_READABLE, Item, Reader, group_of
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import GroupNumber, PciAddress, pci_address, pci_order

DEVICES = "/sys/bus/pci/devices"
# of a PF: with 0, drivers bind only VFs whose driver_override names them
AUTOPROBE = "sriov_drivers_autoprobe"
_HEADER = 64  # bytes of the configuration space; the first four of a VF are always ones
_DIGITS = 19  # the kernel uses no larger number
_BELOW_ZERO = 1 << 31
VFIO = "/dev/vfio"
VFIO_DEVICES = "/dev/vfio/devices"
_DISABLE_DENYLIST = "/sys/module/vfio_pci/parameters/disable_denylist"
# vfio_pci_dev_in_denylist in drivers/vfio/pci/vfio_pci.c: QAT C3xxx, C62x, DH895xCC and their VFs. DSA and
# IAX came later (Linux 6.10): an older kernel binds them, and a newer one refuses them itself.
_DENYLIST = {"8086": frozenset({"19e2", "19e3", "37c8", "37c9", "0435", "0443"})}
_FRAMEBUFFERS = re.compile("BOOTFB|simpledrm|simplefb|simple-framebuffer|efifb|vesafb|vesadrm|efidrm")

_TEXTS = ("modalias", "numa_node", "enable", "power_state")
# modalias_show in drivers/pci/pci-sysfs.c takes no lock; this one file contains the ids of five
_MODALIAS = re.compile(
    "pci:v0000([0-9A-F]{4})d0000([0-9A-F]{4})sv0000([0-9A-F]{4})sd0000([0-9A-F]{4})"
    "bc([0-9A-F]{2})sc([0-9A-F]{2})i([0-9A-F]{2})"
)
_ID_FILES = (("vendor", 4), ("device", 4), ("subsystem_vendor", 4), ("subsystem_device", 4), ("class", 6))
_OF_PF = ("sriov_totalvfs", "sriov_vf_device", "sriov_offset", "sriov_stride", AUTOPROBE)
_NO_PF: tuple[None, ...] = (None,) * len(_OF_PF)
# NVIDIA's driver creates the directory nvidia, and removes it when it is unbound
_NO_VGPU_DRIVERS = (None, "vfio-pci")
_SWITCH = {"0": False, "1": True}
_AWAKE = "D0"
_PF_DRIVER = "physfn/driver"
_PF_INTERFACES = "physfn/net"
_HEX = frozenset("0123456789abcdefABCDEF")
_VF = re.compile(r"virtfn\d+")
_VFIO_DEVICE = re.compile(r"(?:/dev/vfio/devices/)?(vfio\d+)")


def function(root: Root, address: PciAddress) -> PciFunction | None:
    """Return the current state of the function, without recovery results; None if it does not exist."""
    path = f"{DEVICES}/{address}"
    try:
        with root.directory(path) as directory:
            read = _function(root, address, directory)
            # the function may have been removed while it was read
            halfway = read.vendor is None or read.group is None
            return None if halfway and not root.exists(path) else read
    except OSError as error:
        if is_gone(error):
            return None
        return PciFunction(address, unreadable=f"not readable: {error.strerror}")


def has_fallen_off_bus(root: Root, address: PciAddress) -> bool:
    """Return True if the configuration space reads as all ones: the function has fallen off the bus.

    Wakes it.
    """
    return _read_header(root, address) is False


def config_space_answers(root: Root, address: PciAddress) -> bool | None:
    """Return False if the configuration space reads as all ones; None if it cannot be read without waiting.

    The kernel blocks reads while it resets a function (pci_cfg_access_lock in drivers/pci/access.c), which
    takes a second for a bus, and up to a minute for a device that is slow to return; a VM resets its function
    when it starts. Therefore a function that does not answer immediately does not count as unreadable.
    """
    answer = read_with_timeout(f"header of {address}", lambda: _read_header(root, address))
    return answer[0] if answer else None


def _read_header(root: Root, address: PciAddress) -> bool | None:
    try:
        with root.directory(f"{DEVICES}/{address}") as at:
            header = at.data("config", _HEADER)
    except OSError:
        return None
    return None if not header else header != b"\xff" * _HEADER


def reads_as_known(root: Root, known: PciFunction) -> bool:
    """Return True if every attribute that can change without a replug is unchanged; faster than a scan."""
    try:
        with root.directory(f"{DEVICES}/{known.address}") as at:
            return (
                at.inode == known.inode
                and at.link("driver") == known.driver
                and _group_number(at.link("iommu_group")) == known.group
                and _count(at.text("enable")) == known.enable
                and (known.physfn is None or at.link(_PF_DRIVER) == known.pf_driver)
                and (known.vfio_device is None) == (not at.exists("vfio-dev"))
                and known.cdev == (known.vfio_device is not None and has_cdev(root, at, known.vfio_device))
                and (not known.vgpu or nvidia.read_vgpu_type(at) == (True, known.vgpu_type))
            )
    except OSError:
        return False


def _function(root: Root, address: PciAddress, at: Directory) -> PciFunction:
    """Return all attributes. Rare attributes are opened by name, which is faster than listing the directory.

    The driver is read before the open count: a count read before a new driver was bound would be taken for
    the lowest count under that driver, so that the device would appear open for ever. If the driver is read
    first, the count may be stored for a driver that is no longer bound, which does no harm.
    """
    driver = _intern(at.link("driver"))
    vfio_devices = at.inodes("vfio-dev")
    device_name, vfio_inode = _vfio_device(vfio_devices or ())
    modalias, numa_node, enable, power = at.texts(_TEXTS)
    vendor, device, sub_vendor, sub_device, pci_class = _parse_modalias(modalias) or _read_ids(at)
    sriov = at.exists("sriov_totalvfs")
    total, vf_device, offset, stride, probed = at.texts(_OF_PF) if sriov else _NO_PF
    vfio, opens = _vfio_bound(driver, vfio_devices is not None), _count(enable)
    vgpu, vgpu_type = (False, None) if driver in _NO_VGPU_DRIVERS else nvidia.read_vgpu_type(at)
    physfn = _address(at.link("physfn"))
    awake = vfio and opens and power == _AWAKE
    vfs = _vfs(at) if sriov else {}
    return PciFunction(
        address=address,
        vendor=vendor,
        device=device,
        subsystem_vendor=sub_vendor,
        subsystem_device=sub_device,
        pci_class=pci_class,
        driver=driver,
        group=_group_number(at.link("iommu_group")),
        numa_node=natural(numa_node),
        enable=opens,
        idle=opens if vfio else None,
        power_state=_intern(power),
        physfn=physfn,
        pf_driver=None if physfn is None else _intern(at.link(_PF_DRIVER)),
        pf_interfaces=() if physfn is None and not sriov else _interfaces(at, physfn is not None),
        vfs=tuple(vfs.values()),
        vf_numbers=() if list(vfs) == list(range(len(vfs))) else tuple(vfs),
        sriov_capable=sriov,
        total_vfs=natural(total),
        vf_device=hexadecimal(vf_device and f"0x{vf_device}", 4),
        vf_offset=natural(offset),
        vf_stride=natural(stride),
        autoprobe=_SWITCH.get(probed or ""),
        vfio=vfio,
        vfio_device=device_name,
        vfio_inode=vfio_inode,
        cdev=device_name is not None and has_cdev(root, at, device_name),
        ports=_ports(root.target(f"{DEVICES}/{address}")),
        inode=at.inode,
        answers=config_space_answers(root, address) if awake else None,
        vgpu=vgpu,
        vgpu_type=vgpu_type,
        vgpu_types=nvidia.parse_vgpu_types(at.text(nvidia.VGPU_TYPES) or "") if vgpu else (),
        denylisted=device in _DENYLIST.get(vendor or "", ()) and root.text(_DISABLE_DENYLIST) == "N",
    )


@functools.lru_cache(maxsize=1024)  # a thousand functions have few different models
def _parse_modalias(text: str | None) -> tuple[str, ...] | None:
    """Return vendor, device, subsystem ids and class; None for a text in another format."""
    match = _MODALIAS.fullmatch(text or "")
    if match is None:
        return None
    *ids, base, sub, interface = (part.lower() for part in match.groups())
    return tuple(map(sys.intern, (*ids, base + sub + interface)))


def _read_ids(at: Directory) -> tuple[str | None, ...]:
    """Return the ids and class of a function without ``modalias``: it is being removed, or its host was saved
    without this file.
    """
    return tuple(hexadecimal(at.text(name), digits) for name, digits in _ID_FILES)


def _vfio_bound(driver: str | None, has_vfio_dev: bool) -> bool:
    """Return True if a VFIO driver is bound: it creates vfio-dev, which Linux 6.1 keeps after an unbind."""
    return driver == "vfio-pci" or (driver is not None and has_vfio_dev)


def vfio_device(at: Directory) -> str | None:
    """Return the name in ``vfio-dev``, such as vfio3, or None."""
    return _vfio_device(at.inodes("vfio-dev") or ())[0]


def _vfio_device(entries: Collection[tuple[str, int]]) -> tuple[str, int] | tuple[None, None]:
    """Return the name of a VFIO device in ``vfio-dev``, and its inode."""
    return next((entry for entry in entries if entry[0].startswith("vfio")), (None, None))


def has_cdev(root: Root, at: Directory, name: str) -> bool:
    """Return True if the VFIO device of that name has its own device node."""
    return at.exists(f"vfio-dev/{name}/dev") and root.exists(f"{VFIO_DEVICES}/{name}")


def _vfs(at: Directory) -> dict[int, PciAddress]:
    """The VFs by the numbers of their links virtfn0, virtfn1, …"""
    numbers = sorted(int(name[6:]) for name in at.names() if name[:6] == "virtfn" and _VF.fullmatch(name))
    addresses = ((number, _address(at.link(f"virtfn{number}"))) for number in numbers)
    return {number: address for number, address in addresses if address is not None}


def _interfaces(at: Directory, virtual: bool) -> tuple[str, ...]:
    """Return the names of the network interfaces of a PF, or of the PF of a VF."""
    return tuple(sorted(name for name, _ in at.inodes(_PF_INTERFACES if virtual else "net") or ()))


def _ports(target: str | None) -> tuple[str, ...]:
    """Return the names above a function in its sysfs path, e.g. ../../../devices/pci0000:00/0000:00:10.0/…"""
    parts = target.split("/") if target is not None else []
    return tuple(map(sys.intern, parts[parts.index("devices") + 1 : -1])) if "devices" in parts else ()


def _address(text: str | None) -> PciAddress | None:
    return None if text is None else pci_address(text)


@functools.lru_cache(maxsize=1024)  # a thousand functions have few ids and classes
def hexadecimal(text: str | None, digits: int) -> str | None:
    """Return 0x10de as 10de, with ``digits`` digits; None for any other text."""
    if text is None or text[:2] != "0x" or not _HEX.issuperset(text[2:]):
        return None
    return sys.intern(text[2:].lower().zfill(digits))


def _intern(word: str | None) -> str | None:
    """Return one object for equal words, which saves memory: many functions have the same driver."""
    return None if word is None else sys.intern(word)


def natural(text: str | None) -> int | None:
    """Return a decimal number; None if it is negative, because -1 in sysfs means unknown."""
    if text is None or len(text) > _DIGITS or not text.isdecimal() or not text.isascii():
        return None
    return int(text)


def _count(text: str | None) -> int | None:
    """Return a signed 32-bit number, which the kernel writes as an unsigned one (``enable_show``).

    It is negative after a driver has disabled the device too often (``pci_disable_device`` only warns).
    """
    number = natural(text)
    return number if number is None or number < _BELOW_ZERO else number - 2 * _BELOW_ZERO


def _group_number(text: str | None) -> GroupNumber | None:
    number = natural(text)
    return None if number is None else GroupNumber(number)


def find_vfs_of(root: Root, physical: str) -> frozenset[str]:
    """Return the functions that name this function as their PF, even if the PF does not list them."""
    names = root.names(DEVICES)
    return frozenset(name for name in names if root.link(f"{DEVICES}/{name}/physfn") == physical)


def number_vfs(read: dict[PciAddress, PciFunction | None], known: Mapping[PciAddress, PciFunction]) -> None:
    """Set the number of each VF that was read, and mark VFs that remained after their PF was removed.

    ``known`` are functions that were not read. Some drivers (nvme) do not remove their VFs with the PF.
    When the PF is rescanned, it is another device to the kernel: the old VFs still name it, but it lists
    none (Linux 6.1, 6.12 and 7.2).
    """
    for address, vf in read.items():
        if vf is not None and vf.physfn is not None:
            physical = read[vf.physfn] if vf.physfn in read else known.get(vf.physfn)
            if physical is not None and address in physical.vfs:
                place = physical.vfs.index(address)
                read[address] = vf._replace(
                    vf_number=physical.vf_numbers[place] if physical.vf_numbers else place
                )
            elif physical is None or (physical.sriov_capable and physical.unreadable is None):
                read[address] = vf._replace(left_behind=True)


def read_boot_framebuffers(root: Root) -> tuple[tuple[PciAddress, str], ...]:
    """Return the functions with a firmware framebuffer in their memory, each with the names of its owners.

    /proc/iomem shows a region inside another one with more indentation. "BOOTFB" is claimed by
    drivers/firmware/sysfb_simplefb.c, other regions by their drivers.
    """
    text = root.text("/proc/iomem") or ""
    found: dict[PciAddress, list[str]] = {}
    above: list[tuple[int, PciAddress | None]] = []
    for line in text.splitlines() if _FRAMEBUFFERS.search(text) else ():
        depth, name = len(line) - len(line.lstrip()), line.partition(" : ")[2]
        while above and above[-1][0] >= depth:
            above.pop()
        address = next((each for _, each in reversed(above) if each is not None), None)
        if address is not None and _FRAMEBUFFERS.fullmatch(name):
            found.setdefault(address, []).append(name)
        above.append((depth, pci_address(name)))
    return tuple((address, ", ".join(names)) for address, names in found.items())


def _list(root: Root) -> list[PciAddress]:
    names = (PciAddress(name) for name in root.names(DEVICES) if pci_address(name) == name)
    return sorted(names, key=pci_order)


def _named(key: str, previous: Host) -> tuple[PciAddress, ...] | None:
    """Return the function with this address, or the function of this VFIO device."""
    address = pci_address(key)
    if address is not None:
        return (address,)
    match = _VFIO_DEVICE.fullmatch(key)
    if match is None:
        return None
    functions = previous.functions.values()
    return tuple(function.address for function in functions if function.vfio_device == match[1])


def _unanswered(address: PciAddress, previous: Host) -> PciFunction:
    return (previous.functions.get(address) or PciFunction(address))._replace(unreadable=NOT_READABLE)


def _follow(address: PciAddress, now: PciFunction | None, previous: Host) -> Iterable[Item]:
    """Return the previous and current group, the PF, added and removed VFs, and the function as mdev parent.

    The state of a VF includes its PF's driver and interfaces, so all VFs are read again after these change.
    """
    yield Item("mdev_parents", address)
    vfs: set[PciAddress] = set()
    before = previous.functions.get(address)
    for one in (before, now):
        if one is not None:
            yield from group_of(one.group)
            vfs ^= set(one.vfs)
            if one.physfn is not None:
                yield Item("functions", one.physfn)
    if before is not None and now is not None and _of_pf(before) != _of_pf(now):
        vfs |= set(now.vfs)
    yield from (Item("functions", vf) for vf in sorted(vfs))


def _of_pf(physical: PciFunction) -> tuple[object, ...]:
    """Return the facts of a PF that are also stored in its VFs."""
    return physical.driver, physical.pf_interfaces


READER = Reader("functions", _list, function, _unanswered, _named, _follow, reads_as_known)
