# SPDX-License-Identifier: Apache-2.0
"""``plan`` on saved hosts and on a tree of files; that the daemon refuses what only it can use."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from nodeagent.agent.changing import ledger
from nodeagent.base.watch import DirectoryWatcher
from nodeagent.cli import main
from nodeagent.kernel.scan import nvidia
from nodeagent.model import host_json
from nodeagent.model.change import Ledger
from nodeagent.sim import files
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.mdev import Card, SimulatedCards, Type, add_card
from tests.facts import contains, each_names, names
from tests.policy.change.splitting import MACHINE, settle, t4, wanted
from tests.sim.mdevs import ModelKernel
from tests.sim.vfs import vf_addresses

Run = Callable[..., tuple[int, str, str]]
MANAGE = "mdevs: {manage: true, types: [nvidia-222, GRID T4-8A]}\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc/nodeagent").mkdir(parents=True)
    (tmp_path / "sys").mkdir()
    return tmp_path


@pytest.fixture
def run(root: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: str) -> tuple[int, str, str]:
        code = main.main(["--root", str(root), *arguments])
        return code, *capsys.readouterr()

    return command


def saved(root: Path, kernel: ModelKernel) -> str:
    path = root / "host.json"
    path.write_text(json.dumps(host_json.dump(kernel.host())))
    return str(path)


def test_a_plan_for_a_saved_host_is_shown(root: Path, run: Run) -> None:
    (root / "etc/nodeagent/config.yaml").write_text(MANAGE)
    path = saved(root, ModelKernel([t4(1), t4(2)]))
    code, out, err = run("plan", "--host", path, "--machine-id", MACHINE)
    assert (code, err) == (0, "")
    assert any(contains(line, "0000:02:00.0", "nvidia-228") for line in out.splitlines())
    names(out.splitlines()[-1], 18, 0)


def test_the_machine_id_tells_what_is_ours(root: Path, run: Run) -> None:
    (root / "etc/nodeagent/config.yaml").write_text(MANAGE)
    kernel = ModelKernel([t4(1)])
    settle(kernel, wanted("222"))
    path = saved(root, kernel)
    (root / "etc/machine-id").write_text(f"{MACHINE}\n")
    ours = json.loads(run("plan", "--host", path, "-o", "json")[1])
    theirs = json.loads(run("plan", "--host", path, "-o", "json", "--machine-id", "f" * 32)[1])
    assert {each["own"] for each in ours["cards"][0]["instances"]} == {True}
    assert {each["own"] for each in theirs["cards"][0]["instances"]} == {False}
    assert ours["manage"] is True
    assert ours["steps"] == theirs["steps"] == []


@pytest.mark.parametrize("spelled", [MACHINE.upper(), str(UUID(MACHINE)), f"{MACHINE}\n"])
def test_a_machine_id_may_be_spelled_as_other_programs_do(root: Path, run: Run, spelled: str) -> None:
    (root / "etc/nodeagent/config.yaml").write_text(MANAGE)
    path = saved(root, ModelKernel([t4(1)]))
    assert run("plan", "--host", path, "--machine-id", spelled) == run(
        "plan", "--host", path, "--machine-id", MACHINE
    )


@pytest.mark.parametrize("text", ["other", "", MACHINE[1:]])
def test_what_is_no_machine_id_is_refused(root: Path, run: Run, text: str) -> None:
    code, out, err = run("plan", "--host", saved(root, ModelKernel([])), "--machine-id", text)
    assert (code, out) == (2, "")
    each_names(err.splitlines(), ("--machine-id", f'"{text}"'), (32, "/etc/machine-id"))


def test_virtual_functions_are_planned_without_a_machine_id(root: Path, run: Run) -> None:
    SimulatedHost(root).add_function(
        "0000:3b:00.0", vendor="10de", device="2235", pci_class="030200", sriov=8
    )
    vfs = "sriov: [{match: [{vendors: ['10de']}], numVFs: 4}]\n"
    (root / "etc/nodeagent/config.yaml").write_text(vfs)
    code, out, err = run("plan")
    assert code == 0
    names(out.splitlines()[-1], 0, 1)
    names(err, "mdevs")
    (root / "etc/nodeagent/config.yaml").write_text(MANAGE + vfs)
    code, _, err = run("plan")
    assert (code, "--machine-id" in err) == (2, True)


@pytest.mark.parametrize("text", ["", "uninitialized\n"])
def test_without_a_machine_id_nothing_can_be_planned(root: Path, run: Run, text: str) -> None:
    (root / "etc/machine-id").write_text(text)
    code, out, err = run("plan")
    assert (code, out) == (2, "")
    assert "--machine-id" in err


def test_a_node_without_a_wish_is_told_so(root: Path, run: Run) -> None:
    (root / "etc/machine-id").write_text(MACHINE)
    for path in ("sys/bus/pci/devices", "dev"):
        (root / path).mkdir(parents=True)
    code, out, _ = run("plan")
    assert code == 0
    first, gap, last = out.splitlines()
    names(first, "mdevs", "vGPU")
    assert (gap, contains(last, "waiting")) == ("", False)


def test_a_definition_that_is_not_used_is_named(root: Path, run: Run) -> None:
    (root / "etc/nodeagent/config.yaml").write_text("mdevs: {manage: true, mdevctl: true}\n")
    (root / "etc/mdevctl.d/mtty").mkdir(parents=True)
    (root / "etc/mdevctl.d/mtty/x").write_text("{}")
    _, _, err = run("plan", "--host", saved(root, ModelKernel([])), "--machine-id", MACHINE)
    assert err.startswith("nodeagent: ")
    assert "etc/mdevctl.d/mtty/x" in err
    names(err, "UUID")


def full_vgpu_card(root: Path) -> list[str]:
    """A card whose VFs all have a vGPU type, and list none any more; return the VFs."""
    vfs = vf_addresses("0000:3b:00.0", 2)
    card = Card("0000:3b:00.0", (Type("1", 2, "NVIDIA A40-24Q"),), vfs=vfs, vgpu=True)
    host = SimulatedHost(root)
    add_card(host, card, 10)
    watcher = DirectoryWatcher()
    kernel = ModelKernel([card])
    for vf in vfs:
        kernel.set_vgpu_type(vf, "1")
    SimulatedCards(host, kernel, watcher)
    watcher.close()
    return list(vfs)


def test_what_the_daemon_remembers_of_vgpu_types_is_planned_with(root: Path, run: Run) -> None:
    vfs = full_vgpu_card(root)
    (root / "etc/machine-id").write_text(f"{MACHINE}\n")
    (root / "etc/nodeagent/config.yaml").write_text("mdevs: {manage: true, types: [NVIDIA A40-24Q]}\n")
    foreign = json.loads(run("plan", "-o", "json")[1])
    assert {each["own"] for each in foreign["cards"][0]["instances"]} == {False}
    record = Ledger(dict.fromkeys(vfs, "1"), {"1": "NVIDIA A40-24Q"})
    ledger.SECTION.save(str(root), record)
    ours = json.loads(run("plan", "-o", "json")[1])
    assert {each["own"] for each in ours["cards"][0]["instances"]} == {True}
    assert (ours["steps"], ours["problems"]) == ([], [])


def test_names_of_vgpu_types_that_no_vf_lists_come_from_the_vgpu_managers_file(root: Path, run: Run) -> None:
    full_vgpu_card(root)
    (root / "etc/machine-id").write_text(f"{MACHINE}\n")
    config = "mdevs: {manage: true, adopt: true, types: [NVIDIA A40-24Q]}\n"
    (root / "etc/nodeagent/config.yaml").write_text(config)
    without = json.loads(run("plan", "-o", "json")[1])
    files.write(f"{root}{nvidia.FILE}", '<vgpuType id="1" name="NVIDIA A40-24Q"/>')
    found = json.loads(run("plan", "-o", "json")[1])
    assert (without["steps"], found["steps"], found["problems"]) == ([], [], [])
    assert {each["own"] for each in without["cards"][0]["instances"]} == {False}
    assert {each["own"] for each in found["cards"][0]["instances"]} == {True}
