# SPDX-License-Identifier: Apache-2.0
"""The page for those who come from other tools: what it shows is taken, and does what it says on a host."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent import config
from nodeagent.base.watch import DirectoryWatcher
from nodeagent.cli import main
from nodeagent.cluster import kubevirt
from nodeagent.sim import files, nodes
from nodeagent.sim.mdev import MdevKernel, SimulatedCards
from tests.machines.capture import materialise

PAGE = Path(__file__).parents[2] / "docs/migrating.md"
CAPTURED = Path(__file__).parents[1] / "machines/hosts"
MACHINE = "0123456789abcdef" * 2
DEFINED = "53764d0e-85a0-42b4-af5c-2046b460b1dc"
RTX = "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A"
VGPU_FILE = """
version: v1
vgpu-configs:
  T4-1Q: [{devices: all, vgpu-devices: {T4-1B: 16}}]
"""


def shown(language: str) -> list[str]:
    """The blocks of the page, in their order."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


OURS = [block for block in shown("yaml") if block.startswith("apiVersion: nodeagent/v1")]
THEIRS = [block for block in shown("yaml") if block not in OURS]
CONVERTED, FOLLOWING, AUDIO, AUDIO_RULE, ALIAS, RULES, KVM, TYPES, NIC, NODES, *OTHERS = OURS
(_, _, MDEVCTL, VGPU, ONE_NAME) = OTHERS
(CR, HANDED_OVER, PATCH, GROUPS) = THEIRS
(HINTS,) = shown("text")
(RESOURCE_LIST,) = shown("json")


@pytest.mark.parametrize("block", OURS)
def test_every_configuration_of_the_page_is_taken_without_a_warning(block: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(block)
    assert config.check_file(str(tmp_path / "config.yaml")).warnings == ()


def test_the_conversion_of_the_whole_cr_prints_what_the_page_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cr.yaml").write_text(CR)
    assert main.main(["config", "--from", "cr.yaml"]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (CONVERTED, HINTS)


@pytest.mark.parametrize("edit", [HANDED_OVER, PATCH])
def test_the_edits_of_the_cr_are_understood_whole(edit: str) -> None:
    cr = kubevirt.cr(yaml.safe_load(edit))
    assert (cr.fault, cr.refused) == (None, ())
    assert cr.permitted is not None
    assert all(entry.external for entry in cr.permitted)


@pytest.mark.parametrize(("theirs", "ours"), [(PATCH, RULES), (RESOURCE_LIST, NIC), (GROUPS, NODES)])
def test_files_become_the_rules_that_stand_beside_them(
    theirs: str, ours: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "theirs").write_text(theirs)
    assert main.main(["config", "--from", str(tmp_path / "theirs")]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == yaml.safe_load(ours)


Walk = Callable[[str], Any]


@pytest.fixture
def walk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Walk:
    """What ``plan --config`` says of a block of the page on the host below tmp_path."""

    def dry_run(block: str) -> Any:
        (tmp_path / "new.yaml").write_text(block)
        files.write(f"{tmp_path}/etc/machine-id", MACHINE)
        arguments = ["--root", str(tmp_path), "plan", "--config", str(tmp_path / "new.yaml"), "-o", "json"]
        assert main.main(arguments) == 0
        return json.loads(capsys.readouterr().out)

    return dry_run


def after(told: Any) -> dict[str, tuple[int, int] | None]:
    """Devices and healthy ones of each resource that changes; None: it goes."""
    found = {each["name"]: each["after"] for each in told["resources"]}
    return {name: (each["devices"], each["healthy"]) if each else None for name, each in found.items()}


def test_all_names_of_nvidias_plugin_are_kept(walk: Walk, tmp_path: Path) -> None:
    nodes.demo_node(tmp_path)
    assert after(walk(AUDIO)) == {
        "nvidia.com/TU106_HIGH_DEFINITION_AUDIO_CONTROLLER": (4, 4),
        "nvidia.com/TU106_USB_3_1_HOST_CONTROLLER": (4, 4),
        "nvidia.com/TU106_USB_TYPEC_UCSI_CONTROLLER": (4, 4),
    }
    assert after(walk(AUDIO_RULE)) == {"nvidia.com/TU106_HIGH_DEFINITION_AUDIO_CONTROLLER": (4, 4)}
    assert after(walk(ALIAS)) == {
        "nvidia.com/TU104GL_TESLA_T4": None,
        "nvidia.com/TU104GL_Tesla_T4": (1, 0),
    }
    assert after(walk(ONE_NAME))["nvidia.com/pgpu"] == (5, 4)


def test_permitted_functions_are_offered_by_rule(walk: Walk, tmp_path: Path) -> None:
    nodes.demo_node(tmp_path)
    told = after(walk(RULES))
    assert (told["example.com/gpu"], told[RTX]) == ((4, 4), None)
    assert after(walk(KVM)) == {"devices.example.com/kvm": (110, 110)}


@pytest.mark.parametrize(("block", "steps"), [(TYPES, 34), (VGPU, 48)])
def test_the_same_types_are_planned(block: str, steps: int, walk: Walk, tmp_path: Path) -> None:
    watcher = DirectoryWatcher()
    SimulatedCards(nodes.vgpu_node(tmp_path), MdevKernel(nodes.vgpu_cards()), watcher)
    watcher.close()
    files.write(f"{tmp_path}/etc/nvidia-vgpu/config.yaml", VGPU_FILE)
    told = walk(block)["plan"]
    assert (len(told["steps"]), told["problems"]) == (steps, [])


def test_vfio_functions_of_a_captured_host_are_offered_by_the_translated_rule(
    walk: Walk, tmp_path: Path
) -> None:
    materialise(CAPTURED / "6.12-vfio.json", tmp_path)
    told = walk(NIC)
    assert after(told) == {"example.com/nic": (2, 1)}
    reasons = {each["id"]: each["after"]["reason"] for each in told["devices"]}
    assert reasons["0000:01:00.0"] is None
    assert reasons["0000:03:00.0"]["code"] == "group-not-viable"


def translated(spec: str, theirs: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What ``config --from`` makes of this configuration of KubeVirt."""
    theirs.write_text(f"kind: KubeVirt\napiVersion: kubevirt.io/v1\nspec: {{configuration: {{{spec}}}}}\n")
    assert main.main(["config", "--from", str(theirs)]) == 0
    return capsys.readouterr().out


def test_a_permitted_function_of_a_captured_host_is_offered_under_its_name(
    walk: Walk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    materialise(CAPTURED / "6.12-vfio.json", tmp_path)
    entry = '{pciVendorSelector: "8086:10D3", resourceName: example.com/nic, externalResourceProvider: true}'
    rules = translated(f"permittedHostDevices: {{pciHostDevices: [{entry}]}}", tmp_path / "cr.yaml", capsys)
    assert after(walk(rules)) == {"example.com/nic": (2, 1)}  # two more are on a host driver


def test_types_of_the_cr_are_planned_on_a_captured_host(
    walk: Walk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    materialise(CAPTURED / "6.12-mdev-parents.json", tmp_path)
    section = "mediatedDevicesConfiguration: {mediatedDeviceTypes: [mtty-2]}"
    rules = translated(section, tmp_path / "cr.yaml", capsys)
    plan = walk(rules.replace("mdevs:", "mdevs:\n  manage: true"))["plan"]
    room = (tmp_path / "sys/class/mdev_bus/mtty/mdev_supported_types/mtty-2/available_instances").read_text()
    assert [each["details"]["typeId"] for each in plan["steps"]] == ["mtty-2"] * int(room)
    assert plan["problems"] == []


def test_definitions_of_mdevctl_are_planned_on_a_captured_host(walk: Walk, tmp_path: Path) -> None:
    materialise(CAPTURED / "6.12-mdev-parents.json", tmp_path)
    definition = {"mdev_type": "mtty-1", "start": "auto", "attrs": []}
    files.write(f"{tmp_path}/etc/mdevctl.d/mtty/{DEFINED}", json.dumps(definition))
    (step,) = walk(MDEVCTL)["plan"]["steps"]
    assert DEFINED in step["action"]


def test_existing_mdevs_of_a_captured_host_stay_offered_whoever_made_them(walk: Walk, tmp_path: Path) -> None:
    materialise(CAPTURED / "6.12-mdev.json", tmp_path)
    told = walk(MDEVCTL)
    assert told["resources"] == told["plan"]["steps"] == []


def test_every_part_says_how_to_see_that_it_works_and_the_way_back() -> None:
    parts = PAGE.read_text().split("\n## ")[3:]
    assert len(parts) == 8
    for part in parts:
        assert "\n| see | " in part
        assert "\n| back | " in part
        assert "**Not supported:**" in part or "| none" in part
