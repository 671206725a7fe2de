# SPDX-License-Identifier: Apache-2.0
"""Selectors: each key, AND between keys, OR inside, wildcards, and the words for a mismatch."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.model.spec import MdevSelector, PciRule, PciSelector
from nodeagent.policy import selectors
from tests import facts
from tests.policy.samples import function, mdev, vgpu

T4 = function("0000:86:00.0", group=12, numa_node=1)

KEYS: list[tuple[str, str, Any, Any]] = [
    ("vendors", "vendors", "10de", "8086"),
    ("devices", "devices", "1eb8", "1eb9"),
    ("subsystems", "subsystems", "10de:12a2", "10de:ffff"),
    ("classes", "classes", "0302", "0300"),
    ("drivers", "drivers", "vfio-pci", "nvidia"),
    ("addresses", "addresses", "0000:86:00.*", "0000:87:00.*"),
    ("numa_nodes", "numaNodes", 1, 0),
    ("iommu_groups", "iommuGroups", 12, 13),
]


@pytest.mark.parametrize(("field", "key", "right", "wrong"), KEYS, ids=[row[0] for row in KEYS])
def test_each_key_picks_what_it_names_and_says_what_it_misses(
    field: str, key: str, right: Any, wrong: Any
) -> None:
    assert selectors.find_mismatch(PciSelector(**{field: (right,)}), T4) is None
    assert selectors.find_mismatch(PciSelector(**{field: (wrong, right)}), T4) is None
    told = selectors.find_mismatch(PciSelector(**{field: (wrong,)}), T4)
    facts.names(told, key, wrong)


@pytest.mark.parametrize(("field", "key", "right", "wrong"), KEYS, ids=[row[0] for row in KEYS])
def test_an_unknown_fact_fits_no_key(field: str, key: str, right: Any, wrong: Any) -> None:
    unknown = function(
        "0001:00:00.0",
        group=None,
        vendor=None,
        device=None,
        subsystem_vendor=None,
        subsystem_device=None,
        pci_class=None,
        driver=None,
        numa_node=None,
    )
    told = selectors.find_mismatch(PciSelector(**{field: (right,)}), unknown)
    assert told is not None
    if field != "addresses":
        facts.names(told, key, "none", right)


def test_all_keys_of_a_selector_must_agree_and_the_first_that_does_not_is_named() -> None:
    told = selectors.find_mismatch(PciSelector(vendors=("10de",), devices=("ffff",), classes=("12",)), T4)
    facts.names(told, "devices", "1eb8", "ffff")
    assert not facts.contains(told, "classes")
    told = selectors.find_mismatch(PciSelector(vendors=("8086", "1002")), T4)
    facts.names(told, "vendors", "10de", "8086", "1002")


def test_one_selector_of_a_rule_is_enough() -> None:
    wrong, right = PciSelector(vendors=("8086",)), PciSelector(classes=("0302",))
    assert selectors.is_matched_by_rule(PciRule("a.b/c", (wrong, right)), T4)
    assert not selectors.is_matched_by_rule(PciRule("a.b/c", (wrong,)), T4)


def test_a_selector_without_keys_picks_all_and_a_rule_without_selectors_nothing() -> None:
    assert selectors.find_mismatch(PciSelector(), T4) is None
    assert not selectors.is_matched_by_rule(PciRule("a.b/c"), T4)


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("0000:86:00.0", True),
        ("0000:86:00.?", True),
        ("*", True),
        ("0000:8?:*.0", True),
        ("0000:86:00.1", False),
        ("86:00.0", False),
        ("0000:86:00", False),
    ],
)
def test_addresses_are_compared_whole_with_wildcards(pattern: str, fits: bool) -> None:
    assert (selectors.find_mismatch(PciSelector(addresses=(pattern,)), T4) is None) is fits


@pytest.mark.parametrize(("prefix", "fits"), [("03", True), ("030200", True), ("0300", False), ("02", False)])
def test_classes_are_prefixes(prefix: str, fits: bool) -> None:
    assert selectors.is_in_classes((prefix,), T4) is fits


def test_a_subsystem_may_be_named_by_its_vendor_alone() -> None:
    assert selectors.find_mismatch(PciSelector(subsystems=("10de",)), T4) is None
    assert selectors.find_mismatch(PciSelector(subsystems=("12a2",)), T4) is not None


@pytest.mark.parametrize(
    ("type_name", "selected"),
    [
        ("GRID T4-1Q", "GRID_T4-1Q"),
        ("GRID T4-1Q", "GRID T4-1Q"),
        ("GRID  T4-1Q", "GRID__T4-1Q"),
        ("GRID T4-1Q", "GRID_T4-1Q_"),  # KubeVirt's form of a name with a blank at its end
        ("NVIDIA A100-1-5CME", "NVIDIA_A100-1-5CME"),
        (None, "nvidia-222"),
        ("GRID T4-1Q", "nvidia-222"),
    ],
)
def test_type_names_are_compared_as_kubevirt_does(type_name: str | None, selected: str) -> None:
    assert selectors.find_mismatch(MdevSelector(names=(selected,)), mdev(type_name=type_name)) is None


@pytest.mark.parametrize("selected", ["grid t4-1q", "GRID T4-2Q", "T4-1Q", "nvidia-22"])
def test_another_name_is_refused_in_words(selected: str) -> None:
    told = selectors.find_mismatch(MdevSelector(names=(selected,)), mdev())
    facts.names(told, "names", "GRID T4-1Q", selected)


def test_types_and_names_of_one_selector_must_both_fit() -> None:
    both = MdevSelector(types=("nvidia-222",), names=("GRID T4-2Q",))
    assert selectors.find_mismatch(both, mdev()) is not None
    assert selectors.find_mismatch(both, mdev(type_name="GRID T4-2Q")) is None
    assert selectors.find_mismatch(MdevSelector(types=("nvidia-22",)), mdev()) is not None


@pytest.mark.parametrize("wanted", ["1147", "nvidia-1147", "NVIDIA A40-1B", "NVIDIA_A40-1B"])
def test_a_vgpu_type_has_a_number_and_a_name(wanted: str) -> None:
    selector, names = PciSelector(vgpu_types=("1", wanted)), {"vgpu:1147": "NVIDIA A40-1B"}
    assert selectors.find_mismatch(selector, vgpu(), names) is None
    assert selectors.find_mismatch(selector, vgpu(vgpu_type="1148"), names) is not None
    told = selectors.find_mismatch(PciSelector(vgpu_types=(wanted,)), vgpu(vgpu_type=None), names)
    facts.names(told, "vgpuTypes", "none", wanted)
