# SPDX-License-Identifier: Apache-2.0
"""One table: flags, variables, schema, reference and defaults all come from it and agree."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from nodeagent import config
from nodeagent.config import codec, words
from nodeagent.model.spec import GroupScope

PAGE = Path(__file__).parents[2] / "docs/configuration.md"

WHOLE = """
apiVersion: nodeagent/v1
discovery: {enabled: true, naming: name, prefix: "", classes: ["0300", "0302", "0380", "0680", "1200"]}
aliases: {nvidia.com/TU104GL_TESLA_T4: nvidia.com/t4}
resources:
  - name: example.com/gpu
    pci:
      - {vendors: ["10de"], devices: ["1f08"], classes: ["0300"], drivers: [vfio-pci],
         addresses: ["0000:86:00.*"], numaNodes: [0], iommuGroups: [12], vgpuTypes: []}
    isolation: group
    iommufd: never
    cdi: false
  - {name: nvidia.com/GRID_T4-1Q, mdev: [{types: [nvidia-222], names: ["GRID T4-1Q"]}]}
  - {name: devices.example.com/kvm, node: {path: /dev/kvm, count: 110, permissions: rw}}
mdevs:
  manage: true
  types: [nvidia-222, {type: nvidia-228, count: 4}]
  nodes: [{nodeSelector: {kubernetes.io/hostname: node2}, types: [nvidia-234]}]
  adopt: false
passthrough: [{match: [{vendors: ["10de"], classes: ["0300"]}], driver: vfio-pci, group: whole}]
sriov: [{match: [{addresses: ["0000:3b:00.0"]}], numVFs: 8}]
kubevirt: {enabled: auto, serve: all, manageMdevs: true}
kubelet: {registration: classic, devicePluginDir: /var/lib/kubelet/device-plugins,
          podResources: /var/lib/kubelet/pod-resources/kubelet.sock}
node: {name: "", labels: {}}
timing: {settle: 1s, resync: 60s}
"""


def validator() -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(config.schema())
    return jsonschema.Draft202012Validator(config.schema())


def test_the_schema_takes_the_whole_file_format() -> None:
    validator().validate(yaml.safe_load(WHOLE))
    validator().validate({})
    validator().validate(yaml.safe_load("kubevirt: {enabled: false}\nmdevs:\nresources:\n"))


@pytest.mark.parametrize(
    "text",
    [
        "resourcez: []",
        "timing: {settle: 1}",
        "discovery: {classes: ['0x03']}",
        "resources: [{pci: []}]",
        "resources: [{name: a.b/c, pci: [{vendor: ['10de']}]}]",
        "apiVersion: v2",
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(text: str) -> None:
    assert not validator().is_valid(yaml.safe_load(text))


def test_the_reader_knows_every_part_of_the_file_format(tmp_path: Path) -> None:
    path = tmp_path / "whole.yaml"
    path.write_text(WHOLE)
    (rule,) = config.check_file(str(path)).configuration.passthrough
    assert (rule.selectors[0].vendors, rule.driver, rule.group) == (("10de",), "vfio-pci", GroupScope.WHOLE)


def test_a_file_with_every_default_written_out_changes_nothing(tmp_path: Path) -> None:
    written: dict[str, Any] = {}
    for setting in config.SETTINGS:
        table_of = written.setdefault(setting.section, {}) if setting.section else written
        table_of[setting.name] = codec.written(setting.shape, setting.default)
    validator().validate(written)
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(written, indent=1))
    assert dataclasses.replace(config.check_file(str(path)), values=()) == dataclasses.replace(
        config.load(config.Sources("/nonexistent", {}, {})), values=()
    )


def test_flags_are_named_after_their_keys_and_come_back_as_texts() -> None:
    parser = argparse.ArgumentParser()
    config.add_flags(parser, "they win")
    parsed = parser.parse_args(
        ["--timing-settle", "2s", "--kubelet-device-plugin-dir=/x", "--discovery-prefix="]
    )
    assert config.flags_from(parsed) == {
        "discovery.prefix": "",
        "kubelet.devicePluginDir": "/x",
        "timing.settle": "2s",
    }
    assert "--log-level" in parser.format_help()
    assert "--kubevirt-enabled" in parser.format_help()
    assert "--passthrough" not in parser.format_help()


def test_no_two_settings_share_a_flag_or_a_variable() -> None:
    flags = [setting.flag for setting in config.SETTINGS if setting.flag]
    variables = [setting.env for setting in config.SETTINGS if setting.env]
    assert len(set(flags)) == len(flags)
    assert len(set(variables)) == len(variables)
    assert "NODEAGENT_KUBELET_DEVICE_PLUGIN_DIR" in variables


def test_the_examples_of_the_page_load(tmp_path: Path) -> None:
    examples = [part.partition("```")[0] for part in PAGE.read_text().split("```yaml\n")[1:]]
    assert len(examples) >= 3
    for example in examples:
        path = tmp_path / "config.yaml"
        path.write_text(example)
        assert config.check_file(str(path)).warnings == ()


@pytest.mark.parametrize(
    ("pattern", "possible"),
    [
        ("*", True),
        ("0000:86:00.*", True),
        ("0000:8?:0?.0", True),
        ("10000:01:00.0", True),
        ("*:00.0", True),
        ("*.?", True),
        ("0000:86:00", False),
        ("86:00.*", False),
        ("0000:86:2*.0", False),
        ("0000:86:00.8*", False),
        ("0000:86:00.0?", False),
        ("*g*", False),
        ("", False),
    ],
)
def test_a_pattern_is_possible_if_some_address_fits_it(pattern: str, possible: bool) -> None:
    assert words.can_match(pattern) is possible


@pytest.mark.timeout(10)
def test_a_pattern_of_any_number_of_stars_is_judged_in_no_time() -> None:
    assert words.can_match("*" * 100_000)
    assert words.can_match("0000:86:" + "*" * 100_000 + ".0")
    assert not words.can_match("*0" * 50_000)
