# SPDX-License-Identifier: Apache-2.0
"""Facts of NVIDIA's drivers: types of vGPUs and their names, numbers of device nodes, Extended GPU Memory.

With the vendor-specific VFIO framework a VF shows its type by number once one is set. Names have two sources:
the list of creatable types of VFs that have none yet, and the file in which the vGPU manager describes all
types (one element ``vgpuType`` with ``id`` and ``name`` each), on the host or below the root of NVIDIA's
driver container. The file is searched, not parsed: it has some hundred kilobytes, and a broken one gives
fewer names, never an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from nodeagent.kernel.root import Directory, Root
from nodeagent.model.host import Host
from nodeagent.model.ids import PciAddress, pci_address, pci_order

VGPU_TYPE = "nvidia/current_vgpu_type"  # below a function
VGPU_TYPES = "nvidia/creatable_vgpu_types"
NO_VGPU = "0"  # the content of VGPU_TYPE where no type is set
SRIOV_MANAGE = "/usr/lib/nvidia/sriov-manage"  # comes with the vGPU manager
MAJOR = 195  # NV_MAJOR_DEVICE_NUMBER in NVIDIA's kernel module
GPUS = "/proc/driver/nvidia/gpus"
_EGM = "/sys/class/egm"
FILE = "/usr/share/nvidia/vgpu/vgpuConfig.xml"
FILES = (FILE, f"/run/nvidia/driver{FILE}")  # the other where the GPU operator's container has the driver
_MOST = 1 << 24  # bytes of it that are searched: it grows with each generation of cards
_TYPE = re.compile(r"<vgpuType\b([^<>]*)>")
_ATTRIBUTE = re.compile(r"\b(id|name)\s*=\s*\"([^\"]*)\"")


def read_vgpu_type(at: Directory) -> tuple[bool, str | None]:
    """Whether it takes vGPU types, and the one that is set."""
    text = at.text(VGPU_TYPE)
    return text is not None, None if text in ("", NO_VGPU) else text


def parse_vgpu_types(text: str) -> tuple[tuple[str, str], ...]:
    """(id, name) of each type that ``VGPU_TYPES`` lists.

    It has a headline and lines ``ID : vGPU Name`` (NVIDIA vGPU User Guide, vGPU on Linux with a
    vendor-specific VFIO framework).
    """
    types = (_listed_type(line) for line in text.splitlines())
    return tuple(found for found in types if found is not None)


def _listed_type(line: str) -> tuple[str, str] | None:
    number, _, name = (part.strip() for part in line.partition(":"))
    return (number, name) if number.isdecimal() and name else None


def find_vgpu_types(host: Host) -> dict[str, str]:
    """Number → name of all types that VFs list or have; "" where only the number is known."""
    types: dict[str, str] = {}
    for function in host.functions.values():
        if function.vgpu_type is not None:
            types.setdefault(function.vgpu_type, "")
        types.update(function.vgpu_types)
    return types


def name_vgpu_types(root: Root, host: Host) -> dict[str, str]:
    """Number → name of the types that are seen; what a VF lists wins over the file."""
    types = find_vgpu_types(host)
    described = _described(root) if "" in types.values() else {}
    return {number: name or described.get(number, "") for number, name in types.items()}


def _described(root: Root) -> dict[str, str]:
    from html import unescape  # rarely needed, and its table of entities is large

    types: dict[str, str] = {}
    for match in (found for file in FILES for found in _TYPE.finditer(root.text(file, _MOST) or "")):
        attributes = dict(_ATTRIBUTE.findall(match[1]))
        if {"id", "name"} <= attributes.keys():
            types.setdefault(attributes["id"], unescape(attributes["name"]))
    return types


def read_stamps(root: Root) -> tuple[tuple[int, ...], ...]:
    """Differs after a file of types was changed, created or removed; the files are not read for it."""
    return tuple(_stamp(root.path(file)) for file in FILES)


def _stamp(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)  # noqa: PTH116 - as in root
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def read_minor(root: Root, address: str) -> str | None:
    """The number of NVIDIA's node for a GPU: 0 for /dev/nvidia0; None where its driver tells none."""
    lines = (root.text(f"{GPUS}/{address}/information") or "").splitlines()
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in pairs if name.strip() == "Device Minor"), None)


def find_egm_nodes(root: Root) -> tuple[tuple[str, tuple[PciAddress, ...]], ...]:
    """The nodes of Extended GPU Memory (GH200 and GB200), each with the GPUs that share it, by name.

    One node for each socket, made by nvgrace-egm. Its class directory has the GPUs in a file
    ``gpu_devices`` (the driver that NVIDIA ships), or as links with their addresses as names (the one
    proposed to Linux in 2026).
    """
    return tuple(_egm_nodes(root))


def _egm_nodes(root: Root) -> Iterator[tuple[str, tuple[PciAddress, ...]]]:
    for name in root.names(_EGM):
        listed = root.text(f"{_EGM}/{name}/gpu_devices")
        words = root.names(f"{_EGM}/{name}") if listed is None else listed.split()
        gpus = {address for address in map(pci_address, words) if address is not None}
        if name.startswith("egm") and gpus and root.exists(f"/dev/{name}"):
            yield f"/dev/{name}", tuple(sorted(gpus, key=pci_order))
