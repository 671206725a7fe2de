# SPDX-License-Identifier: Apache-2.0
"""Changes of the host: what each is about, what it must not run beside, its words, and its refusals."""

from __future__ import annotations

import pytest

from nodeagent.model.change import (
    Action,
    Move,
    clear_vgpu_type,
    create_mdev,
    remove_mdev,
    restore_autoprobe,
    restore_drivers,
    run_sriov_manage,
    set_num_vfs,
    set_vgpu_type,
)
from tests.facts import names

CARD, VF, PF = "0000:3b:00.0", "0000:86:00.4", "0000:af:00.0"
UUID = "53764d0e-85a0-42b4-af5c-2046b460b1dc"
CREATE = create_mdev(CARD, VF, "t-1", UUID)
REMOVE = remove_mdev(CARD, VF, "t-1", UUID)
SET = set_vgpu_type(CARD, VF, "557")
CLEAR = clear_vgpu_type(CARD, VF, "557")

ACTIONS: list[tuple[Action, set[str], str, tuple[object, ...]]] = [
    (CREATE, {UUID}, VF, ("mdev", UUID, "t-1", VF)),
    (REMOVE, {UUID}, VF, ("mdev", UUID, "t-1", VF)),
    (SET, {VF}, VF, ("vGPU type", VF, 557)),
    (CLEAR, {VF}, VF, ("vGPU type", VF)),
    (set_num_vfs(PF, 2), {PF}, "sriov_numvfs", ("VFs", PF, 2)),
    (set_num_vfs(PF, 2, unprobed=True), {PF}, "sriov_numvfs", ("VFs", PF, 2, "sriov_drivers_autoprobe")),
    (restore_autoprobe(PF), {PF}, "sriov_numvfs", ("sriov_drivers_autoprobe", PF)),
    (run_sriov_manage(PF, 2), {PF}, "sriov_numvfs", ("sriov-manage", PF, 2)),
    (run_sriov_manage(PF, 0, (VF,)), {PF, VF}, "sriov_numvfs", ("sriov-manage", PF)),
]


@pytest.mark.parametrize(
    ("action", "targets", "device", "facts"),
    ACTIONS,
    ids=["create", "remove", "set", "clear", "split", "split bare", "switch", "make all", "remove all"],
)
def test_an_action_says_what_to_look_at_again_what_it_excludes_and_what_it_does(
    action: Action, targets: set[str], device: str, facts: tuple[object, ...]
) -> None:
    assert (set(action.targets), action.device) == (targets, device)
    names(action.text, *facts)


def test_no_two_actions_are_described_alike() -> None:
    assert len({action.text for action, *_ in ACTIONS}) == len(ACTIONS)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (CREATE, create_mdev(CARD, VF, "t-1", "another"), True),
        (CREATE, create_mdev(CARD, VF, "t-2", UUID), False),
        (CREATE, create_mdev(CARD, CARD, "t-1", UUID), False),
        (REMOVE, remove_mdev(CARD, VF, "t-1", "another"), False),
        (REMOVE, CREATE, False),
        (SET, set_vgpu_type(CARD, VF, "558"), False),
        (SET, CLEAR, False),
        (set_num_vfs(PF, 2), set_num_vfs(PF, 0), False),
    ],
)
def test_what_was_refused_makes_the_same_attempt_wait_and_no_other(
    one: Action, other: Action, same: bool
) -> None:
    assert (one.attempt == other.attempt) is same


@pytest.mark.parametrize(
    ("action", "card", "takes", "type_id"),
    [
        (CREATE, CARD, set(), "t-1"),
        (REMOVE, CARD, {UUID}, "t-1"),
        (SET, CARD, set(), "557"),
        (CLEAR, CARD, {VF}, "557"),
        (set_num_vfs(PF, 2), PF, set(), None),
        (set_num_vfs(PF, 0, (VF,)), PF, {VF}, None),
    ],
    ids=["create", "remove", "set", "clear", "split", "unsplit"],
)
def test_an_action_says_on_which_card_it_works_and_what_it_takes_away(
    action: Action, card: str, takes: set[str], type_id: str | None
) -> None:
    assert (action.card, set(action.takes), action.type_id) == (card, takes, type_id)


@pytest.mark.parametrize(
    ("action", "undo"),
    [(CREATE, REMOVE), (REMOVE, CREATE), (SET, CLEAR), (CLEAR, SET)],
    ids=["create", "remove", "set", "clear"],
)
def test_an_action_is_undone_by_its_opposite(action: Action, undo: Action) -> None:
    assert action.undo == undo.text


def test_removed_vfs_come_back_as_many_and_which_will_be_made_nobody_knows_before() -> None:
    assert set_num_vfs(PF, 0, (VF, CARD)).undo == set_num_vfs(PF, 2).text
    assert set_num_vfs(PF, 2).undo is None


def test_what_has_its_driver_already_is_not_said_to_be_given_back() -> None:
    at_home, bound = Move(PF, "ice", "ice", "ice"), Move(VF, "vfio-pci", None, "vfio-pci")
    names(restore_drivers(PF, (at_home,)).text, "driver_override", PF)
    text = restore_drivers(PF, (at_home, bound)).text
    names(text, VF, "no driver")
    assert PF not in text
