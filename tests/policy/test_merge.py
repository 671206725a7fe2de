# SPDX-License-Identifier: Apache-2.0
"""What is spec of a configuration, and what of it does not go together: one name, one meaning."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.model.configuration import (
    Alias,
    Configuration,
    Imported,
    KubeVirt,
    MdevctlDefinitions,
    Mdevs,
    Node,
    VgpuConfiguration,
    VgpuFile,
)
from nodeagent.model.problem import misconfigured
from nodeagent.model.resource import Iommufd, Isolation
from nodeagent.model.spec import (
    CardTypes,
    ClusterMode,
    Discovery,
    MdevDefinition,
    MdevRule,
    MdevSpec,
    NodePath,
    NodeRule,
    NodeTypes,
    PciRule,
    PciSelector,
    Rule,
    Spec,
    SriovRule,
    WantedType,
)
from nodeagent.policy import contradictions, merge
from nodeagent.policy.offer import node_rules
from tests.facts import contains, each_names, names

GPU = PciRule("example.com/gpu", (PciSelector(vendors=("10de",)),), place="config.yaml:3")


def told(rules: list[Rule], *aliases: Alias) -> list[str]:
    configuration = Configuration(rules=tuple(rules), aliases=aliases)
    return [finding.message for finding in merge.findings(configuration)]


def test_rules_that_share_a_name_and_all_options_are_one_resource() -> None:
    other = PciRule("example.com/gpu", (PciSelector(vendors=("1002",)),))
    assert told([GPU, other]) == []
    assert merge.merge(Configuration(rules=(GPU, other))).rules == (GPU, other)


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
    (finding,) = merge.findings(Configuration(rules=(GPU, other)))
    names(finding.message, GPU.name, "config.yaml:3")


def test_rules_for_device_nodes_may_share_a_name_but_not_their_first_path() -> None:
    kvm, tun = NodeRule("example.com/n", "/dev/kvm"), NodeRule("example.com/n", "/dev/tun")
    assert told([kvm, tun]) == []
    (what,) = told([kvm, tun, NodeRule("example.com/n", paths=(NodePath("/dev/kvm"), NodePath("/dev/fuse")))])
    names(what, "example.com/n", "/dev/kvm")


def test_the_shares_of_all_rules_of_a_name_fit_into_one_message() -> None:
    rules: list[Rule] = [NodeRule("example.com/n", path, 60_000) for path in ("/dev/kvm", "/dev/tun")]
    assert told(rules[:1]) == []
    (what,) = told([*rules, NodeRule("example.com/n", "/dev/fuse", 60_000)])
    names(what, "180000")


@pytest.mark.parametrize(("one", "other"), [("a.b/c", "a.b/C"), ("x.y/a.b", "x.y/a_b")])
def test_names_that_share_a_variable_are_refused(one: str, other: str) -> None:
    names(told([PciRule(one), PciRule(other)])[0], one, other, "variable")
    names(told([PciRule(one)], Alias("d.e/f", other))[0], one, other, "variable")
    names(told([MdevRule(one), MdevRule(other)])[0], one, other, "variable")
    assert told([PciRule(one), MdevRule(other)]) == []


@pytest.mark.parametrize("kind", [PciRule, MdevRule])
def test_an_alias_may_be_of_either_kind_and_shares_the_variable_of_neither(
    kind: type[PciRule | MdevRule],
) -> None:
    (what,) = told([kind("a.b/C")], Alias("nvidia.com/GRID_T4-1Q", "a.b/c"))
    names(what, "a.b/C", "a.b/c", "variable")
    (what,) = told([], Alias("nvidia.com/GRID_T4-1Q", "a.b/c"), Alias("nvidia.com/GRID_T4-2Q", "a.b/C"))
    names(what, "a.b/C", "a.b/c", "variable")


def test_an_alias_that_leads_to_a_rule_is_of_its_kind() -> None:
    assert told([MdevRule("a.b/c"), PciRule("a.b/C")], Alias("nvidia.com/GRID_T4-1Q", "a.b/c")) == []


def test_the_largest_count_that_fits_is_taken_and_one_more_is_refused() -> None:
    path = "/dev/net/tun"
    length = len(node_rules.share_id(path, 100_000))
    most = contradictions.MESSAGE_LIMIT // (length + contradictions.DEVICE_FRAME)
    assert most > 100_000
    assert told([NodeRule("example.com/tun", path, most)]) == []
    (finding,) = merge.findings(Configuration(rules=(NodeRule("example.com/tun", path, most + 1),)))
    names(finding.hint, most)


def test_a_chain_of_aliases_ends_at_its_last_name() -> None:
    aliases = [Alias("a.b/1", "a.b/2"), Alias("a.b/2", "a.b/3")]
    assert told([], *aliases) == []
    merged = merge.merge(Configuration(aliases=tuple(aliases)))
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
    findings = told([], *aliases)
    for alias in aliases:
        assert any(contains(what, alias.name) for what in findings)
    assert merge.merge(Configuration(aliases=tuple(aliases))).aliases


def test_all_that_the_configuration_holds_is_desired() -> None:
    types, nodes = (WantedType("nvidia-222"),), (NodeTypes((("zone", "b"),)),)
    definition = MdevDefinition("u", "0000:65:00.0", "t-1")
    configuration = Configuration(
        discovery=Discovery(naming="id"),
        rules=(GPU,),
        mdevs=Mdevs(manage=True, types=types, nodes=nodes, adopt=True, exclude=("x",)),
        sriov=(SriovRule((), 8),),
        imported=Imported(MdevctlDefinitions((definition,), frozenset("u"), frozenset("p"))),
    )
    wanted = MdevSpec(
        manage=True,
        types=types,
        nodes=nodes,
        adopt=True,
        excluded=("x",),
        definitions=(definition,),
        defined=frozenset("u"),
        reserved=frozenset("p"),
    )
    assert merge.findings(configuration) == ()
    assert merge.warnings(configuration) == ()
    assert merge.merge(configuration) == Spec(
        configuration.discovery,
        (),
        (GPU,),
        wanted,
        configuration.sriov,
        (),
        following=ClusterMode.AS_POD,
    )


@pytest.mark.parametrize(
    ("enabled", "kubeconfig", "following"),
    [
        ("auto", "", ClusterMode.AS_POD),
        ("auto", "/etc/kubeconfig", ClusterMode.YES),
        ("true", "", ClusterMode.YES),
        ("false", "/etc/kubeconfig", ClusterMode.NO),
    ],
)
def test_the_cluster_is_followed_where_there_is_a_way_unless_told_otherwise(
    enabled: str, kubeconfig: str, following: ClusterMode
) -> None:
    configuration = Configuration(kubevirt=KubeVirt(enabled), kubeconfig=kubeconfig)
    assert merge.merge(configuration).following is following


def test_places_in_the_desired_are_named_without_the_directory_of_the_configuration() -> None:
    rules = (PciRule("a.b/c", place="/etc/x/conf.d/a.yaml:3"), PciRule("a.b/d", place="KubeVirt CR"))
    sriov = (SriovRule((), 1, place="/etc/x/config.yaml:5"),)
    merged = merge.merge(Configuration(rules=rules, sriov=sriov, home="/etc/x/"))
    assert [rule.place for rule in merged.rules] == ["conf.d/a.yaml:3", "KubeVirt CR"]
    assert [rule.place for rule in merged.sriov] == ["config.yaml:5"]


@pytest.mark.parametrize(
    ("node", "labels"),
    [
        (Node(), ()),
        (Node("node2"), (("kubernetes.io/hostname", "node2"),)),
        (Node("node2", (("zone", "a"),)), (("kubernetes.io/hostname", "node2"), ("zone", "a"))),
        (Node("node2", (("kubernetes.io/hostname", "other"),)), (("kubernetes.io/hostname", "other"),)),
        (Node("", (("zone", "a"),)), (("zone", "a"),)),
    ],
)
def test_the_name_of_the_node_is_a_label_unless_another_was_given(
    node: Node, labels: tuple[tuple[str, str], ...]
) -> None:
    assert merge.merge(Configuration(node=node)).labels == labels


DEFAULT, MIXED = (CardTypes(),), (CardTypes((0,)), CardTypes((1,)))
FAULT = misconfigured("", "vgpu.yaml:1: its version is not v1", "begin with the line 'version: v1'")
VGPU = VgpuFile(
    "vgpu.yaml",
    (
        VgpuConfiguration("default", DEFAULT),
        VgpuConfiguration("mixed", MIXED),
    ),
)


def vgpu(name: str = "", label: str = "", file: VgpuFile = VGPU) -> Configuration:
    """A configuration that names a file of vgpu-device-manager and one of its configurations."""
    labels = (("nvidia.com/vgpu.config", label),) if label else ()
    mdevs = Mdevs(manage=True, vgpu_config_file=file.path, vgpu_config=name)
    return Configuration(mdevs=mdevs, node=Node(labels=labels), imported=Imported(vgpu=file))


@pytest.mark.parametrize(
    ("name", "label", "cards"),
    [("default", "", DEFAULT), ("default", "mixed", MIXED), ("", "mixed", MIXED), ("", "", ())],
)
def test_the_label_of_the_node_chooses_before_the_default(
    name: str, label: str, cards: tuple[CardTypes, ...]
) -> None:
    configuration = vgpu(name, label)
    assert merge.findings(configuration) == ()
    assert merge.merge(configuration).mdevs.cards == cards
    assert len(merge.warnings(configuration)) == (0 if cards else 1)


def test_a_name_that_the_file_lacks_is_refused_with_the_nearest_one() -> None:
    (finding,) = merge.findings(vgpu("default", "mixd"))
    assert finding.subject == "vgpu.yaml"
    names(finding.message, "mixd")
    names(finding.hint, "mixed", 2)


def test_the_fault_of_a_whole_file_counts_as_soon_as_anything_of_it_is_chosen() -> None:
    file = VgpuFile("vgpu.yaml", fault=FAULT)
    assert merge.findings(vgpu(file=file)) == ()
    assert merge.findings(vgpu("any", file=file)) == (FAULT,)


def test_what_is_asked_for_and_cannot_happen_is_a_warning() -> None:
    rules = (PciRule("a.b/c", place="x:1"), MdevRule("a.b/d", place="x:2"), NodeRule("a.b/e", "/dev/kvm"))
    idle = Mdevs(mdevctl=True, vgpu_config_file="/etc/vgpu.yaml")
    assert [text.partition(" ")[0] for text in merge.warnings(Configuration(rules=rules, mdevs=idle))] == [
        "x:1:",
        "x:2:",
        "mdevs.mdevctl",
        "mdevs.vgpuConfigFile",
    ]


def test_a_type_that_is_wanted_anywhere_and_excluded_is_refused_however_it_is_spelled() -> None:
    mdevs = Mdevs(
        types=(WantedType("nvidia-222"), WantedType("GRID T4-2Q")),
        nodes=(NodeTypes((), (WantedType("GRID T4-1Q "),)),),
        exclude=("GRID_T4-1Q", "nvidia-222"),
    )
    findings = merge.findings(Configuration(mdevs=mdevs))
    assert [finding.subject for finding in findings] == ["mdevs.exclude", "mdevs.exclude"]
    each_names([finding.message for finding in findings], ("nvidia-222",), ('"GRID T4-1Q "',))


def test_an_alias_of_a_rule_is_refused_because_it_renames_nothing() -> None:
    names(told([GPU], Alias(GPU.name, "a.b/c"))[0], "alias", GPU.name)


def test_an_alias_may_lead_to_a_plain_rule_but_not_to_one_with_options_or_of_another_kind() -> None:
    assert told([GPU], Alias("a.b/c", GPU.name)) == []
    assert told([MdevRule(GPU.name)], Alias("a.b/c", GPU.name)) == []
    assert told([MdevRule(GPU.name, cdi=True)], Alias("a.b/c", GPU.name)) == [], "it only sets options"
    assert len(told([replace(GPU, cdi=True)], Alias("a.b/c", GPU.name))) == 1
    assert len(told([replace(GPU, isolation=Isolation.NONE)], Alias("a.b/c", GPU.name))) == 1
    assert len(told([NodeRule(GPU.name, "/dev/kvm")], Alias("a.b/c", GPU.name))) == 1
