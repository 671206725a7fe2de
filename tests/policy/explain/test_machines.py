# SPDX-License-Identifier: Apache-2.0
"""Can this node give a machine what it asks for: now, later, never; and why, one line for each thing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nodeagent.cluster import vmi
from nodeagent.model.allocation import Knowledge
from nodeagent.model.configuration import Configuration, KubeVirt
from nodeagent.model.host import HostDevice, UsbDevice
from nodeagent.model.kubevirt import KubeVirtCR, UsedCR
from nodeagent.model.spec import Discovery, NodeRule, PciRule, PciSelector, Spec, UsbRule, UsbSelector
from nodeagent.policy import merge
from nodeagent.policy.explain import machines
from nodeagent.policy.explain.machines import ResourceRequest, VMExplanation
from nodeagent.policy.offer import turn
from tests.cluster.crs import GUIDE, T4, VGPU, external, read
from tests.facts import each_names, names
from tests.policy.samples import GPU, RULE, UUID, WISH, function, holders, host, mdev, snapshot, vgpu

A, B, C = (f"0000:{bus}:00.0" for bus in ("65", "66", "67"))
NAME, VGPU_NAME = "nvidia.com/TU104GL_Tesla_T4", "nvidia.com/GRID_T4-1Q"
CR = read({"pciHostDevices": [external(T4, resourceName=GPU)]}, gates=["HostDevices"])


def boards(*more: HostDevice, **other: Any) -> tuple[HostDevice, ...]:
    """Three T4s, each in a group of its own; ``other`` are facts of the first."""
    return (function(A, 1, **other), function(B, 2), function(C, 3), *more)


def told(
    *asked: str,
    here: tuple[HostDevice, ...] = (),
    wish: Spec = WISH,
    cr: KubeVirtCR | None = CR,
    host_devices: tuple[str, ...] = (),
    **known: Any,
) -> VMExplanation:
    gpus = [{"name": f"gpu{n}", "deviceName": each} for n, each in enumerate(asked, 1)]
    others = [{"name": f"dev{n}", "deviceName": each} for n, each in enumerate(host_devices, 1)]
    devices = {"gpus": gpus, "hostDevices": others}
    machine = vmi.parse({"kind": "VirtualMachineInstance", "spec": {"domain": {"devices": devices}}})
    assert machine is not None
    decision = turn.decide_first(snapshot(host(*(here or boards())), wish, **known))
    return machines.explain_vm(machine, UsedCR(cr), decision)


def ask(*asked: str, **other: Any) -> ResourceRequest:
    (found,) = told(*asked, **other).resources
    return found


def test_what_is_free_can_be_given_now_with_one_address_for_each_device() -> None:
    found = ask(GPU, GPU)
    assert (found.resource, found.count, found.availability, found.messages) == (GPU, 2, "now", ())
    assert found.env == {"PCI_RESOURCE_NVIDIA_COM_GPU": f"{A},{B}"}
    assert found.nodes == ("/dev/vfio/vfio", "/dev/vfio/1", "/dev/vfio/2")
    assert told(GPU, GPU).notes == ()


def test_both_lists_ask_for_resources_and_each_is_told_apart() -> None:
    cr = read({"pciHostDevices": [external(T4, resourceName=GPU)], "mediatedDevices": [external(VGPU)]})
    wish = merge.merge(Configuration(rules=(RULE,), kubevirt=KubeVirt("true")), cr)
    found = told(
        GPU,
        host_devices=(VGPU_NAME,),
        here=boards(mdev()),
        wish=wish,
        cr=replace(cr, gates=frozenset({"HostDevices"})),
    )
    assert [(each.resource, each.availability) for each in found.resources] == [
        (GPU, "now"),
        (VGPU_NAME, "now"),
    ]
    assert found.resources[1].env == {"MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-1Q": UUID}
    assert found.availability == "now"


def test_what_a_pod_holds_comes_back_when_it_is_released() -> None:
    found = ask(GPU, GPU, GPU, holders=holders(A))
    assert found.availability == "later"
    each_names(found.messages, (3, 2), (A, "ns/vm"))
    assert found.env == {}


def test_the_rest_of_a_group_that_a_pod_holds_comes_back_too() -> None:
    other = function("0000:65:00.1", 1, device="10f8")
    wish = WISH._replace(rules=(PciRule("a.b/audio", (PciSelector(devices=("10f8",)),)), RULE))
    found = ask("a.b/audio", here=boards(other), wish=wish, cr=None, holders=holders(A))
    assert found.availability == "later"
    names(found.messages[1], "0000:65:00.1", "ns/vm", A)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"driver": None}, "vfio-pci"),
        ({"group": None}, "IOMMU"),
        ({"unreadable": "its attributes hang"}, "its attributes hang"),
    ],
)
def test_what_needs_a_person_does_not_come_back_by_itself(facts: Any, why: str) -> None:
    found = ask(GPU, here=(function(A, **{"group": 1, **facts}),))
    assert found.availability == "never"
    each_names(found.messages, (1, 0), (A, why))


def test_more_than_the_node_has_is_never_given_though_all_of_it_is_free() -> None:
    found = ask(*[GPU] * 4)
    assert found.availability == "never"
    each_names(found.messages, (4, 3))


def test_the_same_said_of_many_devices_is_one_line() -> None:
    found = ask(*[GPU] * 3, holders=holders(A, B, C))
    each_names(found.messages, (3, 0), (A, B, C, "ns/vm"))
    every = [f"0000:65:0{n}.0" for n in range(5)]
    here = tuple(function(each, n) for n, each in enumerate(every))
    why = ask(*[GPU] * 3, here=here, holders=holders(*every)).messages
    each_names(why, (3, 0), (*every[:3], 2, "ns/vm"))
    assert every[3] not in why[1]


@pytest.mark.parametrize(
    ("lists", "gates", "why"),
    [
        ({"asked": (NAME,)}, ("HostDevices",), f"GPU {NAME} is not permitted in permittedHostDevices config"),
        (
            {"host_devices": (NAME,)},
            ("HostDevices",),
            f"HostDevice {NAME} is not permitted in permittedHostD",
        ),
        ({"host_devices": (GPU,)}, (), "Host Devices feature gate is not enabled in kubevirt-config; add "),
    ],
)
def test_what_kubevirt_refuses_is_told_in_its_own_words(lists: Any, gates: Any, why: str) -> None:
    cr = replace(CR, gates=frozenset(gates))
    found = told(*lists.pop("asked", ()), cr=cr, **lists)
    assert found.availability == "never"
    assert found.resources[0].messages[0].startswith(why)


def test_gpus_need_no_feature_gate() -> None:
    assert ask(GPU, cr=replace(CR, gates=frozenset())).availability == "now"


def test_without_the_section_kubevirt_permits_everything_and_with_an_empty_one_nothing() -> None:
    found = told(GPU, cr=read())
    assert found.availability == "now"
    each_names(found.notes, ("KubeVirt CR", "permittedHostDevices"))
    assert told(GPU, cr=read({})).availability == "never"


def test_one_resource_in_both_lists_gives_one_device_twice() -> None:
    found = told(GPU, host_devices=(GPU,)).resources[0]
    assert found.availability == "never"
    names(found.messages[0], "gpus", "hostDevices")


def test_what_virt_handler_offers_is_not_for_this_agent_to_say() -> None:
    found = ask("intel.com/qat", cr=read(GUIDE))
    assert found.availability == "others"
    each_names(found.messages, ("virt-handler", "permittedHostDevices.pciHostDevices[1]"))
    wish = merge.merge(Configuration(kubevirt=KubeVirt("true")), read(GUIDE))
    assert ask("intel.com/qat", cr=None, wish=wish).availability == "others"


def test_a_name_that_is_nearly_right_is_corrected() -> None:
    found = ask("nvidia.com/GPU", cr=None)
    each_names(found.messages, ("nvidia.com/GPU", GPU))


def test_a_selector_that_means_nothing_here_is_named() -> None:
    cr = read({"pciHostDevices": [external(T4, pciVendorSelector="10DE:1EB9")]})
    each_names(ask(NAME, cr=cr).messages[1:], ("10de:1eb9", "KubeVirt CR"))


@pytest.mark.parametrize(
    ("wish", "facts", "why"),
    [
        (WISH, {}, (GPU, "Healthy")),
        (Spec(), {"driver": "nvidia"}, ("nvidia", "VFIO driver")),
    ],
)
def test_a_device_that_the_cr_means_and_the_node_does_not_offer_so_says_what_it_is(
    wish: Spec, facts: Any, why: tuple[str, ...]
) -> None:
    cr = read({"pciHostDevices": [external(T4)]})
    found = ask(NAME, cr=cr, wish=wish, here=(function(A, **facts),))
    assert found.availability == "never"
    each_names(found.messages[1:], (A, "KubeVirt CR", *why), ("rule", "kubevirt.enabled"))


def test_a_cr_that_means_something_else_than_the_rule_of_the_node_is_told() -> None:
    cr = read({"pciHostDevices": [external(T4, resourceName=GPU, pciVendorSelector="10de:1eb9")]})
    found = ask(GPU, cr=cr)
    assert found.availability == "now"
    each_names(found.messages, ("KubeVirt CR", "10de:1eb9", A, 2))


def test_a_name_that_the_cr_gives_to_virt_handler_and_the_node_offers_is_told() -> None:
    found = ask(GPU, cr=read({"pciHostDevices": [{**T4, "resourceName": GPU}]}))
    names(found.messages[0], "KubeVirt CR", "virt-handler")


def test_a_vgpu_on_a_vf_is_meant_by_its_ids_and_by_the_name_of_its_type() -> None:
    entries = (
        {"pciHostDevices": [external(T4, resourceName=GPU)]},
        {"mediatedDevices": [external(VGPU, mdevNameSelector="NVIDIA A40-1Q", resourceName=GPU)]},
        {"mediatedDevices": [external(VGPU, mdevNameSelector="nvidia-1147", resourceName=GPU)]},
    )
    for permitted in entries:
        found = ask(GPU, here=(vgpu(),), cr=read(permitted), names={"vgpu:1147": "NVIDIA A40-1Q"})
        assert (found.availability, found.messages) == ("now", ())
    wrong = external(VGPU, mdevNameSelector="NVIDIA A40-2Q", resourceName=GPU)
    assert len(ask(GPU, here=(vgpu(),), cr=read({"mediatedDevices": [wrong]})).messages) == 1


def test_shares_of_a_device_node_start_no_machine() -> None:
    wish = Spec(Discovery(enabled=False), rules=(NodeRule(GPU, "/dev/vfio/vfio", 4),))
    found = ask(GPU, wish=wish)
    assert found.availability == "never"
    names(found.messages[0], "virt-launcher", "containers")


def test_usb_devices_are_for_host_devices_alone() -> None:
    stick = UsbDevice("46f4:0001-A", "1-1", "a:1", 1, 4, "46f4", "0001", "A", present=True)
    wish = Spec(Discovery(enabled=False), rules=(UsbRule(GPU, (UsbSelector(vendors=("46f4",)),)),))
    assert ask(here=(stick,), wish=wish, cr=None, host_devices=(GPU,)).availability == "now"
    found = ask(GPU, here=(stick,), wish=wish, cr=None)
    assert found.availability == "never"
    names(found.messages[0], "USB", "hostDevices")


def test_what_is_not_known_is_said() -> None:
    found = told(GPU, cr=None, knowledge=Knowledge.UNKNOWN)
    assert found.availability == "now"
    each_names(found.notes, ("KubeVirt CR",), ("kubelet",))


def test_entries_that_kubevirt_would_refuse_and_devices_of_claims_are_notes() -> None:
    gpus = [{"name": "bad"}, {"name": "claimed", "claimName": "c", "requestName": "r"}]
    machine = vmi.parse(
        {
            "kind": "VirtualMachine",
            "spec": {
                "instancetype": {"name": "gn1"},
                "template": {"spec": {"domain": {"devices": {"gpus": gpus}}}},
            },
        }
    )
    assert machine is not None
    cr = read({"pciHostDevices": [{"pciVendorSelector": "1", "resourceName": "a.b/c"}]})
    found = machines.explain_vm(machine, UsedCR(cr), turn.decide_first(snapshot(host())))
    assert found.availability == "never"
    each_names(
        found.notes,
        ("spec.template.spec.domain.devices.gpus[0]", "deviceName"),
        ("claimed", "ResourceClaim"),
        ("instancetype", "gn1", "VirtualMachineInstance"),
        ("KubeVirt CR", "permittedHostDevices.pciHostDevices[0]"),
    )


def test_a_machine_that_asks_for_nothing_needs_nothing_of_the_cr() -> None:
    found = told(cr=None)
    assert (found.resources, found.notes, found.availability) == ((), (), "now")
