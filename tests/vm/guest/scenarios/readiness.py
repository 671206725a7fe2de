# SPDX-License-Identifier: Apache-2.0
"""``nodeagent check`` beside the daemon: the IOMMU and its groups."""

from __future__ import annotations

from typing import Any

from anyio import to_thread

from tests.vm.guest import pci, ready
from tests.vm.guest.node import UNHEALTHY, Node


async def a_check_names_what_blocks_a_group(node: Node) -> None:
    """The port without ACS costs its one card nothing; a host driver in the group of three is named."""
    lines = await _checked()
    for check in (
        "IOMMU",
        "interrupt remapping",
        "vfio-pci",
        "vfio_iommu_type1",
        "PodResources",
        "nodeagent",
    ):
        assert lines[check]["verdict"] == "ok", lines[check]
    alone, trio = (f"group {pci.group(address)}" for address in (node.below_port, node.first))
    assert lines[alone]["verdict"] == lines[trio]["verdict"] == "ok"
    assert f"ACS above {alone}" not in lines
    await node.change(pci.bind, node.second, "e1000e")
    await node.until(node.first, UNHEALTHY)
    line = (await _checked())[trio]
    assert line["verdict"] == "wrong"
    assert f"{node.second} (e1000e)" in line["message"]


async def _checked() -> dict[str, Any]:
    return await to_thread.run_sync(ready.checked)
