# SPDX-License-Identifier: Apache-2.0
"""The story of one device: its verdict, the rules asked, the first key that said no."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.model.desired import (
    Desired,
    Discovery,
    MdevRule,
    MdevSelector,
    NodeRule,
    PciRule,
    PciSelector,
)
from nodeagent.model.host import PciFunction
from nodeagent.model.ids import PciAddress
from nodeagent.model.resource import Iommufd, Isolation
from nodeagent.policy.offer import explain, turn
from nodeagent.policy.offer.explain import Explanation
from tests.policy.samples import GPU, NODES, RULE, UUID, WISH, function, holders, host, mdev, snapshot, vgpu

A, B = PciAddress("0000:65:00.0"), PciAddress("0000:65:00.1")


def told(*functions: PciFunction, wish: Desired = WISH, address: PciAddress = A) -> Explanation:
    found = explain.explain(address, turn.first(snapshot(host(*functions), wish)))
    assert found is not None
    return found


def test_a_healthy_device_says_what_a_pod_would_get() -> None:
    found = told(function())
    assert found.verdict == f"offered as {GPU}, Healthy"
    assert found.rules == ((f"rule {GPU}", "takes it"),)
    assert found.env == f"PCI_RESOURCE_NVIDIA_COM_GPU={A}"
    assert found.nodes == ("/dev/vfio/vfio", "/dev/vfio/1")
    assert (found.viable, found.holder, found.reason) == (True, None, None)


def test_a_device_that_stands_for_several_functions_comes_with_the_nodes_of_all() -> None:
    bundle = Desired(rules=(replace(RULE, isolation=Isolation.BUNDLE, iommufd=Iommufd.ONLY),))
    host_devices = [function(each, cdev=True, vfio_device=f"vfio{n}") for n, each in enumerate((A, B))]
    here = host(*host_devices, nodes=NODES | {"/dev/iommu"})
    found = explain.explain(B, turn.first(snapshot(here, bundle)))
    assert found is not None
    assert found.nodes == (
        "/dev/vfio/vfio",
        "/dev/vfio/devices/vfio0",
        "/dev/iommu",
        "/dev/vfio/devices/vfio1",
    )


def test_an_unhealthy_device_says_why_in_its_verdict() -> None:
    found = told(function(), function(B, driver="e1000e", vendor="8086"))
    assert found.verdict.startswith(f"offered as {GPU}, Unhealthy: IOMMU group 1 is not viable")
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
    found = told(function(driver="nvidia"), wish=Desired(rules=rules))
    assert found.verdict == (
        "not offered: no rule takes it, and discovery does not: its driver is nvidia, not a VFIO driver"
    )
    assert found.to_do == (
        f"if this host can do without {A} (a display controller), bind it to vfio-pci; "
        "otherwise leave it as it is"
    )
    assert found.rules == (
        (
            "rule a.b/one (f.yaml:3)",
            "vendors: it has 10de, the rule wants 8086; or devices: it has 1eb8, the rule wants ffff",
        ),
        ("rule a.b/two", "has no selectors, so it takes nothing"),
        ("discovery", "its driver is nvidia, not a VFIO driver"),
    )
    assert (found.env, found.nodes) == (None, ())


def test_asking_ends_with_the_rule_that_takes_it() -> None:
    wish = Desired(rules=(PciRule("a.b/one", (PciSelector(vendors=("8086",)),)), RULE, PciRule("a.b/last")))
    assert [rule for rule, _ in told(function(), wish=wish).rules] == ["rule a.b/one", f"rule {GPU}"]


def test_discovery_is_asked_last() -> None:
    found = told(function(), wish=Desired(Discovery()))
    assert found.rules == (("discovery", "takes it"),)
    assert found.verdict.startswith("offered as ")


def test_a_bridge_is_never_given_away() -> None:
    found = told(function(pci_class="060400", driver="pcieport"))
    assert found.rules == (("all rules", "it is a PCI bridge; bridges are never given away"),)
    assert found.verdict == "not offered: it is a PCI bridge; bridges are never given away"
    assert not found.to_do


def test_a_bridge_of_the_class_of_an_nvswitch_is_for_a_rule_to_name() -> None:
    found = told(function(pci_class="068000", vendor="8086", driver=None), wish=Desired())
    assert "it is a bridge (class 0680), which it leaves alone" in found.verdict
    assert found.to_do.startswith("name it in a rule")


def test_nobody_is_told_to_bind_what_the_kernel_gives_to_no_vm() -> None:
    free = host(function(driver=None))
    kept = replace(free, groups={n: group._replace(direct=True) for n, group in free.groups.items()})
    for here, bind in ((free, True), (kept, False)):
        found = explain.explain(A, turn.first(snapshot(here, Desired())))
        assert found is not None
        assert ("vfio-pci" in found.to_do) is bind
        assert ("firmware's setup" in found.to_do) is not bind


def test_a_vf_of_a_pf_on_vfio_is_not_to_be_bound_but_its_pf_is_to_be_looked_at() -> None:
    found = told(function(driver=None, physfn=B, pf_driver="vfio-pci"), wish=Desired())
    assert found.to_do.startswith(f"give the PF {B} to virtual machines as a whole; or, when nobody uses it")


@pytest.mark.parametrize("pf_driver", ["vfio-pci", "nvme"])
def test_a_vf_that_was_left_behind_comes_with_the_warning_whoever_takes_it(pf_driver: str) -> None:
    found = told(function(driver=None, physfn=B, pf_driver=pf_driver, left_behind=True), wish=Desired())
    assert found.to_do == told(function(physfn=B, left_behind=True)).to_do
    assert found.to_do.startswith("reboot the node when it is drained, and write no number of VFs")


def test_a_function_on_its_way_out_is_not_to_be_bound_again() -> None:
    leaving = host(function(driver=None, enable=1, pci_class="010802"))
    number, group = next(iter(leaving.groups.items()))
    leaving = replace(leaving, groups={number: group._replace(node=True)})
    found = explain.explain(A, turn.first(snapshot(leaving, Desired())))
    assert found is not None
    assert found.to_do == "stop the virtual machine that has it; the removal then completes"


def test_a_disk_of_the_host_is_not_offered_for_what_it_is_and_advice_on_it_has_a_condition() -> None:
    found = told(function(pci_class="010802", driver="nvme"), wish=Desired())
    assert found.verdict == (
        "not offered: no rule takes it, and discovery does not: "
        "it is an NVMe controller (class 0108), which it leaves alone"
    )
    assert found.to_do.startswith(
        f'name it in a rule: pci: [{{addresses: ["{A}"]}}]; and if this host can do'
    )


def test_the_audio_function_of_a_card_goes_with_it_and_needs_no_rule() -> None:
    audio = function(B, device="10f8", pci_class="040300")
    found = told(function(), audio, wish=Desired(), address=B)
    assert found.verdict == f"not offered: it is an audio device that goes with its card {A}"
    assert found.to_do == ""


def test_the_audio_function_that_blocks_its_card_is_to_be_bound_as_well() -> None:
    audio = function(B, device="10f8", pci_class="040300", driver="snd_hda_intel")
    found = told(function(), audio, wish=Desired(), address=B)
    assert found.to_do == f"bind {B} to vfio-pci as well as {A}"


def test_the_audio_function_of_a_card_that_the_host_uses_sends_to_its_card() -> None:
    audio = function(B, device="10f8", pci_class="040300", driver="snd_hda_intel")
    found = told(function(driver="i915"), audio, wish=Desired(), address=B)
    assert found.to_do == f"ask for its card: nodeagent explain {A}"


@pytest.mark.parametrize("other", [function("0000:66:00.0"), function(A, 2), function(A, pci_class="0c0330")])
def test_an_audio_function_that_goes_with_no_card_is_named_in_a_rule(other: PciFunction) -> None:
    found = told(function(B, pci_class="040300"), other, wish=Desired(), address=B)
    assert found.to_do.startswith("name it in a rule")


def test_a_card_with_vgpus_on_it_is_not_advised_away_from_them() -> None:
    here = host(function(driver="nvidia"), mdev(), mdev("53764d0e-85a0-42b4-af5c-2046b460b1dd", group=51))
    found = explain.explain(A, turn.first(snapshot(here, Desired())))
    assert found is not None
    assert found.verdict == "not offered: it carries 2 mdevs, each of which is a device of its own"
    assert found.to_do == (
        f"remove its 2 mdevs first, once nobody uses them: binding {A} to vfio-pci takes them away"
    )


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
    assert explain.role(found, (found,)) == role


def test_the_pf_of_vgpus_in_its_group_is_no_hindrance() -> None:
    maker = function(driver="nvidia", sriov_capable=True)
    assert explain.role(maker, (maker, vgpu(group=1))) == "friendly"
    assert explain.role(maker, (maker, function(B))) == "blocks"


def test_the_holder_is_named() -> None:
    found = explain.explain(A, turn.first(snapshot(host(function(enable=1)), holders=holders(A))))
    assert found is not None
    assert found.holder == "ns/vm"
    assert found.verdict == f"offered as {GPU}, Healthy, held by ns/vm"


def test_a_device_that_is_not_there_has_no_story() -> None:
    assert explain.explain(B, turn.first(snapshot(host(function())))) is None


def test_only_rules_for_mdevs_are_asked_of_an_mdev() -> None:
    other = MdevRule("a.b/two", (MdevSelector(types=("nvidia-223",)), MdevSelector(names=("GRID T4-2Q",))))
    wish = Desired(Discovery(enabled=False), rules=(RULE, other, MdevRule("a.b/none")))
    found = explain.explain(UUID, turn.first(snapshot(host(mdev()), wish)))
    assert found is not None
    assert found.verdict == "not offered: no rule takes it, and discovery is switched off"
    assert found.to_do == "name its type in a rule"
    assert found.rules == (
        (
            "rule a.b/two",
            "; or ".join(
                (
                    "types: it has nvidia-222, the rule wants nvidia-223",
                    "names: it has GRID T4-1Q, the rule wants GRID T4-2Q",
                )
            ),
        ),
        ("rule a.b/none", "has no selectors, so it takes nothing"),
        ("discovery", "discovery is switched off"),
    )


def test_a_vf_without_a_vgpu_type_says_so() -> None:
    found = told(vgpu(A, vgpu_type=None), wish=Desired())
    assert found.rules == (("discovery", "it is a VF without a vGPU type"),)


def test_what_is_kept_for_having_been_offered_says_so_at_the_end() -> None:
    before = turn.first(snapshot(host(function())))
    now = turn.following(before, snapshot(host(function(vendor="8086"))))
    found = explain.explain(A, now)
    assert found is not None
    assert found.verdict == f"offered as {GPU}, Healthy"
    assert [rule for rule, _ in found.rules] == [f"rule {GPU}", "discovery", "memory"]
    assert found.rules[-1][1] == "keeps it: what was offered stays listed while it exists"
