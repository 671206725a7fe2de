# SPDX-License-Identifier: Apache-2.0
"""What CDI files on the host define is offered by its names, while file and nodes are right."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from grpclib.exceptions import GRPCError

from nodeagent.sim.kubelet.server import FakeKubelet
from tests import facts
from tests.blackbox import silentfs
from tests.blackbox.harness import (
    PATIENCE,
    T4,
    Node,
    allocate,
    eventually,
    health,
    pod,
    until_health,
    watched,
)
from tests.sim import devnodes

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make device nodes")

GPU, KIND = "nvidia.com/gpu", "nvidia.com/gpu"
RULE = f"resources: [{{name: {GPU}, cdiDevices: {{kind: {KIND}}}}}]"
CARDS = ("0000:10:00.0", "0000:20:00.0")
OTHER = "0000:30:00.0"  # on vfio-pci


def device(name: str, *nodes: str, env: str = "") -> dict[str, Any]:
    """A device of a CDI file."""
    edits: dict[str, Any] = {"deviceNodes": [{"path": path} for path in nodes]}
    return {"name": name, "containerEdits": edits | ({"env": [f"A={env}"]} if env else {})}


def put(node: Node, name: str, *devices: dict[str, Any], kind: str = KIND, where: str = "etc/cdi") -> Path:
    """Write a CDI file at once and whole, as the tools do."""
    spec = {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "containerEdits": {"deviceNodes": [{"path": "/dev/nvidiactl"}]},
        "devices": list(devices),
    }
    return put_text(node, name, json.dumps(spec), where)


def put_text(node: Node, name: str, text: str, where: str = "etc/cdi") -> Path:
    """Write any text as a CDI file."""
    directory = node.root / where
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.new").write_text(text)
    return (directory / f"{name}.new").rename(directory / name)


@pytest.fixture
def gpus(node: Node) -> Node:
    """Two GPUs on NVIDIA's driver, and a file as nvidia-ctk writes it: by number, by UUID, all."""
    for number, address in enumerate(CARDS):
        node.host.add_function(
            address,
            vendor="10de",
            device="1eb8",
            pci_class="030200",
            driver="nvidia",
            group=number,
            numa=number,
        )
        node.host.write_file(f"/proc/driver/nvidia/gpus/{address}/information", f"Device Minor: {number}")
        devnodes.add(node.host, f"/dev/nvidia{number}", (195, number))
    devnodes.add(node.host, "/dev/nvidiactl", (195, 255))
    both = [device(name, f"/dev/nvidia{n}") for n in range(2) for name in (str(n), f"GPU-{n}{n}")]
    put(node, "nvidia.json", *both, device("all", "/dev/nvidia0", "/dev/nvidia1"))
    node.configure(RULE)
    return node


def names(kubelet: FakeKubelet) -> dict[str, str]:
    """Names without their kind → health."""
    return {name.partition("=")[2]: state for name, state in health(kubelet, GPU).items()}


async def test_each_device_is_offered_once_and_given_by_its_name(gpus: Node) -> None:
    async with gpus.running(listed={GPU: 2}) as (_, kubelet):
        assert names(kubelet) == {"0": "Healthy", "1": "Healthy"}, "neither by UUID again, nor all of them"
        (given,) = await allocate(kubelet, GPU, [f"{KIND}=1", f"{KIND}=0"])
        assert [each.name for each in given.cdi_devices] == [f"{KIND}=1", f"{KIND}=0"]
        assert not given.devices
        assert not given.envs
        (told,) = [each for each in (await gpus.status())["resources"] if each["name"] == GPU]
        assert [each["numa"] for each in told["devices"]] == [0, 1]


async def test_names_are_chosen_by_pattern_and_a_name_goes_to_the_first_rule(gpus: Node) -> None:
    gpus.configure(
        f"resources: [{{name: a.b/one, cdiDevices: {{kind: {KIND}, names: ['GPU-1*']}}}}, "
        f"{{name: {GPU}, cdiDevices: {{kind: {KIND}, names: ['GPU-*', all], exclude: []}}}}]"
    )
    async with gpus.running(listed={GPU: 2, "a.b/one": 1}) as (_, kubelet):
        assert sorted(names(kubelet)) == ["GPU-00", "all"]
        assert list(health(kubelet, "a.b/one")) == [f"{KIND}=GPU-11"]


async def test_a_gpu_of_virtual_machines_is_no_containers_and_comes_back(gpus: Node) -> None:
    async with gpus.running(listed={GPU: 2}) as (_, kubelet):
        gpus.host.bind(CARDS[1], "vfio-pci")
        await until_health(kubelet, GPU, f"{KIND}=1", "Unhealthy")
        await kubelet.until(
            lambda: "Healthy" in health(kubelet, "nvidia.com/TU104GL_TESLA_T4").values(), PATIENCE
        )
        with pytest.raises(GRPCError, match="vfio-pci"):
            await allocate(kubelet, GPU, [f"{KIND}=1"])
        gpus.host.bind(CARDS[1], "nvidia")
        await until_health(kubelet, GPU, f"{KIND}=1", "Healthy")
        await until_health(kubelet, T4, CARDS[1], "Unhealthy")


async def test_a_node_that_a_file_names_has_to_be_there(gpus: Node) -> None:
    async with gpus.running(listed={GPU: 2}) as (_, kubelet):
        gpus.host.remove_node("/dev/nvidia0")
        await until_health(kubelet, GPU, f"{KIND}=0", "Unhealthy")
        assert names(kubelet)["1"] == "Healthy"
        gpus.host.remove_node("/dev/nvidiactl")
        await until_health(kubelet, GPU, f"{KIND}=1", "Unhealthy")
        told = json.loads((await gpus.command("explain", GPU, "-o", "json")).stdout)
        for device in told["devices"]:
            assert device["reason"]["code"] == "node-missing"
            facts.names(device["reason"]["message"], "/etc/cdi/nvidia.json", "/dev/nvidiactl")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("kind: a\n  b: c\n", "2: not valid YAML"),
        (
            '{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": 0}]}',
            "devices[0].name is no text",
        ),
        ("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: [{name: a}, {name: a}]", 'a second device "a"'),
        ("cdiVersion: 9.0.0\nkind: nvidia.com/gpu\ndevices: [{name: a}]", "cdiVersion 9.0.0 is not known"),
        ("&a [*a]", "1: "),
        ("x" * (50 << 20), "larger than 1 MiB"),
    ],
)
async def test_a_file_that_is_wrong_costs_its_own_devices_and_says_where(
    gpus: Node, text: str, place: str
) -> None:
    put(gpus, "other.json", device("other"))
    async with gpus.running(listed={GPU: 3}) as (daemon, kubelet):
        before = daemon.usage().rss
        put_text(gpus, "nvidia.json", text)
        await until_health(kubelet, GPU, f"{KIND}=0", "Unhealthy")
        assert names(kubelet) == {"other": "Healthy", "0": "Unhealthy", "1": "Unhealthy"}
        told = await gpus.until_told(lambda told: "nvidia.json" in str(told["findings"]))
        (what,) = [each["message"] for each in told["findings"] if each["code"] == "cdi-file"]
        assert place in what
        assert daemon.usage().rss < before + (8 << 10)
        put(gpus, "nvidia.json", device("0", "/dev/nvidia0"))
        await until_health(kubelet, GPU, f"{KIND}=0", "Healthy")
        await until_health(kubelet, GPU, f"{KIND}=1", None)


async def test_one_name_in_two_files_is_nobody_s_unless_a_directory_goes_before(gpus: Node) -> None:
    put(gpus, "twice.json", device("0", "/dev/nvidia0", env="twice"))
    put(gpus, "above.json", device("1", "/dev/nvidia0", env="above"), where="var/run/cdi")
    async with gpus.running(listed={GPU: 3}) as (_, kubelet):
        assert names(kubelet) == {"0": "Unhealthy", "1": "Healthy", "GPU-11": "Healthy"}
        with pytest.raises(GRPCError, match="twice"):
            await allocate(kubelet, GPU, [f"{KIND}=0"])
        gpus.host.remove_node("/dev/nvidia0")
        await until_health(kubelet, GPU, f"{KIND}=1", "Unhealthy")
        devnodes.add(gpus.host, "/dev/nvidia0", (195, 0))
        (gpus.root / "etc/cdi/twice.json").unlink()
        await until_health(kubelet, GPU, f"{KIND}=0", "Healthy")


async def test_a_directory_may_come_later_and_go(gpus: Node) -> None:
    (gpus.root / "etc/cdi").rename(gpus.root / "etc/aside")
    async with gpus.running(listed={GPU: 0}) as (_, kubelet):
        (gpus.root / "etc/aside").rename(gpus.root / "etc/cdi")
        await kubelet.until_listed(GPU, 2, PATIENCE)
        assert (await kubelet.admit(pod("one", {GPU: 1}))).phase == "Running"
        (gpus.root / "etc/cdi").rename(gpus.root / "etc/aside")
        await kubelet.until_listed(GPU, 1, PATIENCE)
        assert list(names(kubelet).values()) == ["Unhealthy"], "what a pod has stays listed"
        (gpus.root / "etc/aside").rename(gpus.root / "etc/cdi")
        await kubelet.until_listed(GPU, 2, PATIENCE)


async def test_a_directory_of_a_thousand_files_is_read_and_followed(gpus: Node) -> None:
    for number in range(1000):
        put(gpus, f"n{number}.json", device(f"n{number}", env=str(number)))
    async with gpus.running(listed={GPU: 1002}) as (_, kubelet):
        (gpus.root / "etc/cdi/n7.json").unlink()
        await until_health(kubelet, GPU, f"{KIND}=n7", None)
        assert len(names(kubelet)) == 1001


async def test_a_directory_that_hangs_costs_its_own_devices_until_it_answers(
    gpus: Node, tmp_path: Path
) -> None:
    put(gpus, "there.json", device("there"), where="var/run/cdi")
    if not silentfs.possible(gpus.root / "etc/cdi"):
        pytest.skip("no file system of one's own here")
    gpus.add_gpu(OTHER, 30)
    async with gpus.running("--timing-resync", "1s", listed={GPU: 3}) as (daemon, kubelet):
        with silentfs.silent(gpus.root / "etc/cdi"):
            await until_health(kubelet, GPU, f"{KIND}=0", "Unhealthy")
            assert names(kubelet)["there"] == "Healthy"
            assert await allocate(kubelet, GPU, [f"{KIND}=there"])
            gpus.host.unplug(OTHER)
            await daemon.logged("device-removed")
        await until_health(kubelet, GPU, f"{KIND}=0", "Healthy")
        assert await daemon.end() == 0


async def test_a_daemon_may_start_while_a_directory_hangs(gpus: Node) -> None:
    put(gpus, "there.json", device("there"), where="var/run/cdi")
    if not silentfs.possible(gpus.root / "etc/cdi"):
        pytest.skip("no file system of one's own here")
    with silentfs.silent(gpus.root / "etc/cdi"):
        async with gpus.running(listed={GPU: 1}) as (daemon, kubelet):
            assert names(kubelet) == {"there": "Healthy"}
            assert "does not answer" in json.dumps((await gpus.status())["findings"])
            assert await daemon.end() == 0


SLOW = {"PYTHONTRACEMALLOC": "1"}  # with it a daemon parses as slowly as on a busy node
PARSED = 60.0  # seconds: enough for slow_text on a loaded machine


def slow_text() -> str:
    """A CDI file of 120 kB with one device; a slow daemon parses it for about three seconds."""
    unknown = "".join(f"    a{number}: {{b: {{c: {{d: [e]}}}}}}\n" for number in range(4000))
    return f"cdiVersion: 0.5.0\nkind: {KIND}\ndevices:\n- name: slow\n  containerEdits:\n{unknown}"


@pytest.mark.slow
async def test_a_file_that_takes_long_to_parse_is_used_and_parsed_once(gpus: Node) -> None:
    async with gpus.kubelet() as kubelet, gpus.daemon("--timing-resync", "1s", environ=SLOW) as daemon:
        await kubelet.until_listed(GPU, 2, PATIENCE)
        put_text(gpus, "slow.yaml", slow_text())
        await kubelet.until_listed(GPU, 3, PARSED)
        lists = [seen.health.values() for seen in kubelet.statistics.lists[GPU]]
        assert all("Unhealthy" not in states for states in lists), "the other file stays valid meanwhile"
        ticks = daemon.usage().ticks
        put(gpus, "other.json", device("other"))
        await kubelet.until_listed(GPU, 4, PATIENCE)
        assert daemon.usage().ticks - ticks < 100, "the slow file is not parsed again"


@pytest.mark.slow
async def test_a_daemon_starts_with_a_file_that_takes_long_to_parse(gpus: Node) -> None:
    put_text(gpus, "slow.yaml", slow_text())
    async with gpus.kubelet() as kubelet, gpus.daemon(environ=SLOW, ready=False):
        await kubelet.until_listed(GPU, 3, PARSED)
        assert set(names(kubelet).values()) == {"Healthy"}
        assert "cannot be used" not in json.dumps((await gpus.status())["findings"])


async def test_a_file_that_hangs_is_named_and_used_when_it_answers(gpus: Node, tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    if not silentfs.possible(away):
        pytest.skip("no file system of one's own here")
    (away / "far.json").write_text((gpus.root / "etc/cdi/nvidia.json").read_text().replace('"1"', '"far"'))
    async with gpus.running("--timing-resync", "1s", listed={GPU: 2}) as (_, kubelet):
        with silentfs.silent(away):
            (gpus.root / "etc/cdi/far.json").symlink_to(away / "far.json")
            await until_health(kubelet, GPU, f"{KIND}=0", "Unhealthy")
            said = json.dumps((await gpus.status())["findings"])
            assert "/etc/cdi/far.json cannot be used: it does not answer" in said
            explained = (await gpus.command("explain", GPU)).stdout
            assert "/etc/cdi/nvidia.json cannot be used: /etc/cdi/far.json does not answer" in explained
        await kubelet.until(lambda: "Healthy" in names(kubelet).values(), PATIENCE)


async def test_a_daemon_that_starts_again_never_lists_less(gpus: Node) -> None:
    async with gpus.kubelet() as kubelet:
        async with gpus.daemon():
            await kubelet.until_listed(GPU, 2, PATIENCE)
            assert (await kubelet.admit(pod("one", {GPU: 1}))).phase == "Running"
        seen = len(kubelet.statistics.lists[GPU])
        async with gpus.daemon():
            await eventually(lambda: len(kubelet.statistics.lists[GPU]) > seen)
            assert {
                frozenset(each.health.items()) for each in list(kubelet.statistics.lists[GPU])[seen:]
            } == {frozenset({f"{KIND}=0": "Healthy", f"{KIND}=1": "Healthy"}.items())}


async def test_verbs_and_saved_hosts_know_what_files_define(gpus: Node) -> None:
    gpus.host.write_file("/etc/machine-id", "0" * 32)
    assert f"matches  {KIND}=0, {KIND}=1" in (await gpus.command("explain", GPU)).stdout
    assert GPU in (await gpus.command("explain", "/dev/nvidia1")).stdout
    scanned = (await gpus.command("scan")).stdout
    (line,) = (line for line in scanned.splitlines() if "/etc/cdi/nvidia.json" in line)
    facts.names(line, "CDI", "5", KIND)
    assert f"/dev/nvidia1 ({CARDS[1]})" in scanned
    saved = gpus.root / "saved.json"
    saved.write_text((await gpus.command("scan", "-o", "json")).stdout)
    other = gpus.root / "new.yaml"
    other.write_text(RULE.replace(f"name: {GPU}", "name: example.com/other"))
    gpus.configure("{}")
    for where in ([], ["--host", str(saved)]):
        planned = await gpus.command("plan", "--config", str(other), *where)
        assert "+ example.com/other: 2 devices, 2 Healthy" in planned.stdout, planned.stderr


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{kind: gpu}", "is no kind of CDI devices"),
        ("{kind: nodeagent.local/vfio}", "what nodeagent itself writes"),
        ("{names: ['*']}", "is missing"),
    ],
)
async def test_what_nobody_can_mean_is_refused(node: Node, written: str, said: str) -> None:
    path = node.configure(f"resources: [{{name: a.b/x, cdiDevices: {written}}}]")
    done = await node.command("config", "--check", str(path))
    assert done.returncode == 2
    assert said in done.stdout + done.stderr


LATE = (
    "nodeagent.agent.cdi_specs",
    "nodeagent.config.cdi_files",
    "nodeagent.kernel.scan.devnodes",
    "nodeagent.policy.offer.cdi_rules",
    "nodeagent.policy.offer.node_rules",
)


@pytest.mark.parametrize("wanted", [False, True])
async def test_a_node_without_such_rules_pays_nothing(gpus: Node, wanted: bool) -> None:
    """No code of theirs is loaded, so nothing of theirs is read, and no directory is watched."""
    gpus.configure(RULE if wanted else "{}")
    gpus.add_gpu(OTHER, 30)
    async with gpus.kubelet() as kubelet, gpus.daemon(environ={"PYTHONPROFILEIMPORTTIME": "1"}) as daemon:
        await kubelet.until_listed(T4, 1, PATIENCE)
        assert (await kubelet.admit(pod("vm", {T4: 1}))).phase == "Running"
        loaded = {line.rpartition("|")[2].strip() for line in daemon.raw if line.startswith("import time:")}
        assert "nodeagent.policy.offer.grants" in loaded
        assert loaded.intersection(LATE) == (
            set(LATE) - {"nodeagent.policy.offer.node_rules"} if wanted else set()
        )
        assert ((gpus.root / "etc/cdi").stat().st_ino in watched(daemon)) is wanted
        assert ((gpus.root / "dev").stat().st_ino in watched(daemon)) is True, "/dev/iommu is waited for"


@pytest.mark.parametrize("major", [195, 240], ids=["NVIDIA's", "another"])
async def test_a_node_is_used_whose_number_is_registered_and_not_in_sysfs(node: Node, major: int) -> None:
    """register_chrdev alone makes an entry in /proc/devices, and none in /sys/dev/char."""
    node.host.write_file(
        "/proc/devices", f"Character devices:\n  1 mem\n{major} vendor\n\nBlock devices:\n  8 sd"
    )
    devnodes.add(node.host, "/dev/vendor0", (major, 0))
    devnodes.add(node.host, "/dev/nvidiactl", (195, 255))
    put(node, "vendor.json", device("0", "/dev/vendor0"), kind="vendor.com/gpu")
    node.configure("resources: [{name: vendor.com/gpu, cdiDevices: {kind: vendor.com/gpu}}]")
    async with node.running(listed={"vendor.com/gpu": 1}) as (_, kubelet):
        assert health(kubelet, "vendor.com/gpu") == {"vendor.com/gpu=0": "Healthy"}
        await allocate(kubelet, "vendor.com/gpu", ["vendor.com/gpu=0"])
