# SPDX-License-Identifier: Apache-2.0
"""Desired: what the operator wants, merged from all sources; the settings that steer behaviour.

Order that a person wrote is data: tuples from end to end. ``place`` says where a person wrote a thing
("config.yaml:12"), for messages only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nodeagent.model.resource import Iommufd, Isolation

DISCOVERED_CLASSES = ("0300", "0302", "0380", "0680", "1200")


@dataclass(frozen=True, slots=True)
class PciSelector:
    """Picks PCI functions: AND between the keys, OR inside a key, an empty key picks all.

    ``addresses`` may hold ``*`` and ``?``; ``classes`` are prefixes of the six-digit class ("0300", "03").
    """

    vendors: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    subsystems: tuple[str, ...] = ()  # "10de:12a2" or "10de"
    classes: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    numa_nodes: tuple[int, ...] = ()
    iommu_groups: tuple[int, ...] = ()
    vgpu_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PciRule:
    """A resource of PCI functions. No selectors picks nothing."""

    name: str
    selectors: tuple[PciSelector, ...] = ()
    isolation: Isolation = Isolation.GROUP
    iommufd: Iommufd = Iommufd.NEVER
    cdi: bool = False
    place: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class NodeRule:
    """A resource of ``count`` shares of one device node, e.g. /dev/kvm."""

    name: str
    path: str
    count: int = 1
    permissions: str = "rw"
    place: str = field(default="", compare=False)


Rule = PciRule | NodeRule


@dataclass(frozen=True, slots=True)
class Discovery:
    """Automatic discovery: which classes, and how a resource is named (``name`` or ``id`` style)."""

    enabled: bool = True
    naming: str = "name"
    prefix: str = ""
    classes: tuple[str, ...] = DISCOVERED_CLASSES


@dataclass(frozen=True, slots=True)
class Desired:
    """All that the operator wants of this node."""

    discovery: Discovery = field(default_factory=Discovery)
    aliases: tuple[tuple[str, str], ...] = ()
    rules: tuple[Rule, ...] = ()

    @property
    def node_paths(self) -> tuple[str, ...]:
        """The device nodes that rules name."""
        return tuple(rule.path for rule in self.rules if isinstance(rule, NodeRule))
