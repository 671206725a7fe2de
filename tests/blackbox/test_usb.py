# SPDX-License-Identifier: Apache-2.0
"""USB devices from plug to pod: picked by rules, given with an owner for QEMU, followed through re-plugs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from grpclib.exceptions import GRPCError

from nodeagent.sim import files
from tests.blackbox.harness import (
    Node,
    allocate,
    eventually,
    health,
    pod,
    until_health,
)
from tests.facts import names
from tests.sim.usb import HUB, KEYBOARD, STICK, Plug

NAME, ENV = "example.com/stick", "USB_RESOURCE_EXAMPLE_COM_STICK"
RULE = '{name: example.com/stick, usb: [{vendors: ["46f4"], products: ["0001"]}]}'
QEMU = (107, 107)
ROOT = (0, 0)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="owners of nodes are root's to change")


@pytest.fixture(autouse=True)
def seen(node: Node) -> None:
    """All processes of the host are seen: else who had a device counts as having it for five seconds."""
    files.directory(node.host.path("/proc/4711/fd"))


def serial(text: str) -> Plug:
    return STICK._replace(serial=text)


def configured(node: Node, *rules: str) -> None:
    node.configure("resources:\n" + "".join(f"  - {rule}\n" for rule in rules))


def owner(node: Node, path: str) -> tuple[int, int]:
    status = Path(node.host.path(path)).stat()
    return status.st_uid, status.st_gid


async def until_device(node: Node, resource: str, device: str, reason: str) -> dict[str, str]:
    """What the status says of a device, once it has this reason; it is listed each time that one looks."""
    seen: list[dict[str, str]] = []

    def told(status: dict[str, Any]) -> bool:
        of = {each["name"]: {one["id"]: one for one in each["devices"]} for each in status["resources"]}
        seen.append(of[resource][device])
        return seen[-1].get("reason") == reason

    await node.until_told(told)
    return seen[-1]


def lent(node: Node) -> dict[str, list[str]]:
    """Head of a set → bus and number of each device of it, as they are on record."""
    return {head: [loan[2] for loan in several] for head, several in node.state("usb").items()}


async def test_a_pod_gets_bus_and_number_of_a_device_and_its_node(node: Node) -> None:
    configured(node, RULE)
    node.usb.plug("3-1", serial("A"), 20)
    node.usb.plug("3-2", HUB)
    node.usb.plug("3-2.1", Plug("1234", "5678"))
    async with node.running(listed={NAME: 1}) as (_, kubelet):
        assert health(kubelet, NAME) == {"46f4:0001-A": "Healthy"}
        (answer,) = await allocate(kubelet, NAME, ["46f4:0001-A"])
        assert answer.envs == {ENV: "3:20"}
        assert [(each.container_path, each.host_path, each.permissions) for each in answer.devices] == [
            ("/dev/bus/usb/003/020", "/dev/bus/usb/003/020", "mrw")
        ]


async def test_without_a_rule_no_device_is_offered(node: Node) -> None:
    node.add_gpus(1)
    node.usb.plug("3-1", serial("A"))
    async with node.running(listed={"nvidia.com/TU104GL_TESLA_T4": 1}) as (_, kubelet):
        assert list(kubelet.statistics.lists) == ["nvidia.com/TU104GL_TESLA_T4"]


async def test_a_hub_is_never_offered(node: Node) -> None:
    configured(node, '{name: example.com/stick, usb: [{ports: ["*"]}]}')
    node.usb.plug("1-1", HUB)
    node.usb.plug("1-1.4", serial("A"))
    async with node.running(listed={NAME: 1}) as (_, kubelet):
        assert list(health(kubelet, NAME)) == ["46f4:0001-A"]


@pytest.mark.slow
@needs_root
async def test_the_node_is_qemus_until_the_pod_has_let_go(node: Node) -> None:
    configured(node, RULE)
    node.usb.plug("1-1", serial("A"), 4)
    async with node.running(listed={NAME: 1}) as (_, kubelet):
        assert owner(node, "/dev/bus/usb/001/004") == ROOT
        running = await kubelet.admit(pod("vm", {NAME: 1}))
        assert running.phase == "Running", running.message
        assert owner(node, "/dev/bus/usb/001/004") == QEMU
        kubelet.delete(running)
        await eventually(lambda: owner(node, "/dev/bus/usb/001/004") == ROOT)
        await eventually(lambda: not lent(node))


@needs_root
async def test_what_a_killed_daemon_has_lent_is_given_back_by_the_next(node: Node) -> None:
    configured(node, RULE)
    node.usb.plug("1-1", serial("A"), 4)
    async with node.kubelet() as kubelet:
        async with node.daemon() as first:
            await kubelet.until_listed(NAME, 1)
            running = await kubelet.admit(pod("vm", {NAME: 1}))
            assert running.phase == "Running", running.message
            await first.end(signal.SIGKILL)
        kubelet.delete(running)
        assert owner(node, "/dev/bus/usb/001/004") == QEMU
        async with node.daemon():
            await eventually(lambda: owner(node, "/dev/bus/usb/001/004") == ROOT)


@needs_root
async def test_a_daemon_that_starts_again_leaves_what_a_pod_has(node: Node) -> None:
    configured(node, RULE)
    node.usb.plug("1-1", serial("A"), 4)
    async with node.kubelet() as kubelet:
        async with node.daemon() as first:
            await kubelet.until_listed(NAME, 1)
            assert (await kubelet.admit(pod("vm", {NAME: 1}))).phase == "Running"
            await first.end(signal.SIGKILL)
        node.usb.renumber("1-1")
        async with node.daemon():
            await until_device(node, NAME, "46f4:0001-A", "re-enumerated")
            await until_health(kubelet, NAME, "46f4:0001-A", "Unhealthy")


async def test_a_device_that_is_pulled_leaves_the_list_and_comes_back_by_its_serial_number(
    node: Node,
) -> None:
    configured(node, RULE)
    node.usb.plug("1-1", serial("A"))
    node.usb.plug("1-2", serial("B"))
    async with node.running(listed={NAME: 2}) as (_, kubelet):
        node.usb.unplug("1-1")
        await until_health(kubelet, NAME, "46f4:0001-A", None)
        node.usb.plug("2-3", serial("A"))
        await until_health(kubelet, NAME, "46f4:0001-A", "Healthy")
        (answer,) = await allocate(kubelet, NAME, ["46f4:0001-A"])
        assert answer.envs == {ENV: "2:2"}


async def test_a_new_number_while_a_pod_has_it_says_that_the_guest_must_re_attach_it(node: Node) -> None:
    configured(node, RULE)
    node.usb.plug("1-1", serial("A"), 4)
    async with node.running("--timing-resync", "3600s", listed={NAME: 1}) as (_, kubelet):
        running = await kubelet.admit(pod("vm", {NAME: 1}))
        assert running.phase == "Running", running.message
        node.usb.renumber("1-1")
        told = await until_device(node, NAME, "46f4:0001-A", "re-enumerated")
        assert health(kubelet, NAME) == {"46f4:0001-A": "Unhealthy"}
        await node.until_told(lambda told: running.key in str(told["holders"]))
        explained = (await node.command("explain", "1-1")).stdout
        names(explained, f"Unhealthy: {told['message']}", "ns/vm")
        kubelet.delete(running)
        await until_health(kubelet, NAME, "46f4:0001-A", "Healthy")
        (answer,) = await allocate(kubelet, NAME, ["46f4:0001-A"])
        assert answer.envs == {ENV: "1:5"}


async def test_what_is_pulled_from_a_pod_stays_listed_until_that_lets_go(node: Node) -> None:
    configured(node, RULE)
    node.usb.plug("1-1", serial("A"), 4)
    async with node.running(listed={NAME: 1}) as (_, kubelet):
        running = await kubelet.admit(pod("vm", {NAME: 1}))
        assert running.phase == "Running", running.message
        node.usb.unplug("1-1")
        await until_health(kubelet, NAME, "46f4:0001-A", "Unhealthy")
        kubelet.delete(running)
        await until_health(kubelet, NAME, "46f4:0001-A", None)


async def test_what_is_pulled_before_the_kubelet_names_its_pod_stays_listed(node: Node) -> None:
    """Between the answer and the kubelet's own books it is the answer that counts."""
    configured(node, RULE)
    node.usb.plug("1-1", serial("A"), 4)
    async with node.running("--timing-settle", "60s", listed={NAME: 1}) as (daemon, kubelet):
        await allocate(kubelet, NAME, ["46f4:0001-A"])
        node.usb.unplug("1-1")
        await until_device(node, NAME, "46f4:0001-A", "fallen-off-the-bus")
        node.usb.plug("1-1", serial("A"), 5)
        await until_device(node, NAME, "46f4:0001-A", "re-enumerated")
        assert not daemon.lines("device-removed")


async def test_ids_are_the_same_after_a_restart_with_and_without_serial_numbers(node: Node) -> None:
    configured(node, RULE)
    node.usb.plug("1-1", serial("A"))
    node.usb.plug("1-2", STICK)
    seen: list[Mapping[str, str]] = []
    for _ in range(2):
        async with node.running(listed={NAME: 2}) as (_, kubelet):
            seen.append(health(kubelet, NAME))
        node.usb.renumber("1-1")
        node.usb.renumber("1-2")
    assert seen[0] == seen[1]
    assert set(seen[0]) == {"46f4:0001-A", "46f4:0001@0000:00:14.0-usb-0:2"}


async def test_two_identical_devices_without_serial_numbers_are_told_apart_by_their_ports(node: Node) -> None:
    configured(node, RULE)
    node.usb.plug("1-1", STICK, 7)
    node.usb.plug("1-2", STICK, 8)
    async with node.running(listed={NAME: 2}) as (_, kubelet):
        (answer,) = await allocate(kubelet, NAME, ["46f4:0001@0000:00:14.0-usb-0:2"])
        assert answer.envs == {ENV: "1:8"}


async def test_a_twin_of_a_serial_number_takes_nothing_from_the_first(node: Node) -> None:
    configured(node, RULE)
    node.usb.plug("1-2", serial("0"), 7)
    async with node.running(listed={NAME: 1}) as (_, kubelet):
        assert (await kubelet.admit(pod("vm", {NAME: 1}))).phase == "Running"
        node.usb.plug("1-1", serial("0"), 8)
        await until_health(kubelet, NAME, "46f4:0001@0000:00:14.0-usb-0:1", "Healthy")
        assert health(kubelet, NAME)["46f4:0001-0"] == "Healthy"
        (answer,) = await allocate(kubelet, NAME, ["46f4:0001@0000:00:14.0-usb-0:1"])
        assert answer.envs == {ENV: "1:8"}


async def test_a_twin_that_is_there_when_the_daemon_starts_again_is_not_what_the_pod_has(node: Node) -> None:
    configured(node, RULE)
    node.usb.plug("1-2", serial("0"), 7)
    async with node.kubelet() as kubelet:
        async with node.daemon() as first:
            await kubelet.until_listed(NAME, 1)
            assert (await kubelet.admit(pod("vm", {NAME: 1}))).phase == "Running"
            await first.end(signal.SIGKILL)
        node.usb.plug("1-1", serial("0"), 8)
        async with node.daemon():
            await until_health(kubelet, NAME, "46f4:0001@0000:00:14.0-usb-0:1", "Healthy")
            assert health(kubelet, NAME)["46f4:0001@0000:00:14.0-usb-0:2"] == "Unhealthy"


async def test_a_pod_that_starts_while_its_device_is_plugged_in_again_gets_the_new_number_or_words(
    node: Node,
) -> None:
    configured(node, RULE)
    node.usb.plug("1-1", serial("A"), 4)
    async with node.running(listed={NAME: 1}) as (_, kubelet):
        for _ in range(8):
            await until_health(kubelet, NAME, "46f4:0001-A", "Healthy")
            number = node.usb.renumber("1-1")
            tried = await kubelet.admit(pod("vm", {NAME: 1}))
            if tried.phase == "Running":
                assert lent(node) == {"46f4:0001-A": [f"1:{number}"]}
            else:
                words = ("is not a device of this node", "no longer on the host")
                assert any(each in tried.message for each in words), tried.message
            kubelet.delete(tried)


async def test_five_hundred_plugs_and_pulls_leave_the_list_right(node: Node) -> None:
    configured(node, RULE)
    node.usb.plug("1-1", serial("A"))
    node.usb.plug("1-2", serial("stays"))
    async with node.running(listed={NAME: 2}) as (daemon, kubelet):
        for _ in range(125):
            node.usb.unplug("1-1")
            node.usb.plug("1-3", serial("C"), 9)
            node.usb.plug("1-1", serial("A"), 10)
            node.usb.unplug("1-3")
        node.usb.plug("1-4", serial("last"))
        await until_health(kubelet, NAME, "46f4:0001-last", "Healthy")
        await eventually(
            lambda: set(health(kubelet, NAME)) == {"46f4:0001-A", "46f4:0001-stays", "46f4:0001-last"}
        )
        assert all(seen.health.get("46f4:0001-stays") == "Healthy" for seen in kubelet.statistics.lists[NAME])
        assert not daemon.lines("subsystem-failed")
        (answer,) = await allocate(kubelet, NAME, ["46f4:0001-A"])
        assert answer.envs == {ENV: "1:10"}


async def test_a_bundle_is_one_device_with_all_its_nodes(node: Node) -> None:
    configured(
        node,
        '{name: example.com/stick, bundle: true, usb: [{vendors: ["1234"]}, {vendors: ["46f4"]}]}',
    )
    node.usb.plug("3-1", Plug("1234", "5678", "K"), 20)
    node.usb.plug("3-2", serial("A"), 21)
    node.usb.plug("3-3", serial("B"), 22)
    async with node.running(listed={NAME: 1}) as (_, kubelet):
        assert health(kubelet, NAME) == {"1234:5678-K": "Healthy"}
        (answer,) = await allocate(kubelet, NAME, ["1234:5678-K"])
        assert answer.envs == {ENV: "3:20,3:21"}
        assert [each.host_path for each in answer.devices] == ["/dev/bus/usb/003/020", "/dev/bus/usb/003/021"]


async def test_a_bundle_that_a_pod_has_stays_together_and_what_is_missing_is_told(node: Node) -> None:
    configured(
        node,
        '{name: example.com/set, bundle: true, usb: [{vendors: ["1234"]}, {vendors: ["46f4"]}]}',
        RULE,
    )
    node.usb.plug("3-1", Plug("1234", "5678", "K"), 20)
    node.usb.plug("3-2", serial("A"), 21)
    async with node.running("--timing-resync", "3600s", listed={"example.com/set": 1}) as (_, kubelet):
        running = await kubelet.admit(pod("vm", {"example.com/set": 1}))
        assert running.phase == "Running", running.message
        node.usb.plug("4-1", serial("B"), 2)
        await until_health(kubelet, NAME, "46f4:0001-B", "Healthy")
        node.usb.unplug("3-1")
        await until_health(kubelet, "example.com/set", "1234:5678-K", "Unhealthy")
        await until_health(kubelet, NAME, "46f4:0001-A", "Unhealthy")
        with pytest.raises(GRPCError, match="in use by"):
            await allocate(kubelet, NAME, ["46f4:0001-A"])
        node.usb.plug("3-1", Plug("1234", "5678", "K"), 23)
        await until_health(kubelet, NAME, "46f4:0001-A", None)
        assert health(kubelet, "example.com/set") == {"1234:5678-K": "Unhealthy"}
        kubelet.delete(running)
        await until_health(kubelet, "example.com/set", "1234:5678-K", "Healthy")


async def test_what_the_host_uses_is_not_given_unless_an_operator_answers_for_it(node: Node) -> None:
    configured(node, '{name: example.com/any, usb: [{vendors: ["46f4", "04f2"]}]}')
    node.usb.plug("1-1", serial("A"))
    node.usb.disk("1-1", "sdb", "8:16")
    node.usb.plug("1-2", KEYBOARD)
    node.host.write_file("/proc/1/mountinfo", "36 1 8:16 / /media/stick rw - vfat /dev/sdb rw")
    node.host.write_file(
        "/proc/bus/input/devices",
        'I: Bus=0003\nN: Name="Keyboard"\n'
        f"S: Sysfs={node.usb.path('1-2')}/1-2:1.0/0003:04F2:0402.0001/input/input5\n"
        "H: Handlers=sysrq kbd leds event3\n\n",
    )
    async with node.running(listed={"example.com/any": 2}) as (_, kubelet):
        keyboard = "04f2:0402@0000:00:14.0-usb-0:2"
        assert health(kubelet, "example.com/any") == {"46f4:0001-A": "Unhealthy", keyboard: "Unhealthy"}
        told = {each["id"]: each for each in (await node.status())["resources"][0]["devices"]}
        assert {each["reason"] for each in told.values()} == {"used-by-host"}
        assert "/media/stick" in told["46f4:0001-A"]["message"]
        assert "keyboard" in told[keyboard]["message"]
        configured(node, '{name: example.com/any, force: ["1-*"], usb: [{vendors: ["46f4", "04f2"]}]}')
        await until_health(kubelet, "example.com/any", keyboard, "Healthy")
        assert health(kubelet, "example.com/any")["46f4:0001-A"] == "Unhealthy"


async def test_a_disk_that_was_mounted_since_the_last_scan_is_refused(node: Node) -> None:
    configured(node, RULE)
    node.usb.plug("1-1", serial("A"))
    node.usb.disk("1-1", "sdb", "8:16")
    node.host.write_file("/proc/1/mountinfo", "36 1 8:1 / / rw - ext4 /dev/sda1 rw")
    async with node.running(listed={NAME: 1}) as (_, kubelet):
        node.host.write_file("/proc/1/mountinfo", "36 1 8:16 / /media/stick rw - vfat /dev/sdb rw")
        with pytest.raises(GRPCError, match="/media/stick"):
            await allocate(kubelet, NAME, ["46f4:0001-A"])


async def test_a_rule_that_comes_later_is_followed_and_one_that_goes_leaves_nothing(node: Node) -> None:
    node.add_gpus(1)
    node.usb.plug("1-1", serial("A"))
    async with node.running(listed={"nvidia.com/TU104GL_TESLA_T4": 1}) as (_, kubelet):
        configured(node, RULE)
        await kubelet.until_listed(NAME, 1)
        node.usb.plug("1-2", serial("B"))
        await until_health(kubelet, NAME, "46f4:0001-B", "Healthy")
        node.configure("resources: []\n")
        await node.until_told(lambda told: NAME not in {each["name"] for each in told["resources"]})
        scan = json.loads((await node.command("scan", "-o", "json")).stdout)
        assert {each["id"] for each in scan["usb"]} == {"46f4:0001-A", "46f4:0001-B"}
        assert "no rule" in (await node.command("explain", "1-2")).stdout
