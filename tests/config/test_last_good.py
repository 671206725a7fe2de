# SPDX-License-Identifier: Apache-2.0
"""What is kept of good settings, and what a start makes of it when the files are wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nodeagent import config
from nodeagent.base.errors import ConfigError, KernelRefused
from nodeagent.base.state import SETTINGS
from nodeagent.config import ConfigErrors, Settings, Sources, last_good
from nodeagent.policy import merge

GOOD = """
resources: [{name: a.b/x, pci: [{devices: ["1eb8"]}]}, {name: a.b/k, node: {path: /dev/kvm, count: 3}}]
aliases: {nvidia.com/OLD: nvidia.com/new}
timing: {settle: 2s}
mdevs: {manage: true, types: [nvidia-222, {type: nvidia-223, count: 2}]}
"""
VGPU = "mdevs: {manage: true, vgpuConfigFile: /etc/vgpu.yaml, vgpuConfig: a}"
CHOICES = "version: v1\nvgpu-configs: {a: [{devices: all, vgpu-devices: {T4-1Q: 2}}]}\n"


class Node:
    """The files of one node."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "etc/nodeagent").mkdir(parents=True)

    @property
    def kept(self) -> str:
        return SETTINGS.path(str(self.root))

    def write(self, text: str, path: str = "etc/nodeagent/config.yaml") -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def starts(
        self, flags: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None
    ) -> tuple[Settings, ConfigError | None]:
        return last_good.at_start(Sources(str(self.root), flags or {}, environ or {}))

    def lived(self, text: str, **given: Mapping[str, str]) -> Settings:
        """The settings of a life that ended; the file is wrong since."""
        self.write(text)
        settings, wrong = self.starts(**given)
        assert wrong is None
        last_good.keep(str(self.root), settings)
        self.write("no-such-key: []")
        return settings

    def put(self, **values: Any) -> None:
        """What another version may have kept."""
        last_good.SECTION.save(str(self.root), {"values": values, "imported": None})


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_what_the_files_gave_comes_back_whole_and_the_files_are_watched(node: Node) -> None:
    before = node.lived(GOOD)
    settings, wrong = node.starts()
    assert wrong is not None
    assert "no-such-key" in wrong.what
    assert merge.merge(settings.configuration) == merge.merge(before.configuration)
    assert settings.timing == before.timing
    assert [value[:2] for value in settings.filed] == [value[:2] for value in before.filed]
    assert settings.watched == before.watched
    assert {each.source for each in settings.values} == {"default", last_good.PLACE}


def test_flags_and_variables_are_those_of_the_new_start(node: Node) -> None:
    node.lived(
        GOOD, flags={"timing.settle": "3s"}, environ={"NODEAGENT_ALIASES": "nvidia.com/A=nvidia.com/b"}
    )
    settings, _ = node.starts(environ={"NODEAGENT_TIMING_HOLDERS": "7s"})
    assert (settings.timing.settle, settings.timing.holders) == (2.0, 7.0)
    assert [alias.name for alias in settings.configuration.aliases] == ["nvidia.com/OLD"]


def test_a_wrong_flag_is_told_alone(node: Node) -> None:
    node.lived(GOOD)
    node.write(GOOD)
    with pytest.raises(ConfigError) as told:
        node.starts(flags={"timing.settle": "soon"})
    assert told.value.lines().count("\n") == 1


def test_no_file_at_all_was_good_as_well(node: Node) -> None:
    node.lived("")
    settings, wrong = node.starts()
    assert wrong is not None
    assert settings.values == config.load(Sources("/nonexistent", {}, {})).values


def test_what_files_of_other_tools_said_is_kept_with_it(node: Node) -> None:
    node.write(CHOICES, "etc/vgpu.yaml")
    before = node.lived(VGPU)
    node.write(VGPU)
    node.write("version: [", "etc/vgpu.yaml")
    settings, wrong = node.starts()
    assert wrong is not None
    assert "vgpu.yaml" in wrong.what
    assert merge.merge(settings.configuration).mdevs == merge.merge(before.configuration).mdevs
    assert merge.merge(settings.configuration).mdevs.cards


def test_a_key_that_is_known_no_more_is_left_out_and_told(node: Node) -> None:
    node.put(**{"timing.settle": "2s", "timing.old": "1s", "oldsection.key": [1]})
    node.write("no-such-key: []")
    settings, _ = node.starts()
    assert settings.timing.settle == 2.0
    assert [warning.split()[0] for warning in settings.warnings] == ["oldsection.key", "timing.old"]


def test_a_value_that_is_refused_now_refuses_the_start(node: Node) -> None:
    node.put(**{"timing.settle": "1 fortnight"})
    node.write("no-such-key: []")
    with pytest.raises(ConfigErrors) as told:
        node.starts()
    first, second = told.value.errors
    assert "no-such-key" in first.what
    assert node.kept in second.what
    assert "fortnight" in second.what


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b'{"settings": {"body": "{}"}}'])
def test_a_damaged_copy_is_told_and_replaced_by_the_next_good_one(node: Node, content: bytes) -> None:
    node.lived(GOOD)
    Path(node.kept).write_bytes(content)
    with pytest.raises(ConfigErrors, match="no-such-key") as told:
        node.starts()
    assert "damaged" in told.value.errors[1].what
    node.lived(GOOD)
    assert node.starts()[1] is not None


DEEP = json.loads("[" * 800 + "]" * 800)


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"values": [], "imported": None},
        {"values": {}, "imported": 5},
        {"values": {"resources": DEEP}, "imported": None},
    ],
    ids=range(4),
)
def test_a_copy_of_another_kind_is_as_a_damaged_one(node: Node, content: dict[str, Any]) -> None:
    node.lived(GOOD)
    Path(node.kept).write_text(json.dumps({"settings": content}))
    node.write("no-such-key: []")
    with pytest.raises(ConfigErrors) as told:
        node.starts()
    assert "damaged" in told.value.errors[1].what


def test_the_same_settings_are_written_once(node: Node) -> None:
    settings = node.lived(GOOD)
    before = Path(node.kept).stat().st_ino
    last_good.keep(str(node.root), settings)
    assert Path(node.kept).stat().st_ino == before


def test_a_directory_that_takes_nothing_is_told(node: Node) -> None:
    node.write("in the way", "var/lib/nodeagent")
    with pytest.raises(KernelRefused) as told:
        last_good.keep(str(node.root), config.load(Sources(str(node.root), {}, {})))
    assert "last.json" in told.value.what
