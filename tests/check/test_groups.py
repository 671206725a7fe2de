# SPDX-License-Identifier: Apache-2.0
"""Groups: which matter, what is in them, whether VFIO may have them, and which bridge keeps them large."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeagent.check import vfio
from nodeagent.check.findings import Finding, Verdict
from nodeagent.model.host import Host, HostUse, HostUses, PciFunction, UseKind
from tests.check.trees import make_node, put, short
from tests.facts import contains, names
from tests.policy.samples import function, host

GPU, OTHER, PORT = "0000:65:00.0", "0000:66:00.0", "0000:00:10.0"
LINK = ("pci0000:00", PORT)
USED = HostUses((HostUse(UseKind.NETWORK, "eth0", "default route"),))


def lines(root: Path, found: Host) -> dict[str, Finding]:
    return dict(vfio.check_groups(make_node(root, found)))


def nic(address: str = OTHER, group: int = 1, **other: Any) -> PciFunction:
    values = {"vendor": "8086", "pci_class": "020000", "driver": "e1000e", "uses": HostUses()}
    return function(address, group, **{**values, **other})


def port(group: int = 1) -> PciFunction:
    return function(PORT, group, pci_class="060400", driver="pcieport")


def test_groups_of_one_function_that_is_ready_share_a_line(tmp_path: Path) -> None:
    found = lines(tmp_path, host(function(), function(OTHER, 2), function("0000:67:00.0", 3)))
    assert found["groups of one"] == (Verdict.OK, f"ready: 1 ({GPU}), 2 ({OTHER}), 3 (0000:67:00.0)", "")


def test_a_group_of_devices_that_are_not_for_vms_has_no_line(tmp_path: Path) -> None:
    assert list(lines(tmp_path, host(nic()))) == ["groups"]


def test_a_host_driver_is_wrong_in_the_group_of_a_device_that_is_ready(tmp_path: Path) -> None:
    verdict, seen, to_do = lines(tmp_path, host(function(), nic()))["group 1"]
    assert verdict is Verdict.WRONG
    assert f"{OTHER} (e1000e)" in seen
    assert to_do.startswith(f"nodeagent explain {GPU} ")


def test_a_group_on_host_drivers_as_a_whole_is_a_note(tmp_path: Path) -> None:
    verdict, _, to_do = lines(tmp_path, host(function(driver="nvidia")))["group 1"]
    assert verdict is Verdict.NOTE
    assert to_do.startswith(f"nodeagent explain {GPU} ")


def test_a_function_that_the_host_uses_is_left_to_it(tmp_path: Path) -> None:
    node = make_node(tmp_path, host(function(driver="nouveau"), nic(uses=USED)))
    to_do = dict(vfio.check_groups(node))["group 1"][2]
    assert "vfio-pci" not in to_do
    assert "nodeagent explain" not in to_do
    names(dict(vfio.check_groups(node))["group 1"][1], "eth0", "default route")
    used = vfio.check_used_by_host(node)
    assert used is not None
    names(used[1], OTHER, "eth0", "default route")


def firmware(found: Host) -> Host:
    return replace(found, vtd=True, groups={n: g._replace(direct=True) for n, g in found.groups.items()})


def unsafe(found: Host) -> Host:
    return replace(found, groups={n: g._replace(name="vfio-noiommu") for n, g in found.groups.items()})


@pytest.mark.parametrize(("change", "word"), [(firmware, "1:1"), (unsafe, "vfio-noiommu")])
def test_a_group_that_the_kernel_refuses_or_does_not_isolate_is_wrong(
    tmp_path: Path, change: Callable[[Host], Host], word: str
) -> None:
    verdict, seen, _ = lines(tmp_path, change(host(function())))["group 1"]
    assert verdict is Verdict.WRONG
    assert word in seen


@pytest.mark.parametrize(
    ("express", "conventional"), [((), True), ((GPU, OTHER), False), (("0000:01:00.0",), True)]
)
def test_the_bridge_that_keeps_cards_together_is_named(
    tmp_path: Path, express: tuple[str, ...], conventional: bool
) -> None:
    verdict, seen, to_do = above(tmp_path, *express)
    assert verdict is Verdict.NOTE
    names(seen, PORT, "ACS", GPU, OTHER)
    assert contains(seen, "conventional PCI") is conventional
    assert short(to_do)


def test_a_bridge_to_conventional_pci_is_no_guess_where_the_functions_are_known(tmp_path: Path) -> None:
    assert above(tmp_path / "a")[1] != above(tmp_path / "b", "0000:01:00.0")[1]


def above(root: Path, *express: str) -> Finding:
    """Return the finding on the bridge above two cards, where these functions have a link speed."""
    found = host(function(ports=LINK), function(OTHER, ports=LINK), port(), nic("0000:01:00.0", 2))
    for address in express:
        put(root, f"/sys/bus/pci/devices/{address}/max_link_speed", "16.0 GT/s PCIe")
    return lines(root, found)["ACS above group 1"]


def test_of_bridges_below_each_other_the_topmost_is_named(tmp_path: Path) -> None:
    switch = function("0000:64:00.0", 1, pci_class="060400", driver="pcieport", ports=LINK)
    deep = (*LINK, "0000:64:00.0")
    found = host(function(ports=deep), function(OTHER, ports=deep), switch, port())
    assert lines(tmp_path, found)["ACS above group 1"][1].startswith(f"{PORT} has")


def test_one_card_below_its_port_loses_nothing(tmp_path: Path) -> None:
    audio = function("0000:65:00.1", 1, ports=LINK, pci_class="040300")
    assert "ACS above group 1" not in lines(tmp_path, host(function(ports=LINK), audio, port()))


def test_cards_of_one_group_without_a_bridge_in_it_have_no_line_on_acs(tmp_path: Path) -> None:
    found = host(function(ports=LINK), function(OTHER, ports=LINK))
    assert "ACS above group 1" not in lines(tmp_path, found)


def test_uses_that_cannot_be_seen_are_reported(tmp_path: Path) -> None:
    hidden = make_node(tmp_path, host(nic(uses=HostUses((), ("its mounts",)))))
    found = vfio.check_uses_seen(hidden)
    assert found is not None
    assert found[1] == "its mounts"
    unread = vfio.check_uses_seen(make_node(tmp_path, host(nic()._replace(uses=None))))
    assert unread is not None
    assert unread[0] is Verdict.UNSEEN


def test_a_group_whose_members_are_unknown_is_survived(tmp_path: Path) -> None:
    found = host(function())
    groups = {number: group._replace(members=("x",)) for number, group in found.groups.items()}
    assert lines(tmp_path, replace(found, groups=groups)).keys() == {"groups"}
