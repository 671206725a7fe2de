# SPDX-License-Identifier: Apache-2.0
"""Rules, selectors and aliases that take nothing: what comes nearest, and who has it instead."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.model.host import HostDevice, MdevType
from nodeagent.model.problem import Problem, ProblemCode
from nodeagent.model.resource import Via
from nodeagent.model.spec import Discovery, MdevRule, MdevSelector, PciRule, PciSelector, Spec
from nodeagent.policy.explain import rules as explaining
from nodeagent.policy.offer import turn
from tests.facts import contains, names
from tests.policy.samples import function, host, mdev, snapshot

NAMES = {"10de": "NVIDIA Corporation", "10de:1eb8": "TU104GL [Tesla T4]"}
NAME = "nvidia.com/TU104GL_TESLA_T4"
A, B = function("0000:65:00.0"), function("0000:66:00.0", 2)
ALL = PciRule("a.b/all", (PciSelector(vendors=("10de",)),), place="config.yaml:2")


def ruled(
    *rules: PciRule | MdevRule, here: tuple[HostDevice, ...] = (A, B), **facts: object
) -> list[Problem]:
    spec = Spec(rules=rules)
    return list(explaining.unused(turn.decide_first(snapshot(host(*here, **facts), spec, names=NAMES))))


def pci(*selectors: PciSelector, permitted: bool = False) -> PciRule:
    return PciRule("a.b/gpu", selectors, place="config.yaml:4", permitted=permitted)


def renamed(*aliases: tuple[str, str], spec: Spec = Spec()) -> list[str]:  # noqa: B008
    wanted = spec._replace(aliases=aliases)
    return [
        each.message
        for each in explaining.unused(turn.decide_first(snapshot(host(A, B), wanted, names=NAMES)))
        if each.code is ProblemCode.IDLE_ALIAS
    ]


def test_what_takes_something_has_no_remark() -> None:
    assert ruled(ALL) == []
    assert renamed((NAME, "a.b/t4")) == []


def test_a_rule_that_takes_nothing_names_what_comes_nearest_and_why() -> None:
    (remark,) = ruled(pci(PciSelector(vendors=("10de",), devices=("1eb9",))))
    assert (remark.code, remark.action_required) == (ProblemCode.IDLE_RULE, False)
    names(remark.message, "config.yaml:4", "a.b/gpu", A.address, "devices", "1eb8", "1eb9")


def test_a_rule_with_nothing_near_says_so() -> None:
    (remark,) = ruled(pci(PciSelector(vendors=("8086",))))
    assert remark.code is ProblemCode.IDLE_RULE
    names(remark.message, "config.yaml:4", "a.b/gpu")
    assert not any(contains(remark.message, each.address) for each in (A, B))


def test_a_rule_behind_another_names_that_and_what_it_has() -> None:
    (remark,) = ruled(ALL, pci(PciSelector(devices=("1eb8",))))
    names(remark.message, "a.b/gpu", "a.b/all", "config.yaml:2", A.address, B.address)


def test_a_selector_that_takes_nothing_beside_one_that_does_is_told_by_its_number() -> None:
    (remark,) = ruled(pci(PciSelector(devices=("1eb8",)), PciSelector(addresses=("0000:67:00.0",))))
    assert remark.code == ProblemCode.IDLE_SELECTOR
    names(remark.message, "config.yaml:4", "selector 2", "a.b/gpu")


def test_rules_of_the_cluster_and_those_without_selectors_are_not_looked_at() -> None:
    assert ruled(pci(PciSelector(devices=("1eb9",)), permitted=True), pci()) == []


def test_options_without_selectors_are_for_a_resource_of_that_name_and_kind() -> None:
    by_dra = PciRule(NAME, via=Via.DRA, place="config.yaml:3")
    assert ruled(by_dra) == []
    (typo,) = ruled(replace(by_dra, name=NAME.replace("T4", "T5")))
    assert (typo.code, typo.action_required) == (ProblemCode.IDLE_RULE, False)
    names(typo.message, "config.yaml:3", NAME.replace("T4", "T5"), f'nearest is "{NAME}"')
    vgpu = "nvidia.com/GRID_T4-1Q"
    (kind,) = ruled(replace(by_dra, name=vgpu), here=(A, mdev()))
    names(kind.message, vgpu, "mediated devices", "mdev: []")
    assert ruled(MdevRule(vgpu, via=Via.DRA), here=(A, mdev())) == []


def test_a_rule_for_mdevs_that_could_be_made_says_where() -> None:
    rule = MdevRule("a.b/vgpu", (MdevSelector(types=("nvidia-222",)),), place="config.yaml:5")
    (remark,) = ruled(rule, mdev_parents={A.address: (MdevType("nvidia-222", "GRID T4-1Q"),)})
    assert remark.code is ProblemCode.IDLE_RULE
    names(remark.message, "config.yaml:5", "a.b/vgpu", A.address, "mdevs.types")
    assert ruled(rule, here=(A, mdev())) == []


def test_a_name_of_a_type_that_is_misspelt_finds_the_nearest() -> None:
    rule = MdevRule("a.b/vgpu", (MdevSelector(names=("GRID T4-1X",)),))
    (remark,) = ruled(rule, here=(mdev(),))
    names(remark.message, "names", "GRID T4-1Q")


def test_an_alias_that_renames_nothing_names_the_nearest_name() -> None:
    (what,) = renamed((NAME.replace("T4", "T5"), "a.b/t5"))
    names(what, NAME.replace("T4", "T5"), NAME)
    (other,) = renamed(("zzz.example/0", "a.b/t5"))
    names(other, "zzz.example/0")
    assert not contains(other, NAME)


def test_an_alias_of_what_a_rule_takes_names_the_rule() -> None:
    (what,) = renamed((NAME, "a.b/t4"), spec=Spec(rules=(ALL,)))
    names(what, NAME, "a.b/all", A.address)


def test_an_alias_without_discovery_says_that() -> None:
    (what,) = renamed((NAME, "a.b/t4"), spec=Spec(Discovery(enabled=False)))
    names(what, NAME, "discovery")
