# SPDX-License-Identifier: Apache-2.0
"""Who has a function open: looked for once for each count of opens, and what was seen before is kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeagent.kernel.root import Root
from nodeagent.model.host import Host, Sight
from nodeagent.model.ids import PciAddress
from nodeagent.sim.host import SimulatedHost
from tests.looking import Looks

A = PciAddress("0000:01:00.0")
KEYS = frozenset({A})


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    simulated = SimulatedHost(tmp_path)
    simulated.add_function(A, vendor="8086", device="56c0", pci_class="038000", driver="i915", group=1)
    simulated.bind(A, "vfio-pci")
    return simulated


@pytest.fixture
def looks(tmp_path: Path) -> Looks:
    return Looks(Root(tmp_path))


def seen(found: Host) -> tuple[int | None, int | None, Sight | None]:
    function = found.functions[A]
    return function.enable, function.idle, function.sight


def test_a_count_of_zero_needs_no_look_and_a_higher_one_is_known_to_be_so(
    host: SimulatedHost, looks: Looks
) -> None:
    before = looks.full()
    assert seen(before) == (0, 0, None)
    host.write(A, "enable", "1")
    assert seen(looks.refresh(before, KEYS)) == (1, 0, Sight())
    assert seen(looks.full()) == (1, 1, Sight())


def test_a_process_that_has_the_node_open_is_named_until_it_has_closed_it(
    host: SimulatedHost, looks: Looks
) -> None:
    host.tree.link("/proc/4711/fd/7", "/dev/vfio/1")
    host.write_file("/proc/4711/comm", "qemu-system-x86")
    host.write(A, "enable", "2")
    before = looks.full()
    assert seen(before) == (2, 2, Sight("process 4711 (qemu-system-x86)", whole=True))
    assert looks.refresh(before, KEYS) is before
    host.tree.remove("/proc/4711/fd/7")
    host.write(A, "enable", "1")
    after = looks.refresh(before, KEYS)
    assert seen(after) == (1, 1, Sight(whole=True))
    assert after.changes_since(before).functions == KEYS
    assert looks.full(after) is after


def test_a_driver_that_has_taken_it_meanwhile_begins_anew(host: SimulatedHost, looks: Looks) -> None:
    before = looks.full()
    host.bind(A, "i915")
    bound = looks.refresh(before, KEYS)
    assert seen(bound) == (1, None, None)
    host.bind(A, "vfio-pci")
    host.write(A, "enable", "1")
    assert seen(looks.refresh(bound, KEYS)) == (1, 1, Sight())


def test_who_was_seen_at_a_count_that_may_have_been_left_is_looked_for_again(
    host: SimulatedHost, looks: Looks
) -> None:
    """It had the node for the sake of another function of the group."""
    host.tree.link("/proc/4711/fd/7", "/dev/vfio/1")
    host.write_file("/proc/4711/comm", "qemu-system-x86")
    host.write(A, "enable", "1")
    before = looks.full()
    assert seen(before) == (1, 1, Sight("process 4711 (qemu-system-x86)", whole=True))
    assert looks.refresh(before, KEYS) is before
    host.tree.remove("/proc/4711/fd/7")
    assert seen(looks.refresh(before, KEYS)) == (1, 1, Sight(whole=True))


def test_the_same_driver_that_was_bound_once_more_begins_anew(host: SimulatedHost, looks: Looks) -> None:
    before = looks.full()
    host.bind(A, "i915")
    host.bind(A, "vfio-pci")
    host.write(A, "enable", "1")
    assert seen(looks.refresh(before, KEYS)) == (1, 1, Sight())


def test_a_count_below_zero_is_one_without_a_sign(host: SimulatedHost, looks: Looks) -> None:
    host.write(A, "enable", "4294967295")
    assert seen(looks.full()) == (-1, -1, Sight())


def test_a_look_that_does_not_end_holds_up_nothing(host: SimulatedHost, looks: Looks) -> None:
    host.tree.link("/proc/4711/fd/7", "/dev/vfio/1")
    os.mkfifo(host.path("/proc/4711/comm"))
    host.write(A, "enable", "1")
    found = looks.full()
    assert seen(found) == (1, 1, Sight())
    Path(host.path("/proc/4711/comm")).write_text("qemu\n")  # lets the look end
