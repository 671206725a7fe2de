# SPDX-License-Identifier: Apache-2.0
"""VFs before they exist: whether all that a PF is to have will be for VFIO. Pure.

Then no driver of the host is to get them first. A rule of ``sriov`` says so itself, or rules of
``passthrough`` pick what the PF tells of them: their device id, their addresses, and what they share with it
(PCI Express Base Specification, 9.3.4 and 9.3.3.8 to 9.3.3.10). What is not known before picks nothing, and
neither does a rule that names drivers: who has VFs with a driver of the host wants one to get them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from nodeagent.model.host import PciFunction
from nodeagent.model.ids import PciAddress
from nodeagent.model.spec import PassthroughRule, PciSelector, Spec, SriovRule
from nodeagent.policy import selectors

_ALL = 0x10000  # routing ids of one segment
_NOWHERE = PciAddress("")


def rule_of(function: PciFunction, rules: Sequence[SriovRule]) -> SriovRule | None:
    """The rule that says how many VFs a function is to have, or None."""
    if not function.sriov_capable or function.physfn is not None:
        return None
    return next((rule for rule in rules if _picked(rule.selectors, function)), None)


def for_vfio(physical: PciFunction, rule: SriovRule, rules: Sequence[PassthroughRule]) -> bool:
    """True if each VF that this rule wants of a PF is to have a VFIO driver."""
    if rule.driver is not None:
        return rule.num_vfs > 0
    if not rules or not rule.num_vfs:
        return False
    return all(_bound(each, rules) for each in _coming(physical, rule.num_vfs))


def of_vfs(physical: PciFunction, spec: Spec) -> PassthroughRule | None:
    """What the rule that makes the VFs of a PF says of their driver, as one of ``passthrough``; or None."""
    rule = rule_of(physical, spec.sriov)
    if rule is None or rule.driver is None:
        return None
    return PassthroughRule(rule.selectors, rule.driver, place=rule.place)


def _bound(function: PciFunction, rules: Iterable[PassthroughRule]) -> bool:
    return any(_picked(rule.selectors, function) for rule in rules)


def _picked(some: Iterable[PciSelector], function: PciFunction) -> bool:
    return any(selectors.fits(each, function, selectors.NO_NAMES) for each in some)


def _coming(physical: PciFunction, count: int) -> Iterator[PciFunction]:
    """What can be said of the VFs; their subsystem's device and their groups cannot."""
    for number in range(count):
        yield PciFunction(
            _address(physical, number),
            vendor=physical.vendor,
            device=physical.vf_device,
            pci_class=physical.pci_class,
            numa_node=physical.numa_node,
            physfn=physical.address,
        )


def _address(physical: PciFunction, number: int) -> PciAddress:
    """As pci_iov_virtfn_bus and _devfn have it (drivers/pci/iov.c)."""
    offset, stride = physical.vf_offset, physical.vf_stride
    if not offset or stride is None or (number and not stride):
        return _NOWHERE  # some devices tell it only when they have VFs
    segment, bus, rest = physical.address.split(":")
    slot, _, function = rest.partition(".")
    own = (int(bus, 16) << 8) + (int(slot, 16) << 3) + int(function, 16)
    found = (own + offset + number * stride) % _ALL
    return PciAddress(f"{segment}:{found >> 8:02x}:{found >> 3 & 0x1F:02x}.{found & 7}")
