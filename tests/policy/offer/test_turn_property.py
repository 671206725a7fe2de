# SPDX-License-Identifier: Apache-2.0
"""Any sequence of small changes: a turn that decides only what changed equals one that decides all anew.

Left out: the two memories, which ``test_turn`` shows one by one; here they are given to both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.model.allocation import Allocations, Holder, Knowledge, Reservations, by_resource, unnamed
from nodeagent.model.host import Group, Host, HostDevice, Mdev, PciFunction, Recovery
from nodeagent.model.ids import GroupNumber, PciAddress, ResourceName
from nodeagent.model.resource import Iommufd, Isolation, Via
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import (
    Discovery,
    MdevRule,
    MdevSelector,
    NodeRule,
    PciRule,
    PciSelector,
    Rule,
    Spec,
)
from nodeagent.policy.offer import turn
from nodeagent.policy.offer.turn import ByUnit, Decision
from tests.policy.samples import NODES, function, mdev

ADDRESSES = tuple(PciAddress(f"0000:6{number}:00.0") for number in range(5))
UUIDS = tuple(f"53764d0e-85a0-42b4-af5c-2046b460b1d{number}" for number in range(3))
RULES: tuple[Rule, ...] = (
    MdevRule("a.b/mdev", (MdevSelector(types=("nvidia-222",)),)),
    MdevRule("a.b/bundle", (MdevSelector(names=("GRID_T4-2Q",)),), Isolation.BUNDLE),
    PciRule("a.b/vgpu", (PciSelector(vgpu_types=("1147",)),)),
    PciRule("a.b/claimed", (PciSelector(numa_nodes=(0,)),)),
    PciRule("a.b/one", (PciSelector(devices=("1eb8",)),), Isolation.GROUP),
    PciRule("a.b/two", (PciSelector(numa_nodes=(1,)),), Isolation.BUNDLE, Iommufd.AUTO),
    PciRule("a.b/all", (PciSelector(vendors=("10de",)),), Isolation.NONE),
    NodeRule("a.b/kvm", "/dev/kvm", count=2),
)
BY_DRA: tuple[Rule, ...] = tuple(
    replace(rule, via=Via.DRA) for rule in RULES if isinstance(rule, PciRule | MdevRule)
)
NAMES = (ResourceName("a.b/one"), ResourceName("a.b/two"), ResourceName("a.b/kvm"), ResourceName("a.b/mdev"))
CLAIMED = ResourceName("a.b/claimed")
HELD = (*ADDRESSES, *UUIDS, "1", "2", "kvm-0", "kvm-5")

functions = st.builds(
    function,
    st.sampled_from(ADDRESSES),
    st.sampled_from([None, 1, 2, 2, 3]),
    device=st.sampled_from(["1eb8", "20f1"]),
    pci_class=st.sampled_from(["030200", "030200", "040300", "060400"]),
    driver=st.sampled_from(["vfio-pci", "vfio-pci", "vfio-pci", "nvidia", "pcieport", None]),
    numa_node=st.sampled_from([None, 0, 1]),
    enable=st.sampled_from([0, 0, 1]),
    inode=st.integers(1, 2),
    recovery=st.sampled_from([None, None, Recovery.FAILED]),
    vgpu=st.booleans(),
    vgpu_type=st.sampled_from([None, "1147", "1148"]),
    physfn=st.sampled_from([None, None, ADDRESSES[0]]),
    vfs=st.sampled_from([(), ADDRESSES[1:3]]),
)
mdevs = st.builds(
    mdev,
    st.sampled_from(UUIDS),
    st.sampled_from([None, 1, 11, 11, 12, 13]),
    type_id=st.sampled_from([None, "nvidia-222", "nvidia-222", "nvidia-223"]),
    type_name=st.sampled_from([None, "GRID T4-1Q", "GRID T4-2Q"]),
    driver=st.sampled_from([None, "nvidia-vgpu-vfio", "nvidia-vgpu-vfio"]),
    numa_node=st.sampled_from([None, 0, 1]),
    vendor=st.sampled_from([None, "10de"]),
)

pods = st.builds(Holder, st.just("ns"), st.sampled_from(["x", "y"]), st.sampled_from(NAMES))
claims = st.builds(Holder, st.just("ns"), st.sampled_from(["x", "y"]), st.just(CLAIMED), claim=st.just(True))
holdings = st.dictionaries(st.sampled_from(HELD), st.one_of(pods, claims))
wishes = st.builds(
    partial(Spec),  # of a bare named tuple all fields would be drawn
    st.builds(partial(Discovery), enabled=st.booleans(), naming=st.sampled_from(["id", "name"])),
    rules=st.lists(st.sampled_from((*RULES, *BY_DRA)), unique_by=lambda rule: rule.name).map(tuple),
)


def grouped(
    host_devices: Iterable[HostDevice], bare: int | None, leaving: Mapping[str, GroupNumber]
) -> dict[GroupNumber, Group]:
    """The groups of these parts; ``bare`` has lost its node, ``leaving`` are mdevs off their bus.

    For group 3 firmware has memory mapped 1:1.
    """
    members: dict[GroupNumber, list[str]] = {}
    for host_device in host_devices:
        if host_device.group is not None:
            members.setdefault(host_device.group, []).append(host_device.id)
    for uuid, number in leaving.items():
        members.setdefault(number, []).append(uuid)
    return {
        number: Group(number, tuple(found), node=number != bare, direct=number == 3)
        for number, found in members.items()
    }


def changed(before: Snapshot, step: tuple[str, Any]) -> Snapshot:
    """The facts after one change; parts that did not change stay the same objects, as a scan keeps them."""
    what, value = step
    host = before.host
    if what == "plug":
        found = {**host.functions, value.address: value}
        return replace(before, host=rebuilt(host, dict(sorted(found.items()))))
    if what == "unplug":
        return replace(before, host=rebuilt(host, {a: f for a, f in host.functions.items() if a != value}))
    if what == "create":
        return replace(before, host=rebuilt(host, host.functions, {**host.mdevs, value.uuid: value}))
    if what in ("remove", "begin to remove"):
        uuid, left = value, {uuid: mdev for uuid, mdev in host.mdevs.items() if uuid != value}
        going = host.mdevs.get(uuid) if what == "begin to remove" else None
        leaving = {} if going is None or going.group is None else {uuid: going.group}
        return replace(before, host=rebuilt(host, host.functions, left, leaving=leaving, gone=uuid))
    if what == "bare":
        return replace(before, host=rebuilt(host, host.functions, bare=value))
    if what == "lost":  # a group that cannot be read, while its functions are as before
        return replace(
            before, host=replace(host, groups={n: g for n, g in host.groups.items() if n != value})
        )
    if what in ("nodes", "iommu", "vtd", "numa_nodes"):
        return replace(before, host=replace(host, **{what: value}))
    if what == "holders":
        return replace(before, allocations=replace(before.allocations, table=by_resource(value.items())))
    if what == "knowledge":
        return replace(before, allocations=replace(before.allocations, knowledge=value))
    if what == "settling":
        ids, others, resource = value
        return replace(before, reservations=_reservations(ids, others, resource))
    return replace(before, **{what: value})


def _reservations(ids: frozenset[str], others: frozenset[str], resource: str) -> Reservations:
    """Some were given to the pod that is being admitted, some to the one before."""
    admitted = {each: unnamed(ResourceName(resource), None) for each in ids}
    earlier = {each: unnamed(ResourceName(resource), 1) for each in others}
    return Reservations(ids, pending={**earlier, **admitted})


def rebuilt(
    host: Host,
    functions: Mapping[PciAddress, PciFunction],
    mdevs: Mapping[str, Mdev] | None = None,
    *,
    bare: int | None = None,
    leaving: Mapping[str, GroupNumber] | None = None,
    gone: str | None = None,
) -> Host:
    present = host.mdevs if mdevs is None else dict(sorted(mdevs.items()))
    waiting = {
        host_device.uuid: number
        for number in host.groups
        for host_device in host.devices_in(number)
        if isinstance(host_device, Mdev)
        and host_device.leaving
        and host_device.uuid != gone
        and host_device.uuid not in present
    } | dict(leaving or {})
    host_devices: list[HostDevice] = [*functions.values()]
    host_devices += present.values()
    groups = {
        number: host.groups[number] if host.groups.get(number) == group else group
        for number, group in grouped(host_devices, bare, waiting).items()
    }
    return replace(host, functions=functions, mdevs=present, groups=groups)


steps = st.one_of(
    st.tuples(st.just("plug"), functions),
    st.tuples(st.just("plug"), functions),
    st.tuples(st.just("unplug"), st.sampled_from(ADDRESSES)),
    st.tuples(st.just("create"), mdevs),
    st.tuples(st.just("create"), mdevs),
    st.tuples(st.just("begin to remove"), st.sampled_from(UUIDS)),
    st.tuples(st.just("remove"), st.sampled_from(UUIDS)),
    st.tuples(st.just("bare"), st.sampled_from([1, 2, 3, 11])),
    st.tuples(st.just("nodes"), st.sampled_from([NODES, NODES | {"/dev/kvm"}, frozenset()])),
    st.tuples(st.just("lost"), st.integers(1, 3)),
    st.tuples(st.just("iommu"), st.booleans()),
    st.tuples(st.just("vtd"), st.booleans()),
    st.tuples(st.just("numa_nodes"), st.frozensets(st.integers(0, 1))),
    st.tuples(st.just("holders"), holdings),
    st.tuples(
        st.just("settling"),
        st.tuples(
            st.frozensets(st.sampled_from(HELD), max_size=2),
            st.frozensets(st.sampled_from(HELD), max_size=2),
            st.sampled_from(NAMES),
        ),
    ),
    st.tuples(st.just("knowledge"), st.sampled_from(Knowledge)),
    st.tuples(st.just("in_slices"), st.frozensets(st.sampled_from(HELD), max_size=3)),
    st.tuples(st.just("spec"), wishes),
    st.tuples(st.just("names"), st.sampled_from([{}, {"10de": "NVIDIA Corporation"}])),
)
START = Snapshot(
    Host(nodes=NODES, iommu=True, numa_nodes=frozenset({0, 1}), release="6.1.0"),
    Spec(rules=RULES),
    allocations=Allocations(knowledge=Knowledge.COMPLETE),
)


def known(host: Host) -> set[str]:
    """The ids of all parts, also of mdevs that only their group still knows."""
    members = {member for group in host.groups.values() for member in group.members}
    return {*host.functions, *host.mdevs, *members}


def anew(after: Decision) -> Decision:
    """Every unit decided and every resource built anew, from the memories of ``after`` alone."""
    served: dict[ResourceName, ByUnit] = {name: {} for name in after.resources}
    begin = Snapshot(Host(), after.snapshot.spec, after.snapshot.names)
    return turn.decide_next(Decision(begin, by_resource=served, matched=after.matched), after.snapshot)


def seen(decision: Decision) -> dict[str, tuple[object, ...]]:
    """What the kubelet and a grant see of the resources."""
    return {
        name: (found.isolation, found.iommufd, found.cdi, found.via, found.devices)
        for name, found in decision.resources.items()
    }


@settings(deadline=None, max_examples=300)
@given(st.lists(steps, min_size=1, max_size=14))
def test_a_chain_of_turns_equals_a_decision_from_scratch(chain: list[tuple[str, Any]]) -> None:
    decision = turn.decide_first(START)
    for step in chain:
        decision = turn.decide_next(decision, changed(decision.snapshot, step))
        scratch = anew(decision)
        assert decision.offers == scratch.offers
        assert decision.matched == scratch.matched
        assert decision.not_offered == scratch.not_offered
        assert seen(decision) == seen(scratch)


@settings(deadline=None, max_examples=200)
@given(st.lists(steps, min_size=1, max_size=14))
def test_memories_only_add_what_was_offered_before_and_still_exists(chain: list[tuple[str, Any]]) -> None:
    decision = turn.decide_first(START)
    for step in chain:
        before, decision = decision, turn.decide_next(decision, changed(decision.snapshot, step))
        fresh = turn.decide_first(decision.snapshot)
        assert fresh.matched.items() <= decision.matched.items()
        remembered = decision.matched.keys() - fresh.matched.keys()
        assert remembered <= before.matched.keys() & known(decision.snapshot.host)
        assert fresh.resources.keys() <= decision.resources.keys()
        added = decision.resources.keys() - fresh.resources.keys()
        assert added <= before.resources.keys()
        if not remembered and decision.not_offered == fresh.not_offered:
            assert seen(fresh).items() <= seen(decision).items()


@settings(deadline=None, max_examples=150)
@given(st.lists(steps, min_size=1, max_size=10))
def test_what_a_change_does_not_concern_stays_the_same_object(chain: list[tuple[str, Any]]) -> None:
    decision = turn.decide_first(START)
    for step in chain:
        snapshot = changed(decision.snapshot, step)
        before, decision = decision, turn.decide_next(decision, snapshot)
        for name, resource in decision.resources.items():
            old = before.resources.get(name)
            assert resource is old or resource != old or step[0] == "spec"
        again = turn.decide_next(decision, snapshot)
        assert all(again.resources[name] is found for name, found in decision.resources.items())
        assert again.resources.keys() == decision.resources.keys()


@settings(deadline=None, max_examples=150)
@given(st.lists(steps, min_size=1, max_size=10))
def test_no_id_of_a_pod_is_dropped_and_none_is_listed_twice(chain: list[tuple[str, Any]]) -> None:
    decision = turn.decide_first(START)
    for step in chain:
        before, decision = decision, turn.decide_next(decision, changed(decision.snapshot, step))
        for name, resource in decision.resources.items():
            ids = [device.id for device in resource.devices]
            assert len(set(ids)) == len(ids), name
        snapshot = decision.snapshot
        for device_id in {**snapshot.allocations.holders, **snapshot.reservations.pending}:
            holder = snapshot.holder(device_id)
            assert holder is not None
            served = before.resources.get(holder.resource)
            if served is not None and served.device(device_id) is not None:
                assert decision.resources[holder.resource].device(device_id) is not None
