# SPDX-License-Identifier: Apache-2.0
"""A card that is split: what exists, what fits, who made it."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.model.change import Ledger
from nodeagent.model.host import MdevType
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import MdevSpec, Spec
from nodeagent.policy.change import ownership
from nodeagent.policy.explain import cards
from tests.policy.samples import UUID, function, holders, host, mdev, snapshot, vgpu

CARD, VF = "0000:65:00.0", "0000:65:00.4"
MACHINE = "0123456789abcdef0123456789abcdef"
OURS = ownership.build_uuid(MACHINE, CARD, "nvidia-222", 0)
TYPES = (MdevType("nvidia-1000", "GRID T4-1Q", 0), MdevType("nvidia-222", "GRID T4-1B", 14))


def split(**wanted: object) -> Snapshot:
    """A card with two mdevs, one of which nodeagent made."""
    here = host(
        function(CARD, driver="nvidia"), mdev(), mdev(OURS, 51, driver=None), mdev_parents={CARD: TYPES}
    )
    wish = Spec(mdevs=MdevSpec(**wanted))  # type: ignore[arg-type]  # of the test's own
    return replace(snapshot(here, wish, holders=holders(UUID)), machine_id=MACHINE)


def makers(of: Snapshot, card: str = CARD) -> dict[str, str | None]:
    found = cards.explain(card, of)
    assert found is not None
    return {each.id: each.made_by for each in found.instances}


def test_types_come_by_number_with_what_exists_and_what_fits() -> None:
    found = cards.explain(CARD, split())
    assert found is not None
    assert [(each.id, each.instances, each.room) for each in found.types] == [
        ("nvidia-222", 2, 14),
        ("nvidia-1000", 0, 0),
    ]
    state = {each.id: (each.holder, each.dead) for each in found.instances}
    assert state == {UUID: ("ns/vm", False), OURS: (None, True)}


def test_who_made_an_instance_shows_in_its_id_and_in_the_definitions() -> None:
    assert makers(split()) == {UUID: "others", OURS: "nodeagent"}
    assert makers(split(defined=frozenset({UUID}))) == {UUID: "mdevctl", OURS: "nodeagent"}


def test_without_the_id_of_the_machine_nobody_can_say_who_made_it() -> None:
    assert makers(replace(split(), machine_id="")) == {UUID: None, OURS: None}


def test_who_set_the_type_of_a_vf_stands_in_the_ledger() -> None:
    pf = function(CARD, driver="nvidia", vfs=(VF,), sriov_capable=True)
    here = replace(snapshot(host(pf, vgpu(VF))), machine_id=MACHINE)
    assert makers(here) == {VF: "others"}
    assert makers(replace(here, ledger=Ledger({VF: "1147"}))) == {VF: "nodeagent"}


def test_a_function_of_which_nothing_is_made_is_no_such_card() -> None:
    assert cards.explain(CARD, snapshot(host(function(CARD)))) is None
