# SPDX-License-Identifier: Apache-2.0
"""Extended GPU Memory of GH200 and GB200: which nodes there are, and which GPUs share each.

One node for each socket, made by nvgrace-egm. Its class directory has the GPUs in a file ``gpu_devices`` (the
driver that NVIDIA ships), or as links with their addresses as names (the one proposed to Linux in 2026).
"""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.kernel.root import Root
from nodeagent.model.ids import PciAddress, pci_address, pci_order

CLASS = "/sys/class/egm"

Egm = tuple[str, tuple[PciAddress, ...]]


def read(root: Root) -> tuple[Egm, ...]:
    """The nodes that exist and have GPUs, by name."""
    return tuple(_nodes(root))


def _nodes(root: Root) -> Iterator[Egm]:
    for name in root.names(CLASS):
        listed = root.text(f"{CLASS}/{name}/gpu_devices")
        words = root.names(f"{CLASS}/{name}") if listed is None else listed.split()
        gpus = {address for address in map(pci_address, words) if address is not None}
        if name.startswith("egm") and gpus and root.exists(f"/dev/{name}"):
            yield f"/dev/{name}", tuple(sorted(gpus, key=pci_order))
