# SPDX-License-Identifier: Apache-2.0
"""Hosts, claims and slices for the tests of DRA."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nodeagent.agent import joining
from nodeagent.model.allocation import Allocations, Holder, Knowledge, by_resource
from nodeagent.model.claim import Claim, ClaimDevice, ClaimRef
from nodeagent.model.host import Host, HostDevice
from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import Isolation, Via
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import Discovery, MdevRule, MdevSelector, PciRule, PciSelector, Spec
from nodeagent.policy.dra import slices
from nodeagent.policy.dra.slices import Content
from nodeagent.policy.offer import turn
from nodeagent.policy.offer.turn import Decision
from tests.policy import samples

DRIVER = "nodeagent.local"
GPU = ResourceName("nvidia.com/gpu")
VGPU = ResourceName("nvidia.com/vgpu")
UID = "0a4ae7bb-8f0e-4f29-a4a9-e18d1db9b9a5"


def spec(isolation: Isolation = Isolation.GROUP, via: Via = Via.DRA, **other: Any) -> Spec:
    """All functions of NVIDIA as one resource, and all mdevs as another, which is always offered by DRA."""
    functions = PciRule(GPU, (PciSelector(vendors=("10de",)),), isolation, via=via, **other)
    return Spec(Discovery(enabled=False), rules=(functions, MdevRule(VGPU, (MdevSelector(),), via=Via.DRA)))


def pair(number: int, **other: Any) -> tuple[HostDevice, HostDevice]:
    """A GPU and its audio function, in one IOMMU group."""
    address = f"0000:{number:02x}:00"
    audio = samples.function(f"{address}.1", number, device="10f8", pci_class="040300", **other)
    return samples.function(f"{address}.0", number, **other), audio


def alone(count: int) -> list[HostDevice]:
    """Functions with a group each."""
    return [samples.function(f"0000:{at // 8 + 1:02x}:{at % 8:02x}.0", at + 1) for at in range(count)]


def claim(*parts: str, name: str = "gpu", device: str = "", uid: str = UID) -> Claim:
    """A prepared claim with one device."""
    named = device or f"pci-{parts[0].replace(':', '-').replace('.', '-')}"
    found = ClaimDevice("gpu", f"{DRIVER}/n", named, GPU, parts[0], parts)
    return Claim(ClaimRef("vms", name, uid), (found,))


def claims(*prepared: Claim) -> dict[str, Claim]:
    """The claims by a UID of their own."""
    return {f"uid-{place}": each for place, each in enumerate(prepared)}


def decide(
    here: Host,
    wish: Spec | None = None,
    prepared: Mapping[str, Claim] | None = None,
    pods: Mapping[str, Holder] | None = None,
) -> Decision:
    """The Decision for a host whose claims and pods use these devices."""
    of_pods = Allocations(by_resource((pods or {}).items()), Knowledge.COMPLETE)
    allocations = joining.add_claims(of_pods, (prepared or {}).values(), of_pods)
    return turn.decide_first(Snapshot(here, wish or spec(), allocations=allocations, claims=prepared or {}))


def build(
    here: Host,
    wish: Spec | None = None,
    prepared: Mapping[str, Claim] | None = None,
    pods: Mapping[str, Holder] | None = None,
    dropped: Iterable[str] = (),
) -> tuple[Content, ...]:
    """The contents of the slices of a host."""
    return slices.build_slices(decide(here, wish, prepared, pods), DRIVER, frozenset(dropped))


def devices_of(contents: Iterable[Content]) -> dict[str, Mapping[str, Any]]:
    """The published devices by name, in the order of the slices."""
    return {each["name"]: each for content in contents for each in content.get("devices", ())}


def taint_of(device: Mapping[str, Any]) -> str | None:
    """The key and value of the only taint, or None."""
    taints = [f"{each['key']}={each['value']}" for each in device.get("taints", ())]
    assert len(taints) < 2
    return taints[0] if taints else None
