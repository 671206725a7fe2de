# SPDX-License-Identifier: Apache-2.0
"""The number of VFs of a function: made to order, never under anybody, never where that ends a kernel."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from nodeagent.base.watch import DirectoryWatcher
from tests.blackbox.harness import PATIENCE, Node, eventually, pod, until_health
from tests.blackbox.test_missing import remarked
from tests.facts import names
from tests.sim.vfs import SimulatedVfs, add_sriov_manage

PF, VF = "0000:3b:00.0", "0000:3b:00.1"
DISKS, CARDS = "example.com/disk", "example.com/card"
RULES = f"""apiVersion: nodeagent/v1
discovery: {{enabled: false}}
resources:
  - {{name: {DISKS}, pci: [{{addresses: ["{VF}"]}}]}}
  - {{name: {CARDS}, pci: [{{addresses: ["{PF}"]}}]}}
"""
WISH = f'sriov: [{{match: [{{addresses: ["{PF}"]}}], numVFs: 2}}]\n'


def add(node: Node, address: str, group: int, driver: str, sriov: int = 0, physfn: str | None = None) -> None:
    node.host.add_function(
        address,
        vendor="144d",
        device="a824",
        pci_class="010802",
        driver=driver,
        group=group,
        sriov=sriov,
        physfn=physfn,
    )


def asked_of(node: Node) -> str:
    with open(node.host.path(f"/sys/bus/pci/devices/{PF}/sriov_numvfs"), encoding="ascii") as number:
        return number.read().strip()


@asynccontextmanager
async def made_to_order(node: Node) -> AsyncIterator[SimulatedVfs]:
    """The PF makes VFs when it is told to."""
    watcher = DirectoryWatcher()
    async with anyio.create_task_group() as group:
        group.start_soon(watcher.run)
        yield SimulatedVfs(node.host, PF, watcher, group=50)
        group.cancel_scope.cancel()


async def test_nothing_is_written_to_a_function_that_left_its_vfs_behind(node: Node) -> None:
    add(node, PF, 1, "nvme", sriov=4)
    add(node, VF, 2, "vfio-pci", physfn=PF)
    node.configure(RULES)
    async with node.running(listed={DISKS: 1}) as (daemon, kubelet):
        node.host.unplug(PF)
        await until_health(kubelet, DISKS, VF, "Unhealthy")
        node.host.plug(PF)
        node.host.bind(PF, "nvme")
        node.configure(RULES + WISH)
        said = await daemon.logged("plan-problem")
        names(said["text"], PF, VF)
        told = await node.until_told(lambda told: bool(told["changes"]["problems"]))
        (problem,) = told["changes"]["problems"]
        assert problem["message"] == said["text"]
        assert "reboot" in problem["hint"]
        assert said["text"] in told["problems"]
        assert (told["changes"]["writes"], asked_of(node)) == (0, "0")
        device = await node.command("explain", VF)
        assert "without this VF" in device.stdout
        plan = await node.command("plan")
        names(plan.stdout, f"problem: {said['text']}", "reboot")


async def test_the_vfs_of_a_gpu_on_nvidias_driver_are_made_by_nvidias_tool(node: Node) -> None:
    node.host.add_function(
        PF, vendor="10de", device="2235", pci_class="030200", driver="nvidia", group=1, sriov=2
    )
    node.configure(RULES + WISH.replace("numVFs: 2", "numVFs: 1"))
    async with made_to_order(node) as vfs, node.running(listed={CARDS: 1}) as (daemon, _):
        said = await daemon.logged("plan-problem")
        names(said["text"], PF, "2")
        node.configure(RULES + WISH)
        await node.until_told(lambda told: any("sriov-manage -e" in each for each in hints(told)))
        assert (vfs.made, asked_of(node)) == ((), "0")
        add_sriov_manage(node.host)
        node.host.write(PF, "numa_node", "0")  # an event, as a driver's installation brings many
        done = await daemon.logged("action-done")
        names(done["action"], "sriov-manage", "2", PF)
        told = await node.until_told(lambda told: not told["changes"]["problems"])
        assert (len(vfs.made), told["changes"]["writes"]) == (2, 1)


def hints(told: dict[str, Any]) -> list[str]:
    return [problem["hint"] for problem in told["changes"]["problems"]]


async def test_a_pf_is_not_selected_by_the_key_for_its_vfs(node: Node) -> None:
    """The SR-IOV operator names PFs in pfNames; here pfs would match their VFs, and no VF be created."""
    path = node.configure('sriov: [{match: [{addresses: ["0000:3b:*"]}, {pfs: [ens1f0]}], numVFs: 8}]')
    done = await node.command("config", "--check", str(path))
    assert done.returncode == 2
    names(done.stderr, "config.yaml:1", "pfs", "addresses")


async def test_sr_iov_that_the_firmware_has_off_is_a_note_with_a_hint(node: Node) -> None:
    """The kernel shows no ``sriov_totalvfs`` then; the rule may be for other nodes."""
    add(node, PF, 1, "nvme")
    node.configure(WISH)
    async with node.kubelet(), node.daemon():
        told = await node.until_told(lambda told: bool(remarked(told, PF)))
        (found,) = remarked(told, PF)
        names(found["message"], PF, "2")
        names(found["hint"], "firmware")
        assert not found["actionRequired"]


@pytest.mark.parametrize("number", ["0", "1"])
async def test_more_vfs_than_a_function_can_have_are_a_problem_with_a_hint(node: Node, number: str) -> None:
    add(node, PF, 1, "nvme")
    node.host.write_file(f"/sys/bus/pci/devices/{PF}/sriov_totalvfs", number)
    node.host.write_file(f"/sys/bus/pci/devices/{PF}/sriov_numvfs", "0")
    node.configure(WISH)
    async with node.kubelet(), node.daemon():
        told = await node.until_told(lambda told: bool(told["changes"]["problems"]))
        (problem,) = told["changes"]["problems"]
        names(problem["message"], PF, "2", number)
        names(problem["hint"], "firmware")
        assert told["changes"]["waiting"] == []


async def test_the_number_of_vfs_is_not_changed_while_a_pod_or_an_open_file_has_the_function(
    node: Node,
) -> None:
    add(node, PF, 1, "vfio-pci", sriov=4)
    node.configure(RULES)
    async with made_to_order(node) as vfs, node.running(listed={CARDS: 1}) as (daemon, kubelet):
        vm = await kubelet.admit(pod("vm", {CARDS: 1}))
        node.configure(RULES + WISH)
        said = await daemon.logged("action-waiting")
        names(said["cause"], PF)
        await node.until_told(
            lambda told: any("ns/vm" in each["message"] for each in told["changes"]["waiting"])
        )
        node.host.hold(PF)
        kubelet.delete(vm)
        await node.until_told(
            lambda told: any("open" in each["message"] for each in told["changes"]["waiting"])
        )
        assert vfs.made == ()
        node.host.release(PF)
        await eventually(lambda: len(vfs.made) == 2, PATIENCE)
