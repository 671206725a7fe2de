# SPDX-License-Identifier: Apache-2.0
"""``explain`` by whatever name one has: a resource, a path, a pod, a rule; what is unknown is two lines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nodeagent.sim.kubelet.state import Pod
from tests.blackbox.boards import named
from tests.blackbox.harness import T4, Node, run
from tests.facts import names

KVM = "example.com/kvm"
RULES = """\
resources:
- name: example.com/gpu
  pci: [{devices: ["1eb8"], addresses: ["0000:10:*"]}]
- {name: example.com/kvm, node: {path: /dev/kvm, count: 3}}
- {name: example.com/none, pci: [{vendors: ["8086"]}]}
aliases: {nvidia.com/TU104GL_TESLA_T4: example.com/t4}
"""
GPU, RENAMED = "example.com/gpu", "example.com/t4"


async def answer(node: Node, kind: str, *arguments: str) -> Any:
    """What ``explain`` answers as JSON, with nothing to say beside it."""
    done = await node.command("explain", *arguments, "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["kind"] == kind
    return document


async def error(node: Node, *arguments: str) -> tuple[int, str, str]:
    """The exit code and the two lines, after those on whose settings count."""
    done = await node.command("explain", *arguments)
    assert done.stdout == ""
    what, hint = done.stderr.splitlines()
    return done.returncode, what.removeprefix("nodeagent: "), hint


@pytest.fixture
def ruled(node: Node) -> Node:
    """Two T4, the first by a rule and the other by discovery under an alias; shares of a node."""
    node.add_gpus(2)
    node.host.node("/dev/kvm")
    node.configure(RULES)
    return node


async def test_a_resource_tells_how_many_there_are_who_has_them_and_what_cannot_be_given(node: Node) -> None:
    first, second, third = node.add_gpus(3)
    async with node.running(listed={T4: 3}) as (_, kubelet):
        vm = await kubelet.admit(Pod("ns", "vm", [{T4: 1}]))
        (held,) = vm.result.ids[T4]
        broken = third if held != third else second
        node.host.bind(broken, "nouveau")
        await named(node, held, vm)
        await node.until_told(lambda told: told["resources"][0]["healthy"] == 2)
        told = await answer(node, "ResourceExplanation", T4)
        text = (await node.command("explain", T4)).stdout
    assert (told["capacity"], told["allocatable"], told["free"], told["registered"]) == (3, 2, 1, True)
    by_id = {device["id"]: device for device in told["devices"]}
    assert by_id[held]["holder"] == "ns/vm"
    assert by_id[broken]["reason"]["code"] == "driver-changed"
    (free,) = {first, second, third} - {held, broken}
    lines = [line.strip() for line in text.splitlines()]
    assert lines[0] == f"{T4}  capacity 3, allocatable 2, free 1"
    assert {f"ns/vm uses {held}", f"free: {free}"} <= set(lines)
    assert f"{broken}: {by_id[broken]['reason']['message']}" in lines


async def test_without_a_daemon_nothing_is_said_to_be_free(node: Node) -> None:
    node.add_gpus(1)
    done = await node.command("explain", T4)
    assert f"{T4}  capacity 1, allocatable 1, free unknown" in done.stdout
    assert "status.sock" in done.stderr


async def test_an_unknown_resource_gets_the_nearest_names_and_their_number(ruled: Node) -> None:
    async with ruled.running(listed={GPU: 1, KVM: 3}):
        code, what, hint = await error(ruled, "example.com/gqu")
        assert code == 1
        names(what, "example.com/gqu")
        assert hint.split('"')[1] == GPU, "the nearest is the first"
        names(hint.rpartition('"')[2], "4")
        assert hint.count('"') <= 6
        code, what, hint = await error(ruled, "banana")
        assert code == 2
        names(what, "banana", "/dev")


async def test_a_name_that_an_alias_replaces_leads_to_the_new_one(ruled: Node) -> None:
    async with ruled.running(listed={RENAMED: 1}):
        code, what, hint = await error(ruled, T4)
    assert code == 1
    names(what, T4, RENAMED)
    names(hint, f"nodeagent explain {RENAMED}")


async def test_a_resource_that_lacks_a_driver_says_which_device_could_be_one(node: Node) -> None:
    (address,) = node.add_gpus(1)
    node.host.bind(address, "nouveau")
    async with node.kubelet(), node.daemon():
        code, what, hint = await error(node, T4)
    assert code == 1
    names(what, T4, address, "VFIO")
    names(hint, "nouveau", f"nodeagent explain {address}")


async def test_a_rule_tells_what_it_takes_and_what_it_refuses_counted(ruled: Node) -> None:
    ruled.host.add_function(
        "0000:20:00.0", vendor="8086", device="10d3", pci_class="020000", driver="e1000e", group=20
    )
    async with ruled.running(listed={GPU: 1, KVM: 3}):
        told = await answer(ruled, "RuleExplanation", "config.yaml:2")
        text = (await ruled.command("explain", "/etc/nodeagent/config.yaml:2")).stdout
        none = await answer(ruled, "RuleExplanation", "config.yaml:5")
        (by_name,) = (await answer(ruled, "ResourceExplanation", GPU))["rules"]
        code, what, hint = await error(ruled, "config.yaml:99")
    assert (told["resource"], told["place"], told["matches"]) == (GPU, "config.yaml:2", ["0000:10:00.0"])
    assert told["rejects"] == {"addresses: not 0000:10:*": 1, "devices: not 1eb8": 1}
    assert by_name == {key: value for key, value in told.items() if key not in ("apiVersion", "kind")}
    assert "  rejects  1: devices: not 1eb8" in text.splitlines()
    assert none["matches"] == ["0000:20:00.0"]
    assert code == 1
    names(what, "config.yaml:99")
    names(hint, "config.yaml:2", "config.yaml:4", "config.yaml:5")


async def test_a_rule_that_an_earlier_one_forestalls_says_which(node: Node) -> None:
    node.add_gpus(2)
    node.configure(
        "resources:\n"
        "- {name: example.com/all, pci: [{vendors: ['10de']}]}\n"
        "- {name: example.com/rest, pci: [{devices: ['1eb8']}]}\n"
    )
    async with node.running(listed={"example.com/all": 2}):
        told = await answer(node, "RuleExplanation", "config.yaml:3")
    assert told["matches"] == []
    ((why, devices),) = told["rejects"].items()
    assert devices == 2
    names(why, "example.com/all", "config.yaml:2")


async def test_a_pod_tells_what_it_has_in_which_form_and_how_that_is(ruled: Node) -> None:
    async with ruled.running(listed={GPU: 1, KVM: 3}) as (_, kubelet):
        await kubelet.admit(Pod("ns", "vm", [{GPU: 1, KVM: 1}]))
        await ruled.until_told(lambda told: list(pods_of(told).values()) == ["ns/vm", "ns/vm"])
        told = await answer(ruled, "PodExplanation", "ns/vm")
        text = (await ruled.command("explain", "ns/vm")).stdout
        code, what, hint = await error(ruled, "ns/vn")
    gpu, kvm = told["resources"]
    assert gpu["env"] == {"PCI_RESOURCE_EXAMPLE_COM_GPU": "0000:10:00.0"}
    assert gpu["nodes"] == ["/dev/vfio/vfio", "/dev/vfio/10"]
    assert [(device["id"], device["healthy"]) for device in gpu["devices"]] == [("0000:10:00.0", True)]
    assert (kvm["resource"], kvm["nodes"]) == (KVM, ["/dev/kvm"])
    lines = [line.strip() for line in text.splitlines()]
    assert {"0000:10:00.0: Healthy", "env    PCI_RESOURCE_EXAMPLE_COM_GPU=0000:10:00.0"} <= set(lines)
    assert code == 1
    names(what, "ns/vn")
    names(hint, '"ns/vm"')


async def test_what_an_unhealthy_device_of_a_pod_lacks_is_told(node: Node) -> None:
    (address,) = node.add_gpus(1)
    async with node.running(listed={T4: 1}) as (_, kubelet):
        vm = await kubelet.admit(Pod("ns", "vm", [{T4: 1}]))
        await named(node, address, vm)
        node.host.remove_node("/dev/vfio/10")
        await node.until_told(lambda told: told["resources"][0]["healthy"] == 0)
        (part,) = (await answer(node, "PodExplanation", "ns/vm"))["resources"]
    assert part["devices"][0]["reason"]["code"] == "node-missing"


async def test_a_path_leads_to_its_group_its_device_or_its_resource(ruled: Node) -> None:
    async with ruled.running(listed={GPU: 1, KVM: 3}):
        group = await answer(ruled, "GroupExplanation", "/dev/vfio/10")
        kvm = await answer(ruled, "ResourceExplanation", "/dev/kvm")
        mistakes = [
            await error(ruled, path) for path in ("/dev/vfio/99", "/dev/null", "/dev/vfio/devices/vfio9")
        ]
    (member,) = group["members"]
    assert (group["number"], group["viable"], group["node"]) == (10, True, True)
    assert (member["id"], member["role"], member["resource"]) == ("0000:10:00.0", "vfio", GPU)
    assert (kvm["resource"], kvm["capacity"], kvm["free"]) == (KVM, 3, 3)
    assert [code for code, _, _ in mistakes] == [1, 1, 1]
    for (_, what, _), fact in zip(
        mistakes, ("IOMMU group 99", "/dev/null", "/dev/vfio/devices/vfio9"), strict=True
    ):
        names(what, fact)


async def test_a_node_of_a_device_leads_to_the_device(node: Node) -> None:
    (address,) = node.add_gpus(1)
    device = json.loads((await node.command("explain", address, "-o", "json")).stdout)
    path = f"/dev/vfio/devices/{device['facts']['vfio']}"
    assert json.loads((await node.command("explain", path, "-o", "json")).stdout) == device


async def test_a_saved_host_is_asked_by_every_name(ruled: Node) -> None:
    saved = ruled.root / "host.json"
    saved.write_text((await ruled.command("scan", "-o", "json")).stdout)
    for name, kind in (
        (GPU, "ResourceExplanation"),
        ("config.yaml:2", "RuleExplanation"),
        ("/dev/vfio/10", "GroupExplanation"),
        ("10:00.0", "DeviceExplanation"),
    ):
        told = await answer(ruled, kind, name, "--host", str(saved))
        assert told.get("registered") is None
    code, what, hint = await error(ruled, "ns/vm", "--host", str(saved))
    assert code == 1
    names(what, "ns/vm")
    names(hint, "kubelet", "nodeagent status")


async def test_help_names_what_can_be_asked_for() -> None:
    assert "UUID, resource, path, pod, rule, vmi, claim" in (await run("explain", "--help")).stdout


def pods_of(told: dict[str, Any]) -> dict[str, str]:
    """Return the pod by the device that it has, once PodResources names it."""
    return {device: holder["pod"] for device, holder in told["holders"].items()}


async def test_a_resource_whose_last_device_has_gone_is_told_as_the_daemon_lists_it(node: Node) -> None:
    (address,) = node.add_gpus(1)
    async with node.running(listed={T4: 1}) as (_, kubelet):
        await kubelet.admit(Pod("ns", "vm", [{T4: 1}]))
        await node.until_told(lambda told: pods_of(told) == {address: "ns/vm"})
        node.host.unplug(address)
        status = await node.until_told(
            lambda told: told["resources"][0]["devices"][0].get("reason") == "fallen-off-the-bus"
        )
        told = await answer(node, "ResourceExplanation", T4)
        (part,) = (await answer(node, "PodExplanation", "ns/vm"))["resources"]
    (listed,) = status["resources"][0]["devices"]
    assert (told["capacity"], told["allocatable"], told["free"]) == (1, 0, 0)
    for device in (told["devices"][0], part["devices"][0]):
        assert (device["id"], device["holder"]) == (address, "ns/vm")
        assert device["reason"]["message"] == listed["message"]
    assert part["ours"]
