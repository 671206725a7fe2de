# SPDX-License-Identifier: Apache-2.0
"""The files of vendor vGPUs: what a VF may become and is, and its VFIO device, which comes with its type."""

from __future__ import annotations

from pathlib import Path

from nodeagent.model.host import PciFunction
from nodeagent.sim import files
from nodeagent.sim.functions import BUS
from nodeagent.sim.host import SimulatedHost


def load(host: SimulatedHost, vf: str) -> str:
    """A VF can be given types from now on; the host path of the directory with ``current_vgpu_type``."""
    base = f"{host.tree.real(f'{BUS}/{vf}')}/nvidia"
    files.directory(host.path(base))
    return base


def show(host: SimulatedHost, function: PciFunction) -> None:
    """Bring the files of a VF in step."""
    base = host.path(f"{BUS}/{function.address}/nvidia")
    if not function.vgpu or not Path(base).is_dir():
        return
    lines = [f"{number:<5} : {name}" for number, name in function.vgpu_types]
    _show_node(host, function)
    files.write(f"{base}/creatable_vgpu_types", "\n".join(["ID    : vGPU Name", *lines, ""]))
    files.write(f"{base}/current_vgpu_type", f"{function.vgpu_type or '0'}\n")
    host.write(function.address, "enable", "1")  # announces it


def _show_node(host: SimulatedHost, function: PciFunction) -> None:
    group = files.target(host.path(f"{BUS}/{function.address}/iommu_group"))
    if group is None:
        return
    if function.vgpu_type is None:
        host.remove_node(f"/dev/vfio/{group}")
    else:
        host.tree.ensure_node(f"/dev/vfio/{group}")
