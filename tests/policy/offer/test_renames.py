# SPDX-License-Identifier: Apache-2.0
"""What other texts of names change, and what a pod, or the kubelet's silence, keeps as it is."""

from __future__ import annotations

from nodeagent.model.allocation import Allocations, Holder, Knowledge, Reservations
from nodeagent.model.desired import Desired, PciRule, PciSelector
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import PciAddress, ResourceName
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.status import Rename
from nodeagent.policy.offer import renames

OLD, NEW = ResourceName("nvidia.com/2335"), ResourceName("nvidia.com/H200")
T4, ONE, TWO = ResourceName("nvidia.com/T4"), PciAddress("0000:10:00.0"), PciAddress("0000:11:00.0")
NAMES = {"10de": "NVIDIA Corporation", "10de:1eb8": "T4"}
FRESH = {"10de:2335": "H200"}
RENAME = Rename(OLD, NEW, f"{NEW}: {OLD}")


def card(address: PciAddress, device: str) -> PciFunction:
    return PciFunction(
        address, vendor="10de", device=device, pci_class="030200", driver="vfio-pci", vfio=True
    )


HOST = Host({ONE: card(ONE, "2335"), TWO: card(TWO, "1eb8")})


def node(desired: Desired = Desired(), **other: object) -> Snapshot:  # noqa: B008 - frozen
    known = {"allocations": Allocations(knowledge=Knowledge.COMPLETE)} | other
    return Snapshot(HOST, desired, NAMES, **known)  # type: ignore[arg-type]  # parts by their names


def holding(resource: ResourceName) -> Allocations:
    return Allocations.of({ONE: Holder("ns", "vm", resource)}, Knowledge.PARTIAL)


def test_what_nobody_holds_is_renamed_and_told_once() -> None:
    found = renames.decide(node(), FRESH)
    assert found == ({**NAMES, **FRESH}, (RENAME,), ())


def test_what_a_pod_has_or_was_just_given_or_may_have_keeps_its_name() -> None:
    given = Reservations(pending={ONE: Holder("", "a pod", OLD)})
    for snapshot in (
        node(allocations=holding(OLD)),
        node(reservations=given),
        node(allocations=Allocations()),
    ):
        assert renames.decide(snapshot, FRESH) == (NAMES, (), (RENAME,))


def test_a_device_that_is_held_by_another_name_keeps_none() -> None:
    assert renames.decide(node(allocations=holding(T4)), FRESH).changed == (RENAME,)


def test_another_domain_stays_for_all_of_the_vendor_while_one_of_its_names_is_held() -> None:
    fresh = {**FRESH, "10de": "Another Corporation"}
    found = renames.decide(node(allocations=holding(T4)), fresh)
    assert found.names == {**NAMES, **FRESH}
    assert found.changed == (RENAME,)
    assert [(each.old, each.new) for each in found.kept] == [
        (NEW, "another.com/H200"),
        (T4, "another.com/T4"),
    ]


def test_what_has_lost_its_text_goes_by_its_number() -> None:
    found = renames.decide(node(), {"10de:1eb8": None})
    assert found.names == {"10de": "NVIDIA Corporation"}
    assert [each.new for each in found.changed] == ["nvidia.com/1eb8"]


def test_the_entry_that_keeps_a_name_comes_before_the_aliases_that_are_there() -> None:
    aliased = Desired(aliases=((OLD, "nvidia.com/big"),))
    (rename,) = renames.decide(node(aliased), FRESH).changed
    assert (rename.old, rename.new, rename.alias) == ("nvidia.com/big", NEW, f"{NEW}: nvidia.com/big")
    kept = Desired(aliases=((OLD, "nvidia.com/big"), (NEW, "nvidia.com/big")))
    assert renames.decide(node(kept), FRESH).changed == ()


def test_what_a_rule_names_is_not_renamed() -> None:
    ruled = Desired(rules=(PciRule("a.b/x", (PciSelector(devices=("2335",)),)),))
    assert renames.decide(node(ruled), FRESH) == ({**NAMES, **FRESH}, (), ())
