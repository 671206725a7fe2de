# SPDX-License-Identifier: Apache-2.0
"""Which rule takes a function: the order of rules, then discovery, and what is never taken."""

from __future__ import annotations

import pytest

from nodeagent.model.host import Group, PciFunction
from nodeagent.model.ids import GroupNumber, ResourceName
from nodeagent.model.resource import Iommufd, Isolation
from nodeagent.model.spec import Discovery, MdevRule, MdevSelector, PciRule, PciSelector, Spec
from nodeagent.policy.offer import matches
from tests.facts import names
from tests.policy.samples import GPU, RULE, WISH, function, mdev, vgpu

NAMES = {"10de": "NVIDIA Corporation", "10de:1eb8": "TU104GL [Tesla T4]"}
T4 = "nvidia.com/TU104GL_TESLA_T4"
GROUP = Group(GroupNumber(1), ("0000:65:00.0",), node=True)


def resource(found: PciFunction, spec: Spec = WISH) -> str | None:
    match = matches.find_match(found, GROUP, spec, NAMES)
    return None if match is None else match.resource


def test_the_first_rule_that_picks_a_function_has_it() -> None:
    second = PciRule("example.com/second", (PciSelector(),))
    assert resource(function(), Spec(rules=(RULE, second))) == GPU
    assert resource(function(), Spec(rules=(second, RULE))) == "example.com/second"
    assert resource(function(vendor="8086"), Spec(rules=(RULE, second))) == "example.com/second"


def test_a_rule_takes_a_function_whatever_its_driver_is() -> None:
    assert resource(function(driver="nvidia")) == GPU
    assert resource(function(driver=None)) == GPU


def test_discovery_takes_what_no_rule_wants() -> None:
    other = PciRule("example.com/nic", (PciSelector(vendors=("8086",)),))
    assert resource(function(), Spec(rules=(other,))) == T4


@pytest.mark.parametrize("pci_class", ["030000", "030200", "038000", "068000", "120000"])
def test_discovery_takes_display_3d_nvswitch_and_accelerators(pci_class: str) -> None:
    assert resource(function(pci_class=pci_class), Spec()) == T4


@pytest.mark.parametrize("vendor", ["8086", "1022", None])
def test_a_bridge_of_the_class_of_an_nvswitch_is_discovered_for_nvidia_alone(vendor: str | None) -> None:
    """Class 0680 is any other bridge: chipsets have some that a node lives on."""
    other = function(vendor=vendor, pci_class="068000")
    for classes in (("0680",), ("06",), ("068000",)):
        spec = Spec(Discovery(classes=classes))
        assert resource(other, spec) is None
        names(matches.explain_undiscovered(other, GROUP, spec), "bridge", "0680")
        assert resource(function(pci_class="068000"), spec) == T4
    named = PciRule("example.com/bridge", (PciSelector(classes=("0680",)),))
    assert resource(other, Spec(rules=(named,))) == "example.com/bridge"


@pytest.mark.parametrize("pci_class", ["040300", "0c0330", "0c8000", "020000", "010802", "060000", None])
def test_audio_usb_and_other_classes_ride_along_unoffered(pci_class: str | None) -> None:
    assert resource(function(pci_class=pci_class), Spec()) is None


@pytest.mark.parametrize(
    ("found", "spec", "why"),
    [
        (function(), Spec(Discovery(enabled=False)), ("discovery",)),
        (function(pci_class="040300"), Spec(), ("class", "040300")),
        (function(driver="nvidia"), Spec(), ("driver", "nvidia")),
        (function(driver=None), Spec(), ("VFIO driver",)),
        (function(device=None), Spec(), ("vendor", "device id")),
    ],
)
def test_discovery_says_why_it_leaves_a_function_alone(
    found: PciFunction, spec: Spec, why: tuple[str, ...]
) -> None:
    names(matches.explain_undiscovered(found, GROUP, spec), *why)
    assert resource(found, spec) is None


def test_discovery_takes_a_function_that_is_going_away_while_it_is_open() -> None:
    assert resource(function(driver=None, enable=1), Spec()) == T4
    assert matches.find_match(function(driver=None, enable=1), None, Spec(), NAMES) is None


def test_bridges_are_never_taken_not_even_by_a_rule_for_all() -> None:
    everything = Spec(Discovery(classes=("06",)), rules=(PciRule("a.b/all", (PciSelector(),)),))
    assert resource(function(pci_class="060400"), everything) is None


def test_an_alias_renames_a_discovered_name_but_no_rule() -> None:
    aliases = ((T4, "nvidia.com/t4"), (GPU, "example.com/other"))
    assert resource(function(), Spec(aliases=aliases)) == "nvidia.com/t4"
    assert resource(function(), WISH._replace(aliases=aliases)) == GPU


@pytest.mark.parametrize(
    ("discovery", "name"),
    [
        (Discovery(naming="id"), "nvidia.com/10de_1eb8"),
        (Discovery(naming="id", prefix="pci.example.com"), "pci.example.com/10de_1eb8"),
        (Discovery(prefix="gpu.example.com"), "gpu.example.com/TU104GL_TESLA_T4"),
    ],
)
def test_the_style_of_discovered_names_is_a_wish(discovery: Discovery, name: str) -> None:
    assert resource(function(), Spec(discovery)) == name


def test_the_options_of_a_rule_hold_for_discovered_devices_of_that_name() -> None:
    options = PciRule(T4, isolation=Isolation.BUNDLE, iommufd=Iommufd.AUTO, cdi=True)
    match = matches.find_match(function(), GROUP, Spec(rules=(options,)), NAMES)
    assert match == matches.Match(ResourceName(T4), options)
    plain = matches.find_match(function(), GROUP, Spec(), NAMES)
    assert plain == matches.Match(ResourceName(T4), PciRule(T4))


def test_the_options_of_a_rule_hold_for_no_other_name() -> None:
    other = PciRule("example.com/nic", (PciSelector(vendors=("8086",)),), cdi=True)
    match = matches.find_match(function(), GROUP, Spec(rules=(other,)), NAMES)
    assert match == matches.Match(ResourceName(T4), PciRule(T4))


def from_cr(name: str, *devices: str) -> PciRule:
    selectors = tuple(PciSelector(("10de",), (each,)) for each in devices)
    return PciRule(name, selectors, permitted=True, place="KubeVirt CR: pciHostDevices[0]")


@pytest.mark.parametrize(
    ("found", "takes"),
    [
        (function(), True),
        (function(driver=None, enable=1), True),
        (function(driver="nvidia"), False),
        (function(driver=None), False),
        (vgpu(), True),
        (vgpu(vgpu_type=None), False),
        (function(pci_class="040300"), True),
    ],
    ids=["vfio", "going away", "host driver", "no driver", "vGPU", "VF without a type", "audio"],
)
def test_a_rule_of_the_cr_takes_only_what_is_ready_for_a_virtual_machine(
    found: PciFunction, takes: bool
) -> None:
    """The CR is for all nodes: on this one the same card may be meant for the host."""
    rule = from_cr("a.b/x", "1eb8")
    wish = Spec(Discovery(enabled=False), rules=(rule,), kubevirt_rules={"10de:1eb8": rule})
    assert resource(found, wish) == ("a.b/x" if takes else None)
    (_, refusal), *_ = matches.find_verdicts(found, GROUP, wish, NAMES)
    assert (refusal is None) is takes


def test_what_the_cr_gives_to_virt_handler_is_left_by_discovery_and_by_rules_of_the_cr() -> None:
    foreign = {"10de:1eb8": from_cr("a.b/theirs", "1eb8")}
    ours = from_cr("a.b/ours", "1eb8")
    for wish in (
        Spec(virt_handler_rules=foreign),
        Spec(rules=(ours,), kubevirt_rules={"10de:1eb8": ours}, virt_handler_rules=foreign),
    ):
        assert resource(function(), wish) is None
        for _, told in matches.find_verdicts(function(), GROUP, wish, NAMES):
            names(told, "virt-handler", "a.b/theirs", "KubeVirt CR: pciHostDevices[0]")
    assert resource(function(), WISH._replace(virt_handler_rules=foreign)) == GPU
    assert resource(function(device="1eb9"), Spec(virt_handler_rules=foreign)) == "nvidia.com/1eb9"


def test_an_mdev_is_virt_handlers_by_the_name_of_its_type_however_both_are_written() -> None:
    theirs = MdevRule("a.b/theirs", (MdevSelector(names=("GRID_T4-1Q",)),), permitted=True)
    ours = MdevRule("a.b/ours", (MdevSelector(names=("nvidia-222",)),), permitted=True)
    found = mdev()
    wish = Spec(rules=(ours,), kubevirt_rules={"nvidia-222": ours})
    taken = matches.find_match(found, None, wish, {})
    assert taken is not None
    assert taken.resource == "a.b/ours"
    assert (
        matches.find_match(found, None, wish._replace(virt_handler_rules={"GRID_T4-1Q": theirs}), {}) is None
    )


def test_of_thousands_of_rules_of_the_cr_only_those_that_name_the_device_are_asked() -> None:
    rules = {f"10de:{n:04x}": from_cr(f"a.b/x{n}", f"{n:04x}") for n in range(0x1EB0, 0x1EC0)}
    wish = Spec(rules=tuple(rules.values()), kubevirt_rules=rules)
    asked = [rule for rule, _ in matches.find_verdicts(function(), GROUP, wish, NAMES)]
    assert asked == [rules["10de:1eb8"], None]
