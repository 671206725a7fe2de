# SPDX-License-Identifier: Apache-2.0
"""The small answers that values give about themselves."""

from __future__ import annotations

import dataclasses

import pytest

from nodeagent.model import allocation, host, resource, spec
from nodeagent.model.allocation import Holder
from nodeagent.model.host import Group, Host, Kind, Mdev, PciFunction
from nodeagent.model.ids import DeviceId, GroupNumber, PciAddress, ResourceName
from nodeagent.model.resource import Device, Reason, ReasonCode, Resource
from nodeagent.model.spec import NodeRule, PciRule, Spec

A, B = PciAddress("0000:01:00.0"), PciAddress("0000:01:00.1")


def test_a_group_gives_the_members_that_are_known_in_its_own_order() -> None:
    one, two = PciFunction(A), PciFunction(B)
    members = (B, "53764d0e-85a0-42b4-af5c-2046b460b1dc", A)
    here = Host({A: one, B: two}, {GroupNumber(0): Group(GroupNumber(0), members)})
    assert here.members(GroupNumber(0)) == (two, one)
    assert here.members(GroupNumber(1)) == here.members(None) == ()


def test_an_mdev_that_only_its_group_knows_is_there_and_leaving() -> None:
    uuid, zero = "53764d0e-85a0-42b4-af5c-2046b460b1dc", GroupNumber(0)
    here = Host(mdevs={"x": Mdev("x", group=zero)}, groups={zero: Group(zero, ("x", uuid, B))})
    found = Mdev(uuid, group=zero, leaving=True)
    assert here.leaving == {uuid: found}
    assert here.device(uuid) == found
    assert here.devices_in(zero) == (Mdev("x", group=zero), found)
    assert here.device(B) is None


def test_bridges_are_known_by_their_class() -> None:
    assert PciFunction(A, pci_class="060400").bridge
    assert not PciFunction(A, pci_class="060000").bridge
    assert not PciFunction(A).bridge


def test_functions_below_one_port_have_one_root() -> None:
    ports = ("pci0000:00", "0000:00:01.0", "0000:01:00.0")
    assert PciFunction(A, ports=ports).pcie_root == "pci0000:00/0000:00:01.0"
    assert PciFunction(A).pcie_root == ""


def test_a_device_without_a_reason_is_healthy() -> None:
    bad = Device(DeviceId(B), Reason(ReasonCode.GONE, "gone", ""))
    found = Resource(ResourceName("a.b/c"), Kind.PCI, (Device(DeviceId(A)), bad))
    assert [device.healthy for device in found.devices] == [True, False]
    assert found.device(B) is bad
    assert found.device("x") is None


def test_a_holder_is_written_as_people_write_pods() -> None:
    assert str(Holder("default", "vm-1", ResourceName("a.b/c"))) == "default/vm-1"


def test_desired_names_the_nodes_to_watch() -> None:
    rules = (PciRule("a.b/c"), NodeRule("a.b/kvm", "/dev/kvm"), NodeRule("a.b/tun", "/dev/net/tun"))
    assert Spec(rules=rules).node_paths == ("/dev/kvm", "/dev/net/tun")


def test_the_place_of_a_rule_is_for_messages_and_makes_no_difference() -> None:
    assert PciRule("a.b/c", place="x.yaml:1") == PciRule("a.b/c", place="y.yaml:2")


@pytest.mark.parametrize("module", [allocation, spec, host, resource])
def test_every_value_is_frozen(module: object) -> None:
    kinds = [each for each in vars(module).values() if dataclasses.is_dataclass(each)]
    assert kinds
    assert all(each.__dataclass_params__.frozen for each in kinds)  # type: ignore[union-attr]
