# SPDX-License-Identifier: Apache-2.0
"""Changes of the host: what each is about, what it must not run beside, its words, and its refusals."""

from __future__ import annotations

import pytest

from nodeagent.model.action import Action, ClearVgpuType, CreateMdev, RemoveMdev, SetNumVfs, SetVgpuType

CARD, VF, PF = "0000:3b:00.0", "0000:86:00.4", "0000:af:00.0"
UUID = "53764d0e-85a0-42b4-af5c-2046b460b1dc"


@pytest.mark.parametrize(
    ("action", "key", "device", "words"),
    [
        (CreateMdev(CARD, "t-1", UUID), UUID, CARD, f"create mdev {UUID} of type t-1 on {CARD}"),
        (RemoveMdev(UUID, CARD, "t-1"), UUID, CARD, f"remove mdev {UUID} of type t-1 from {CARD}"),
        (SetVgpuType(VF, "557"), VF, VF, f"set the vGPU type of {VF} to 557"),
        (ClearVgpuType(VF), VF, VF, f"clear the vGPU type of {VF}"),
        (SetNumVfs(PF, 2), PF, "sriov_numvfs", f"set the number of VFs of {PF} to 2"),
    ],
    ids=["create", "remove", "set", "clear", "split"],
)
def test_an_action_says_what_to_look_at_again_what_it_excludes_and_what_it_does(
    action: Action, key: str, device: str, words: str
) -> None:
    assert (action.key, action.device, action.describe()) == (key, device, words)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (CreateMdev(CARD, "t-1", UUID), CreateMdev(CARD, "t-1", "another"), True),
        (CreateMdev(CARD, "t-1", UUID), CreateMdev(CARD, "t-2", UUID), False),
        (CreateMdev(CARD, "t-1", UUID), CreateMdev(VF, "t-1", UUID), False),
        (RemoveMdev(UUID, CARD, "t-1"), RemoveMdev("another", CARD, "t-1"), False),
        (RemoveMdev(UUID, CARD, "t-1"), CreateMdev(CARD, "t-1", UUID), False),
        (SetVgpuType(VF, "557"), SetVgpuType(VF, "558"), False),
        (SetVgpuType(VF, "557"), ClearVgpuType(VF), False),
        (SetNumVfs(PF, 2), SetNumVfs(PF, 0), False),
    ],
)
def test_what_was_refused_makes_the_same_attempt_wait_and_no_other(
    one: Action, other: Action, same: bool
) -> None:
    assert (one.attempt == other.attempt) is same
