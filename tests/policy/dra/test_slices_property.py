# SPDX-License-Identifier: Apache-2.0
"""Any host with any claims and pods: a scheduler that follows the slices never shares an IOMMU group.

The scheduler here allocates as that of Kubernetes: devices without a taint, in order, while no counter
becomes negative. Claims that exist before are those that a node can have: no two of them have one function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.model.allocation import Holder
from nodeagent.model.claim import Claim
from nodeagent.model.host import Host, PciFunction, Recovery
from nodeagent.model.ids import PciAddress
from nodeagent.model.resource import Isolation, Via
from nodeagent.model.spec import Discovery, PciRule, PciSelector, Spec
from nodeagent.policy.dra import devices, slices
from nodeagent.policy.dra.slices import COUNTERS, TAINTS, Content
from nodeagent.policy.offer.turn import Decision
from tests.policy import samples
from tests.policy.dra.samples import DRIVER, GPU, VGPU, claim, decide, devices_of

ADDRESSES = [f"0000:65:00.{number}" for number in range(6)]

functions: st.SearchStrategy[dict[str, dict[str, Any]]] = st.dictionaries(
    st.sampled_from(ADDRESSES),
    st.builds(
        dict,
        group=st.sampled_from([1, 1, 2, 3]),
        device=st.sampled_from(["1eb8", "10f8", "0000"]),
        driver=st.sampled_from(["vfio-pci", "vfio-pci", "vfio-pci", "e1000e"]),
        recovery=st.sampled_from([None, None, Recovery.FAILED]),
        enable=st.sampled_from([0, 0, 0, 1]),
    ),
    min_size=1,
)
rules = st.builds(
    lambda one, two, via: Spec(
        Discovery(enabled=False),
        rules=(
            PciRule(GPU, (PciSelector(devices=("1eb8",)),), one, via=Via.DRA),
            PciRule(VGPU, (PciSelector(devices=("10f8",)),), two, via=via),
        ),
    ),
    st.sampled_from([Isolation.GROUP, Isolation.GROUP, Isolation.BUNDLE]),
    st.sampled_from([Isolation.GROUP, Isolation.GROUP, Isolation.BUNDLE]),
    st.sampled_from([Via.DRA, Via.DRA, Via.DEVICE_PLUGIN]),
)
pods = st.dictionaries(st.sampled_from([*ADDRESSES, "1", "2"]), st.just(Holder("ns", "vm", GPU)), max_size=2)
dropped_fields = st.sets(st.sampled_from([TAINTS, COUNTERS]))


def build_host(found: Mapping[str, Mapping[str, Any]]) -> Host:
    """A host of these functions."""
    return samples.host(*(samples.function(address, **facts) for address, facts in sorted(found.items())))


def draw_claims(data: st.DataObject, decision: Decision, held: Iterable[str]) -> dict[str, Claim]:
    """Claims of some offered devices, or of functions that are not offered any more."""
    free, found = set(ADDRESSES) - set(held), dict[str, Claim]()
    offered = [each for unit in devices.list_devices(decision) for each in unit]
    choices = [(each.name, each.parts) for each in offered]
    choices += [(devices.device_name(each), (each,)) for each in ADDRESSES]
    for name, parts in data.draw(st.lists(st.sampled_from(choices), max_size=2)):
        if free.issuperset(parts):
            free.difference_update(parts)
            found[f"uid-{len(found)}"] = claim(*parts, name=f"c{len(found)}", device=name)
    return found


def schedule(contents: Sequence[Content], claimed: Iterable[str]) -> list[str]:
    """The names of the devices that the scheduler allocates in addition to those of claims."""
    counters: Counter[str] = Counter()
    for content in contents:
        for one in content.get("sharedCounters", ()):
            counters.update({name: int(value["value"]) for name, value in one["counters"].items()})
    published = devices_of(contents)

    def draws(device: Mapping[str, Any]) -> Counter[str]:
        used = Counter[str]()
        for each in device.get("consumesCounters", ()):
            used.update({name: int(value["value"]) for name, value in each["counters"].items()})
        assert used.keys() <= counters.keys()
        return used

    for name in claimed:
        counters.subtract(draws(published[name]))
    assert min(counters.values(), default=0) >= 0  # or no device with a counter could be allocated
    allocated = []
    for name, device in published.items():
        used = draws(device)
        if name in claimed or device.get("taints") or any(counters[each] < used[each] for each in used):
            continue
        counters.subtract(used)
        allocated.append(name)
    return allocated


@settings(max_examples=300)
@given(functions, rules, pods, dropped_fields, st.data())
def test_devices_of_one_group_are_never_allocated_to_two_claims_or_pods(
    found: Mapping[str, Mapping[str, Any]],
    wish: Spec,
    held: Mapping[str, Holder],
    dropped: set[str],
    data: st.DataObject,
) -> None:
    here = build_host(found)
    prepared = draw_claims(data, decide(here, wish, pods=held), held)
    decision = decide(here, wish, prepared, held)
    contents = slices.build_slices(decision, DRIVER, frozenset(dropped))
    published = devices_of(contents)
    check_form(contents, dropped)

    claimed = {device.name: device.parts for each in prepared.values() for device in each.devices}
    assert published.keys() >= claimed.keys()
    allocated = schedule(contents, claimed)
    offered = {each.name: each for unit in devices.list_devices(decision) for each in unit}
    users: Counter[str] = Counter()
    for name in allocated:
        device = offered[name]
        assert device.reason is None or claimed
        assert not any(part in held for part in device.parts)
        groups = {_group_of(part, here) for part in device.parts}
        users.update(groups)
    for parts in claimed.values():
        users.update({_group_of(part, here) for part in parts if part in here.functions} & users.keys())
    for each in held:
        group = int(each) if each.isdecimal() else _group_of(each, here) if each in here.functions else 0
        users.update({str(group)} & users.keys())
    assert not users or max(users.values()) == 1


def _group_of(address: str, here: Host) -> str:
    function = here.functions[PciAddress(address)]
    assert isinstance(function, PciFunction)
    return str(function.group)


def check_form(contents: Sequence[Content], dropped: set[str]) -> None:
    """The rules of the API, and the order that Kubernetes 1.35 needs."""
    names = [each["name"] for content in contents for each in content.get("devices", ())]
    assert len(names) == len(set(names))
    for content in contents:
        assert content.keys() in ({"devices"}, {"sharedCounters"})
        found = content.get("devices", ())
        assert len(found) <= 64
        tainted = [bool(each.get("taints")) for each in found]
        assert tainted == sorted(tainted)
        assert not (TAINTS in dropped and any(tainted))
    assert not (COUNTERS in dropped and any("sharedCounters" in each for each in contents))
