# SPDX-License-Identifier: Apache-2.0
"""``nodeagent scan`` as text: one line per function, by group, with what becomes of it."""

from __future__ import annotations

from nodeagent.model.host import Host, Mdev
from nodeagent.policy import turn
from nodeagent.show import scan
from tests.policy.made import GPU, facts, function, host

READY = function("0000:65:00.0", 2)
BLOCKED = function("0000:66:00.0", 1)
BLOCKER = function("0000:66:00.1", 1, driver="e1000e", vendor="8086", device="10d3", pci_class="020000")
BARE = function("0000:02:00.0", None, driver=None, vendor=None, device=None, pci_class=None, numa_node=None)


def lines(here: Host) -> list[str]:
    return scan.text(turn.first(facts(here))).splitlines()


def test_functions_are_shown_by_group_and_those_without_one_last() -> None:
    found = lines(host(BARE, READY, BLOCKED, BLOCKER))
    assert [line.split()[:6] for line in found[1:5]] == [
        ["0000:66:00.0", "1", "no", "10de:1eb8", "0302", "vfio-pci"],
        ["0000:66:00.1", "1", "no", "8086:10d3", "0200", "e1000e"],
        ["0000:65:00.0", "2", "yes", "10de:1eb8", "0302", "vfio-pci"],
        ["0000:02:00.0", "-", "-", "?:?", "?", "-"],
    ]


def test_the_last_column_says_what_becomes_of_a_function() -> None:
    at = lines(host(READY, BLOCKED, BLOCKER))
    column = at[0].index("WHAT")
    assert at[1][column:].startswith(f"{GPU}: IOMMU group 1 is not viable")
    assert at[2][column:] == ""
    assert at[3][column:] == GPU


def test_a_function_that_cannot_be_read_says_so_even_where_nothing_wants_it() -> None:
    silent = function("0000:02:00.0", None, vendor=None, driver=None, unreadable="no answer for 1 s")
    assert lines(host(silent))[1].endswith("no answer for 1 s")


def test_below_the_table_are_the_facts_of_the_host() -> None:
    uuid = "53764d0e-85a0-42b4-af5c-2046b460b1dc"
    found = lines(host(READY, mdevs={uuid: Mdev(uuid, "mtty", "mtty-1")}))
    assert found[-4:] == [
        "1 functions, 1 IOMMU groups, 1 mdevs",
        "IOMMU: active",
        "nodes: /dev/vfio/vfio",
        f"mdev {uuid}  mtty-1 on mtty",
    ]


def test_an_empty_host_is_told_as_such() -> None:
    assert lines(Host()) == [
        "no PCI devices",
        "",
        "0 functions, 0 IOMMU groups, 0 mdevs",
        "IOMMU: not active: no device can be given to a virtual machine",
        "nodes: none",
    ]
