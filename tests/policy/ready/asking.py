# SPDX-License-Identifier: Apache-2.0
"""A machine on which all is well, for the tests of readiness; each changes what it is about."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

from nodeagent.model.desired import Desired
from nodeagent.model.host import Host
from nodeagent.model.readiness import ReadinessLine
from nodeagent.model.surroundings import (
    DaemonSight,
    KubeletSight,
    Loader,
    Modules,
    Platform,
    Standing,
    Surroundings,
)
from nodeagent.policy.ready.lines import Evidence

PLUGINS, PODS = "/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources/kubelet.sock"
PLATFORM = Platform(
    cpu="GenuineIntel",
    cpu_flags=frozenset({"vmx"}),
    tables=frozenset({"DMAR"}),
    words=("quiet", "intel_iommu=on"),
    loader=Loader.UPDATE_GRUB,
    iommus=("dmar0",),
    remapping="IR-PCI-MSI",
    inotify_instances=8192,
    inotify_watches=1000000,
    nodes=frozenset({"/dev/kvm", "/dev/net/tun", "/dev/vhost-net"}),
    modules=Modules(frozenset({"vfio_iommu_type1"}), frozenset({"vfio_pci"}), False),
)
STANDING = Standing(True, whole_users=True)
KUBELET = KubeletSight(PLUGINS, True, True, PODS, "", pods=3, virt_handler=True)
DAEMON = DaemonSight(True, True, "", version="1", open_files=12, most_files=1024)
WELL = Host(
    iommu=True,
    vfio_loaded=True,
    nodes=frozenset({"/dev/vfio/vfio", "/dev/iommu"}),
    release="6.12.95",
)


def facts(host: Host = WELL, desired: Desired | None = None, **other: Any) -> Evidence:
    """What is known of such a machine, with other parts of it, or with other fields of its platform."""
    parts: dict[str, Any] = {"standing": STANDING, "kubelet": KUBELET, "daemon": DAEMON} | {
        name: part for name, part in other.items() if name in Surroundings._fields
    }
    platform = parts.pop("platform", PLATFORM)
    if not isinstance(platform, str):
        platform = platform._replace(
            **{name: value for name, value in other.items() if name in Platform._fields}
        )
    return Evidence(host, desired or Desired(), Surroundings(platform, version="1", **parts))


def by_check(lines: Iterable[ReadinessLine]) -> dict[str, ReadinessLine]:
    """Each line by what it is about."""
    return {line.check: line for line in lines}


def short(to_do: str) -> bool:
    """True if it fits into the two lines that an advice may take of a terminal of 80 columns."""
    return len(textwrap.wrap(to_do, 80 - len("    to do: "), break_on_hyphens=False)) <= 2
