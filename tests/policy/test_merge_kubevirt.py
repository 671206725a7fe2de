# SPDX-License-Identifier: Apache-2.0
"""What the KubeVirt CR permits, merged with the configuration: one name, one owner, one meaning."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from nodeagent.model import plain
from nodeagent.model.configuration import Alias, Configuration, KubeVirt, Node
from nodeagent.model.kubevirt import KubeVirtCR
from nodeagent.model.resource import Via
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import (
    MdevRule,
    MdevSelector,
    NodeRule,
    PciRule,
    PciSelector,
    Rule,
    Spec,
    UsbRule,
    UsbSelector,
)
from nodeagent.policy import merge
from tests import facts
from tests.cluster.crs import GUIDE, T4, VGPU, external, read

NAME, VGPU_NAME = "nvidia.com/TU104GL_Tesla_T4", "nvidia.com/GRID_T4-1Q"
ON = KubeVirt(enabled="auto")


def merged(cr: KubeVirtCR | None, serve: str = "external", **other: Any) -> Spec:
    return merge.merge(Configuration(kubevirt=ON._replace(serve=serve), **other), cr)


def told(cr: KubeVirtCR, serve: str = "external", **other: Any) -> list[tuple[str, str]]:
    """Place and text of each objection to what is permitted; nobody makes mdevs here."""
    found = merge.objections(Configuration(kubevirt=ON._replace(serve=serve), **other), cr)
    assert all(each.hint for each in found)
    return [(each.subject.removeprefix("permittedHostDevices."), each.message) for each in found]


def names(rules: Iterable[Rule]) -> list[str]:
    return [rule.name for rule in rules]


def pci(selector: str, name: str, ours: bool = True) -> dict[str, Any]:
    return {"pciVendorSelector": selector, "resourceName": name, "externalResourceProvider": ours}


def mdev(selector: str, name: str, ours: bool = True) -> dict[str, Any]:
    return {"mdevNameSelector": selector, "resourceName": name, "externalResourceProvider": ours}


def test_external_entries_become_rules_and_the_others_are_left_to_virt_handler() -> None:
    found = merged(read(GUIDE))
    assert found.rules == (PciRule(NAME, (PciSelector(("10de",), ("1eb8",)),), permitted=True),)
    assert [rule.place for rule in found.rules] == ["KubeVirt CR: pciHostDevices[0]"]
    assert found.kubevirt_rules == {"10de:1eb8": found.rules[0]}
    assert found.virt_handler_rules == {
        "8086:6f54": PciRule("intel.com/qat", (PciSelector(("8086",), ("6f54",)),), permitted=True),
        "GRID_T4-1Q": MdevRule(VGPU_NAME, (MdevSelector(names=("GRID T4-1Q",)),), permitted=True),
    }
    assert told(read(GUIDE)) == []


def test_rules_of_the_configuration_come_before_those_of_the_cr() -> None:
    own = PciRule("example.com/gpu", (PciSelector(vendors=("10de",)),))
    assert names(merged(read(GUIDE), rules=(own,)).rules) == ["example.com/gpu", NAME]


@pytest.mark.parametrize(
    ("serve", "served", "left"),
    [
        ("external", [NAME], ["intel.com/qat", VGPU_NAME]),
        ("all", [NAME, "intel.com/qat", VGPU_NAME], []),
        ("none", [], ["intel.com/qat", VGPU_NAME]),
    ],
)
def test_the_operator_says_which_of_the_permitted_devices_are_served(
    serve: str, served: list[str], left: list[str]
) -> None:
    found = merged(read(GUIDE), serve)
    assert (names(found.rules), names(found.virt_handler_rules.values())) == (served, left)


def test_serving_what_is_virt_handlers_too_is_told_once() -> None:
    ((place, what),) = told(read(GUIDE), "all")
    assert place == "kubevirt.serve"
    facts.names(what, "virt-handler", "intel.com/qat", 1)


def test_a_cr_does_not_count_where_the_operator_says_so_or_where_it_is_at_fault() -> None:
    off = Configuration(kubevirt=KubeVirt(enabled="false", manage_mdevs=True))
    assert merge.merge(off, read(GUIDE, {"mediatedDeviceTypes": ["a"]})) == merge.merge(off)
    assert merge.objections(off, read({"pciHostDevices": [pci("1", "a.b/c")]})) == ()
    assert merged(KubeVirtCR(permitted=None)) == merged(None)


def test_what_the_door_refused_is_told_first() -> None:
    cr = read({"pciHostDevices": [pci("1", "a.b/c"), pci("1:2", "a.b/c"), pci("10de:1eb8", "no-domain")]})
    assert [place for place, _ in told(cr)] == [f"pciHostDevices[{n}]" for n in range(3)]


def test_all_selectors_of_a_name_are_one_resource_at_the_place_of_the_first() -> None:
    cr = read(
        {
            "pciHostDevices": [
                pci("10de:1eb8", NAME),
                pci("1:2", "x"),
                pci("10DE:1EB9", NAME),
                pci("10de:1eb8", NAME),
            ],
            "mediatedDevices": [mdev("GRID T4-1Q", VGPU_NAME), mdev("nvidia-230", VGPU_NAME)],
        }
    )
    gpus, vgpus = merged(cr).rules
    assert gpus == PciRule(
        NAME, tuple(PciSelector(("10de",), (each,)) for each in ("1eb8", "1eb9")), permitted=True
    )
    assert vgpus == MdevRule(
        VGPU_NAME,
        tuple(MdevSelector(names=(each,)) for each in ("GRID T4-1Q", "nvidia-230")),
        permitted=True,
    )


@pytest.mark.parametrize(
    "name",
    ["gpu", "a/b/c", "nvidia.com/GeForce RTX 2060 Rev. A", "kubernetes.io/gpu", f"a.b/{'c' * 64}", "../../x"],
)
@pytest.mark.parametrize("ours", [True, False])
def test_a_name_that_the_kubelet_refuses_is_refused_alone(name: str, ours: bool) -> None:
    cr = read({"pciHostDevices": [pci("10de:1eb8", name, ours), pci("10de:1eb9", NAME)]})
    assert names(merged(cr).rules) == [NAME]
    ((place, what),) = told(cr)
    assert place == "pciHostDevices[0]"
    facts.names(what, f'"{name}"')


@pytest.mark.parametrize(
    ("entries", "served", "said"),
    [
        (
            [pci("10de:1eb8", "a.b/x"), pci("10de:1eb8", "a.b/x", False)],
            [],
            ("a.b/x", "virt-handler"),
        ),
        (
            [pci("10de:1eb8", "a.b/x"), pci("10de:1eb9", "a.b/x", False)],
            [],
            ("a.b/x", "virt-handler"),
        ),
        ([pci("10DE:1EB8", "a.b/x"), pci("10de:1eb8", "a.b/y", False)], [], ("10de:1eb8", "virt-handler")),
        ([pci("10de:1eb8", "a.b/x"), pci("10de:1eb8", "a.b/y")], ["a.b/x"], ("10de:1eb8", "a.b/x")),
        ([pci("10de:1eb8", "a.b/x"), pci("10de:1eb9", "a.b/X")], ["a.b/x"], ("PCI_RESOURCE_A_B_X",)),
    ],
)
def test_double_ownership_and_double_names_refuse_one_entry(
    entries: list[Any], served: list[str], said: tuple[str, ...]
) -> None:
    cr = read({"pciHostDevices": [*entries, pci("8086:0001", "a.b/other")]})
    assert names(merged(cr).rules) == [*served, "a.b/other"]
    ((_, what),) = told(cr)
    facts.names(what, *said)


@pytest.mark.parametrize("other", ["GRID T4-1Q", "GRID_T4-1Q", " GRID T4-1Q "])
def test_the_names_of_types_are_compared_as_kubevirt_writes_them(other: str) -> None:
    cr = read({"mediatedDevices": [mdev("GRID T4-1Q", "a.b/x"), mdev(other, "a.b/y", ours=False)]})
    assert merged(cr).rules == ()
    assert len(told(cr)) == 1


def test_one_name_for_functions_and_for_mdevs_refuses_the_second() -> None:
    cr = read({"pciHostDevices": [pci("10de:1eb8", "a.b/x")], "mediatedDevices": [mdev("GRID", "a.b/x")]})
    assert [rule.kind for rule in merged(cr).rules] == ["pci"]
    ((place, what),) = told(cr)
    assert place == "mediatedDevices[0]"
    facts.names(what, "a.b/x", "PCI")


def usb(name: str, *ids: str, ours: bool = True) -> dict[str, Any]:
    pairs = [dict(zip(("vendor", "product"), each.split(":"), strict=True)) for each in ids]
    return {"resourceName": name, "selectors": pairs, "externalResourceProvider": ours}


def test_an_external_usb_entry_is_a_rule_for_sets_and_two_of_one_name_are_two() -> None:
    found = merged(read({"usb": [usb("a.b/set", "46F4:0001", "1234:5678"), usb("a.b/set", "4321:8765")]}))
    stick, other = UsbSelector(("46f4",), ("0001",)), UsbSelector(("1234",), ("5678",))
    assert found.rules == (
        UsbRule("a.b/set", (stick, other), bundle=True, permitted=True),
        UsbRule("a.b/set", (UsbSelector(("4321",), ("8765",)),), bundle=True, permitted=True),
    )
    assert [rule.place for rule in found.rules] == ["KubeVirt CR: usb[0]", "KubeVirt CR: usb[1]"]


def test_usb_entries_of_virt_handler_are_left_to_it_with_each_device_of_a_bundle() -> None:
    theirs = usb("a.b/x", "46f4:0001", ours=False)
    assert told(read({"usb": [theirs]})) == []
    assert list(merged(read({"usb": [theirs]})).virt_handler_rules) == ["usb:46f4:0001"]
    both = read({"usb": [theirs, usb("a.b/y", "1234:5678", "46f4:0001")]})
    ((place, what),) = told(both)
    assert place == "usb[1]"
    facts.names(what, "1234:5678", "46f4:0001", "virt-handler")
    assert merged(both).rules == ()


def test_a_usb_entry_without_selectors_costs_nothing_but_itself() -> None:
    cr = read({"usb": [usb("a.b/x"), usb("a.b/y", "46f4:0001")]})
    assert names(merged(cr).rules) == ["a.b/y"]
    assert told(cr) == []


def test_one_name_for_usb_and_pci_is_refused() -> None:
    cr = read({"pciHostDevices": [pci("10de:1eb8", "a.b/x")], "usb": [usb("a.b/x", "46f4:0001")]})
    ((place, what),) = told(cr)
    assert place == "usb[0]"
    facts.names(what, "a.b/x", "PCI")


def test_the_configuration_wins_where_both_name_one_resource() -> None:
    own = PciRule(NAME, (PciSelector(addresses=("0000:65:00.0",)),), place="config.yaml:3")
    assert merged(read(GUIDE), rules=(own,)).rules == (own,)
    assert told(read(GUIDE), rules=(own,)) == []
    node = NodeRule(NAME, "/dev/kvm")
    assert merged(read(GUIDE), rules=(node,)).rules == (node,)


def test_a_rule_without_selectors_sets_the_options_of_the_entry_with_its_name() -> None:
    options = PciRule(NAME, via=Via.DRA, place="config.yaml:3")
    cr = read({"pciHostDevices": [external(T4)], "mediatedDevices": [external(VGPU)]})
    own, pci, mdev = merged(cr, rules=(options,)).rules
    assert own == options
    assert isinstance(pci, PciRule) and isinstance(mdev, MdevRule)
    assert (pci.name, pci.via, pci.permitted) == (NAME, Via.DRA, True)
    assert pci.selectors == (PciSelector(("10de",), ("1eb8",)),)
    assert mdev.via is Via.DEVICE_PLUGIN
    by_kind = MdevRule(VGPU_NAME, via=Via.DRA)
    assert merged(cr, rules=(by_kind,)).rules[-1] == replace(mdev, via=Via.DRA)


@pytest.mark.parametrize(
    "own",
    [
        PciRule(NAME, place="config.yaml:3"),
        PciRule("a.b/x", (PciSelector(("10de", "8086"), ("1eb8",)),), place="config.yaml:3"),
    ],
)
def test_a_rule_that_takes_from_virt_handler_stands_and_is_told(own: PciRule) -> None:
    cr = read({"pciHostDevices": [T4]})
    assert merged(cr, rules=(own,)).rules == (own,)
    ((place, what),) = told(cr, rules=(own,))
    assert place == "pciHostDevices[0]"
    facts.names(what, "virt-handler", NAME, "config.yaml:3")


@pytest.mark.parametrize(
    "other",
    [
        {"rules": (PciRule("nvidia.com/tu104gl.tesla_t4"),)},
        {"aliases": (Alias("nvidia.com/A", "nvidia.com/TU104GL_TESLA_T4"),)},
    ],
)
def test_an_entry_that_would_share_a_variable_with_the_configuration_is_refused(other: Any) -> None:
    cr = read({"pciHostDevices": [external(T4)]})
    assert NAME not in names(merged(cr, **other).rules)
    facts.names(told(cr, **other)[0][1], "PCI_RESOURCE_NVIDIA_COM_TU104GL_TESLA_T4")


def test_an_entry_for_mdevs_may_share_its_name_with_functions_but_for_the_prefix() -> None:
    cr = read({"pciHostDevices": [pci("10de:1eb8", "a.b/x")], "mediatedDevices": [external(VGPU)]})
    assert names(merged(cr, rules=(PciRule("nvidia.com/GRID.T4-1Q"),)).rules)[1:] == ["a.b/x", VGPU_NAME]


def test_thousands_of_entries_are_merged_in_a_moment() -> None:
    entries = [pci(f"10de:{n:04x}", f"a.b/x{n}") for n in range(5_000)]
    assert len(merged(read({"pciHostDevices": entries})).rules) == 5_000
    assert len(told(read({"pciHostDevices": [{**each, "resourceName": "bad"} for each in entries]}))) == 5_000


def test_labels_that_the_cluster_tells_count_alone() -> None:
    configuration = Configuration(node=Node("node1", (("zone", "edge"),)))
    assert dict(merge.merge(configuration).labels) == {merge.HOSTNAME: "node1", "zone": "edge"}
    assert dict(merge.merge(configuration, labels={"zone": "core"}).labels) == {"zone": "core"}
    assert merge.merge(configuration, labels={}).labels == ()


def test_what_is_merged_of_a_cr_goes_from_the_daemon_to_its_verbs_and_is_the_same_there() -> None:
    wish = merged(read(GUIDE, {"mediatedDeviceTypes": ["nvidia-222"]}))
    assert wish.kubevirt_rules
    assert wish.virt_handler_rules
    document = json.loads(json.dumps(plain.dump(Snapshot(spec=wish))))
    assert plain.load(Snapshot, document).spec == wish
