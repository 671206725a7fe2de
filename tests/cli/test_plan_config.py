# SPDX-License-Identifier: Apache-2.0
"""``plan --config FILE``: what another configuration would change, on trees of files and on saved hosts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from nodeagent.cli import main
from nodeagent.sim import nodes
from tests.facts import contains, names

MACHINE = "0123456789abcdef" * 2
RTX = "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A"
GPUS = [f"0000:{bus}:00.0" for bus in ("3b", "5e", "86", "af")]
NEW = "resources: [{name: example.com/gpu, pci: [{vendors: ['10de'], devices: ['1f08']}]}]\n"
SCHEMA = Path(__file__).parents[2] / "docs/schemas/DryRun.json"
Try = Callable[..., tuple[int, str, str]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    host = nodes.demo_node(tmp_path / "host")
    host.write_file("/etc/machine-id", MACHINE)
    host.write_file("/etc/nodeagent/config.yaml", "timing: {settle: 2s}\n")
    return tmp_path / "host"


@pytest.fixture
def tried(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Try:
    def command(text: str, *arguments: str) -> tuple[int, str, str]:
        (tmp_path / "new.yaml").write_text(text)
        code = main.main(["--root", str(root), "plan", "--config", str(tmp_path / "new.yaml"), *arguments])
        return code, *capsys.readouterr()

    return command


def document(tried: Try, text: str, *arguments: str) -> Any:
    code, out, _ = tried(text, *arguments, "-o", "json")
    assert code == 0
    told = json.loads(out)
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(told)
    return told


def test_a_rule_renames_what_it_takes_and_the_rest_stays(tried: Try) -> None:
    told = document(tried, NEW)
    four = {"devices": 4, "healthy": 4}
    assert told["resources"] == [
        {"name": RTX, "before": four, "after": None},
        {"name": "example.com/gpu", "before": None, "after": four},
    ]
    assert [
        (each["id"], each["before"]["resource"], each["after"]["resource"]) for each in told["devices"]
    ] == [(address, RTX, "example.com/gpu") for address in GPUS]
    assert told["pods"] == {}
    assert [each["key"] for each in told["settings"]] == ["resources", "timing.settle"]
    assert told["plan"]["steps"] == []


def test_the_text_says_the_same_and_shortens_what_is_alike(tried: Try) -> None:
    kvm = "  - {name: devices.example.com/kvm, node: {path: /dev/kvm, count: 110}}\n"
    _, out, _ = tried("resources:\n" + kvm + "status: {socket: /run/x}\n")
    lines = out.splitlines()
    assert "  + devices.example.com/kvm: 110 devices, 110 Healthy" in lines
    assert any(contains(line, "kvm-3", "devices.example.com/kvm") for line in lines)
    assert not any(contains(line, "kvm-4") for line in lines)
    assert any(contains(line, 106) for line in lines)
    assert any(contains(line, "status.socket", "start") for line in lines)


def test_a_file_that_says_the_same_changes_nothing(tried: Try) -> None:
    told = document(tried, "# as before\n\ntiming: {settle: 2s}\n")
    assert (told["settings"], told["resources"], told["devices"]) == ([], [], [])
    names(tried("timing: {settle: 2s}\n")[1], "kubelet")


def test_parts_and_flags_go_over_the_file_as_over_the_old_one(tried: Try, root: Path) -> None:
    (root / "etc/nodeagent/conf.d").mkdir()
    (root / "etc/nodeagent/conf.d/a.yaml").write_text("discovery: {naming: id}\n")
    told = document(tried, "discovery: {naming: name, enabled: true}\n", "--timing-settle", "9s")
    assert told["settings"] == told["resources"] == []
    off = document(tried, "discovery: {enabled: true}\n", "--discovery-enabled", "false")
    assert off["resources"] == []


def test_a_device_that_turns_unhealthy_says_why(tried: Try, root: Path) -> None:
    (root / "etc/nodeagent/config.yaml").write_text("discovery: {enabled: false}\n")
    rule = "discovery: {enabled: false}\nresources: [{name: a.b/disk, pci: [{classes: ['0108']}]}]\n"
    (disk,) = document(tried, rule)["devices"]
    assert (disk["before"], disk["after"]["resource"]) == (None, "a.b/disk")
    assert disk["after"]["reason"]["code"] == "driver-changed"
    names(tried(rule)[1], "a.b/disk", "Unhealthy", disk["after"]["reason"]["message"])


def test_mdevs_and_vfs_are_planned_with_the_new_file(tried: Try) -> None:
    told = document(tried, "mdevs: {manage: true, types: [nvidia-222]}\n")
    assert told["plan"]["manage"] is True
    assert told["plan"]["problems"]


def test_a_saved_host_is_compared_without_a_daemon(
    tried: Try, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["--root", str(root), "scan", "-o", "json"]) == 0
    (tmp_path / "host.json").write_text(capsys.readouterr().out)
    text = NEW + "  \n"
    told = document(tried, text, "--host", str(tmp_path / "host.json"))
    assert [each["id"] for each in told["devices"]] == GPUS
    kvm = "resources: [{name: a.b/kvm, node: {path: /dev/kvm}}]\n"
    _, _, err = tried(kvm, "--host", str(tmp_path / "host.json"))
    names(err, "/dev/kvm")


def test_a_file_that_cannot_be_used_is_an_error_in_full(tried: Try) -> None:
    code, out, err = tried("discovry: 1\ntimng: 2\n")
    assert (code, out) == (2, "")
    names(err, "discovry", "timng")


def test_a_file_that_is_not_there_is_an_error(
    tried: Try, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["--root", str(root), "plan", "--config", "/nonexistent.yaml"]) == 2
    assert "no such file" in capsys.readouterr().err
    assert main.main(["--root", str(root), "plan", "--config", "-", "--host", "-"]) == 2
    assert "standard input" in capsys.readouterr().err
