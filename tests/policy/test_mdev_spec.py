# SPDX-License-Identifier: Apache-2.0
"""Which mdevs the KubeVirt CR wants on a node, and when nodeagent keeps its hands off.

The table of cases is that of KubeVirt's own tests (pkg/virt-config/configuration_test.go), with their order.
"""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.model.configuration import (
    Configuration,
    Imported,
    KubeVirt,
    MdevctlDefinitions,
    Mdevs,
    VgpuConfiguration,
    VgpuFile,
)
from nodeagent.model.kubevirt import KubeVirtCR
from nodeagent.model.spec import CardTypes, MdevDefinition, MdevSpec, NodeTypes, WantedType
from nodeagent.policy import merge
from nodeagent.policy.change import desired_types
from tests.cluster.crs import VGPU, external, read
from tests.facts import each_names, names
from tests.policy.change.splitting import listed, planned, settle, short, t4
from tests.sim.mdevs import ModelKernel

MANAGED = Configuration(kubevirt=KubeVirt(enabled="true", manage_mdevs=True))
GLOBAL = ["nvidia-222", "nvidia-228", "i915-GVTg_V5_4"]


def override(labels: dict[str, str], *types: str, **old: Any) -> dict[str, Any]:
    return {"nodeSelector": labels, "mediatedDeviceTypes": [f"nvidia-{each}" for each in types], **old}


OVERRIDES = [
    override({"testLabel1": "true"}, "223"),
    override({"testLabel2": "true"}, "229"),
    override({"testLabel3": "true", "testLabel4": "true"}, "230"),
]
CATALOGUE = {"mediatedDeviceTypes": GLOBAL, "nodeMediatedDeviceTypes": OVERRIDES, "enabled": False}


def on(*labels: str) -> dict[str, str]:
    return dict.fromkeys((f"testLabel{each}" for each in labels), "true")


def with_first(**first: Any) -> dict[str, Any]:
    return {**CATALOGUE, "nodeMediatedDeviceTypes": [{"nodeSelector": on("1"), **first}]}


def types_of(cr: KubeVirtCR, labels: dict[str, str]) -> list[str]:
    """What is wanted on a node with these labels, in order."""
    found = merge.merge(MANAGED, cr, labels)
    assert found.mdevs.manage
    return [wish.name for wish in desired_types.list_for_node(found.mdevs, dict(found.labels))]


@pytest.mark.parametrize(
    ("section", "labels", "types"),
    [
        (CATALOGUE, {}, GLOBAL),
        (CATALOGUE, on("3"), GLOBAL),
        (CATALOGUE, {"testLabel1": "false"}, GLOBAL),
        (CATALOGUE, on("1"), ["nvidia-223"]),
        (CATALOGUE, on("3", "4"), ["nvidia-230"]),
        (CATALOGUE, on("1", "2"), ["nvidia-223", "nvidia-229"]),
        (with_first(mediatedDeviceTypes=[], mediatedDevicesTypes=[]), on("1"), GLOBAL),
        (with_first(mediatedDevicesTypes=["nvidia-223"]), on("1"), ["nvidia-223"]),
        (with_first(mediatedDeviceTypes=["a"], mediatedDevicesTypes=["b"]), on("1"), ["a"]),
        ({**CATALOGUE, "nodeMediatedDeviceTypes": [override({}, "223")]}, {}, ["nvidia-223"]),
        ({"mediatedDevicesTypes": GLOBAL, "enabled": False}, {}, GLOBAL),
        ({"enabled": False}, {}, []),
    ],
)
def test_the_types_of_a_node_are_those_of_kubevirts_catalogue(
    section: Any, labels: dict[str, str], types: list[str]
) -> None:
    assert types_of(read(None, section), labels) == types


@pytest.mark.parametrize("section", [None, {}])
def test_a_cr_that_wants_nothing_removes_what_we_have_made(section: Any) -> None:
    cr = read(None, section, gates=["DisableMDEVConfiguration"])
    kernel = ModelKernel([t4(1)])
    settle(kernel, merge.merge(MANAGED, read(None, CATALOGUE)).mdevs)
    assert short(kernel) == ["16×222"]
    settle(kernel, merge.merge(MANAGED, cr).mdevs)
    assert short(kernel) == ["-"]


def test_nothing_is_known_to_be_unwanted_without_a_cr() -> None:
    assert not merge.merge(MANAGED, None).mdevs.manage


GUIDE = {
    "enabled": False,
    "mediatedDevicesTypes": ["nvidia-230", "nvidia-223", "nvidia-224"],
    "nodeMediatedDeviceTypes": [
        {"nodeSelector": {"kubernetes.io/hostname": "node2"}, "mediatedDevicesTypes": ["nvidia-234"]}
    ],
}


def test_the_example_of_the_user_guide_splits_the_cards_of_both_nodes_and_follows_a_label() -> None:
    cr, kernel = read(None, GUIDE), ModelKernel([t4(1), t4(2)])

    def settled(**labels: str) -> list[str]:
        found = merge.merge(MANAGED, cr, {key.replace("_", "/"): each for key, each in labels.items()})
        settle(kernel, found.mdevs, labels=dict(found.labels))
        return short(kernel)

    assert settled(**{"kubernetes.io/hostname": "node1"}) == ["16×230", "8×223"]  # W6
    assert settled(**{"kubernetes.io/hostname": "node2"}) == ["1×234", "1×234"]  # W7
    assert settled() == ["16×230", "8×223"]  # W10


def obstacles(configuration: Configuration, cr: KubeVirtCR | None, labels: Any = None) -> list[str]:
    """The keys of the objections, and whether anything is done all the same."""
    found = merge.objections(configuration, cr, labels)
    wanted = merge.merge(configuration, cr, labels).mdevs
    assert wanted.manage is not bool(found)
    assert [*found] == [each for each in (wanted.obstacle,) if each is not None]
    return [each.subject for each in found]


@pytest.mark.parametrize(
    ("section", "gates", "blocked"),
    [
        ({"mediatedDeviceTypes": GLOBAL}, (), True),
        ({"mediatedDeviceTypes": GLOBAL, "enabled": True}, ("DisableMDEVConfiguration",), True),
        (None, (), True),
        ({"mediatedDeviceTypes": GLOBAL, "enabled": False}, (), False),
        ({"mediatedDeviceTypes": GLOBAL}, ("DisableMDEVConfiguration",), False),
    ],
)
def test_nothing_is_made_or_removed_while_virt_handler_does_so_itself(
    section: Any, gates: Any, blocked: bool
) -> None:
    assert obstacles(MANAGED, read(None, section, gates)) == ["kubevirt.manageMdevs"] * blocked


def own(*types: str | WantedType, **other: Any) -> Configuration:
    """A configuration that manages mdevs by itself, on a node where the CR is read."""
    mdevs = Mdevs(manage=True, types=listed(*types), **other)
    return Configuration(mdevs=mdevs, kubevirt=KubeVirt(enabled="true"))


EXTERNAL = {"mediatedDevices": [external(VGPU)]}


@pytest.mark.parametrize(
    ("configuration", "permitted", "section", "blocked"),
    [
        (own("GRID_T4-1Q"), EXTERNAL, None, False),
        (own("GRID_T4-1Q"), {"mediatedDevices": [VGPU]}, None, True),
        (own("GRID_T4-1Q", "222"), EXTERNAL, None, True),
        (own("222"), None, {"mediatedDeviceTypes": ["nvidia-222"]}, False),
        (own("222"), None, {"mediatedDeviceTypes": ["nvidia-223"]}, True),
        (own("222"), None, {"mediatedDeviceTypes": ["nvidia-223"], "enabled": False}, False),
        (own(), None, None, False),
    ],
)
def test_types_that_virt_handler_would_remove_are_not_made_for_the_configuration_either(
    configuration: Configuration, permitted: Any, section: Any, blocked: bool
) -> None:
    assert obstacles(configuration, read(permitted, section)) == ["mdevs.manage"] * blocked


@pytest.mark.parametrize(
    ("imported", "blocked"),
    [
        (MdevctlDefinitions((MdevDefinition("u", "0000:01:00.0", "nvidia-222"),)), True),
        (MdevctlDefinitions((MdevDefinition("u", "0000:01:00.0", "GRID T4-1Q"),)), False),
        (
            VgpuFile("f", (VgpuConfiguration("x", (CardTypes(types=(WantedType("T4-1Q", short=True),)),)),)),
            False,
        ),
        (
            VgpuFile("f", (VgpuConfiguration("x", (CardTypes(types=(WantedType("T4-2Q", short=True),)),)),)),
            True,
        ),
    ],
)
def test_what_other_tools_ask_for_is_kept_from_virt_handler_as_well(imported: Any, blocked: bool) -> None:
    files = Imported(imported, None) if isinstance(imported, MdevctlDefinitions) else Imported(vgpu=imported)
    configuration = own(mdevctl=True, vgpu_config="x")
    found = obstacles(
        Configuration(mdevs=configuration.mdevs, kubevirt=configuration.kubevirt, imported=files),
        read(EXTERNAL),
    )
    assert found == ["mdevs.manage"] * blocked


def test_the_wishes_of_the_configuration_win_over_those_of_the_cr() -> None:
    both = Configuration(mdevs=Mdevs(manage=True, types=listed("228")), kubevirt=MANAGED.kubevirt)
    cr = read(None, CATALOGUE)
    assert merge.merge(both, cr).mdevs.types == (WantedType("nvidia-228"),)
    assert [each.subject for each in merge.objections(both, cr)] == ["kubevirt.manageMdevs"]


def test_lists_that_the_configuration_does_not_carry_out_do_not_stand_in_the_way() -> None:
    idle = Configuration(
        mdevs=Mdevs(types=listed("228"), adopt=True, exclude=("a",)), kubevirt=MANAGED.kubevirt
    )
    found = merge.merge(idle, read(EXTERNAL, {"mediatedDeviceTypes": ["b", "b"], "enabled": False}))
    assert found.mdevs == MdevSpec(
        manage=True,
        types=(WantedType("b"), WantedType("b")),
        adopt=True,
        excluded=("a",),
        protected=("GRID T4-1Q",),
    )


def test_overrides_keep_their_labels_and_their_order() -> None:
    found = merge.merge(MANAGED, read(None, CATALOGUE)).mdevs.nodes
    assert found[2] == NodeTypes(
        (("testLabel3", "true"), ("testLabel4", "true")), (WantedType("nvidia-230"),)
    )


def test_a_label_that_names_no_vgpu_configuration_takes_nothing_from_the_node() -> None:
    file = VgpuFile(
        "vgpu.yaml",
        (VgpuConfiguration("good", (CardTypes(),)),),
    )
    managed = Configuration(mdevs=Mdevs(manage=True, vgpu_config_file="x"), imported=Imported(vgpu=file))

    def told(name: str) -> list[str]:
        assert merge.findings(managed) == ()
        label = {"nvidia.com/vgpu.config": name}
        assert merge.merge(managed, labels=label).mdevs.manage is (name == "good")
        return [each.message for each in merge.objections(managed, None, label)]

    assert told("good") == []
    each_names(told("godo"), ("godo",))


def test_asking_for_the_mdevs_of_a_cr_that_is_not_read_is_a_warning() -> None:
    assert merge.warnings(MANAGED) == ()
    (line,) = merge.warnings(Configuration(kubevirt=KubeVirt(enabled="false", manage_mdevs=True)))
    names(line, "kubevirt.manageMdevs", "KubeVirt CR")


FOREIGN = "53764d0e-85a0-42b4-af5c-2046b460b1dc"


@pytest.mark.parametrize("protected", [(), ("nvidia-223",), ("GRID_T4-2B",)])
def test_what_another_provider_made_of_an_external_type_is_not_taken_over(
    protected: tuple[str, ...],
) -> None:
    kernel = ModelKernel([t4(1)])
    kernel.create("0000:01:00.0", "nvidia-223", FOREIGN)
    wish = MdevSpec(manage=True, types=listed("222"), adopt=True, protected=protected)
    settle(kernel, wish)
    assert short(kernel) == (["1×223"] if protected else ["16×222"])


def test_our_own_devices_of_an_external_type_go_when_nobody_wants_them_any_more() -> None:
    kernel = ModelKernel([t4(1)])
    settle(kernel, MdevSpec(manage=True, types=listed("223"), protected=("nvidia-223",)))
    assert short(kernel) == ["8×223"]
    settle(kernel, MdevSpec(manage=True, types=listed("222"), protected=("nvidia-223",)))
    assert short(kernel) == ["16×222"]
    assert not planned(kernel, MdevSpec(manage=True, types=listed("222"))).steps
