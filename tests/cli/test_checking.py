# SPDX-License-Identifier: Apache-2.0
"""``nodeagent check`` for programs, and by which settings and host it goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from nodeagent.cli import main
from nodeagent.sim import nodes
from tests.reference import commands
from tests.sim import hosts

Capture = pytest.CaptureFixture[str]


def asked(capsys: Capture, *arguments: str) -> str:
    assert main.main(arguments) == 3
    return capsys.readouterr().out


def by_check(text: str) -> dict[str, Any]:
    return {line["check"]: line for line in json.loads(text)["lines"]}


def test_the_report_fits_its_schema_in_both_forms(tmp_path: Path, capsys: Capture) -> None:
    root = nodes.demo_node(tmp_path).directory
    document = json.loads(asked(capsys, "--root", root, "check", "-o", "json"))
    assert (document["apiVersion"], document["kind"], document["ok"]) == (
        "nodeagent/v1",
        "Readiness",
        False,
    )
    schema = json.loads(commands.files()["schemas/Readiness.json"])
    jsonschema.Draft202012Validator(schema).validate(document)
    assert yaml.safe_load(asked(capsys, "--root", root, "check", "-o", "yaml")) == document


def test_a_kubelet_is_looked_for_where_the_settings_say(tmp_path: Path, capsys: Capture) -> None:
    root = hosts.many(tmp_path, 1).directory
    flags = ("--kubelet-device-plugin-dir", "/x/plugins", "--kubelet-pod-resources", "/x/pods.sock")
    lines = by_check(asked(capsys, "--root", root, "check", *flags, "-o", "json"))
    assert "/x/plugins" in lines["device plugins"]["message"]
    assert lines["PodResources"]["message"].startswith("/x/pods.sock: ")


def test_long_paths_leave_the_report_in_80_columns(tmp_path: Path, capsys: Capture) -> None:
    root = hosts.many(tmp_path, 40).directory
    place = "/var/snap/microk8s/common/var/lib/kubelet"
    flags = ("--kubelet-device-plugin-dir", f"{place}/device-plugins", "--kubelet-pod-resources")
    told = asked(capsys, "--root", root, "check", *flags, f"{place}/pod-resources/kubelet.sock")
    assert max(map(len, told.splitlines())) <= 80


def test_a_rule_that_wants_iommufd_alone_makes_its_absence_wrong(tmp_path: Path, capsys: Capture) -> None:
    host = hosts.many(tmp_path, 1)
    rule = 'resources: [{name: a.b/c, iommufd: only, pci: [{vendors: ["10de"]}]}]'
    host.write_file("/etc/nodeagent/config.yaml", rule)
    line = by_check(asked(capsys, "--root", host.directory, "check", "-o", "json"))["iommufd"]
    assert line["verdict"] == "wrong"
    assert "a.b/c" in line["message"]


def test_a_file_that_is_no_saved_host_is_a_mistake(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "host.json").write_text("{}")
    assert main.main(["check", "--host", str(tmp_path / "host.json")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
