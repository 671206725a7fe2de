# SPDX-License-Identifier: Apache-2.0
"""Names and addresses of the documentation's node, and rules that offer parts of it."""

from __future__ import annotations

GPU = "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A"
GPU_ENV = "PCI_RESOURCE_NVIDIA_COM_TU106_GEFORCE_RTX_2060_REV__A"
TESLA = "nvidia.com/TU104GL_TESLA_T4"  # its group is not viable

FIRST, SECOND, THIRD, FOURTH = (f"0000:{bus}:00.0" for bus in ("3b", "5e", "86", "af"))
GROUPS = {FIRST: 10, SECOND: 11, THIRD: 12, FOURTH: 13}


def rule(name: str, *addresses: str) -> dict[str, object]:
    """A rule that offers these addresses under one name."""
    return {"name": name, "pci": [{"addresses": list(addresses)}]}


def only(*rules: dict[str, object], **settings: object) -> dict[str, object]:
    """Settings with these rules and without discovery."""
    return {"discovery": {"enabled": False}, "resources": list(rules), **settings}


def nodes_of(*addresses: str) -> frozenset[str]:
    """The device nodes that a container with these GPUs must see."""
    return frozenset({"/dev/vfio/vfio", *(f"/dev/vfio/{GROUPS[address]}" for address in addresses)})
