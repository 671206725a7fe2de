# SPDX-License-Identifier: Apache-2.0
"""Any sequence of small changes: a turn that decides only what changed equals one that decides all anew.

Left out: the two memories, which ``test_turn`` shows one by one; here they are given to both sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.model.allocation import Holder
from nodeagent.model.desired import Desired, Discovery, NodeRule, PciRule, PciSelector, Rule
from nodeagent.model.host import Group, Host, PciFunction, Recovery
from nodeagent.model.ids import GroupNumber, PciAddress, ResourceName
from nodeagent.model.resource import Iommufd, Isolation
from nodeagent.policy import turn
from nodeagent.policy.offers import Facts
from nodeagent.policy.turn import Outcome, Parts
from tests.policy.made import NODES, function

ADDRESSES = tuple(PciAddress(f"0000:6{number}:00.0") for number in range(5))
RULES: tuple[Rule, ...] = (
    PciRule("a.b/one", (PciSelector(devices=("1eb8",)),), Isolation.GROUP),
    PciRule("a.b/two", (PciSelector(numa_nodes=(1,)),), Isolation.BUNDLE, Iommufd.AUTO),
    PciRule("a.b/all", (PciSelector(vendors=("10de",)),), Isolation.NONE),
    NodeRule("a.b/kvm", "/dev/kvm", count=2),
)
NAMES = (ResourceName("a.b/one"), ResourceName("a.b/two"), ResourceName("a.b/kvm"))
HELD = (*ADDRESSES, "1", "2", "kvm-0", "kvm-5")

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
)
holdings = st.dictionaries(
    st.sampled_from(HELD),
    st.builds(Holder, st.just("ns"), st.sampled_from(["x", "y"]), st.sampled_from(NAMES)),
)
wishes = st.builds(
    Desired,
    st.builds(Discovery, enabled=st.booleans(), naming=st.sampled_from(["id", "name"])),
    rules=st.lists(st.sampled_from(RULES), unique=True).map(tuple),
)


def grouped(functions: Mapping[PciAddress, PciFunction], bare: int | None) -> dict[GroupNumber, Group]:
    """The groups of these functions; ``bare`` is one whose node is missing."""
    members: dict[GroupNumber, list[str]] = {}
    for address, found in sorted(functions.items()):
        if found.group is not None:
            members.setdefault(found.group, []).append(address)
    return {number: Group(number, tuple(found), node=number != bare) for number, found in members.items()}


def changed(before: Facts, step: tuple[str, Any]) -> Facts:
    """The facts after one change; parts that did not change stay the same objects, as a scan keeps them."""
    what, value = step
    host = before.host
    if what == "plug":
        found = {**host.functions, value.address: value}
        return replace(before, host=rebuilt(host, dict(sorted(found.items()))))
    if what == "unplug":
        return replace(before, host=rebuilt(host, {a: f for a, f in host.functions.items() if a != value}))
    if what == "bare":
        return replace(before, host=rebuilt(host, host.functions, value))
    if what == "lost":  # a group that cannot be read, while its functions are as before
        return replace(
            before, host=replace(host, groups={n: g for n, g in host.groups.items() if n != value})
        )
    if what in ("nodes", "iommu", "numa_nodes"):
        return replace(before, host=replace(host, **{what: value}))
    return replace(before, **{what: value})


def rebuilt(host: Host, functions: Mapping[PciAddress, PciFunction], bare: int | None = None) -> Host:
    groups = {
        number: host.groups[number] if host.groups.get(number) == group else group
        for number, group in grouped(functions, bare).items()
    }
    return replace(host, functions=functions, groups=groups)


steps = st.one_of(
    st.tuples(st.just("plug"), functions),
    st.tuples(st.just("plug"), functions),
    st.tuples(st.just("unplug"), st.sampled_from(ADDRESSES)),
    st.tuples(st.just("bare"), st.integers(1, 3)),
    st.tuples(st.just("nodes"), st.sampled_from([NODES, NODES | {"/dev/kvm"}, frozenset()])),
    st.tuples(st.just("lost"), st.integers(1, 3)),
    st.tuples(st.just("iommu"), st.booleans()),
    st.tuples(st.just("numa_nodes"), st.frozensets(st.integers(0, 1))),
    st.tuples(st.just("holders"), holdings),
    st.tuples(st.just("settling"), st.frozensets(st.sampled_from(HELD), max_size=2)),
    st.tuples(st.just("holders_known"), st.booleans()),
    st.tuples(st.just("desired"), wishes),
    st.tuples(st.just("names"), st.sampled_from([{}, {"10de": "NVIDIA Corporation"}])),
)
START = Facts(
    Host(nodes=NODES, iommu=True, numa_nodes=frozenset({0, 1})), Desired(rules=RULES), holders_known=True
)


def anew(after: Outcome) -> Outcome:
    """Every unit decided and every resource built anew, from the memories of ``after`` alone."""
    served: dict[ResourceName, Parts] = {name: {} for name in after.resources}
    begin = Facts(Host(), after.facts.desired, after.facts.names)
    return turn.following(Outcome(begin, by_resource=served, claimed=after.claimed), after.facts)


def seen(outcome: Outcome) -> dict[str, tuple[object, ...]]:
    """What the kubelet and a grant see of the resources."""
    return {
        name: (found.isolation, found.iommufd, found.cdi, found.devices)
        for name, found in outcome.resources.items()
    }


@settings(deadline=None, max_examples=300)
@given(st.lists(steps, min_size=1, max_size=14))
def test_a_chain_of_turns_equals_a_decision_from_scratch(chain: list[tuple[str, Any]]) -> None:
    outcome = turn.first(START)
    for step in chain:
        outcome = turn.following(outcome, changed(outcome.facts, step))
        scratch = anew(outcome)
        assert outcome.offers == scratch.offers
        assert outcome.claimed == scratch.claimed
        assert outcome.extras == scratch.extras
        assert seen(outcome) == seen(scratch)


@settings(deadline=None, max_examples=200)
@given(st.lists(steps, min_size=1, max_size=14))
def test_memories_only_add_what_was_offered_before_and_still_exists(chain: list[tuple[str, Any]]) -> None:
    outcome = turn.first(START)
    for step in chain:
        before, outcome = outcome, turn.following(outcome, changed(outcome.facts, step))
        fresh = turn.first(outcome.facts)
        assert fresh.claimed.items() <= outcome.claimed.items()
        remembered = outcome.claimed.keys() - fresh.claimed.keys()
        assert remembered <= before.claimed.keys() & outcome.facts.host.functions.keys()
        assert fresh.resources.keys() <= outcome.resources.keys()
        added = outcome.resources.keys() - fresh.resources.keys()
        assert added <= before.resources.keys()
        if not remembered and outcome.extras == fresh.extras:
            assert seen(fresh).items() <= seen(outcome).items()


@settings(deadline=None, max_examples=150)
@given(st.lists(steps, min_size=1, max_size=10))
def test_what_a_change_does_not_concern_stays_the_same_object(chain: list[tuple[str, Any]]) -> None:
    outcome = turn.first(START)
    for step in chain:
        facts = changed(outcome.facts, step)
        before, outcome = outcome, turn.following(outcome, facts)
        for name, resource in outcome.resources.items():
            old = before.resources.get(name)
            assert resource is old or resource != old or step[0] == "desired"
        again = turn.following(outcome, facts)
        assert all(again.resources[name] is found for name, found in outcome.resources.items())
        assert again.resources.keys() == outcome.resources.keys()


@settings(deadline=None, max_examples=150)
@given(st.lists(steps, min_size=1, max_size=10))
def test_no_id_of_a_pod_is_dropped_and_none_is_listed_twice(chain: list[tuple[str, Any]]) -> None:
    outcome = turn.first(START)
    for step in chain:
        before, outcome = outcome, turn.following(outcome, changed(outcome.facts, step))
        for name, resource in outcome.resources.items():
            ids = [device.id for device in resource.devices]
            assert len(set(ids)) == len(ids), name
        for device_id, holder in outcome.facts.holders.items():
            served = before.resources.get(holder.resource)
            if served is not None and served.device(device_id) is not None:
                assert outcome.resources[holder.resource].device(device_id) is not None
