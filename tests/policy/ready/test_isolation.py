# SPDX-License-Identifier: Apache-2.0
"""Groups: which matter, what is in them, whether VFIO may have them, and which bridge keeps them large."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import GroupNumber
from nodeagent.model.readiness import ReadinessLine, Verdict
from nodeagent.model.uses import HostUse, HostUses, UseKind
from nodeagent.policy.ready import isolation
from tests.facts import contains, names
from tests.policy.ready.asking import by_check, facts, short
from tests.policy.samples import function, host

GPU, OTHER, PORT = "0000:65:00.0", "0000:66:00.0", "0000:00:10.0"
LINK = ("pci0000:00", PORT)
USED = HostUses((HostUse(UseKind.NETWORK, "eth0", "default route"),))


def lines(found: Host, **other: Any) -> dict[str, ReadinessLine]:
    return by_check(isolation.lines(facts(found, **other)))


def nic(address: str = OTHER, group: int = 1, **other: Any) -> PciFunction:
    values = {"vendor": "8086", "pci_class": "020000", "driver": "e1000e", "uses": HostUses()}
    return function(address, group, **{**values, **other})


def port(group: int = 1) -> PciFunction:
    return function(PORT, group, pci_class="060400", driver="pcieport")


def test_groups_of_one_function_that_is_ready_share_a_line() -> None:
    told = lines(host(function(), function(OTHER, 2), function("0000:67:00.0", 3)))
    line = told["groups of one"]
    assert (line.verdict, line.seen) == (Verdict.OK, f"ready: 1 ({GPU}), 2 ({OTHER}), 3 (0000:67:00.0)")


def test_what_nobody_expects_is_not_told() -> None:
    assert list(lines(host(nic()))) == ["groups"]


def test_a_group_with_a_host_driver_in_it_is_wrong_where_something_waits_for_it() -> None:
    told = lines(host(function(), nic()))["group 1"]
    assert told.verdict is Verdict.WRONG
    assert f"{OTHER} (e1000e)" in told.seen
    assert told.to_do.startswith(f"nodeagent explain {GPU} ")


def test_what_is_on_host_drivers_as_a_whole_is_a_note() -> None:
    told = lines(host(function(driver="nvidia")))["group 1"]
    assert told.verdict is Verdict.NOTE
    assert told.to_do.startswith(f"nodeagent explain {GPU} ")


def test_what_the_host_uses_is_left_to_it() -> None:
    told = lines(host(function(driver="nouveau"), nic(uses=USED)))
    assert "vfio-pci" not in told["group 1"].to_do
    assert "nodeagent explain" not in told["group 1"].to_do
    names(told["group 1"].seen, "eth0", "default route")
    names(told["used by the host"].seen, OTHER, "eth0", "default route")


def firmware(found: Host) -> Host:
    return replace(found, vtd=True, groups={n: g._replace(direct=True) for n, g in found.groups.items()})


def unsafe(found: Host) -> Host:
    return replace(found, groups={n: g._replace(name="vfio-noiommu") for n, g in found.groups.items()})


@pytest.mark.parametrize(("change", "word"), [(firmware, "1:1"), (unsafe, "vfio-noiommu")])
def test_what_the_kernel_gives_to_nobody_or_unsafely_is_wrong(
    change: Callable[[Host], Host], word: str
) -> None:
    told = lines(change(host(function())))["group 1"]
    assert told.verdict is Verdict.WRONG
    assert word in told.seen


@pytest.mark.parametrize(
    ("express", "conventional"), [(None, True), ({GPU, OTHER}, False), ({"0000:01:00.0"}, True)]
)
def test_the_bridge_that_keeps_cards_together_is_named(express: set[str] | None, conventional: bool) -> None:
    acs = above(express)
    assert acs.verdict is Verdict.NOTE
    names(acs.seen, PORT, "ACS", GPU, OTHER)
    assert contains(acs.seen, "conventional PCI") is conventional
    assert short(acs.to_do)


def test_a_bridge_to_conventional_pci_is_no_guess_where_the_functions_are_known() -> None:
    assert above(None).seen != above({"0000:01:00.0"}).seen


def above(express: set[str] | None) -> ReadinessLine:
    """The line on the bridge above two cards, where these functions are known to be PCI Express."""
    found = host(function(ports=LINK), function(OTHER, ports=LINK), port())
    return lines(found, express=None if express is None else frozenset(express))["ACS above group 1"]


def test_of_bridges_below_each_other_the_topmost_is_to_blame() -> None:
    switch = function("0000:64:00.0", 1, pci_class="060400", driver="pcieport", ports=LINK)
    deep = (*LINK, "0000:64:00.0")
    found = host(function(ports=deep), function(OTHER, ports=deep), switch, port())
    assert lines(found)["ACS above group 1"].seen.startswith(f"{PORT} has")


def test_one_card_below_its_port_loses_nothing() -> None:
    audio = function("0000:65:00.1", 1, ports=LINK, pci_class="040300")
    assert "ACS above group 1" not in lines(host(function(ports=LINK), audio, port()))


def test_cards_of_one_group_without_a_bridge_in_it_blame_nobody() -> None:
    assert "ACS above group 1" not in lines(host(function(ports=LINK), function(OTHER, ports=LINK)))


def test_uses_that_could_not_be_seen_are_told_so() -> None:
    hidden = nic(uses=HostUses((), ("its mounts",)))
    assert lines(host(hidden))["used by the host?"].seen == "its mounts"
    assert lines(host(nic()._replace(uses=None)))["used by the host?"].verdict is Verdict.UNSEEN


def test_a_group_whose_members_are_unknown_is_survived() -> None:
    found = host(function())
    groups = {number: group._replace(members=("x",)) for number, group in found.groups.items()}
    assert lines(replace(found, groups=groups)).keys() == {"groups"}
    assert GroupNumber(1) in groups
