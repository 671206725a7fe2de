# SPDX-License-Identifier: Apache-2.0
"""The walks of the page on migrating, with the daemon and a kubelet: put the file, start, look."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent.sim import files, nodes
from nodeagent.sim.apiserver.store import KUBEVIRTS
from nodeagent.sim.mdev import create_file
from tests.blackbox import foreign
from tests.blackbox.boards import GPU
from tests.blackbox.harness import PATIENCE, Node, eventually, health, pod, until_health
from tests.blackbox.test_cluster import followed, server_of
from tests.blackbox.test_machines import HYPER_CONVERGED
from tests.blackbox.test_splitting import FIRST, LARGE, SECOND, SMALL, two_cards
from tests.cli.test_migrating import (
    AUDIO,
    CAPTURED,
    CR,
    DEFINED,
    FOLLOWING,
    HANDED_OVER,
    MDEVCTL,
    NIC,
    RTX,
    TYPES,
    VGPU,
    VGPU_FILE,
)
from tests.facts import names
from tests.machines.capture import materialise

GPU_RULE = f"resources: [{{name: {GPU}, pci: [{{devices: ['1eb8']}}]}}]\n"
Counts = dict[str, tuple[int, int]]


def captured(name: str) -> Callable[[Path], object]:
    return lambda root: materialise(CAPTURED / f"{name}.json", root)


@pytest.mark.parametrize(
    ("host", "block", "wanted"),
    [
        (nodes.demo_node, AUDIO, {RTX: (4, 4), "nvidia.com/TU106_USB_TYPEC_UCSI_CONTROLLER": (4, 4)}),
        (captured("6.12-vfio"), NIC, {"example.com/nic": (2, 1)}),
        (captured("6.12-mdev"), MDEVCTL, {"mdev.nodeagent/Single_port_serial": (2, 2)}),
    ],
    ids=["NVIDIA", "sriov", "mdevctl"],
)
async def test_the_kubelet_counts_what_the_page_promises(
    node: Node, host: Callable[[Path], object], block: str, wanted: Counts
) -> None:
    host(node.root)
    node.configure(block)
    async with node.kubelet() as kubelet, node.daemon():
        await kubelet.until(lambda: {name: kubelet.capacity(name) for name in wanted} == wanted, PATIENCE)


@pytest.mark.parametrize(
    ("block", "wanted"),
    [(TYPES, {SMALL: (16, 16), LARGE: (2, 2)}), (VGPU, {SMALL: (32, 32)})],
    ids=["mediatedDevicesConfiguration", "vgpu-device-manager"],
)
async def test_the_types_of_the_page_are_made_and_then_there_is_nothing_to_do(
    node: Node, block: str, wanted: Counts
) -> None:
    files.write(f"{node.root}/etc/nvidia-vgpu/config.yaml", VGPU_FILE)
    node.configure(block)
    async with two_cards(node), node.kubelet() as kubelet, node.daemon():
        await kubelet.until(lambda: {name: kubelet.capacity(name) for name in wanted} == wanted, PATIENCE)
        told = await node.command("plan")
        assert told.stdout.splitlines()[-1] == "nothing to do"


async def test_the_whole_cr_of_the_page_is_handed_over_and_back(node: Node) -> None:
    node.configure(FOLLOWING)
    node.host.add_function(
        "0000:a1:00.0", vendor="10de", device="1f08", pci_class="030000", driver="vfio-pci", group=20
    )
    cr = yaml.safe_load(CR) | {"status": {"phase": "Deployed"}}
    async with server_of(node) as server, two_cards(node) as made:
        server.store.put(KUBEVIRTS, cr)
        files.write(create_file(node.host, FIRST, "nvidia-222"), DEFINED)  # by virt-handler
        await eventually(lambda: DEFINED in made.instances)
        async with followed(node) as (_, kubelet):
            await node.until_told(lambda told: "virt-handler" in str(told["problems"]))
            assert (len(made.types_on(FIRST)), made.types_on(SECOND)) == (1, [])
            cr = merge(cr, {"spec": {"configuration": {"mediatedDevicesConfiguration": {"enabled": False}}}})
            server.store.put(KUBEVIRTS, cr)
            await eventually(lambda: [*made.types_on(FIRST), *made.types_on(SECOND)] == ["nvidia-222"] * 32)
            assert DEFINED in made.instances
            await kubelet.until(lambda: kubelet.capacity(SMALL)[1] == 0, PATIENCE)
            server.store.put(KUBEVIRTS, merge(cr, yaml.safe_load(HANDED_OVER)))
            await kubelet.until_listed(SMALL, 32, PATIENCE)
            await kubelet.until_listed(GPU, 1, PATIENCE)
            await node.until_told(lambda told: not told.get("problems"))
            told = await node.command("plan")
            assert told.stdout.splitlines()[-1] == "nothing to do"
            back = HANDED_OVER.replace("externalResourceProvider: true", "externalResourceProvider: false")
            server.store.put(KUBEVIRTS, merge(cr, yaml.safe_load(back)))
            await kubelet.until(
                lambda: (kubelet.capacity(SMALL)[1], kubelet.capacity(GPU)[1]) == (0, 0), PATIENCE
            )
    assert len(made.instances) == 32


def merge(old: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """The object after a merge patch without null (RFC 7386)."""
    new = old | patch
    for key in old.keys() & patch.keys():
        if isinstance(old[key], dict):
            new[key] = merge(old[key], patch[key])
    return new


async def test_what_mdevctl_defines_is_made_under_its_own_uuid(node: Node) -> None:
    definition = {"mdev_type": "nvidia-222", "start": "auto", "attrs": []}
    files.write(f"{node.root}/etc/mdevctl.d/0000:3b:00.0/{DEFINED}", json.dumps(definition))
    node.configure(MDEVCTL)
    async with two_cards(node) as made, node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed(SMALL, 1, PATIENCE)
        assert DEFINED in made.instances


async def test_a_uuid_that_mdevctl_starts_on_two_cards_is_created_once(node: Node) -> None:
    """mdevctl keeps a definition for each parent; the kernel has each UUID once."""
    for parent, start in ((FIRST, "manual"), (SECOND, "auto"), ("0000:86:00.0", "auto")):
        definition = {"mdev_type": "nvidia-222", "start": start, "attrs": []}
        files.write(f"{node.root}/etc/mdevctl.d/{parent}/{DEFINED}", json.dumps(definition))
    node.configure(MDEVCTL)
    async with two_cards(node):
        plan = await node.command("plan", "-o", "json")
    assert [step["action"] for step in json.loads(plan.stdout)["steps"]] == [
        f"create mdev {DEFINED} of type nvidia-222 on {SECOND}"
    ]
    names(plan.stderr, DEFINED, SECOND, f"0000:86:00.0/{DEFINED}")


async def test_what_a_machine_got_from_virt_handler_is_given_to_nobody_else(node: Node) -> None:
    """Its ids are numbers of IOMMU groups: to the kubelet the address of the same device is free."""
    first, second = node.add_gpus(2)
    node.configure(GPU_RULE)
    async with node.kubelet() as kubelet:
        async with foreign.serving(kubelet, "10", resource=GPU, socket="kubevirt-example.com-gpu.sock"):
            running = await kubelet.admit(pod("red", {GPU: 1}))
            assert running.result.ids == {GPU: ("10",)}
        async with node.daemon():
            await kubelet.until_listed(GPU, 3, PATIENCE)
            assert health(kubelet, GPU) == {first: "Unhealthy", second: "Healthy", "10": "Unhealthy"}
            kubelet.delete(running)
            await kubelet.until_listed(GPU, 2, PATIENCE)
            await until_health(kubelet, GPU, first, "Healthy")


async def translate(node: Node, text: str) -> tuple[list[Any], str]:
    """The resources that ``config --from`` makes of a file, and its notes; the rules are valid."""
    theirs = node.root / "theirs"
    theirs.write_text(text)
    done = await node.command("config", "--from", str(theirs))
    assert done.returncode == 0, done.stderr
    path = node.configure(done.stdout)
    checked = await node.command("config", "--check", str(path))
    assert checked.returncode == 0, checked.stderr
    return yaml.safe_load(done.stdout)["resources"], done.stderr


async def test_usb_groups_of_the_generic_device_plugin_are_rules_with_the_ids_as_written(node: Node) -> None:
    rules, notes = await translate(
        node,
        """
devices:
  - name: radio
    groups: [{count: 1, usb: [{vendor: 0bda, product: 2838}]}]
  - name: board
    groups: [{usb: [{vendor: "2341", product: "0042", serial: "A1"}]}]
  - name: desk
    groups:
      - {usb: [{vendor: 0403, product: 6001}, {vendor: 1050, product: 0407}]}
      - {count: 2, usb: [{vendor: 0000, product: 1e04}]}
""",
    )
    assert rules == [
        {"name": "squat.ai/radio", "usb": [{"vendors": ["0bda"], "products": ["2838"]}]},
        {
            "name": "squat.ai/board",
            "usb": [{"vendors": ["2341"], "products": ["0042"], "serials": ["A1"]}],
        },
        {
            "name": "squat.ai/desk",
            "usb": [
                {"vendors": ["0403"], "products": ["6001"]},
                {"vendors": ["1050"], "products": ["0407"]},
            ],
            "bundle": True,
        },
        {"name": "squat.ai/desk", "usb": [{"vendors": ["0000"], "products": ["1e04"]}], "bundle": True},
    ]
    names(notes, "squat.ai/radio", "107", "squat.ai/desk", "count 2")


async def test_no_group_of_the_generic_device_plugin_is_dropped_without_a_note(node: Node) -> None:
    rules, notes = await translate(
        node,
        """
Devices:
  - name: serial
    groups:
      - paths: [{path: "/dev/ttyUSB*"}]
      - Paths: [{path: "/dev/ttyACM*"}]
  - name: capture
    groups:
      - paths: [{path: /dev/snd/controlC0}, {path: /dev/snd/pcmC0D0c}]
      - paths: [{path: /dev/snd/controlC1, mountpath: /dev/snd/controlC0}]
  - name: twice
    groups:
      - paths: [{path: /dev/fuse}]
      - paths: [{path: /dev/fuse}, {path: /dev/kvm}]
      - {paths: [{path: /dev/kvm}], usb: [{vendor: 0bda, product: 2838}]}
""",
    )
    found = [(rule["name"], [path["path"] for path in rule["node"]["paths"]]) for rule in rules]
    assert found == [
        ("squat.ai/serial", ["/dev/ttyUSB*"]),
        ("squat.ai/serial", ["/dev/ttyACM*"]),
        ("squat.ai/capture", ["/dev/snd/controlC0", "/dev/snd/pcmC0D0c"]),
        ("squat.ai/capture", ["/dev/snd/controlC1"]),
        ("squat.ai/twice", ["/dev/fuse"]),
        ("squat.ai/twice", ["/dev/kvm"]),
    ]
    assert rules[3]["node"]["paths"][0]["mountPath"] == "/dev/snd/controlC0"
    names(notes, "squat.ai/twice", "/dev/fuse", "different kinds")


async def test_a_resource_without_topology_is_a_rule_without_topology(node: Node) -> None:
    rules, notes = await translate(
        node,
        """
{"ResourceList": [
  {"ResourceName": "nic", "resourceprefix": "example.com", "excludeTopology": true,
   "Selectors": {"Vendors": ["15b3"], "DEVICES": ["101e"], "drivers": ["vfio-pci"]}}
]}
""",
    )
    selector = {"classes": ["02"], "vendors": ["15b3"], "devices": ["101e"], "drivers": ["vfio-pci"]}
    assert rules == [{"name": "example.com/nic", "pci": [selector], "topology": False}]
    assert notes == ""


def add_ports(node: Node) -> None:
    """A card with two PFs that have four VFs each on vfio-pci: 5e:00.2 to .5, and 5e:01.0 to .3."""
    nic: dict[str, Any] = {"vendor": "15b3", "pci_class": "020000"}
    first, second = "0000:5e:00.0", "0000:5e:00.1"
    for number, (address, name) in enumerate({first: "ens1f0", second: "ens1f1"}.items()):
        node.host.add_function(
            address, **nic, device="101d", driver="mlx5_core", group=number, sriov=8, port=None
        )
        node.host.write_file(f"/sys/devices/pci0000:5e/{address}/net/{name}/mtu", "1500")
    for number in range(8):
        physical, place = (first, f"00.{number + 2}") if number < 4 else (second, f"01.{number - 4}")
        node.host.add_function(
            f"0000:5e:{place}",
            **nic,
            device="101e",
            driver="vfio-pci",
            group=10 + number,
            physfn=physical,
        )


async def test_vfs_that_are_selected_by_their_pf_are_taken_by_the_rules(node: Node) -> None:
    add_ports(node)
    vfs = '"vendors": ["15b3"], "devices": ["101e"], "drivers": ["vfio-pci"]'
    rules, notes = await translate(
        node,
        f"""
{{"resourceList": [
  {{"resourceName": "half", "resourcePrefix": "a.b",
    "selectors": {{{vfs}, "pfNames": ["ens1f0#0-1"]}}}},
  {{"resourceName": "port1", "resourcePrefix": "a.b",
    "selectors": {{{vfs}, "rootDevices": ["0000:5e:00.1"]}}}},
  {{"resourceName": "last", "resourcePrefix": "a.b",
    "selectors": {{{vfs}, "rootDevices": ["0000:5e:00.0#0,3"]}}}}
]}}
""",
    )
    assert [rule["pci"][0]["pfs"] for rule in rules] == [
        ["ens1f0#0-1"],
        ["0000:5e:00.1"],
        ["0000:5e:00.0#0,3"],
    ]
    assert notes == ""
    async with node.running(listed={"a.b/half": 2, "a.b/port1": 4, "a.b/last": 1}) as (_, kubelet):
        assert sorted(health(kubelet, "a.b/half")) == ["0000:5e:00.2", "0000:5e:00.3"]
        assert sorted(health(kubelet, "a.b/port1")) == [f"0000:5e:01.{number}" for number in range(4)]
        assert sorted(health(kubelet, "a.b/last")) == ["0000:5e:00.5"]
        told = (await node.command("explain", "0000:5e:00.4")).stdout
        names(told, "pfs", "0000:5e:00.0", "ens1f0", "VF 2", "ens1f0#0-1")


async def test_a_vf_keeps_its_number_when_a_vf_before_it_is_gone(node: Node) -> None:
    """On s390 the VFs come and go one by one, so the links virtfnN of their PF have gaps."""
    physical, vfs = "0000:5e:00.0", [f"0000:5e:00.{number}" for number in (2, 3, 4)]
    nic: dict[str, Any] = {"vendor": "8086", "device": "1592", "pci_class": "020000"}
    node.host.add_function(physical, **nic, driver="ice", group=20, sriov=8)
    for number, vf in enumerate(vfs):
        node.host.add_function(vf, **nic, driver="vfio-pci", group=30 + number, physfn=physical)
    node.host.unplug(vfs[0])
    node.configure(f'resources: [{{name: a.b/c, pci: [{{pfs: ["{physical}#1-2"]}}]}}]')
    async with node.running(listed={"a.b/c": 2}) as (_, kubelet):
        assert sorted(health(kubelet, "a.b/c")) == vfs[1:]


@pytest.mark.parametrize(
    "written", ["", "a b", "ens1f0#", "ens1f0#3-1", "ens1f0#x", "0000:5e:00.0#1,", "a/b"]
)
async def test_a_pf_that_is_none_is_refused(node: Node, written: str) -> None:
    path = node.configure(f'resources: [{{name: a.b/c, pci: [{{pfs: ["{written}"]}}]}}]')
    done = await node.command("config", "--check", str(path))
    assert done.returncode == 2
    assert "PF" in done.stderr


@pytest.mark.parametrize("part", ["object", "patch", "section"])
async def test_a_hyperconverged_cr_becomes_rules_without_its_disabled_entries(node: Node, part: str) -> None:
    whole = yaml.safe_load(HYPER_CONVERGED.replace("NAME", GPU))
    written = {
        "object": whole,
        "patch": {"spec": whole["spec"]},
        "section": whole["spec"]["permittedHostDevices"],
    }
    rules, notes = await translate(node, json.dumps(written[part]))
    assert rules == [
        {"name": GPU, "pci": [{"vendors": ["10de"], "devices": ["1eb8"], "drivers": ["vfio-pci"]}]},
        {
            "name": "example.com/stick",
            "usb": [{"vendors": ["46f4"], "products": ["0001"]}],
            "bundle": True,
        },
    ]
    assert "example.com/disabled" not in notes


async def test_a_rule_of_a_permitted_card_takes_only_functions_on_vfio_pci(node: Node) -> None:
    """As the entry itself does; a card whose VFs carry vGPUs is none of its functions."""
    free, busy, vf = "0000:3b:00.0", "0000:5e:00.0", "0000:5e:00.4"
    node.add_gpu(free, 1, device="2236")
    node.add_gpu(busy, 2, device="2236", sriov=16)
    node.add_gpu(vf, 3, device="2236", physfn=busy)
    for address in (busy, vf):
        node.host.bind(address, "nvidia")
    entry = '{pciVendorSelector: "10DE:2236", resourceName: nvidia.com/A10, externalResourceProvider: true}'
    rules, _ = await translate(node, f"permittedHostDevices: {{pciHostDevices: [{entry}]}}")
    assert rules == [
        {
            "name": "nvidia.com/A10",
            "pci": [{"vendors": ["10de"], "devices": ["2236"], "drivers": ["vfio-pci"]}],
        }
    ]
    async with node.running(listed={"nvidia.com/A10": 1}) as (_, kubelet):
        assert health(kubelet, "nvidia.com/A10") == {free: "Healthy"}


async def test_a_pf_that_is_named_twice_is_one_pf_and_an_extra_node_drops_no_resource(node: Node) -> None:
    """The operator of SR-IOV writes both names of a PF. needVhostNet adds a node; it selects nothing."""
    add_ports(node)
    both = {"pfNames": ["ens1f0#0-1"], "rootDevices": ["0000:5e:00.0"]}
    numbered = {"pfNames": ["ens1f1"], "rootDevices": ["0000:5e:00.1#2-3"]}
    net = {"pfNames": ["ens1f0#2"], "NeedVhostNet": True}
    lists = [
        {"resourceName": name, "resourcePrefix": "a.b", "selectors": {"drivers": ["vfio-pci"], **keys}}
        for name, keys in (("both", both), ("numbered", numbered), ("net", net))
    ]
    rules, notes = await translate(node, json.dumps({"resourceList": lists}))
    assert [rule["pci"][0]["pfs"] for rule in rules] == [["ens1f0#0-1"], ["0000:5e:00.1#2-3"], ["ens1f0#2"]]
    names(notes, "a.b/both", "rootDevices", "0000:5e:00.0")
    names(notes, "a.b/numbered", "pfNames", "a.b/net", "needVhostNet")
    async with node.running(listed={"a.b/both": 2, "a.b/numbered": 2, "a.b/net": 1}):
        pass


async def test_a_name_whose_first_part_is_an_option_of_the_plugin_gets_a_note(node: Node) -> None:
    selectors = {"vendors": ["15b3"], "drivers": ["vfio-pci"]}
    _, notes = await translate(
        node, json.dumps({"resourceList": [{"resourceName": "nic", "selectors": selectors}]})
    )
    names(notes, "intel.com", "--resource-prefix", "openshift.io")
    _, notes = await translate(node, "devices: [{name: fuse, groups: [{paths: [{path: /dev/fuse}]}]}]")
    names(notes, "squat.ai", "--domain")


async def test_texts_of_a_config_map_for_several_nodes_are_named(node: Node) -> None:
    """The operator of SR-IOV has a ConfigMap with the configuration of each node under its name."""
    text = """{{"resourceList": [{{"resourceName": "nic", "resourcePrefix": "a.b", "selectors":
        {{"drivers": ["vfio-pci", "iavf"], "pfNames": ["{pf}"]}}}}]}}"""
    data = {name: text.format(pf=pf) for name, pf in (("worker-0", "ens1f0"), ("worker-1", "ens2f0"))}
    rules, notes = await translate(node, json.dumps({"kind": "ConfigMap", "data": data}))
    assert [rule["pci"][0]["pfs"] for rule in rules] == [["ens1f0"], ["ens2f0"]]
    names(notes, "worker-0: resourceList[0]", "worker-1: resourceList[0]", "worker-0, worker-1")


GENERIC_MANIFEST = """
apiVersion: v1
kind: Namespace
metadata: {name: plugins}
spec: {finalizers: [kubernetes]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: devices, namespace: plugins}
spec:
  template:
    spec:
      containers:
        - name: devices
          image: example.com/generic-device-plugin
          args:
            - --domain=example.org
            - --device
            - |
              name: tpu
              groups:
                - usb: [{product: 9302, vendor: 18d1}]
            - '--device={"name": "fuse", "groups": [{"count": 10, "paths": [{"path": "/dev/fuse"}]}]}'
            - --log-level
            - all
"""


async def test_devices_in_the_arguments_of_the_generic_device_plugin_become_rules(node: Node) -> None:
    wanted: list[dict[str, Any]] = [
        {"name": "example.org/tpu", "usb": [{"vendors": ["18d1"], "products": ["9302"]}]},
        {
            "name": "example.org/fuse",
            "node": {"paths": [{"path": "/dev/fuse", "permissions": "mrw"}], "count": 10},
        },
    ]
    rules, notes = await translate(node, GENERIC_MANIFEST)
    assert rules == wanted
    assert "--domain" not in notes
    rules, _ = await translate(node, "{name: tpu, groups: [{usb: [{product: 9302, vendor: 18d1}]}]}")
    assert rules == [{**wanted[0], "name": "squat.ai/tpu"}]


async def test_a_limit_lets_a_node_be_used_again_and_makes_no_more_devices(node: Node) -> None:
    """Its path.go: as many devices as the pattern with the most matches has, unless a limit ends before."""
    for path in ("/dev/fuse", "/dev/video0", "/dev/video1", "/dev/snd/controlC0", "/dev/snd/controlC1"):
        node.host.node(path)
    await translate(
        node,
        """
devices:
  - name: fuse
    groups: [{count: 3, paths: [{path: /dev/fuse, limit: 5}]}]
  - name: camera
    groups: [{paths: [{path: "/dev/video*", limit: 4}, {path: "/dev/snd/controlC*"}]}]
""",
    )
    async with node.running(listed={"squat.ai/fuse": 3, "squat.ai/camera": 2}):
        pass


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("{version: v1, vgpu-configs: {a: [{devices: all, vgpu-devices: {}}]}}", "mdevs.vgpuConfigFile"),
        ("{kind: SriovNetworkNodePolicy, spec: {numVfs: 8}}", "resourceList"),
    ],
)
async def test_a_file_that_is_not_translated_says_where_to_go(node: Node, text: str, hint: str) -> None:
    theirs = node.root / "theirs"
    theirs.write_text(text)
    done = await node.command("config", "--from", str(theirs))
    assert (done.returncode, done.stdout) == (2, "")
    assert hint in done.stderr


async def test_types_of_nodes_in_the_wrong_section_are_not_dropped_in_silence(node: Node) -> None:
    section = {
        "mediatedDevices": [{"mdevNameSelector": "GRID P40-1Q", "resourceName": "nvidia.com/GRID_P40-1Q"}],
        "nodeMediatedDeviceTypes": [
            {"nodeSelector": {"kubernetes.io/hostname": "node2"}, "mediatedDevicesTypes": ["nvidia-46"]}
        ],
    }
    rules, notes = await translate(node, json.dumps({"permittedHostDevices": section}))
    assert [rule["name"] for rule in rules] == ["nvidia.com/GRID_P40-1Q"]
    names(notes, "permittedHostDevices.nodeMediatedDeviceTypes", "mediatedDevicesConfiguration")


async def test_a_config_map_of_vgpu_device_manager_is_not_its_file(node: Node) -> None:
    files.write(
        f"{node.root}/etc/nvidia-vgpu/config.yaml",
        json.dumps({"kind": "ConfigMap", "data": {"config.yaml": ""}}),
    )
    node.configure("mdevs: {manage: true, vgpuConfigFile: /etc/nvidia-vgpu/config.yaml, vgpuConfig: default}")
    done = await node.command("plan")
    assert done.returncode == 2
    names(done.stderr, "config.yaml:1", "Kubernetes", "jsonpath")


async def test_a_pf_that_a_rule_for_its_vfs_names_is_none_of_them(node: Node) -> None:
    add_ports(node)
    node.host.bind("0000:5e:00.1", "vfio-pci")
    node.configure("resources: [{name: a.b/c, pci: [{vendors: ['15b3'], pfs: ['0000:5e:00.1']}]}]")
    told = (await node.command("explain", "0000:5e:00.1")).stdout
    names(told, "pfs", "not a VF", "0000:5e:00.1")
