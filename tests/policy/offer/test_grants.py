# SPDX-License-Identifier: Apache-2.0
"""Grants: what virt-launcher and virt-handler need of a container, exactly; and the texts of refusals."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.base.errors import AllocationRefused
from nodeagent.model.allocation import DeviceNode, Grant
from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import Iommufd, Isolation
from nodeagent.model.spec import Discovery, NodeRule, PciRule, PciSelector, Spec
from nodeagent.policy.offer import grants, turn
from nodeagent.policy.offer.turn import Decision
from tests.facts import names
from tests.policy.samples import GPU, NODES, function, host, snapshot

A, B, C = "0000:65:00.0", "0000:66:00.0", "0000:67:00.0"
ENV = "PCI_RESOURCE_NVIDIA_COM_GPU"


def decided(*functions: Any, nodes: frozenset[str] = NODES, **options: Any) -> Decision:
    rule = PciRule(GPU, (PciSelector(vendors=("10de",)),), **options)
    return turn.decide_first(
        snapshot(host(*functions, nodes=nodes), Spec(Discovery(enabled=False), rules=(rule,)))
    )


def granted(decision: Decision, *device_ids: str, name: str = GPU) -> Grant:
    return grants.grant(decision.resources[ResourceName(name)], device_ids, decision)


def test_addresses_come_in_the_order_of_the_request_and_nodes_once() -> None:
    here = decided(function(A, 8), function(B, 9), function(C, 9))
    assert granted(here, B, A, C) == Grant(
        envs=((ENV, f"{B},{A},{C}"),),
        nodes=(DeviceNode("/dev/vfio/vfio"), DeviceNode("/dev/vfio/9"), DeviceNode("/dev/vfio/8")),
    )
    assert all(node.permissions == "mrw" for node in granted(here, A).nodes)


def test_a_sibling_of_the_group_is_not_in_the_environment() -> None:
    audio = function("0000:65:00.1", vendor="1022", pci_class="040300")
    assert granted(decided(function(A), audio), A).envs == ((ENV, A),)


def test_a_bundle_carries_all_its_addresses_and_one_node() -> None:
    found = granted(decided(function(A), function(B), isolation=Isolation.BUNDLE), A)
    assert found.envs == ((ENV, f"{A},{B}"),)
    assert [node.path for node in found.nodes] == ["/dev/vfio/vfio", "/dev/vfio/1"]


CDEV = {"cdev": True, "vfio_device": "vfio0"}
BOTH = NODES | {"/dev/iommu"}


@pytest.mark.parametrize(
    ("iommufd", "nodes", "other", "paths"),
    [
        (Iommufd.NEVER, BOTH, CDEV, ["vfio/vfio", "vfio/42"]),
        (Iommufd.AUTO, BOTH, CDEV, ["vfio/vfio", "vfio/42", "vfio/devices/vfio0", "iommu"]),
        (Iommufd.AUTO, NODES, CDEV, ["vfio/vfio", "vfio/42"]),
        (Iommufd.AUTO, BOTH, {}, ["vfio/vfio", "vfio/42"]),
        (Iommufd.AUTO, BOTH, {"vfio_device": "vfio0"}, ["vfio/vfio", "vfio/42"]),
        (Iommufd.ONLY, BOTH, CDEV, ["vfio/vfio", "vfio/devices/vfio0", "iommu"]),
        (Iommufd.ONLY, frozenset({"/dev/iommu"}), CDEV, ["vfio/devices/vfio0", "iommu"]),
    ],
)
def test_iommufd_nodes_are_given_only_where_wanted_and_present(
    iommufd: Iommufd, nodes: frozenset[str], other: dict[str, Any], paths: list[str]
) -> None:
    here = decided(function("0000:08:00.0", 42, **other), nodes=nodes, iommufd=iommufd)
    found = granted(here, "0000:08:00.0")
    assert [node.path for node in found.nodes] == [f"/dev/{path}" for path in paths]


def test_with_cdi_the_runtime_gets_names_and_virt_launcher_its_environment() -> None:
    here = decided(function(A, 8), function(B, 9), cdi=True)
    names = (f"nodeagent.local/vfio={B}", f"nodeagent.local/vfio={A}")
    found = granted(here, B, A)
    assert found == Grant(((ENV, f"{B},{A}"),), (), names)


def test_the_cdi_document_lists_the_nodes_of_each_healthy_device() -> None:
    here = decided(function(A, 8), function(B, 9, driver="nvidia"), function(C, 10), cdi=True)
    spec = grants.cdi_spec(grants.cdi_entries(here.resources[ResourceName(GPU)], here))
    nodes = {
        address: [
            {"path": "/dev/vfio/vfio", "permissions": "rwm"},
            {"path": f"/dev/vfio/{group}", "permissions": "rwm"},
        ]
        for address, group in ((A, 8), (C, 10))
    }
    assert spec == {
        "cdiVersion": "0.5.0",
        "kind": "nodeagent.local/vfio",
        "devices": [
            {"name": address, "containerEdits": {"deviceNodes": found}} for address, found in nodes.items()
        ],
    }


def test_an_unknown_id_is_refused_and_named() -> None:
    with pytest.raises(AllocationRefused) as caught:
        granted(decided(function(A)), A, B)
    names(caught.value.what, GPU, B)
    assert A not in caught.value.what
    assert caught.value.hint


def test_an_unhealthy_device_is_refused_with_its_reason_and_what_to_do() -> None:
    with pytest.raises(AllocationRefused) as caught:
        granted(decided(function(A, driver=None)), A)
    names(caught.value.what, GPU, A, "VFIO driver")
    names(caught.value.hint, A, "vfio-pci")


def test_shares_of_a_node_give_the_node_once_with_its_permissions() -> None:
    rule = NodeRule("devices.example.com/kvm", "/dev/kvm", count=2, permissions="rw")
    here = turn.decide_first(snapshot(host(nodes=frozenset({"/dev/kvm"})), Spec(rules=(rule,))))
    assert granted(here, "kvm-1", "kvm-0", name=rule.name) == Grant(nodes=(DeviceNode("/dev/kvm", "rw"),))
    with pytest.raises(AllocationRefused):
        granted(here, "kvm-2", name=rule.name)


def test_a_resource_that_has_lost_its_rule_refuses() -> None:
    rule = NodeRule("devices.example.com/kvm", "/dev/kvm")
    before = turn.decide_first(snapshot(host(nodes=frozenset({"/dev/kvm"})), Spec(rules=(rule,))))
    after = turn.decide_next(before, snapshot(host(), Spec()))
    with pytest.raises(AllocationRefused, match=rule.name):
        grants.grant(before.resources[ResourceName(rule.name)], ["kvm-0"], after)


def test_a_device_that_has_just_gone_is_refused() -> None:
    before = decided(function(A))
    after = turn.decide_next(before, snapshot(host(), before.snapshot.spec))
    with pytest.raises(AllocationRefused, match=A):
        grants.grant(before.resources[ResourceName(GPU)], [A], after)


def test_the_memory_of_a_socket_goes_with_all_of_its_gpus_and_once() -> None:
    one, two, other = (function(f"000{number}:01:00.0", number) for number in (8, 9, 10))
    sockets = (("/dev/egm4", (one.address, two.address)), ("/dev/egm5", (other.address,)))
    here = host(one, two, other, egm=sockets)
    for given, nodes in (
        ((one,), []),
        ((one, two), ["/dev/egm4"]),
        ((two, other, one), ["/dev/egm4", "/dev/egm5"]),
        ((other,), ["/dev/egm5"]),
    ):
        found = grants.device_nodes(given, Iommufd.NEVER, here)
        assert [path for path in found if "egm" in path] == nodes
