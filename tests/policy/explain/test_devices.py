# SPDX-License-Identifier: Apache-2.0
"""The story of one device: its verdict, the rules asked, the first key that said no."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.model.host import PciFunction
from nodeagent.model.ids import PciAddress
from nodeagent.model.resource import Iommufd, Isolation, ReasonCode
from nodeagent.model.spec import (
    Discovery,
    MdevRule,
    MdevSelector,
    NodeRule,
    PciRule,
    PciSelector,
    Spec,
)
from nodeagent.policy import classes
from nodeagent.policy.explain import devices
from nodeagent.policy.explain.devices import DeviceExplanation
from nodeagent.policy.offer import health, turn
from tests.facts import each_names, names
from tests.policy.samples import GPU, NODES, RULE, UUID, WISH, function, holders, host, mdev, snapshot, vgpu

A, B = PciAddress("0000:65:00.0"), PciAddress("0000:65:00.1")


def told(*functions: PciFunction, wish: Spec = WISH, address: PciAddress = A) -> DeviceExplanation:
    found = devices.explain(address, turn.decide_first(snapshot(host(*functions), wish)))
    assert found is not None
    return found


def asked(found: DeviceExplanation) -> list[str]:
    """Each rule with what it says."""
    return [f"{rule}: {why}" for rule, why in found.rules]


def test_a_healthy_device_says_what_a_pod_would_get() -> None:
    found = told(function())
    names(found.verdict, GPU, "Healthy")
    each_names([rule for rule, _ in found.rules], (GPU,))
    assert found.env == f"PCI_RESOURCE_NVIDIA_COM_GPU={A}"
    assert found.nodes == ("/dev/vfio/vfio", "/dev/vfio/1")
    assert (found.viable, found.holder, found.reason) == (True, None, None)


def test_a_device_that_stands_for_several_functions_comes_with_the_nodes_of_all() -> None:
    bundle = Spec(rules=(replace(RULE, isolation=Isolation.BUNDLE, iommufd=Iommufd.ONLY),))
    host_devices = [function(each, cdev=True, vfio_device=f"vfio{n}") for n, each in enumerate((A, B))]
    here = host(*host_devices, nodes=NODES | {"/dev/iommu"})
    found = devices.explain(B, turn.decide_first(snapshot(here, bundle)))
    assert found is not None
    assert found.nodes == (
        "/dev/vfio/vfio",
        "/dev/vfio/devices/vfio0",
        "/dev/iommu",
        "/dev/vfio/devices/vfio1",
    )


def test_an_unhealthy_device_says_why_in_its_verdict() -> None:
    found = told(function(), function(B, driver="e1000e", vendor="8086"))
    assert found.reason is not None
    assert found.reason.code is ReasonCode.GROUP_NOT_VIABLE
    names(found.verdict, GPU, "Unhealthy", found.reason.message)
    assert not found.viable
    assert [member.role for member in found.members] == ["vfio", "blocks"]


def test_a_device_that_no_rule_takes_names_the_first_key_of_each_that_refuses() -> None:
    rules = (
        PciRule(
            "a.b/one", (PciSelector(vendors=("8086",)), PciSelector(devices=("ffff",))), place="f.yaml:3"
        ),
        PciRule("a.b/two"),
        NodeRule("a.b/kvm", "/dev/kvm"),
    )
    card = function(driver="nvidia")
    found = told(card, wish=Spec(rules=rules))
    names(found.verdict, "nvidia", "VFIO driver")
    assert found.hint == classes.advise_bind(card)
    each_names(
        asked(found),
        ("a.b/one", "f.yaml:3", "vendors", "10de", "8086", "devices", "1eb8", "ffff"),
        ("a.b/two", "selectors"),
        ("discovery", "nvidia", "VFIO driver"),
    )
    assert (found.env, found.nodes) == (None, ())


def test_asking_ends_with_the_rule_that_takes_it() -> None:
    wish = Spec(rules=(PciRule("a.b/one", (PciSelector(vendors=("8086",)),)), RULE, PciRule("a.b/last")))
    each_names([rule for rule, _ in told(function(), wish=wish).rules], ("a.b/one",), (GPU,))


def test_discovery_is_asked_last() -> None:
    found = told(function(), wish=Spec(Discovery()))
    assert [rule for rule, _ in found.rules] == ["discovery"]
    names(found.verdict, "Healthy")


def test_a_bridge_is_never_given_away() -> None:
    found = told(function(pci_class="060400", driver="pcieport"))
    each_names([found.verdict, *(why for _, why in found.rules)], ("PCI bridge",), ("PCI bridge",))
    assert found.resource is None
    assert not found.hint


def test_a_bridge_of_the_class_of_an_nvswitch_is_for_a_rule_to_name() -> None:
    found = told(function(pci_class="068000", vendor="8086", driver=None), wish=Spec())
    names(found.verdict, "bridge", "0680")
    names(found.hint, "rule", f'pci: [{{addresses: ["{A}"]}}]')


def test_nobody_is_told_to_bind_what_the_kernel_gives_to_no_vm() -> None:
    free = host(function(driver=None))
    kept = replace(free, groups={n: group._replace(direct=True) for n, group in free.groups.items()})
    for here, bind in ((free, True), (kept, False)):
        found = devices.explain(A, turn.decide_first(snapshot(here, Spec())))
        assert found is not None
        assert ("vfio-pci" in found.hint) is bind
        assert ("firmware's setup" in found.hint) is not bind


def test_a_vf_of_a_pf_on_vfio_is_not_to_be_bound_but_its_pf_is_to_be_looked_at() -> None:
    found = told(function(driver=None, physfn=B, pf_driver="vfio-pci"), wish=Spec())
    names(found.hint, "PF", B)
    assert A not in found.hint


@pytest.mark.parametrize("pf_driver", ["vfio-pci", "nvme"])
def test_a_vf_that_was_left_behind_comes_with_the_warning_whoever_takes_it(pf_driver: str) -> None:
    found = told(function(driver=None, physfn=B, pf_driver=pf_driver, left_behind=True), wish=Spec())
    assert found.hint == told(function(physfn=B, left_behind=True)).hint
    names(found.hint, "reboot", B)


def test_a_function_on_its_way_out_is_not_to_be_bound_again() -> None:
    leaving = host(function(driver=None, enable=1, pci_class="010802"))
    number, group = next(iter(leaving.groups.items()))
    leaving = replace(leaving, groups={number: group._replace(node=True)})
    found = devices.explain(A, turn.decide_first(snapshot(leaving, Spec())))
    assert found is not None
    assert found.hint == health.WAITS_HINT


def test_a_disk_of_the_host_is_not_offered_for_what_it_is_and_advice_on_it_has_a_condition() -> None:
    disk = function(pci_class="010802", driver="nvme")
    found = told(disk, wish=Spec())
    names(found.verdict, "NVMe controller", "010802")
    names(found.hint, "rule", f'pci: [{{addresses: ["{A}"]}}]', classes.advise_bind(disk))


def test_the_audio_function_of_a_card_goes_with_it_and_needs_no_rule() -> None:
    audio = function(B, device="10f8", pci_class="040300")
    found = told(function(), audio, wish=Spec(), address=B)
    names(found.verdict, "audio device", A)
    assert found.hint == ""


def test_the_audio_function_that_blocks_its_card_is_to_be_bound_as_well() -> None:
    audio = function(B, device="10f8", pci_class="040300", driver="snd_hda_intel")
    found = told(function(), audio, wish=Spec(), address=B)
    names(found.hint, B, "vfio-pci", A)


def test_the_audio_function_of_a_card_that_the_host_uses_sends_to_its_card() -> None:
    audio = function(B, device="10f8", pci_class="040300", driver="snd_hda_intel")
    found = told(function(driver="i915"), audio, wish=Spec(), address=B)
    names(found.hint, f"nodeagent explain {A}")


@pytest.mark.parametrize("other", [function("0000:66:00.0"), function(A, 2), function(A, pci_class="0c0330")])
def test_an_audio_function_that_goes_with_no_card_is_named_in_a_rule(other: PciFunction) -> None:
    found = told(function(B, pci_class="040300"), other, wish=Spec(), address=B)
    names(found.hint, "rule", f'pci: [{{addresses: ["{B}"]}}]')


def test_a_card_with_vgpus_on_it_is_not_advised_away_from_them() -> None:
    here = host(function(driver="nvidia"), mdev(), mdev("53764d0e-85a0-42b4-af5c-2046b460b1dd", group=51))
    found = devices.explain(A, turn.decide_first(snapshot(here, Spec())))
    assert found is not None
    names(found.verdict, "2 mdevs")
    names(found.hint, "2 mdevs", A, "vfio-pci")


@pytest.mark.parametrize(
    ("found", "role"),
    [
        (function(), "vfio"),
        (function(driver=None), "unbound"),
        (function(driver="e1000e"), "blocks"),
        (function(driver="pci-stub"), "friendly"),
        (function(driver="pcieport", pci_class="060400"), "bridge"),
    ],
)
def test_each_member_of_a_group_has_a_role(found: PciFunction, role: str) -> None:
    assert devices.role(found, (found,)) == role


def test_the_pf_of_vgpus_in_its_group_is_no_hindrance() -> None:
    maker = function(driver="nvidia", sriov_capable=True)
    assert devices.role(maker, (maker, vgpu(group=1))) == "friendly"
    assert devices.role(maker, (maker, function(B))) == "blocks"


def test_the_holder_is_named() -> None:
    found = devices.explain(A, turn.decide_first(snapshot(host(function(enable=1)), holders=holders(A))))
    assert found is not None
    assert found.holder == "ns/vm"
    names(found.verdict, GPU, "Healthy", "ns/vm")


def test_the_holder_of_a_device_that_is_not_offered_is_named_too() -> None:
    other = function(vendor="8086")
    found = devices.explain(A, turn.decide_first(snapshot(host(other), holders=holders(A))))
    assert found is not None
    assert (found.resource, found.holder) == (None, "ns/vm")


def test_a_device_has_the_same_reason_before_and_after_a_rule_names_it() -> None:
    for card in (
        function(driver="nouveau"),
        function(driver=None),
        function(driver=None, physfn=B, left_behind=True),
    ):
        before, after = told(card, wish=Spec()), told(card)
        assert after.reason is not None
        assert before.verdict == f"not offered: {after.reason.message}"
        assert before.hint == after.hint == after.reason.hint


def test_a_device_that_is_not_there_has_no_story() -> None:
    assert devices.explain(B, turn.decide_first(snapshot(host(function())))) is None


def test_only_rules_for_mdevs_are_asked_of_an_mdev() -> None:
    other = MdevRule("a.b/two", (MdevSelector(types=("nvidia-223",)), MdevSelector(names=("GRID T4-2Q",))))
    wish = Spec(Discovery(enabled=False), rules=(RULE, other, MdevRule("a.b/none")))
    found = devices.explain(UUID, turn.decide_first(snapshot(host(mdev()), wish)))
    assert found is not None
    names(found.verdict, "discovery", "off")
    names(found.hint, "type", "rule")
    each_names(
        asked(found),
        ("a.b/two", "types", "nvidia-222", "nvidia-223", "names", "GRID T4-1Q", "GRID T4-2Q"),
        ("a.b/none", "selectors"),
        ("discovery", "off"),
    )


def test_a_vf_without_a_vgpu_type_says_so() -> None:
    found = told(vgpu(A, vgpu_type=None), wish=Spec())
    each_names(asked(found), ("discovery", "VF", "vGPU type"))


def test_what_is_kept_for_having_been_offered_says_so_at_the_end() -> None:
    before = turn.decide_first(snapshot(host(function())))
    now = turn.decide_next(before, snapshot(host(function(vendor="8086"))))
    found = devices.explain(A, now)
    assert found is not None
    names(found.verdict, GPU, "Healthy")
    each_names([rule for rule, _ in found.rules], (GPU,), ("discovery",), ("memory",))
