# SPDX-License-Identifier: Apache-2.0
"""``nodeagent scan`` as text: one line per function, by group, with what becomes of it."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.cli import scan
from nodeagent.model.host import Host, MdevType
from nodeagent.model.spec import MdevRule, MdevSelector, Spec
from nodeagent.policy.explain import devices
from nodeagent.policy.offer import turn
from tests.facts import names
from tests.policy.samples import GPU, UUID, WISH, function, host, mdev, snapshot, vgpu

READY = function("0000:65:00.0", 2)
BLOCKED = function("0000:66:00.0", 1)
BLOCKER = function("0000:66:00.1", 1, driver="e1000e", vendor="8086", device="10d3", pci_class="020000")
BARE = function("0000:02:00.0", None, driver=None, vendor=None, device=None, pci_class=None, numa_node=None)


def lines(here: Host, *, wide: bool = False, spec: Spec = WISH) -> list[str]:
    decision = turn.decide_first(snapshot(here, spec))
    return scan.text(here, tuple(devices.rows(decision)), wide=wide).splitlines()


def test_functions_are_shown_by_group_and_those_without_one_last() -> None:
    found = lines(host(BARE, READY, BLOCKED, BLOCKER), wide=True)
    assert [line.split()[:6] for line in found[1:5]] == [
        ["0000:66:00.0", "1", "no", "10de:1eb8", "0302", "vfio-pci"],
        ["0000:66:00.1", "1", "no", "8086:10d3", "0200", "e1000e"],
        ["0000:65:00.0", "2", "yes", "10de:1eb8", "0302", "vfio-pci"],
        ["0000:02:00.0", "-", "-", "?:?", "?", "-"],
    ]
    narrow = lines(host(BARE, READY, BLOCKED, BLOCKER))
    assert [line.split()[:4] for line in narrow[1:5]] == [
        ["0000:66:00.0", "1", "10de:1eb8", "vfio-pci"],
        ["0000:66:00.1", "1", "8086:10d3", "e1000e"],
        ["0000:65:00.0", "2", "10de:1eb8", "vfio-pci"],
        ["0000:02:00.0", "-", "?:?", "-"],
    ]


def test_a_card_that_its_driver_splits_is_not_judged_for_vfio() -> None:
    card = function("0000:67:00.0", 3, driver="nvidia", vfio=False)
    split = replace(host(card), mdev_parents={card.address: (MdevType("nvidia-222", "GRID T4-1B", 16),)})
    assert [lines(each, wide=True)[1].split()[2] for each in (host(card), split)] == ["no", "-"]


def test_a_long_name_is_cut_unless_the_table_is_wide() -> None:
    names = {"10de:1eb8": "An Accelerator with a Name beyond All Measure"}
    decision = turn.decide_first(snapshot(host(READY), names=names))
    shown = tuple(devices.rows(decision))
    assert "  An Accelerator with a Na..  " in scan.text(host(READY), shown)
    assert f"  {names['10de:1eb8']}  " in scan.text(host(READY), shown, wide=True)


def test_what_is_not_shown_is_counted() -> None:
    here = host(READY, BARE)
    shown = [each for each in devices.rows(turn.decide_first(snapshot(here))) if each.offered]
    text = scan.text(here, shown)
    assert BARE.address not in text
    assert "2 functions (1 not shown), 1 IOMMU groups, 0 mdevs" in text.splitlines()
    assert scan.names(shown) == READY.address


def test_the_last_column_says_what_becomes_of_a_function() -> None:
    at = lines(host(READY, BLOCKED, BLOCKER))
    column = at[0].rindex("  ") + 2
    names(at[1][column:], f"{GPU}: ", "IOMMU group 1")
    assert at[2][column:].startswith("not offered: ")
    assert at[3][column:] == GPU


def test_a_function_that_cannot_be_read_says_so_even_where_nothing_wants_it() -> None:
    silent = function("0000:02:00.0", None, vendor=None, driver=None, unreadable="no answer for 1 s")
    assert lines(host(silent))[1].endswith("no answer for 1 s")


def test_below_the_table_are_the_facts_of_the_host() -> None:
    assert lines(host(READY))[-3:] == [
        "1 functions, 1 IOMMU groups, 0 mdevs",
        "IOMMU: active",
        "nodes: /dev/vfio/vfio",
    ]


def test_mdevs_and_the_types_that_can_be_made_have_tables_of_their_own() -> None:
    types = {"0000:65:00.0": (MdevType("nvidia-222", "GRID T4-1Q", 15), MdevType("nvidia-223"))}
    free = vgpu(vgpu_type=None, vgpu_types=(("1147", "NVIDIA A40-1B"),))
    found = lines(host(READY, free, mdev(), mdev_parents=types))
    (row,) = (line for line in found if line.startswith(UUID))
    facts = [UUID, "nvidia-222", "GRID", "T4-1Q", "0000:65:00.0", "not", "offered:"]
    assert row.split()[:7] == facts
    begin = next(number for number, line in enumerate(found) if line.startswith("PARENT"))
    assert [line.split() for line in found[begin + 1 : begin + 4]] == [
        ["0000:65:00.0", "nvidia-222", "GRID", "T4-1Q", "15"],
        ["0000:65:00.0", "nvidia-223", "-", "-"],
        ["0000:65:00.4", "1147", "NVIDIA", "A40-1B", "1"],
    ]


def test_an_mdev_says_what_becomes_of_it() -> None:
    rule = MdevRule("a.b/c", (MdevSelector(types=("nvidia-222",)),))
    found = lines(host(mdev(driver=None)), spec=Spec(rules=(rule,)))
    (row,) = (line for line in found if line.startswith(UUID))
    names(row, "a.b/c: ", "driver")


def test_an_empty_host_is_told_as_such() -> None:
    head, facts = "\n".join(lines(Host())).split("\n\n")
    assert "\n" not in head
    assert facts.startswith("0 functions, 0 IOMMU groups, 0 mdevs\nIOMMU: not active")
