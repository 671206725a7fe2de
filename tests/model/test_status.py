# SPDX-License-Identifier: Apache-2.0
"""Parts of the Status that are more than what somebody says: durations, mdevs by state."""

from __future__ import annotations

import pytest

from nodeagent.model.host import Group, Host, Mdev, PciFunction
from nodeagent.model.ids import GroupNumber, PciAddress
from nodeagent.model.status import BOUNDS, Durations, EventsStatus, HostStatus, MdevsStatus

EVENTS = EventsStatus("tree", 0, 0, 0, 0)
ONE, TWO, DEAD, LEAVING = (f"0000000{number}-0000-4000-8000-000000000000" for number in range(1, 5))
VF, FREE_VF = PciAddress("0000:3b:00.4"), PciAddress("0000:3b:00.5")


@pytest.mark.parametrize(
    ("seconds", "place"), [(0.0, 0), (0.001, 0), (0.00101, 1), (10.0, len(BOUNDS) - 1), (10.1, len(BOUNDS))]
)
def test_a_duration_counts_in_the_first_class_whose_end_it_does_not_pass(seconds: float, place: int) -> None:
    durations = Durations().and_one(seconds)
    assert [place for place, count in enumerate(durations.counts) if count] == [place]
    assert durations.seconds == seconds


def test_durations_add_up_and_none_is_lost() -> None:
    durations = Durations()
    for _ in range(3):
        durations = durations.and_one(0.2).and_one(20.0)
    assert sum(durations.counts) == 6
    assert durations.seconds == pytest.approx(60.6)


def test_mdevs_and_vgpus_are_counted_by_type_and_state() -> None:
    host = Host(
        {
            VF: PciFunction(VF, vgpu=True, vgpu_type="558", driver="nvidia"),
            FREE_VF: PciFunction(FREE_VF, vgpu=True, driver="nvidia"),
        },
        {GroupNumber(9): Group(GroupNumber(9), (LEAVING,))},
        {
            ONE: Mdev(ONE, type_id="nvidia-222", driver="vfio_mdev"),
            TWO: Mdev(TWO, type_id="nvidia-222", driver="vfio_mdev"),
            DEAD: Mdev(DEAD),
        },
        generation=1,
    )
    status = HostStatus.of(host, (), EVENTS, held={ONE, VF})
    assert status.mdev_states == (
        MdevsStatus("558", "held", 1),
        MdevsStatus("nvidia-222", "free", 1),
        MdevsStatus("nvidia-222", "held", 1),
        MdevsStatus("unknown", "dead", 1),
        MdevsStatus("unknown", "leaving", 1),
    )


def test_a_host_that_was_never_scanned_says_so() -> None:
    assert not HostStatus.of(Host(), (), EVENTS).scanned
    assert HostStatus.of(Host(generation=1), (), EVENTS).scanned
