# SPDX-License-Identifier: Apache-2.0
"""Runs all checks, in the order of the report. No check changes the host or opens a device.

Each check reads in a separate thread. If a check does not end in time, the report says so, and contains the
results of the other checks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import NamedTuple, TypeVar

import anyio

from nodeagent.base import threads
from nodeagent.base.errors import KernelRefused
from nodeagent.check import kubelet, platform, process, vfio
from nodeagent.check.findings import Finding, Node, ReadinessLine, unseen

T = TypeVar("T")


class _Check(NamedTuple):
    """One check of the report; ``judge`` returns None if the check does not apply.

    ``of_saved``: the check only needs the host, so it also runs for a saved host.
    """

    section: str
    name: str
    judge: Callable[[Node], Finding | None]
    of_saved: bool = False


_BEFORE_GROUPS = (
    _Check("platform", "IOMMU", platform.check_iommu, of_saved=True),
    _Check("platform", "interrupt remapping", platform.check_remapping),
    _Check("platform", "ACS override", platform.check_acs_override, of_saved=True),
    _Check("modules", "vfio-pci", vfio.check_vfio_pci, of_saved=True),
    _Check("modules", "vfio_iommu_type1", vfio.check_backend),
    _Check("modules", "iommufd", vfio.check_iommufd, of_saved=True),
)
_GROUPS = "IOMMU groups"
_AFTER_GROUPS = (
    _Check(_GROUPS, "used by the host", vfio.check_used_by_host, of_saved=True),
    _Check(_GROUPS, "used by the host?", vfio.check_uses_seen, of_saved=True),
    _Check("kubelet", "device plugins", kubelet.check_device_plugins),
    _Check("kubelet", "PodResources", kubelet.check_pod_resources),
    _Check("KubeVirt", "/dev/kvm", kubelet.check_kvm),
    _Check("KubeVirt", "/dev/net/tun", kubelet.check_tun),
    _Check("KubeVirt", "/dev/vhost-net", kubelet.check_vhost_net),
    _Check("KubeVirt", "virt-handler", kubelet.check_virt_handler),
    _Check("permissions", "user", process.check_user),
    _Check("permissions", "capabilities", process.check_capabilities, of_saved=True),
    _Check("permissions", "user namespace", process.check_user_namespace, of_saved=True),
    _Check("permissions", "directories", process.check_directories, of_saved=True),
    _Check("permissions", "/dev/vfio", vfio.check_container_node, of_saved=True),
    _Check("permissions", "USB nodes", process.check_usb_nodes, of_saved=True),
    _Check("limits", "inotify", process.check_inotify),
    _Check("limits", "open files", process.check_open_files),
    _Check("versions", "kernel", process.check_kernel_version, of_saved=True),
    _Check("versions", "kubelet", process.check_kubelet_version, of_saved=True),
    _Check("versions", "this program", process.check_own_version, of_saved=True),
    _Check("daemon", "nodeagent", process.check_daemon),
    _Check("daemon", "at boot", process.check_start_at_boot, of_saved=True),
)


async def run(node: Node) -> tuple[ReadinessLine, ...]:
    """Return the lines of all checks, section after section."""
    limit = node.timeouts.local_socket_answer
    daemon = await _in_time(partial(process.ask_daemon, node.root, node.status_socket, limit), node)
    node = node._replace(daemon=TimeoutError(daemon) if isinstance(daemon, str) else daemon)
    groups = await _in_time(lambda: list(vfio.check_groups(node)), node)
    if isinstance(groups, str):
        groups = [("groups", unseen(groups))]
    return (
        *[line for check in _BEFORE_GROUPS async for line in _run(check, node)],
        *[ReadinessLine(_GROUPS, name, *finding) for name, finding in groups],
        *[line for check in _AFTER_GROUPS async for line in _run(check, node)],
        *[ReadinessLine("daemon", "problem", *finding) for finding in process.check_problems(node)],
    )


async def _run(check: _Check, node: Node) -> AsyncIterator[ReadinessLine]:
    """Yield the report line of a check, if the check applies."""
    finding: Finding | str | None = "not in the saved host"
    if check.of_saved or not node.saved:
        finding = await _in_time(partial(check.judge, node), node)
    if finding is not None:
        found = unseen(finding) if isinstance(finding, str) else finding
        yield ReadinessLine(check.section, check.name, *found)


async def _in_time(read: Callable[[], T], node: Node) -> T | str:
    """Return the result of ``read``, or a text about why it failed."""
    with anyio.move_on_after(node.timeouts.check_step):
        try:
            return await threads.call(read)
        except KernelRefused as error:
            return error.what
    return "no answer in time"
