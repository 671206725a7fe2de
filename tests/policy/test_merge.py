# SPDX-License-Identifier: Apache-2.0
"""Cross-checks between rules, aliases and wishes for mdevs: one name, one meaning."""

from __future__ import annotations

import pytest

from nodeagent.model.desired import (
    Discovery,
    MdevRule,
    MdevsWanted,
    NodeRule,
    NodeTypes,
    PciRule,
    PciSelector,
    Rule,
    SriovRule,
    WantedType,
)
from nodeagent.model.resource import Iommufd, Isolation
from nodeagent.policy import merge
from nodeagent.policy.merge import Alias
from nodeagent.policy.offer import shares

GPU = PciRule("example.com/gpu", (PciSelector(vendors=("10de",)),), place="config.yaml:3")
MDEVS = MdevsWanted()


def told(rules: list[Rule], *aliases: Alias) -> list[str]:
    return [finding.what for finding in merge.findings(rules, aliases, MDEVS)]


def test_rules_that_share_a_name_and_all_options_are_one_resource() -> None:
    other = PciRule("example.com/gpu", (PciSelector(vendors=("1002",)),))
    assert told([GPU, other]) == []
    assert merge.merged(Discovery(), [GPU, other], [], MDEVS, []).rules == (GPU, other)


@pytest.mark.parametrize(
    "other",
    [
        PciRule(GPU.name, isolation=Isolation.BUNDLE),
        PciRule(GPU.name, iommufd=Iommufd.AUTO),
        PciRule(GPU.name, cdi=True),
        NodeRule(GPU.name, "/dev/kvm"),
    ],
    ids=["isolation", "iommufd", "cdi", "kind"],
)
def test_rules_that_share_a_name_only_are_refused_where_the_second_stands(other: Rule) -> None:
    (finding,) = merge.findings([GPU, other], [], MDEVS)
    assert '"example.com/gpu" is the name of two rules' in finding.what
    assert "config.yaml:3" in finding.what


def test_two_device_nodes_cannot_share_a_name() -> None:
    rules: list[Rule] = [NodeRule("example.com/n", "/dev/kvm"), NodeRule("example.com/n", "/dev/tun")]
    assert len(told(rules)) == 1


@pytest.mark.parametrize(("one", "other"), [("a.b/c", "a.b/C"), ("x.y/a.b", "x.y/a_b")])
def test_names_that_share_a_variable_are_refused(one: str, other: str) -> None:
    assert "would share the variable" in told([PciRule(one), PciRule(other)])[0]
    assert "would share the variable" in told([PciRule(one)], Alias("d.e/f", other))[0]
    assert "would share the variable" in told([MdevRule(one), MdevRule(other)])[0]
    assert told([PciRule(one), MdevRule(other)]) == []


@pytest.mark.parametrize("kind", [PciRule, MdevRule])
def test_an_alias_may_be_of_either_kind_and_shares_the_variable_of_neither(
    kind: type[PciRule | MdevRule],
) -> None:
    (what,) = told([kind("a.b/C")], Alias("nvidia.com/GRID_T4-1Q", "a.b/c"))
    assert "would share the variable" in what
    (what,) = told([], Alias("nvidia.com/GRID_T4-1Q", "a.b/c"), Alias("nvidia.com/GRID_T4-2Q", "a.b/C"))
    assert "would share the variable" in what


def test_an_alias_that_leads_to_a_rule_is_of_its_kind() -> None:
    assert told([MdevRule("a.b/c"), PciRule("a.b/C")], Alias("nvidia.com/GRID_T4-1Q", "a.b/c")) == []


def test_the_largest_count_that_fits_is_taken_and_one_more_is_refused() -> None:
    path = "/dev/net/tun"
    length = len(shares.share_id(path, 100_000))
    most = merge.MESSAGE_LIMIT // (length + merge.DEVICE_FRAME)
    assert most > 100_000
    assert told([NodeRule("example.com/tun", path, most)]) == []
    (finding,) = merge.findings([NodeRule("example.com/tun", path, most + 1)], [], MDEVS)
    assert f"at most {most}" in finding.hint


def test_a_path_that_makes_ids_too_long_is_refused() -> None:
    assert "device ids of" in told([NodeRule("example.com/n", f"/dev/{'x' * 62}")])[0]


def test_a_chain_of_aliases_ends_at_its_last_name() -> None:
    aliases = [Alias("a.b/1", "a.b/2"), Alias("a.b/2", "a.b/3")]
    assert told([], *aliases) == []
    merged = merge.merged(Discovery(), [], aliases, MDEVS, [])
    assert merged.aliases == (("a.b/1", "a.b/3"), ("a.b/2", "a.b/3"))


@pytest.mark.parametrize(
    "aliases",
    [
        [Alias("a.b/1", "a.b/1")],
        [Alias("a.b/1", "a.b/2"), Alias("a.b/2", "a.b/1")],
        [Alias("a.b/0", "a.b/1"), Alias("a.b/1", "a.b/2"), Alias("a.b/2", "a.b/1")],
    ],
    ids=["itself", "two", "a way into a circle"],
)
def test_aliases_in_a_circle_are_refused_and_still_end(aliases: list[Alias]) -> None:
    assert [what for what in told([], *aliases) if "circle" in what] == [
        f'the alias "{alias.name}" leads in a circle' for alias in aliases
    ]
    assert merge.merged(Discovery(), [], aliases, MDEVS, []).aliases


def test_all_that_the_settings_hold_is_desired() -> None:
    wanted, vfs = MdevsWanted(manage=True), SriovRule((), 8)
    merged = merge.merged(Discovery(), [GPU], [], wanted, [vfs])
    assert (merged.mdevs, merged.sriov) == (wanted, (vfs,))


def test_a_type_that_is_wanted_anywhere_and_excluded_is_refused_however_it_is_spelled() -> None:
    wanted = MdevsWanted(
        types=(WantedType("nvidia-222"), WantedType("GRID T4-2Q")),
        nodes=(NodeTypes((), (WantedType("GRID T4-1Q "),)),),
        excluded=("GRID_T4-1Q", "nvidia-222"),
    )
    assert [(finding.place, finding.what) for finding in merge.findings([], [], wanted)] == [
        ("mdevs.exclude", '"nvidia-222" is both wanted and excluded'),
        ("mdevs.exclude", '"GRID T4-1Q " is both wanted and excluded'),
    ]


def test_an_alias_of_a_rule_is_refused_because_it_renames_nothing() -> None:
    assert "renames nothing" in told([GPU], Alias(GPU.name, "a.b/c"))[0]


def test_an_alias_may_lead_to_a_plain_rule_but_not_to_one_with_options_or_of_another_kind() -> None:
    assert told([GPU], Alias("a.b/c", GPU.name)) == []
    assert told([MdevRule(GPU.name)], Alias("a.b/c", GPU.name)) == []
    assert len(told([MdevRule(GPU.name, cdi=True)], Alias("a.b/c", GPU.name))) == 1
    assert len(told([PciRule(GPU.name, isolation=Isolation.NONE)], Alias("a.b/c", GPU.name))) == 1
    assert len(told([NodeRule(GPU.name, "/dev/kvm")], Alias("a.b/c", GPU.name))) == 1
