# SPDX-License-Identifier: Apache-2.0
"""The files of a node that is ready, for the tests of checks; each test changes some of them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodeagent import __version__
from nodeagent.base.timeouts import Timeouts
from nodeagent.check.findings import Node
from nodeagent.kernel.root import Root
from nodeagent.model.host import Host
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import Spec
from nodeagent.model.status import ProcessStatus
from tests.render import statuses

PLUGINS, PODS = "/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources/kubelet.sock"
SOCKET = "/run/nodeagent/status.sock"
UNSAFE = "/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts"
DEP, UNIT = "/lib/modules/6.12.95/modules.dep", "/usr/lib/systemd/system/nodeagent.service"
ENABLED = "/etc/systemd/system/multi-user.target.wants/nodeagent.service"
INSTANCES = "/proc/sys/fs/inotify/max_user_instances"
FILES: Mapping[str, str | None] = {
    "/proc/cpuinfo": "vendor_id\t: GenuineIntel\nflags\t\t: fpu vmx\n",
    "/proc/cmdline": "quiet intel_iommu=on\n",
    "/proc/interrupts": " 24:  0  IR-PCI-MSI 0-edge  nvme0q0\n",
    "/sys/firmware/acpi/tables/DMAR": "",
    "/sys/class/iommu/dmar0": "",
    "/sys/class/misc/hw_random": "",
    UNSAFE: "N\n",
    "/etc/default/grub": "",
    "/usr/sbin/update-grub": "",
    INSTANCES: "8192\n",
    "/proc/sys/fs/inotify/max_user_watches": "1000000\n",
    "/dev/kvm": "",
    "/dev/net/tun": "",
    "/dev/vhost-net": "",
    f"{PLUGINS}/kubevirt-kvm.sock": "",
    DEP: "kernel/drivers/vfio/pci/vfio-pci.ko.zst: kernel/drivers/vfio/pci/vfio-pci-core.ko.zst\n",
    UNIT: "",
}
"""Path → text."""
DAEMON = statuses.WELL._replace(version=__version__, process=ProcessStatus(open_files=12, most_files=1024))
NO_SPEC = Spec()
WELL = Host(
    iommu=True,
    vfio_loaded=True,
    nodes=frozenset({"/dev/vfio/vfio", "/dev/iommu"}),
    release="6.12.95",
)


def make_node(
    directory: Path,
    host: Host = WELL,
    changed: Mapping[str, str | None] | None = None,
    only: Mapping[str, str | None] = FILES,
    spec: Spec = NO_SPEC,
    **other: Any,
) -> Node:
    """Return the node, with other texts of files (None: no such file) and other fields."""
    for path, text in {**only, **(changed or {})}.items():
        put(directory, path, text)
    node = Node(Root(directory), Snapshot(host, spec), PLUGINS, PODS, SOCKET, Timeouts(), daemon=DAEMON)
    return node._replace(**other)


def put(root: Path, path: str, text: str | None = "") -> None:
    """Write a file; with None do nothing."""
    if text is not None:
        at = root / path.removeprefix("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text)


def short(to_do: str) -> bool:
    """Return True if it fits into the two lines that an advice may take of a terminal of 80 columns."""
    return len(textwrap.wrap(to_do, 80 - len("    to do: "), break_on_hyphens=False)) <= 2
