# SPDX-License-Identifier: Apache-2.0
"""Reads facts of NVIDIA's drivers: vGPU types and names, numbers of device nodes, Extended GPU Memory.

With the vendor-specific VFIO framework, a VF with a type shows only the number of the type. Names come from
two sources: the list of creatable types of VFs without a type, and the file in which the vGPU manager
describes all types (an element ``vgpuType`` with ``id`` and ``name`` for each), on the host or in the root
of NVIDIA's driver container. The file is searched, not parsed: it has some hundred kilobytes, and a broken
file yields fewer names instead of an error.
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
NO_VGPU = "0"  # the content of VGPU_TYPE if no type is set
SRIOV_MANAGE = "/usr/lib/nvidia/sriov-manage"  # installed with the vGPU manager
MAJOR = 195  # NV_MAJOR_DEVICE_NUMBER in NVIDIA's kernel module
GPUS = "/proc/driver/nvidia/gpus"
_EGM = "/sys/class/egm"
FILE = "/usr/share/nvidia/vgpu/vgpuConfig.xml"
# the second one is used if the driver runs in a container of the GPU operator
FILES = (FILE, f"/run/nvidia/driver{FILE}")
_MOST = 1 << 24  # bytes that are searched; the file grows with each generation of cards
_TYPE = re.compile(r"<vgpuType\b([^<>]*)>")
_ATTRIBUTE = re.compile(r"\b(id|name)\s*=\s*\"([^\"]*)\"")


def read_vgpu_type(at: Directory) -> tuple[bool, str | None]:
    """Return whether the VF supports vGPU types, and its current type."""
    text = at.text(VGPU_TYPE)
    return text is not None, None if text in ("", NO_VGPU) else text


def parse_vgpu_types(text: str) -> tuple[tuple[str, str], ...]:
    """Return (id, name) of each type in the text of ``VGPU_TYPES``.

    The text has a header and lines ``ID : vGPU Name`` (NVIDIA vGPU User Guide, vGPU on Linux with a
    vendor-specific VFIO framework).
    """
    types = (_listed_type(line) for line in text.splitlines())
    return tuple(found for found in types if found is not None)


def _listed_type(line: str) -> tuple[str, str] | None:
    number, _, name = (part.strip() for part in line.partition(":"))
    return (number, name) if number.isdecimal() and name else None


def find_vgpu_types(host: Host) -> dict[str, str]:
    """Return the names of all types that VFs list or have, by number; "" if only the number is known."""
    types: dict[str, str] = {}
    for function in host.functions.values():
        if function.vgpu_type is not None:
            types.setdefault(function.vgpu_type, "")
        types.update(function.vgpu_types)
    return types


def name_vgpu_types(root: Root, host: Host) -> dict[str, str]:
    """Return the names of existing types by number; the list of a VF has precedence over the file."""
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
    """Return a value that changes when a file with vGPU types is changed, created or removed."""
    return tuple(_stamp(root.path(file)) for file in FILES)


def _stamp(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)  # noqa: PTH116 - as in root
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def read_minor(root: Root, address: str) -> str | None:
    """Return the number of NVIDIA's device node for a GPU: 0 for /dev/nvidia0; None if the driver reports
    none.
    """
    lines = (root.text(f"{GPUS}/{address}/information") or "").splitlines()
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in pairs if name.strip() == "Device Minor"), None)


def find_egm_nodes(root: Root) -> tuple[tuple[str, tuple[PciAddress, ...]], ...]:
    """Return the device nodes of Extended GPU Memory (GH200, GB200) by name, each with the GPUs that share
    it.

    The driver nvgrace-egm creates one device node for each CPU socket. The class directory of such a device
    node lists the GPUs in a file ``gpu_devices`` (the driver that NVIDIA ships), or as links named by address
    (the driver proposed to Linux in 2026).
    """
    return tuple(_egm_nodes(root))


def _egm_nodes(root: Root) -> Iterator[tuple[str, tuple[PciAddress, ...]]]:
    for name in root.names(_EGM):
        listed = root.text(f"{_EGM}/{name}/gpu_devices")
        words = root.names(f"{_EGM}/{name}") if listed is None else listed.split()
        gpus = {address for address in map(pci_address, words) if address is not None}
        if name.startswith("egm") and gpus and root.exists(f"/dev/{name}"):
            yield f"/dev/{name}", tuple(sorted(gpus, key=pci_order))
