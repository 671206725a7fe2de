# SPDX-License-Identifier: Apache-2.0
"""Device nodes by pattern: a Device for each, with what belongs to it, and never what machines are given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from grpclib.exceptions import GRPCError

from tests.blackbox.harness import PATIENCE, Node, allocate, eventually, health, pod, until_health
from tests.sim import devnodes

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make device nodes")

RENDER, CAMERA, SERIAL = "example.com/render", "example.com/camera", "example.com/serial"
RULE = """
resources:
  - name: example.com/render
    node:
      perPath: true
      paths: ["/dev/dri/renderD*", "/dev/dri/card*", /dev/kfd]
"""
FIRST, SECOND = "0000:10:00.0", "0000:20:00.0"


def add_display(
    node: Node, address: str, number: int, card: int, *, numa: int = 0, driver: str = "amdgpu"
) -> None:
    """A GPU on its host driver, with a render node and a card whose numbers differ in order."""
    node.host.add_function(
        address, vendor="1002", device="740f", pci_class="038000", driver="amdgpu", group=number, numa=numa
    )
    where = devnodes.real_directory(node.host, address)
    devnodes.add(node.host, f"/dev/dri/renderD{128 + number}", (226, 128 + number), where)
    devnodes.add(node.host, f"/dev/dri/card{card}", (226, card), where)


@pytest.fixture
def displays(node: Node) -> Node:
    """Two GPUs: the render node that comes first belongs to the card that comes last."""
    add_display(node, FIRST, 0, 1, numa=0)
    add_display(node, SECOND, 1, 0, numa=1)
    devnodes.add(node.host, "/dev/kfd", (511, 0))
    node.configure(RULE)
    return node


def devices(responses: list[Any]) -> list[tuple[str, str, str]]:
    """Path inside, path outside and permissions of all nodes of the first container."""
    return [(each.container_path, each.host_path, each.permissions) for each in responses[0].devices]


async def test_a_render_node_comes_with_the_card_of_its_gpu_and_with_what_all_share(
    displays: Node,
) -> None:
    async with displays.running(listed={RENDER: 2}) as (_, kubelet):
        assert health(kubelet, RENDER) == {"dri_renderD128": "Healthy", "dri_renderD129": "Healthy"}
        given = devices(await allocate(kubelet, RENDER, ["dri_renderD128"]))
        wanted = ["/dev/dri/renderD128", "/dev/dri/card1", "/dev/kfd"]
        assert given == [(path, path, "rw") for path in wanted]
        told = await displays.status()
        (resource,) = [each for each in told["resources"] if each["name"] == RENDER]
        assert [each["numa"] for each in resource["devices"]] == [0, 1]


async def test_a_rule_for_nodes_can_leave_numa_nodes_out(displays: Node) -> None:
    displays.configure(f"{RULE}    topology: false\n")
    async with displays.running(listed={RENDER: 2}) as (_, kubelet):
        assert [each.nodes for each in kubelet.statistics.lists[RENDER][-1].devices] == [None, None]


async def test_a_node_that_comes_is_listed_and_one_that_goes_is_not(displays: Node) -> None:
    async with displays.running(listed={RENDER: 2}) as (_, kubelet):
        add_display(displays, "0000:30:00.0", 2, 2)
        await until_health(kubelet, RENDER, "dri_renderD130", "Healthy")
        displays.host.remove_node("/dev/dri/card1")
        await until_health(kubelet, RENDER, "dri_renderD128", "Unhealthy")
        displays.host.remove_node("/dev/dri/renderD128")
        await until_health(kubelet, RENDER, "dri_renderD128", None)


async def test_a_held_node_that_goes_stays_listed_until_its_pod_ends(node: Node) -> None:
    for number in range(2):
        devnodes.add(node.host, f"/dev/video{number}", (81, number))
    node.configure(f"resources: [{{name: {CAMERA}, node: {{paths: ['/dev/video*'], perPath: true}}}}]")
    async with node.running(listed={CAMERA: 2}) as (daemon, kubelet):
        held = await kubelet.admit(pod("one", {CAMERA: 2}))
        await daemon.logged("device-in-use")
        node.host.remove_node("/dev/video1")
        await until_health(kubelet, CAMERA, "video1", "Unhealthy")
        seen = list(kubelet.statistics.lists[CAMERA])
        assert all("video1" in each.health for each in seen), "to drop a held id can crash the kubelet"
        kubelet.delete(held)
        await until_health(kubelet, CAMERA, "video1", None)


async def test_what_machines_are_given_is_no_containers_and_comes_back(displays: Node) -> None:
    async with displays.running(listed={RENDER: 2}) as (_, kubelet):
        displays.host.bind(FIRST, "vfio-pci")
        await until_health(kubelet, RENDER, "dri_renderD128", "Unhealthy")
        with pytest.raises(GRPCError, match="vfio-pci"):
            await allocate(kubelet, RENDER, ["dri_renderD128"])
        displays.host.bind(FIRST, "amdgpu")
        await until_health(kubelet, RENDER, "dri_renderD128", "Healthy")


async def test_a_serial_adapter_keeps_its_id_whatever_number_it_has(node: Node) -> None:
    usb = "/sys/devices/pci0000:00/0000:00:14.0/usb1/1-2"
    node.host.write_file(f"{usb}/idVendor", "0403")
    node.host.write_file(f"{usb}/serial", "A50285BI")
    devnodes.add(node.host, "/dev/ttyUSB0", (188, 0), f"{usb}/1-2:1.0/ttyUSB0")
    by_id = "/dev/serial/by-id/usb-FTDI_UART_A50285BI-if00-port0"
    devnodes.link(node.host, by_id, "/dev/ttyUSB0")
    devnodes.link(node.host, "/dev/serial/by-path/pci-0000:00:14.0-usb-0:2:1.0-port0", "/dev/ttyUSB0")
    node.configure(f'resources: [{{name: {SERIAL}, node: {{paths: ["/dev/ttyUSB*"], perPath: true}}}}]')
    async with node.running(listed={SERIAL: 1}) as (_, kubelet):
        (name,) = health(kubelet, SERIAL)
        assert name == "serial_usb-FTDI_UART_A50285BI-if00-port0"
        node.host.remove_node("/dev/ttyUSB0")
        node.host.remove_node(by_id)
        await until_health(kubelet, SERIAL, name, None)
        devnodes.add(node.host, "/dev/ttyUSB3", (188, 3), f"{usb}/1-2:1.0/ttyUSB3")
        devnodes.link(node.host, by_id, "/dev/ttyUSB3")
        await until_health(kubelet, SERIAL, name, "Healthy")
        assert devices(await allocate(kubelet, SERIAL, [name])) == [("/dev/ttyUSB3", "/dev/ttyUSB3", "rw")]


async def test_two_adapters_without_serial_numbers_are_told_apart_by_their_ports(node: Node) -> None:
    for port in (1, 2):
        usb = f"/sys/devices/pci0000:00/0000:00:14.0/usb1/1-{port}"
        node.host.write_file(f"{usb}/idVendor", "1a86")
        devnodes.add(node.host, f"/dev/ttyUSB{port}", (188, port), f"{usb}/1-{port}:1.0/ttyUSB{port}")
        devnodes.link(node.host, f"/dev/serial/by-path/pci-0000:00:14.0-usb-0:{port}", f"/dev/ttyUSB{port}")
    devnodes.link(node.host, "/dev/serial/by-id/usb-1a86_USB_Serial-if00-port0", "/dev/ttyUSB2")
    node.configure(f'resources: [{{name: {SERIAL}, node: {{paths: ["/dev/ttyUSB*"], perPath: true}}}}]')
    async with node.running(listed={SERIAL: 2}) as (_, kubelet):
        wanted = {f"serial_pci-0000_00_14.0-usb-0_{port}" for port in (1, 2)}
        await eventually(lambda: set(health(kubelet, SERIAL)) == wanted)


async def test_nodes_that_make_one_unit_come_together_and_where_they_are_wanted(node: Node) -> None:
    for number, name in enumerate(("vhost-net", "net/tun", "snd/pcmC0D0p", "snd/timer")):
        devnodes.add(node.host, f"/dev/{name}", (240, number))
    node.configure(
        "resources: [{name: example.com/set, node: {count: 2, paths: [/dev/vhost-net, "
        "{path: /dev/net/tun, mountPath: /dev/tun, permissions: rwm}, "
        "{path: '/dev/snd/*', mountPath: /dev/sound/}, {path: /dev/absent, optional: true}]}}]"
    )
    async with node.running(listed={"example.com/set": 2}) as (_, kubelet):
        assert health(kubelet, "example.com/set") == {"vhost-net-0": "Healthy", "vhost-net-1": "Healthy"}
        assert devices(await allocate(kubelet, "example.com/set", ["vhost-net-1"])) == [
            ("/dev/vhost-net", "/dev/vhost-net", "rw"),
            ("/dev/tun", "/dev/net/tun", "rwm"),
            ("/dev/sound/pcmC0D0p", "/dev/snd/pcmC0D0p", "rw"),
            ("/dev/sound/timer", "/dev/snd/timer", "rw"),
        ]
        node.host.remove_node("/dev/net/tun")
        await until_health(kubelet, "example.com/set", "vhost-net-0", "Unhealthy")


@pytest.mark.parametrize("leads_to", ["/etc/shadow", "../etc/shadow", "/dev/loop-a", "/dev/../etc/shadow"])
async def test_links_are_followed_inside_dev_alone(node: Node, leads_to: str) -> None:
    node.host.write_file("/etc/shadow", "root")
    devnodes.add(node.host, "/dev/video0", (81, 0))
    for name, target in (
        ("video1", leads_to),
        ("loop-a", "loop-b"),
        ("loop-b", "loop-a"),
        ("video2", "video0"),
    ):
        os.symlink(target, node.host.path(f"/dev/{name}"))
    node.configure(
        f"resources: [{{name: {CAMERA}, node: {{paths: ['/dev/video*'], perPath: true}}}}, "
        "{name: example.com/one, node: {path: /dev/video1}}]"
    )
    async with node.running(listed={CAMERA: 1, "example.com/one": 1}) as (_, kubelet):
        assert health(kubelet, CAMERA) == {"video0": "Healthy"}, "and a second name of it is no second device"
        assert health(kubelet, "example.com/one") == {"video1-0": "Unhealthy"}


async def test_a_node_leads_a_device_of_the_first_rule_alone(node: Node) -> None:
    for number in range(3):
        devnodes.add(node.host, f"/dev/video{number}", (81, number))
    node.configure(
        "resources: [{name: example.com/first, node: {paths: ['/dev/video[01]'], perPath: true}}, "
        f"{{name: {CAMERA}, node: {{paths: ['/dev/video*'], perPath: true, count: 2}}}}]"
    )
    async with node.running(listed={"example.com/first": 2, CAMERA: 2}) as (_, kubelet):
        assert sorted(health(kubelet, "example.com/first")) == ["video0", "video1"]
        assert sorted(health(kubelet, CAMERA)) == ["video2", "video2-1"]


async def test_two_rules_of_one_name_are_one_resource_with_the_devices_of_both(node: Node) -> None:
    for number, name in enumerate(("ttyUSB0", "ttyUSB1", "ttyACM0", "snd/controlC0", "snd/controlC1")):
        devnodes.add(node.host, f"/dev/{name}", (240, number))
    node.configure(
        f"""
resources:
  - {{name: {SERIAL}, node: {{paths: ["/dev/ttyUSB*"], perPath: true}}}}
  - {{name: {SERIAL}, node: {{paths: ["/dev/ttyACM*"], perPath: true, count: 2, permissions: r}}}}
  - {{name: {SERIAL}, node: {{path: /dev/snd/controlC0}}}}
  - {{name: {SERIAL}, node: {{paths: [{{path: /dev/snd/controlC1, mountPath: /dev/snd/controlC0}}]}}}}
"""
    )
    wanted = ["snd_controlC0-0", "snd_controlC1-0", "ttyACM0", "ttyACM0-1", "ttyUSB0", "ttyUSB1"]
    async with node.running(listed={SERIAL: 6}) as (_, kubelet):
        assert sorted(health(kubelet, SERIAL)) == wanted
        given = devices(await allocate(kubelet, SERIAL, ["ttyUSB1", "ttyACM0-1", "snd_controlC1-0"]))
        assert given == [
            ("/dev/ttyUSB1", "/dev/ttyUSB1", "rw"),
            ("/dev/ttyACM0", "/dev/ttyACM0", "r"),
            ("/dev/snd/controlC0", "/dev/snd/controlC1", "rw"),
        ]
        node.host.remove_node("/dev/ttyACM0")
        await until_health(kubelet, SERIAL, "ttyACM0-1", None)
        node.host.remove_node("/dev/snd/controlC1")
        await until_health(kubelet, SERIAL, "snd_controlC1-0", "Unhealthy")
        assert "/dev/snd/controlC1" in (await node.command("explain", SERIAL)).stdout


@pytest.mark.parametrize("shared_first", [False, True])
async def test_each_rule_of_a_name_decides_whether_its_nodes_are_shared(
    node: Node, shared_first: bool
) -> None:
    """A camera that a pod has as another resource is allocated to no second pod; other nodes have shares."""
    devnodes.add(node.host, "/dev/video0", (81, 0))
    devnodes.add(node.host, "/dev/ttyACM0", (240, 0))
    node.configure("resources: [{name: example.com/first, node: {paths: ['/dev/video*'], perPath: true}}]")
    rules = [
        f"{{name: {CAMERA}, node: {{paths: ['/dev/video*'], perPath: true}}}}",
        f"{{name: {CAMERA}, node: {{paths: ['/dev/ttyACM*'], perPath: true, count: 2}}}}",
    ]
    async with node.running(listed={"example.com/first": 1}) as (_, kubelet):
        await kubelet.admit(pod("vm", {"example.com/first": 1}))
        await node.until_told(lambda told: "ns/vm" in str(told.get("holders")))
        node.configure(f"resources: [{', '.join(reversed(rules) if shared_first else rules)}]")
        await kubelet.until_listed(CAMERA, 3, PATIENCE)
        for share in ("ttyACM0", "ttyACM0-1"):
            assert devices(await allocate(kubelet, CAMERA, [share])) == [
                ("/dev/ttyACM0", "/dev/ttyACM0", "rw")
            ]
        with pytest.raises(GRPCError, match="ns/vm"):
            await allocate(kubelet, CAMERA, ["video0"])


async def test_a_path_that_two_rules_of_one_name_lead_with_is_refused(node: Node) -> None:
    rule = f"{{name: {SERIAL}, node: {{path: /dev/ttyS0}}}}"
    path = node.configure(f"resources: [{rule}, {rule}]")
    done = await node.command("config", "--check", str(path))
    assert done.returncode == 2
    assert "/dev/ttyS0" in done.stderr


async def test_a_long_path_gives_ids_that_are_shortened_as_those_of_a_pattern(node: Node) -> None:
    long = "/dev/serial/by-id/usb-Silicon_Labs_CP2102_USB_to_UART_Bridge_Controller_0001-if00-port0"
    devnodes.add(node.host, "/dev/ttyUSB0", (188, 0))
    devnodes.link(node.host, long, "/dev/ttyUSB0")
    node.configure(
        f"resources: [{{name: {SERIAL}, node: {{path: {long}}}}}, "
        f"{{name: {CAMERA}, node: {{paths: [{{path: {long}, mountPath: /dev/zigbee}}]}}}}]"
    )
    async with node.running(listed={SERIAL: 1, CAMERA: 1}) as (_, kubelet):
        (short,) = health(kubelet, SERIAL)
        assert health(kubelet, CAMERA) == {short: "Healthy"}
        assert len(short) <= 63
        assert devices(await allocate(kubelet, SERIAL, [short])) == [(long, "/dev/ttyUSB0", "rw")]


async def test_a_container_is_refused_two_nodes_at_one_path(node: Node) -> None:
    for number in range(2):
        devnodes.add(node.host, f"/dev/video{number}", (81, number))
    paths = "paths: [{path: '/dev/video*', mountPath: /dev/camera}]"
    node.configure(f"resources: [{{name: {CAMERA}, node: {{{paths}, perPath: true}}}}]")
    async with node.running(listed={CAMERA: 2}) as (_, kubelet):
        assert devices(await allocate(kubelet, CAMERA, ["video1"])) == [("/dev/camera", "/dev/video1", "rw")]
        with pytest.raises(GRPCError, match="/dev/camera"):
            await allocate(kubelet, CAMERA, ["video0", "video1"])


async def test_a_node_of_nvidia_s_with_no_gpu_behind_it_is_not_given(node: Node) -> None:
    devnodes.add(node.host, "/dev/nvidia0", (195, 0))
    devnodes.add(node.host, "/dev/nvidiactl", (195, 255))
    node.configure(
        "resources: [{name: example.com/gpu, "
        "node: {paths: ['/dev/nvidia[0-9]*', /dev/nvidiactl], perPath: true}}]"
    )
    async with node.running(listed={"example.com/gpu": 1}) as (_, kubelet):
        assert health(kubelet, "example.com/gpu") == {"nvidia0": "Unhealthy"}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{paths: ['/dev/*/x']}", "no path or pattern below /dev"),
        ("{paths: ['/etc/*']}", "no path or pattern below /dev"),
        ("{paths: ['/dev/../etc/*']}", "no path or pattern below /dev"),
        ("{path: /dev/kvm, paths: [/dev/kvm]}", "either path or paths"),
        ("{count: 2}", "either path or paths"),
        ("{paths: []}", "either path or paths"),
        ("{paths: [/dev/kvm], perPath: true}", "is no pattern"),
        ("{paths: [{path: '/dev/v*', mountPath: /dev/v}]}", "would be /dev/v in a container"),
        ("{paths: [{path: /dev/v, limit: 2}]}", "limit means nothing"),
        ("{paths: [{path: /dev/v, mountPath: /etc/v}]}", "no path below /dev"),
    ],
)
async def test_what_nobody_can_mean_is_refused(node: Node, tmp_path: Path, written: str, said: str) -> None:
    path = node.configure(f"resources: [{{name: a.b/x, node: {written}}}]")
    done = await node.command("config", "--check", str(path))
    assert done.returncode == 2
    assert said in done.stdout + done.stderr


async def test_verbs_and_saved_hosts_know_nodes_by_pattern(displays: Node) -> None:
    displays.host.write_file("/etc/machine-id", "0" * 32)
    told = await displays.command("explain", RENDER)
    assert "/dev/dri/renderD128, /dev/dri/renderD129" in told.stdout
    assert RENDER in (await displays.command("explain", "/dev/dri/card0")).stdout
    saved = displays.root / "saved.json"
    saved.write_text((await displays.command("scan", "-o", "json")).stdout)
    other = displays.root / "new.yaml"
    other.write_text(RULE.replace("example.com/render", "example.com/other"))
    for where in ([], ["--host", str(saved)]):
        planned = await displays.command("plan", "--config", str(other), *where)
        assert planned.returncode == 0, planned.stderr
        assert "example.com/other" in planned.stdout
        assert "counts as missing" not in planned.stderr
        assert "+ example.com/other: 2 devices, 2 Healthy" in planned.stdout
