# SPDX-License-Identifier: Apache-2.0
"""Nothing that does not work is passed over in silence, and nothing that only waits is called trouble."""

from __future__ import annotations

import json
import platform
from typing import Any

import pytest

from nodeagent.cli import output
from nodeagent.sim.mdev import Card, MdevKernel, Type, add_card, simulated_cards
from tests.blackbox.harness import T4, Node, eventually, pod
from tests.facts import names

RULE = "resources: [{name: example.com/gpu, pci: [%s]}]\n"
TWO_RULES = """resources:
  - {name: example.com/all, pci: [{vendors: ['10de']}]}
  - {name: example.com/gpu, pci: [{devices: ['1eb8']}]}
"""
TYPES = (Type("nvidia-222", 16, "GRID T4-1B"), Type("nvidia-228", 2, "GRID T4-8A"))
CARD = "0000:3b:00.0"


def on_host_driver(node: Node, group: int | None) -> None:
    """A GPU that its host has."""
    node.host.add_function(
        CARD, vendor="10de", device="1eb8", pci_class="030200", driver="nouveau", group=group
    )


async def told(node: Node, *arguments: str) -> tuple[int, str]:
    """Exit code and text of a verb."""
    done = await node.command(*arguments)
    return done.returncode, done.stdout


async def status(node: Node) -> tuple[int, str]:
    """What status says, when its socket is there."""
    await eventually((node.root / "run/nodeagent/status.sock").exists)
    return await told(node, "status")


async def in_json(node: Node, *arguments: str) -> Any:
    return json.loads((await node.command(*arguments, "-o", "json")).stdout)["findings"]


def without_iommu(node: Node) -> None:
    (node.root / "sys/class/iommu/dmar0").unlink()
    on_host_driver(node, None)


async def test_an_iommu_that_is_off_is_a_problem_where_there_is_a_gpu(node: Node) -> None:
    without_iommu(node)
    async with node.kubelet(), node.daemon() as daemon:
        code, text = await status(node)
        assert code == 3
        assert "IOMMU" in text
        await daemon.logged("no-iommu")
        (line,) = daemon.lines("no-iommu")
        assert line["level"] == "warning"
        assert CARD in line["message"]
        _, scan = await told(node, "scan")
        (remark,) = (each for each in await in_json(node, "scan") if each["actionRequired"])
        assert (remark["code"], remark["message"] in scan) == ("no-iommu", True)


async def test_an_iommu_that_is_off_is_missed_by_nobody_where_nothing_is_wanted(node: Node) -> None:
    without_iommu(node)
    async with node.kubelet(), node.daemon("--discovery-enabled", "false") as daemon:
        code, text = await status(node)
        assert (code, daemon.lines("no-iommu")) == (0, [])
        assert output.PROBLEMS not in text


async def test_scan_says_the_same_without_a_daemon_also_to_programs(node: Node) -> None:
    without_iommu(node)
    _, text = await told(node, "scan")
    assert "IOMMU" in text.partition(output.PROBLEMS)[2].partition(output.NOTES)[0]
    (remark, _) = await in_json(node, "scan")
    assert (remark["code"], remark["actionRequired"]) == ("no-iommu", True)


async def test_vfio_pci_that_is_absent_is_a_problem_where_a_rule_wants_a_function(node: Node) -> None:
    on_host_driver(node, 10)
    node.configure(RULE % "{vendors: ['10de'], drivers: [vfio-pci]}")
    (node.root / "sys/bus/pci/drivers/vfio-pci").rename(node.root / "gone")
    async with node.kubelet(), node.daemon() as daemon:
        code, text = await status(node)
        assert code == 3
        assert "modprobe vfio-pci" in text
        await daemon.logged("no-vfio", level="warning")
        assert len(daemon.lines("no-vfio", level="warning")) == 1
        assert "modprobe vfio-pci" in (await told(node, "scan"))[1]


async def test_vfio_pci_that_is_absent_is_nothing_to_a_node_that_wants_none(node: Node) -> None:
    on_host_driver(node, 10)
    (node.root / "sys/bus/pci/drivers/vfio-pci").rename(node.root / "gone")
    async with node.kubelet(), node.daemon() as daemon:
        code, text = await status(node)
        assert (code, daemon.lines("no-vfio")) == (0, [])
        assert "modprobe" not in text


@pytest.mark.parametrize(
    ("configuration", "says"),
    [
        (RULE % "{vendors: ['10de'], devices: ['1eb9']}", ["example.com/gpu", "1eb8", "0000:10:00.0"]),
        (
            TWO_RULES,
            ["example.com/gpu", "0000:10:00.0", "example.com/all", "config.yaml:2"],
        ),
        (RULE % "{devices: ['1eb8']}, {addresses: ['0000:11:00.0']}", ["selector 2", "example.com/gpu"]),
        ("aliases: {nvidia.com/TU104GL_TESLA_T5: example.com/t5}\n", ["TESLA_T5", T4]),
    ],
    ids=["rule", "shadowed", "selector", "alias"],
)
async def test_what_takes_nothing_is_a_note_that_names_what_comes_nearest(
    node: Node, configuration: str, says: list[str]
) -> None:
    node.add_gpus(1)
    node.configure(configuration)
    async with node.kubelet(), node.daemon() as daemon:
        code, text = await status(node)
        assert code == 0
        notes = text.partition(output.NOTES)[2]
        assert [word for word in says if word not in notes] == []
        await daemon.logged("note")
        (line,) = daemon.lines("note")
        assert line["level"] == "info"
        _, scan = await told(node, "scan")
        assert [word for word in says if word not in scan.partition(output.NOTES)[2]] == []
        (remark,) = await in_json(node, "status")
        assert (remark["actionRequired"], remark["message"] in text) == (False, True)


async def test_gpus_on_a_host_driver_are_one_line_also_after_a_restart(node: Node) -> None:
    (first, second) = node.add_gpus(2)
    async with node.kubelet() as kubelet, node.daemon() as daemon:
        await kubelet.until_listed(T4, 2)
        assert output.NOTES not in (await status(node))[1]
        assert await daemon.end() == 0
        for address in (first, second):
            node.host.bind(address, "nouveau")
        async with node.daemon() as again:
            code, text = await status(node)
            (note,) = [line for line in text.partition(output.NOTES)[2].splitlines() if "nouveau" in line]
            assert (code, note.split()[0]) == (0, "2")
            assert first in note
            await again.logged("note", level="info")
            assert len(again.lines("note", level="info")) == 1


async def test_a_file_of_the_wrong_name_is_a_note(node: Node) -> None:
    node.add_gpus(1)
    node.configure("timing: {resync: 9s}\n", "config.yml")
    async with node.kubelet(), node.daemon():
        code, text = await status(node)
        assert code == 0
        assert "config.yml" in text.partition(output.NOTES)[2]
        assert "config.yml" in (await told(node, "scan"))[1].partition(output.NOTES)[2]


async def test_a_dangling_link_in_place_of_the_file_is_an_error_and_never_the_defaults(node: Node) -> None:
    (node.root / "etc/nodeagent").mkdir(parents=True, exist_ok=True)
    (node.root / "etc/nodeagent/config.yaml").symlink_to("../elsewhere/config.yaml")
    done = await node.command("scan")
    assert done.returncode == 2
    names(done.stderr, str(node.root / "etc/nodeagent/config.yaml"), "../elsewhere/config.yaml")


async def test_a_list_of_types_for_the_host_name_needs_no_name_of_the_node(node: Node) -> None:
    labels = f"{{kubernetes.io/hostname: {platform.node().lower()}}}"
    node.configure(
        f"mdevs: {{manage: true, types: [nvidia-222], "
        f"nodes: [{{nodeSelector: {labels}, types: [nvidia-228]}}]}}\n"
    )
    async with two_types(node), node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed("nvidia.com/GRID_T4-8A", 2)


def two_types(node: Node) -> Any:
    """A Tesla T4 that answers to writes."""
    node.host.write_file("/etc/machine-id", "5f2a0c6e8b3d4f17a9c1e0d2b4f68a37")
    card = Card(CARD, TYPES)
    add_card(node.host, card, 10)
    return simulated_cards(node.host, MdevKernel([card]))


async def test_types_for_other_cards_are_a_note_as_long_as_one_is_for_a_card_here(node: Node) -> None:
    node.configure("mdevs: {manage: true, types: [GRID T4-1B, NVIDIA A40-1B]}\n")
    async with two_types(node), node.kubelet() as kubelet, node.daemon() as daemon:
        await kubelet.until_listed("nvidia.com/GRID_T4-1B", 16)
        code, text = await status(node)
        assert code == 0
        assert "NVIDIA A40-1B" in text.partition(output.NOTES)[2]
        assert daemon.lines("plan-problem") == []
        await daemon.logged("note")
        assert [line["level"] for line in daemon.lines("note")] == ["info"]


async def test_a_list_of_types_of_which_no_card_here_has_one_is_a_problem(node: Node) -> None:
    node.configure("mdevs: {manage: true, types: [NVIDIA A40-1B]}\n")
    async with two_types(node), node.kubelet(), node.daemon() as daemon:
        await daemon.logged("plan-problem", level="warning")
        code, text = await status(node)
        assert code == 3
        assert "NVIDIA A40-1B" in text.partition(output.PROBLEMS)[2]


async def test_a_removal_that_waits_for_a_pod_is_no_trouble(node: Node) -> None:
    (address,) = node.add_gpus(1)
    async with node.kubelet() as kubelet, node.daemon() as daemon:
        await kubelet.until_listed(T4, 1)
        await kubelet.admit(pod("vm", {T4: 1}))
        node.host.hold(address)
        await daemon.logged("device-in-use")
        node.host.begin_going_away(address)
        line = await daemon.logged("device-waiting", reason="going-away")
        assert line["level"] == "info"
        code, text = await status(node)
        assert code == 0
        assert any(f"{T4}: {address}: " in line for line in text.splitlines())
        assert output.PROBLEMS not in text
        assert daemon.lines("device-unhealthy") == []
