# SPDX-License-Identifier: Apache-2.0
"""Surroundings: what a Host does not tell of its node: machine, process, kubelet, daemon.

Read when somebody asks, never by the daemon. A text in the place of a part is why that cannot be seen at all;
None in a field that it alone cannot be. Frozen values, no I/O.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from nodeagent.model.ids import PciAddress


class Loader(StrEnum):
    """Who hands the kernel its command line, by the tool that changes it."""

    OSTREE = "rpm-ostree"
    GRUBBY = "grubby"
    UPDATE_GRUB = "update-grub"
    GRUB_MKCONFIG = "grub2-mkconfig"
    PROXMOX = "proxmox-boot-tool"
    KERNEL_INSTALL = "kernel-install"


class Modules(NamedTuple):
    """Kernel modules by name, with underscores: what is in the kernel now, and what could be."""

    present: frozenset[str] | None = None  # /sys/module
    on_disk: frozenset[str] | None = None  # /lib/modules/RELEASE: modules.dep and modules.builtin
    unsafe_interrupts: bool | None = None  # vfio_iommu_type1 may do without remapping


class Platform(NamedTuple):
    """The machine below its devices: processor, firmware, command line, limits of the kernel."""

    cpu: str | None = None  # "GenuineIntel"; "Arm"
    cpu_flags: frozenset[str] | None = None
    tables: frozenset[str] | None = None  # of ACPI, by name
    words: tuple[str, ...] | None = None  # of the kernel's command line
    loader: Loader | None = None
    iommus: tuple[str, ...] = ()  # in /sys/class/iommu
    remapping: str | None = None  # a remapping interrupt chip; "" if there is none
    express: frozenset[PciAddress] | None = None  # functions that are PCI Express
    inotify_instances: int | None = None
    inotify_watches: int | None = None
    nodes: frozenset[str] | None = None  # device nodes that virtual machines need, as far as they are there
    modules: Modules = Modules()


class Standing(NamedTuple):
    """What this process may do, and of that what the daemon needs as well."""

    root: bool
    missing_capabilities: tuple[str, ...] = ()
    whole_users: bool | None = None  # the user namespace is the machine's own
    read_only: tuple[str, ...] = ()  # directories that are to be written to
    inotify: str | None = None  # why there is no instance for it
    owners: bool = True  # it may give a file to another user


class KubeletSight(NamedTuple):
    """The kubelet from outside: its two sockets. ``answer`` "": it answers; else why not."""

    plugins: str  # directory
    plugins_there: bool
    served: bool | None  # its socket there; None: this user may not ask
    pod_resources: str  # socket
    answer: str
    permitted: bool = True
    pods: int = 0
    elsewhere: str = ""  # a kubelet's other root directory, with that socket
    virt_handler: bool = False


class DaemonSight(NamedTuple):
    """The daemon from outside. ``answer`` "": it answers; else why not. ``unit``: systemd knows of it."""

    unit: bool
    enabled: bool
    answer: str
    permitted: bool = True
    version: str = ""
    problems: int = 0
    open_files: int = 0
    most_files: int = 0
    owners: bool | None = None  # it may give a file to another user; None: it does not tell


class Surroundings(NamedTuple):
    """All of them."""

    platform: Platform | str
    standing: Standing | str
    kubelet: KubeletSight | str
    daemon: DaemonSight | str
    version: str = ""  # of this program
    pci_ids: str = ""  # the day of the bundled names; "" if not known
