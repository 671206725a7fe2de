# SPDX-License-Identifier: Apache-2.0
"""A bind that the guards refuse is refused everywhere, by the same evidence and by the address asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.blackbox.harness import PATIENCE, Node, eventually, pod
from tests.blackbox.test_bindings import (
    AUDIO,
    GPU,
    NIC,
    OWN,
    RULE,
    add_card,
    add_disk,
    add_network,
    below,
    drivers_of,
    planned,
)
from tests.blackbox.test_bindings_used import add_process
from tests.facts import contains, names
from tests.sim.drivers import simulated

HEAD = "apiVersion: nodeagent/v1\n"
PLACE = "config.yaml:2"
VFS = "example.com/vf"


def open_gpu(node: Node) -> None:
    """A process has a device node of the GPU open."""
    add_process(node, "/dev/null")
    below(node, GPU, "drm/renderD128", "sys/class/drm/renderD128", dev="1:3")


def open_disk(node: Node) -> None:
    """A process has a disk of the first function open, on which nothing is mounted."""
    below(node, GPU, "nvme/nvme0/nvme0n1", "sys/class/block/nvme0n1", dev="259:0")
    node.host.write_file("/proc/1/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda1 rw")
    (node.root / "dev/nvme0n1").touch()
    add_process(node, str(node.root / "dev/nvme0n1"))


def show_console(node: Node) -> None:
    """The console is on the framebuffer of the GPU's driver, which no process has open."""
    add_process(node, "/dev/zero")
    below(node, GPU, "graphics/fb0", "sys/class/graphics/fb0", dev="29:0")
    node.host.write_file("/sys/class/graphics/fbcon/rotate", "0")


USED = pytest.mark.parametrize(
    ("prepare", "evidence"),
    [
        pytest.param(open_gpu, ("renderD128", "4711", "Xorg"), id="open GPU"),
        pytest.param(open_disk, ("nvme0n1", "4711", "Xorg"), id="open disk"),
        pytest.param(show_console, ("fb0", "console"), id="console"),
    ],
)


async def explained(node: Node, name: str = GPU) -> dict[str, Any]:
    """The answer of ``explain`` to programs."""
    document: dict[str, Any] = json.loads((await node.command("explain", name, "-o", "json")).stdout)
    return document


@USED
async def test_the_plan_without_a_daemon_refuses_a_function_in_use(
    node: Node, prepare: Any, evidence: tuple[str, ...]
) -> None:
    add_card(node)
    prepare(node)
    node.configure(HEAD + RULE)
    plan = await planned(node)
    (problem,) = plan["problems"]
    names(problem["message"], GPU, *evidence)
    assert plan["steps"] == []
    assert problem["hint"]


@USED
async def test_the_plan_of_another_file_refuses_a_function_in_use(
    node: Node, prepare: Any, evidence: tuple[str, ...]
) -> None:
    add_card(node)
    prepare(node)
    new = node.configure(HEAD + RULE, "new.yaml")
    done = await node.command("plan", "--config", str(new), "-o", "json")
    plan = json.loads(done.stdout)["plan"]
    (problem,) = plan["problems"]
    names(problem["message"], GPU, *evidence)
    assert plan["steps"] == []


@USED
async def test_a_dry_run_of_bind_refuses_a_function_in_use(
    node: Node, prepare: Any, evidence: tuple[str, ...]
) -> None:
    add_card(node)
    prepare(node)
    done = await node.command("bind", GPU, "--dry-run")
    assert done.returncode == 3
    names(done.stdout, GPU, *evidence)


@USED
async def test_the_daemon_lists_a_function_in_use_as_a_problem_and_not_as_waiting(
    node: Node, prepare: Any, evidence: tuple[str, ...]
) -> None:
    add_card(node)
    prepare(node)
    node.configure(HEAD + RULE)
    async with simulated(node.host, GPU, AUDIO) as drivers, node.kubelet(), node.daemon():
        told = await node.until_told(lambda told: contains(" ".join(told["problems"]), *evidence))
        text = (await node.command("status")).stdout
        plan = await planned(node)
        assert (drivers.writes, drivers_of(drivers)) == ([], OWN)
    assert told["changes"]["waiting"] == []
    assert len([line for line in told["problems"] if contains(line, *evidence)]) == 1
    assert len([line for line in text.splitlines() if contains(line, evidence[-1])]) == 1
    assert plan["steps"] == []


@USED
async def test_explain_names_the_passthrough_rule_and_the_obstacle(
    node: Node, prepare: Any, evidence: tuple[str, ...]
) -> None:
    add_card(node)
    prepare(node)
    node.configure(HEAD + RULE)
    told = await explained(node)
    (rule,) = [each for each in told["rules"] if PLACE in each["rule"]]
    names(rule["verdict"], *evidence)
    assert "bind" not in told["hint"]


async def test_explain_of_a_gpu_whose_group_has_a_mounted_disk_names_the_disk(node: Node) -> None:
    add_card(node)
    add_disk(node)
    node.configure(HEAD + RULE)
    told = await explained(node)
    (rule,) = [each for each in told["rules"] if PLACE in each["rule"]]
    names(rule["verdict"], "0000:3b:00.2", "/srv/data")
    assert f"bind {GPU}" not in told["hint"]


async def test_explain_of_a_passthrough_rule_says_what_it_binds_and_what_prevents_that(node: Node) -> None:
    add_card(node)
    open_gpu(node)
    node.configure(HEAD + RULE)
    done = await node.command("explain", PLACE)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stdout + done.stderr
    names(done.stdout, GPU, "renderD128", "4711", "Xorg")


async def test_a_refused_group_is_reported_by_the_address_that_the_rule_asked_for(node: Node) -> None:
    add_card(node)
    add_disk(node)
    node.configure(HEAD + RULE)
    (problem,) = (await planned(node))["problems"]
    names(problem["message"], "0000:3b:00.2", "/srv/data", GPU, "10")


async def test_two_functions_that_prevent_a_bind_are_both_named(node: Node) -> None:
    add_card(node)
    add_disk(node)
    open_gpu(node)
    node.configure(HEAD + RULE)
    problems = " ".join(problem["message"] for problem in (await planned(node))["problems"])
    names(problems, "0000:3b:00.2", "/srv/data", GPU, "renderD128", "4711")


async def test_a_device_that_a_rule_binds_is_not_advised_to_be_bound_by_hand(node: Node) -> None:
    add_card(node)
    add_disk(node)
    resource = f'resources: [{{name: example.com/gpu, pci: [{{addresses: ["{GPU}"]}}]}}]\n'
    node.configure(HEAD + RULE + resource)
    async with simulated(node.host, GPU, AUDIO), node.kubelet(), node.daemon() as daemon:
        hint = (await daemon.logged("device-unhealthy", device=GPU))["hint"]
        await node.until_told(lambda told: len(told["problems"]) == 2)
        text = (await node.command("status")).stdout
    names(hint, "nodeagent plan")
    assert "bind it to" not in text
    assert f"bind {GPU}" not in text


async def test_a_disk_that_a_pool_of_zfs_may_be_on_is_refused_with_the_command_that_tells(node: Node) -> None:
    node.host.add_function(GPU, vendor="2646", device="5024", pci_class="010802", driver="nvme", group=10)
    below(node, GPU, "nvme/nvme0/nvme0n1", "sys/class/block/nvme0n1", dev="259:0")
    node.host.write_file("/proc/1/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda1 rw")
    node.host.write_file("/proc/spl/kstat/zfs/tank/state", "ONLINE")
    add_process(node, "/dev/zero")
    node.configure(HEAD + RULE)
    plan = await planned(node)
    (problem,) = plan["problems"]
    names(problem["message"], GPU, "nvme0n1", "ZFS", "tank")
    names(problem["hint"], "zpool status", f'force: ["{GPU}"]')
    assert "namespaces" not in problem["hint"]


async def test_a_bind_without_an_iommu_group_is_refused_with_the_command_that_shows_why(node: Node) -> None:
    node.host.add_function(GPU, vendor="10de", device="1f08", pci_class="030000", driver="nouveau")
    done = await node.command("bind", GPU, "--dry-run")
    assert done.returncode == 3
    names(done.stdout, GPU, "IOMMU group", "dmesg | grep -i iommu")


def add_accelerator(node: Node, denylist: str = "N") -> None:
    """An Intel QAT device, which vfio-pci refuses while its denylist is in force."""
    node.host.add_function(GPU, vendor="8086", device="37c8", pci_class="0b4000", driver="c6xx", group=10)
    node.host.write_file("/sys/module/vfio_pci/parameters/disable_denylist", denylist)


async def test_a_device_on_the_denylist_of_vfio_pci_keeps_its_driver_and_the_denylist_is_named(
    node: Node,
) -> None:
    add_accelerator(node)
    node.configure(HEAD + RULE)
    async with simulated(node.host, GPU) as drivers, node.kubelet(), node.daemon():
        told = await node.until_told(lambda told: contains(" ".join(told["problems"]), GPU, "denylist"))
        assert (told["changes"]["writes"], drivers.writes) == (0, [])
    names(" ".join(told["problems"]), "8086:37c8", "disable_denylist is N")
    assert (await planned(node))["steps"] == []
    names((await node.command("bind", GPU, "--dry-run")).stdout, GPU, "denylist")


async def test_explain_does_not_advise_to_bind_a_device_on_the_denylist_of_vfio_pci(node: Node) -> None:
    add_accelerator(node)
    node.configure(HEAD + f'resources: [{{name: example.com/qat, pci: [{{addresses: ["{GPU}"]}}]}}]\n')
    names((told := await explained(node))["hint"], "8086:37c8", "denylist")
    assert "bind" not in told["hint"]


async def test_a_device_on_the_denylist_is_bound_where_that_is_disabled(node: Node) -> None:
    add_accelerator(node, "Y")
    node.configure(HEAD + RULE)
    async with simulated(node.host, GPU) as drivers, node.kubelet(), node.daemon():
        await eventually(lambda: drivers.driver(GPU) == "vfio-pci", PATIENCE)


async def test_a_forced_bind_names_the_uses_that_the_host_loses(node: Node) -> None:
    add_card(node)
    add_network(node)
    node.configure(HEAD + RULE.replace("}]}]", f'}}], force: ["{NIC}"]}}]'))
    (step,) = (await planned(node))["steps"]
    names(step["action"], NIC, "loses eth0", "default route")
    for command in (("plan",), ("bind", GPU, "--dry-run")):
        names((await node.command(*command)).stdout, NIC, "loses eth0", "default route")


async def test_a_refusal_for_vfs_names_the_vfs_and_their_pods(node: Node) -> None:
    physical, used, free = "0000:5e:00.0", "0000:5e:00.1", "0000:5e:00.2"
    node.host.add_function(
        physical, vendor="8086", device="1592", pci_class="020000", driver="ice", group=20, sriov=2
    )
    node.add_gpu(used, 21, physfn=physical)
    node.add_gpu(free, 22, physfn=physical)
    node.configure(HEAD + f'resources: [{{name: {VFS}, pci: [{{addresses: ["{used}"]}}]}}]\n')
    async with node.running(listed={VFS: 1}) as (_, kubelet):
        await kubelet.admit(pod("vm", {VFS: 1}))
        await node.until_told(lambda told: "ns/vm" in json.dumps(told))
        done = await node.command("bind", physical, "--dry-run")
    assert done.returncode == 3
    names(done.stdout, "2 VFs", f"{used} is in use by ns/vm", free)
