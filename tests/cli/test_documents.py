# SPDX-License-Identifier: Apache-2.0
"""What every command gives to programs fits its schema, and is the same as JSON and as YAML."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from nodeagent.cli import main
from nodeagent.sim import nodes
from tests.reference import commands

Ask = Callable[..., str]
CONFIGURATION = """\
mdevs: {manage: true, types: [nvidia-222]}
resources: [{name: x/gpu, pci: [{devices: ["1f08"]}]}]
"""
MACHINE = (
    "{kind: VirtualMachineInstance, apiVersion: kubevirt.io/v1, metadata: {name: a}, spec: {domain: {}}}"
)


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """The answer of a command on a node with cards of many kinds."""
    host = nodes.demo_node(tmp_path / "host")
    host.write_file("/etc/machine-id", "0123456789abcdef0123456789abcdef\n")
    host.write_file("/etc/nodeagent/config.yaml", CONFIGURATION)
    host.write_file("/machine.yaml", MACHINE)

    def command(*arguments: str) -> str:
        assert (
            main.main(
                [
                    "--root",
                    host.directory,
                    *(
                        host.path(each) if each[0] == "/" and each[:5] != "/dev/" else each
                        for each in arguments
                    ),
                ]
            )
            == 0
        )
        return capsys.readouterr().out

    return command


def checked(text: str, kind: str) -> Any:
    document = json.loads(text)
    assert (document["apiVersion"], document["kind"]) == ("nodeagent/v1", kind)
    schema = json.loads(commands.files()[f"schemas/{kind}.json"])
    jsonschema.Draft202012Validator(schema).validate(document)
    return document


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("Host", ["scan"]),
        ("Plan", ["plan"]),
        ("DeviceExplanation", ["explain", "3b:00.0"]),
        ("DeviceExplanation", ["explain", "d8:00.0"]),
        ("ResourceExplanation", ["explain", "nvidia.com/TU104GL_TESLA_T4"]),
        ("RuleExplanation", ["explain", "config.yaml:2"]),
        ("GroupExplanation", ["explain", "/dev/vfio/14"]),
        ("VMExplanation", ["explain", "vmi", "/machine.yaml"]),
        ("Settings", ["config"]),
        ("Settings", ["config", "--check", "/etc/nodeagent/config.yaml"]),
        ("ClusterCheck", ["cluster", "check"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_a_document_fits_its_schema_in_both_forms(ask: Ask, kind: str, arguments: list[str]) -> None:
    document = checked(ask(*arguments, "-o", "json"), kind)
    assert len(document) > 2
    assert yaml.safe_load(ask(*arguments, "-o", "yaml")) == document


def test_what_the_text_tells_of_a_device_is_there_for_programs(ask: Ask) -> None:
    document = checked(ask("explain", "d8:00.0", "-o", "json"), "DeviceExplanation")
    text = ask("explain", "d8:00.0")
    assert document["verdict"] in text
    for key, value in document["facts"].items():
        assert f"  {key:<7} {value}" in text.splitlines()
    assert {"class", "driver", "numa"} <= set(document["facts"])
    assert document["reason"]["hint"] in text
