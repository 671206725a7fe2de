# SPDX-License-Identifier: Apache-2.0
"""Readiness of the kernel's modules that VFIO consists of. Pure.

``modprobe vfio-pci`` brings ``vfio_iommu_type1`` along (a soft dependency of ``vfio``). Kernels have iommufd
from 6.2 on, if they were built so; Debian's up to 7.2 were not.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.model.desired import MdevRule, PciRule
from nodeagent.model.host import Host
from nodeagent.model.readiness import ReadinessLine
from nodeagent.model.resource import Iommufd
from nodeagent.model.surroundings import Modules
from nodeagent.policy import groups
from nodeagent.policy.offer import remarks
from nodeagent.policy.offer.nodes import IOMMUFD_NODE
from nodeagent.policy.ready.lines import Evidence, Section

_HERE = Section("modules")
_DRIVER = "/sys/bus/pci/drivers/vfio-pci"
_BACKENDS = ("vfio_iommu_type1", "vfio_iommu_spapr_tce")
_INSTALL = (
    "install all modules of this kernel (Ubuntu: linux-modules-extra, EL: kernel-modules), "
    "or a kernel that has them"
)


def lines(evidence: Evidence) -> Iterator[ReadinessLine]:
    """vfio-pci, what it maps memory with, iommufd."""
    platform = evidence.around.platform
    modules = platform if isinstance(platform, str) else platform.modules
    yield _vfio_pci(evidence.host, modules)
    yield _backend(evidence.host, modules)
    yield _iommufd(evidence)


def _vfio_pci(host: Host, modules: Modules | str) -> ReadinessLine:
    if host.vfio_loaded:
        return _HERE.ok("vfio-pci", f"loaded: {_DRIVER}")
    on_disk = None if isinstance(modules, str) else modules.on_disk
    seen, to_do = f"not loaded: no {_DRIVER}", remarks.how_to_load()
    if on_disk is not None and "vfio_pci" not in on_disk:
        seen, to_do = f"no vfio-pci in /lib/modules/{host.release}, and none is loaded", _INSTALL
    if host.mdev_parents or any(map(groups.vfio_bound, host.functions.values())):
        return _HERE.note("vfio-pci", f"{seen}; mdevs and other VFIO drivers do without", to_do)
    return _HERE.wrong("vfio-pci", seen, to_do)


def _backend(host: Host, modules: Modules | str) -> ReadinessLine:
    check = _BACKENDS[0]
    if isinstance(modules, str):
        return _HERE.unseen(check, modules)
    if modules.present is None:
        return _HERE.unseen(check, "/sys/module cannot be seen")
    found = next((name for name in _BACKENDS if name in modules.present), None)
    if found is not None:
        return _HERE.ok(check, f"loaded: /sys/module/{found}")
    if not host.vfio_loaded:
        return _HERE.unseen(check, "it comes with vfio-pci")
    return _HERE.note(check, "not in /sys/module", f"load it with: modprobe {check}")


def _iommufd(evidence: Evidence) -> ReadinessLine:
    if IOMMUFD_NODE in evidence.host.nodes:
        return _HERE.ok("iommufd", f"there: {IOMMUFD_NODE}")
    asking = [
        rule.name
        for rule in evidence.desired.rules
        if isinstance(rule, PciRule | MdevRule) and rule.iommufd is Iommufd.ONLY
    ]
    if asking:
        return _HERE.wrong(
            "iommufd",
            f"no {IOMMUFD_NODE}, and {asking[0]} says iommufd: only",
            "modprobe iommufd if this kernel has it (CONFIG_IOMMUFD); else say iommufd: auto or never",
        )
    return _HERE.note("iommufd", f"no {IOMMUFD_NODE}; no resource asks for it")
