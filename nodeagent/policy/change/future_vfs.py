# SPDX-License-Identifier: Apache-2.0
"""Determines before VFs are created whether all VFs of a PF will be bound to VFIO. Pure.

If all VFs of a PF will be bound to VFIO, no host driver may bind them first. VFs will be bound if the
``sriov`` rule has a driver, or if ``passthrough`` rules match their known properties. The PF shows the device
id and the addresses of its VFs, and VFs share other properties with the PF (PCI Express Base Specification,
9.3.4 and 9.3.3.8 to 9.3.3.10). Properties that are unknown before the VFs exist do not match. A rule with
``drivers`` does not match either, because it requires that a host driver has bound the VFs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from nodeagent.model.host import PciFunction
from nodeagent.model.ids import PciAddress
from nodeagent.model.spec import PassthroughRule, Spec, SriovRule
from nodeagent.policy import selectors

_ALL = 0x10000  # routing ids of one segment
_NOWHERE = PciAddress("")


def find_rule(function: PciFunction, rules: Sequence[SriovRule]) -> SriovRule | None:
    """The first ``sriov`` rule that matches the function, or None."""
    if not function.sriov_capable or function.physfn is not None:
        return None
    return next((rule for rule in rules if is_matched(rule, function)), None)


def is_matched(rule: SriovRule | PassthroughRule, function: PciFunction) -> bool:
    """True if a selector of the rule matches the function."""
    return any(selectors.is_match(each, function, selectors.NO_NAMES) for each in rule.selectors)


def is_for_vfio(physical: PciFunction, rule: SriovRule, rules: Sequence[PassthroughRule]) -> bool:
    """True if each VF that this rule creates on a PF gets a VFIO driver."""
    if rule.driver is not None:
        return rule.num_vfs > 0
    if not rules or not rule.num_vfs:
        return False
    return all(_is_bound(each, rules) for each in _build_vfs(physical, rule.num_vfs))


def find_driver_rule(physical: PciFunction, spec: Spec) -> PassthroughRule | None:
    """A ``passthrough`` rule with the driver that the ``sriov`` rule of a PF has for its VFs; None if there
    is no such driver.
    """
    rule = find_rule(physical, spec.sriov)
    if rule is None or rule.driver is None:
        return None
    return PassthroughRule(rule.selectors, rule.driver, place=rule.place)


def _is_bound(function: PciFunction, rules: Iterable[PassthroughRule]) -> bool:
    return any(is_matched(rule, function) for rule in rules)


def _build_vfs(physical: PciFunction, count: int) -> Iterator[PciFunction]:
    """The VFs with the properties that are known before their creation; subsystem device and IOMMU group are
    unknown.
    """
    for number in range(count):
        yield PciFunction(
            _build_address(physical, number),
            vendor=physical.vendor,
            device=physical.vf_device,
            pci_class=physical.pci_class,
            numa_node=physical.numa_node,
            physfn=physical.address,
            pf_interfaces=physical.pf_interfaces,
            vf_number=number,
        )


def _build_address(physical: PciFunction, number: int) -> PciAddress:
    """The address of a VF, as computed by pci_iov_virtfn_bus and _devfn (drivers/pci/iov.c)."""
    offset, stride = physical.vf_offset, physical.vf_stride
    if not offset or stride is None or (number and not stride):
        return _NOWHERE  # some devices show these only when they have VFs
    segment, bus, rest = physical.address.split(":")
    slot, _, function = rest.partition(".")
    own = (int(bus, 16) << 8) + (int(slot, 16) << 3) + int(function, 16)
    found = (own + offset + number * stride) % _ALL
    return PciAddress(f"{segment}:{found >> 8:02x}:{found >> 3 & 0x1F:02x}.{found & 7}")
