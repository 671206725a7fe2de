# SPDX-License-Identifier: Apache-2.0
"""Selectors: each key, AND between keys, OR inside, wildcards, and the words for a mismatch."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.model.desired import PciRule, PciSelector
from nodeagent.policy import match
from tests.policy.made import function

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
    assert match.mismatch(PciSelector(**{field: (right,)}), T4) is None
    assert match.mismatch(PciSelector(**{field: (wrong, right)}), T4) is None
    told = match.mismatch(PciSelector(**{field: (wrong,)}), T4)
    assert told is not None
    assert told.startswith(f"{key}: it has ")
    assert told.endswith(f"the rule wants {wrong}")


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
    told = match.mismatch(PciSelector(**{field: (right,)}), unknown)
    assert told is not None
    if field != "addresses":
        assert told == f"{key}: it has none, the rule wants {right}"


def test_all_keys_of_a_selector_must_agree_and_the_first_that_does_not_is_named() -> None:
    told = match.mismatch(PciSelector(vendors=("10de",), devices=("ffff",), classes=("12",)), T4)
    assert told == "devices: it has 1eb8, the rule wants ffff"
    told = match.mismatch(PciSelector(vendors=("8086", "1002")), T4)
    assert told == "vendors: it has 10de, the rule wants 8086 or 1002"


def test_one_selector_of_a_rule_is_enough() -> None:
    wrong, right = PciSelector(vendors=("8086",)), PciSelector(classes=("0302",))
    assert match.picks(PciRule("a.b/c", (wrong, right)), T4)
    assert not match.picks(PciRule("a.b/c", (wrong,)), T4)


def test_a_selector_without_keys_picks_all_and_a_rule_without_selectors_nothing() -> None:
    assert match.mismatch(PciSelector(), T4) is None
    assert not match.picks(PciRule("a.b/c"), T4)


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
    assert (match.mismatch(PciSelector(addresses=(pattern,)), T4) is None) is fits


@pytest.mark.parametrize(("prefix", "fits"), [("03", True), ("030200", True), ("0300", False), ("02", False)])
def test_classes_are_prefixes(prefix: str, fits: bool) -> None:
    assert match.in_classes((prefix,), T4) is fits


def test_a_subsystem_may_be_named_by_its_vendor_alone() -> None:
    assert match.mismatch(PciSelector(subsystems=("10de",)), T4) is None
    assert match.mismatch(PciSelector(subsystems=("12a2",)), T4) is not None
