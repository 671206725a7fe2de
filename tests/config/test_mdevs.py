# SPDX-License-Identifier: Apache-2.0
"""What is wanted of mdevs: from the configuration, from mdevctl's definitions, from vgpu-device-manager."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nodeagent import config
from nodeagent.base.errors import ConfigError
from nodeagent.config import mdevctl, vgpu_device_manager, yaml_lines
from nodeagent.model.configuration import VgpuConfiguration
from nodeagent.model.spec import (
    CardTypes,
    MdevDefinition,
    MdevRule,
    MdevSelector,
    NodeTypes,
    PciSelector,
    Spec,
    SriovRule,
    WantedType,
)
from nodeagent.policy import merge
from tests.facts import names

UUID = "53764d0e-85a0-42b4-af5c-2046b460b1dc"
PARENT = "0000:65:00.0"
MDEVCTL = "mdevs: {manage: true, mdevctl: true}\n"
FULL = """\
mdevs:
  manage: true
  types: [nvidia-222, {type: GRID T4-1Q, count: 4}]
  nodes:
    - {nodeSelector: {kubernetes.io/hostname: node2}, types: [nvidia-234]}
    - {nodeSelector: {}, types: []}
  adopt: true
  exclude: [nvidia-230]
resources:
  - {name: nvidia.com/GRID_T4-1Q, mdev: [{types: [nvidia-222], names: [GRID T4-1Q]}], cdi: true}
sriov: [{match: [{addresses: ["0000:3b:00.0"]}], numVFs: 8}]
"""


class Node:
    """The files of a host from which settings are read."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def load(self, text: str) -> config.Settings:
        self.write("etc/nodeagent/config.yaml", text)
        return config.load(config.Sources(str(self.root), {}, {}))

    def spec(self, text: str) -> Spec:
        return merge.merge(self.load(text).configuration)

    def defines(self, uuid: str, **definition: object) -> None:
        self.write(f"etc/mdevctl.d/{PARENT}/{uuid}", json.dumps(definition))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_all_wishes_are_read_in_the_order_written(node: Node) -> None:
    spec = node.spec(FULL)
    wanted = spec.mdevs
    assert (wanted.manage, wanted.adopt, wanted.excluded) == (True, True, ("nvidia-230",))
    assert wanted.types == (WantedType("nvidia-222"), WantedType("GRID T4-1Q", 4))
    labels = (("kubernetes.io/hostname", "node2"),)
    assert wanted.nodes == (NodeTypes(labels, (WantedType("nvidia-234"),)), NodeTypes((), ()))
    selector = MdevSelector(("nvidia-222",), ("GRID T4-1Q",))
    assert spec.rules == (MdevRule("nvidia.com/GRID_T4-1Q", (selector,), cdi=True),)
    assert spec.sriov == (SriovRule((PciSelector(addresses=("0000:3b:00.0",)),), 8),)


def test_wishes_that_are_not_to_be_carried_out_are_fine_for_the_daemon(node: Node) -> None:
    wanted = node.spec("mdevs: {manage: false, types: [nvidia-222], adopt: true}\n").mdevs
    assert not wanted.manage
    assert wanted.types == (WantedType("nvidia-222"),)


def test_a_type_that_is_wanted_and_excluded_is_an_error(node: Node) -> None:
    with pytest.raises(ConfigError, match=r'mdevs\.exclude: "GRID T4-1Q"'):
        node.load("mdevs: {nodes: [{types: [GRID T4-1Q]}], exclude: [GRID_T4-1Q]}\n")


def test_definitions_of_mdevctl_are_read_where_asked_for(node: Node) -> None:
    other = UUID.replace("5376", "5377").upper()
    node.defines(UUID, mdev_type="nvidia-222", start="auto")
    node.defines(other, mdev_type="nvidia-222", start="auto", attrs=[])
    node.defines("a" * 8 + UUID[8:], mdev_type="nvidia-222", start="manual")
    node.write("etc/mdevctl.d/scripts.d/callouts/hook", "#!/bin/sh\n")
    assert node.spec("").mdevs.definitions == ()
    loaded = node.load(MDEVCTL)
    assert loaded.warnings == ()
    assert merge.merge(loaded.configuration).mdevs.definitions == (
        MdevDefinition(UUID, PARENT, "nvidia-222"),
        MdevDefinition(other.lower(), PARENT, "nvidia-222"),
    )


def test_a_definition_that_cannot_be_used_is_named_and_the_others_are_used(node: Node) -> None:
    node.defines(UUID, mdev_type="nvidia-222", start="auto")
    node.write(f"etc/mdevctl.d/{PARENT}/{UUID[:-1]}0", "{bad")
    node.write("etc/mdevctl.d/file", "")
    loaded = node.load(MDEVCTL)
    assert [each.uuid for each in loaded.configuration.imported.mdevctl.wanted] == [UUID]
    broken, stray = loaded.warnings
    assert f"etc/mdevctl.d/{PARENT}/{UUID[:-1]}0" in broken
    names(broken, "JSON")
    assert "etc/mdevctl.d/file" in stray


@pytest.mark.parametrize(
    ("text", "made", "reserved"),
    [
        ('{"mdev_type": "t-1", "start": "auto"}', 1, set()),
        ('{"mdev_type": "t-1", "start": "manual"}', 0, set()),
        ('{"mdev_type": "t-1", "start": "sometimes"}', 0, set()),
        ('{"mdev_type": "t-1", "start": "manual", "attrs": [{"a": "b"}]}', 0, set()),
        ('{"mdev_type": "t-1", "start": "auto", "attrs": [{"a": "b"}]}', 0, {PARENT}),
        ('{"mdev_type": "t-1"}', 0, {PARENT}),
        ("{bad", 0, {PARENT}),
    ],
)
def test_every_definition_keeps_its_uuid_and_one_left_to_mdevctl_its_card(
    node: Node, text: str, made: int, reserved: set[str]
) -> None:
    node.write(f"etc/mdevctl.d/{PARENT}/{UUID.upper()}", text)
    node.write(f"etc/mdevctl.d/{PARENT}/notes.txt", "")
    wanted = node.spec(MDEVCTL).mdevs
    assert wanted.defined == {UUID}
    assert len(wanted.definitions) == made
    assert wanted.reserved == reserved


def test_a_directory_in_the_place_of_a_definition_is_named_and_leaves_nothing_open(node: Node) -> None:
    (node.root / f"etc/mdevctl.d/{PARENT}/{UUID}").mkdir(parents=True)
    (node.root / f"etc/mdevctl.d/{PARENT}/notes").mkdir()
    before = os.listdir("/proc/self/fd")
    no_file, no_uuid = node.load(MDEVCTL).warnings
    assert f"etc/mdevctl.d/{PARENT}/{UUID}" in no_file
    names(no_file, "regular file")
    assert f"etc/mdevctl.d/{PARENT}/notes" in no_uuid
    names(no_uuid, "UUID")
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"mdev_type": "t-1"}', "start mode is missing"),
        ("[1]", "no JSON object"),
        ('{"mdev_type": 3, "start": "auto"}', "no type"),
        ('{"start": "auto"}', "no type"),
        ('{"mdev_type": "../x", "start": "auto"}', "no type"),
        ('{"mdev_type": "t-1", "start": "auto", "attrs": [{"a": "b"}]}', "sets attributes"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_a_definition_says_what_is_wrong_with_it(text: str, what: str) -> None:
    with pytest.raises(Exception, match=what):
        mdevctl.parse(PARENT, UUID, text)


VGPU = """\
version: v1
vgpu-configs:
  default:
    - devices: all
      vgpu-devices: {T4-1Q: 16}
  mixed:
    - devices: [0, 1]
      device-filter: ["0x1EB810DE", "0x25B610DE:0x14A910DE"]
      vgpu-devices: {A100-1-5CME: 7}
    - {devices: all, vgpu-devices: {}}
"""


def parsed(text: str) -> tuple[VgpuConfiguration, ...]:
    return vgpu_device_manager.parse(yaml_lines.parse(text.encode(), "vgpu.yaml"))


def configurations(text: str) -> dict[str, tuple[CardTypes, ...]]:
    return {each.name: each.cards for each in parsed(text)}


def test_a_file_of_vgpu_device_manager_is_read() -> None:
    found = configurations(VGPU)
    assert found["default"] == (CardTypes(types=(WantedType("T4-1Q", 16, short=True),)),)
    first, second = found["mixed"]
    assert first.positions == (0, 1)
    assert first.filters == (("10de", "1eb8", None, None), ("10de", "25b6", "10de", "14a9"))
    assert first.types == (WantedType("A100-1-5CME", 7, short=True),)
    assert second == CardTypes()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "version is not v1"),
        ("version: v2\nvgpu-configs: {}", "version is not v1"),
        ("version: v1", "names no configuration"),
        ("version: v1\nvgpu-configs: {}", "names no configuration"),
        ("version: v1\nextra: 1\nvgpu-configs: {a: []}", '"extra" is unknown'),
        ("version: v1\nvgpu-configs: {a: {}}", '"a" is not a list'),
        ("version: v1\nvgpu-configs: {a: []}", '"a" has no entries'),
        ("version: v1\nvgpu-configs: {a: [{vgpu-devices: {}}]}", r":2: devices\b"),
        ("version: v1\nvgpu-configs: {a: [{devices: all}]}", r":2: vgpu-devices\b"),
        ("version: v1\nvgpu-configs: {a: [{devices: some, vgpu-devices: {}}]}", 'devices is "some"'),
        ("version: v1\nvgpu-configs: {a: [{devices: [-1], vgpu-devices: {}}]}", "not a number from 0"),
        ("version: v1\nvgpu-configs: {a: [{devices: all, vgpu-devices: {T4-1Q: 0}}]}", "not a number from 1"),
        (
            "version: v1\nvgpu-configs: {a: [{devices: all, vgpu-devices: {T4-1Q: 1٢}}]}",
            "not a number from 1",
        ),
        ("version: v1\nvgpu-configs: {a: [{devices: all, vgpu-devices: {T4-1٢Q: 1}}]}", "is no vGPU type"),
        ("version: v1\nvgpu-configs: {a: [{devices: all, vgpu-devices: [T4-1Q]}]}", "vgpu-devices is a list"),
        (
            "version: v1\nvgpu-configs: {a: [{devices: all, vgpu-devices: {A16-8E: 1}}]}",
            '"A16-8E" is no vGPU',
        ),
        (
            "version: v1\nvgpu-configs: {a: [{devices: all, vgpu-devices: {A100-1-5Cme: 1}}]}",
            '"A100-1-5Cme" is no vGPU',
        ),
        (
            "version: v1\nvgpu-configs: {a: [{devices: all, device-filter: MODEL, vgpu-devices: {}}]}",
            '"MODEL" is no filter',
        ),
    ],
)
def test_a_mistake_in_such_a_file_is_told_with_its_line(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        configurations(text)
    assert caught.value.what.startswith("vgpu.yaml:")
    assert caught.value.hint


def test_a_bad_file_is_a_mistake_only_where_a_configuration_of_it_is_chosen(node: Node) -> None:
    node.write("etc/vgpu.yaml", "version: v2\n")
    (warning,) = node.load("mdevs: {manage: true, vgpuConfigFile: /etc/vgpu.yaml}\n").warnings
    names(warning, "mdevs.vgpuConfigFile")
    with pytest.raises(ConfigError, match=r"etc/vgpu.yaml:1: .*\bversion\b.*\bv1\b"):
        node.load("mdevs: {manage: true, vgpuConfigFile: /etc/vgpu.yaml, vgpuConfig: a}\n")


@pytest.mark.parametrize("entry", ['device-filter: "", vgpu-devices: {}', "vgpu-devices:"])
def test_what_its_own_tool_takes_for_nothing_is_nothing(entry: str) -> None:
    found = configurations(f"version: v1\nvgpu-configs: {{a: [{{devices: all, {entry}}}]}}")
    assert found["a"] == (CardTypes(),)


@pytest.mark.parametrize("name", ["A16-8Q", "RTX6000-Ada-2Q", "A100-1-5CME", "DC-1-24QGFX", "T4-0Q"])
def test_the_names_of_vgpu_types_are_known(name: str) -> None:
    found = configurations(
        f"version: v1\nvgpu-configs: {{a: [{{devices: all, vgpu-devices: {{{name}: 1}}}}]}}"
    )
    assert found["a"][0].types[0].name == name


def test_the_configuration_is_chosen_by_name_or_by_the_label_of_the_node(node: Node) -> None:
    node.write("etc/vgpu.yaml", VGPU)
    both = "mdevs: {vgpuConfigFile: /etc/vgpu.yaml, vgpuConfig: mixed}\n"
    assert len(node.spec(both).mdevs.cards) == 2
    labels = "node: {labels: {nvidia.com/vgpu.config: default}}\n"
    assert len(node.spec(f"mdevs: {{vgpuConfigFile: /etc/vgpu.yaml}}\n{labels}").mdevs.cards) == 1
    assert len(node.spec(f"{both}{labels}").mdevs.cards) == 1, "the label overrides the default"


def test_without_label_and_default_nothing_is_asked_for_and_that_is_a_warning(node: Node) -> None:
    node.write("etc/vgpu.yaml", VGPU)
    loaded = node.load("mdevs: {manage: true, vgpuConfigFile: /etc/vgpu.yaml}\n")
    assert merge.merge(loaded.configuration).mdevs.cards == ()
    (warning,) = loaded.warnings
    names(warning, "mdevs.vgpuConfigFile")
    assert "mdevs.manage" not in warning


@pytest.mark.parametrize("key", ["mdevctl: true", "vgpuConfigFile: /etc/vgpu.yaml, vgpuConfig: default"])
def test_what_is_asked_for_without_leave_to_make_it_is_a_warning(node: Node, key: str) -> None:
    node.write("etc/vgpu.yaml", VGPU)
    (warning,) = node.load(f"mdevs: {{{key}}}\n").warnings
    names(warning, f"mdevs.{key.partition(':')[0]}", "mdevs.manage")
    assert node.load(f"mdevs: {{manage: true, {key}}}\n").warnings == ()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("mdevs: {vgpuConfigFile: /etc/vgpu.yaml, vgpuConfig: defaults}", 'no configuration "defaults"'),
        ("mdevs: {vgpuConfigFile: /etc/absent.yaml, vgpuConfig: a}", "no such file"),
    ],
)
def test_a_configuration_that_is_not_there_is_an_error(node: Node, text: str, what: str) -> None:
    node.write("etc/vgpu.yaml", VGPU)
    with pytest.raises(ConfigError, match=what):
        node.load(text)


def test_the_directories_of_a_file_that_is_a_link_are_watched_on_both_ends(node: Node) -> None:
    node.write("srv/shared/vgpu.yaml", VGPU)
    (node.root / "etc/vgpu.yaml").parent.mkdir(exist_ok=True)
    (node.root / "etc/vgpu.yaml").symlink_to("../srv/shared/vgpu.yaml")
    watched = node.load("mdevs: {manage: true, vgpuConfigFile: /etc/vgpu.yaml, vgpuConfig: mixed}\n").watched
    assert {str(node.root / "etc"), str(node.root / "srv/shared")} <= set(watched)


def test_the_examples_of_the_page_on_vgpus_load(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/vgpu.md").read_text()
    examples = [part.partition("```")[0] for part in page.split("```yaml\n")[1:]]
    assert len(examples) == 3
    for example in examples:
        (tmp_path / "config.yaml").write_text(example)
        assert config.check_file(str(tmp_path / "config.yaml")).warnings == ()
