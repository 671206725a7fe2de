# SPDX-License-Identifier: Apache-2.0
"""``nodeagent bind --at-boot``: files by which a boot gives functions to VFIO before the host has them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nodeagent.base import threads
from tests.blackbox.harness import Node
from tests.blackbox.test_bindings import AUDIO, GPU, add_card, add_disk, add_network, below
from tests.blackbox.test_bindings_used import add_process
from tests.facts import names
from tests.sim.drivers import simulated

MODPROBE, UDEV = "etc/modprobe.d/nodeagent-vfio.conf", "etc/udev/rules.d/10-nodeagent-vfio.rules"
DRACUT = "etc/dracut.conf.d/90-nodeagent-vfio.conf"
HOOK = "etc/initramfs-tools/hooks/nodeagent-vfio"
SCRIPT = "etc/initramfs-tools/scripts/init-top/00-nodeagent-vfio"
OF_DRACUT, OF_TOOLS = (MODPROBE, UDEV, DRACUT), (MODPROBE, UDEV, HOOK, SCRIPT)


def files(node: Node) -> list[str]:
    """All files of ours below /etc."""
    return sorted(str(each.relative_to(node.root)) for each in (node.root / "etc").rglob("*nodeagent-vfio*"))


def with_dracut(node: Node) -> None:
    node.host.write_file("/usr/bin/dracut", "")


def with_initramfs_tools(node: Node) -> None:
    node.host.write_file("/usr/sbin/update-initramfs", "")


async def told(node: Node, code: int, *words: str) -> str:
    done = await node.command(*words)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("prepare", "written", "then"),
    [
        (with_dracut, OF_DRACUT, "dracut --force --regenerate-all"),
        (with_initramfs_tools, OF_TOOLS, "update-initramfs -u -k all"),
        (lambda node: None, (MODPROBE, UDEV), ""),
    ],
)
async def test_files_are_shown_then_written_and_taken_back(
    node: Node, prepare: Any, written: tuple[str, ...], then: str
) -> None:
    add_card(node)
    (node.root / "etc").mkdir(exist_ok=True)
    prepare(node)
    shown = await told(node, 0, "bind", "--at-boot", GPU, "--dry-run")
    planned = json.loads(await told(node, 0, "bind", "--at-boot", GPU, "--dry-run", "-o", "json"))
    assert planned.get("then", "") == then
    assert files(node) == []
    said = await told(node, 0, "bind", "--at-boot", GPU)
    names(said, "done: ", GPU, AUDIO, "vfio-pci")
    assert files(node) == sorted(written)
    for path in written:
        assert f"would be written: /{path}" in shown
        assert f"written: /{path}" in said
        for line in (node.root / path).read_text().splitlines():
            assert f"    {line}" in shown.splitlines()
    assert (then or "initramfs") in said
    assert "nothing to do" in await told(node, 0, "bind", "--at-boot", GPU)
    assert f"would be removed: /{UDEV}" in await told(node, 0, "release", GPU, "--dry-run")
    assert files(node) == sorted(written)
    said = await told(node, 0, "release", AUDIO)
    assert (files(node), (then or "initramfs") in said) == ([], True)


async def test_two_groups_share_the_files_and_the_other_stays(node: Node) -> None:
    add_card(node)
    with_dracut(node)
    node.host.add_function(
        "0000:5e:00.0", vendor="8086", device="10d3", pci_class="020000", driver="e1000e", group=20
    )
    await told(node, 0, "bind", "--at-boot", GPU)
    await told(node, 0, "bind", "--at-boot", "8086:10d3")
    document = json.loads(await told(node, 0, "release", GPU, "-o", "json"))
    assert {each["status"] for each in document["files"]} == {"written"}
    text = (node.root / MODPROBE).read_text()
    assert ("0000:5e:00.0" in text, GPU in text) == (True, False)


@pytest.mark.parametrize(
    ("prepare", "evidence"),
    [
        (add_disk, ("nvme0n1", "/srv/data")),
        (add_network, ("eth0", "default route")),
        (lambda node: node.host.write(GPU, "boot_vga", "1"), ("boot display",)),
    ],
)
async def test_what_the_host_would_miss_after_the_boot_is_refused(
    node: Node, prepare: Any, evidence: tuple[str, ...]
) -> None:
    add_card(node)
    prepare(node)
    with_dracut(node)
    names(await told(node, 3, "bind", "--at-boot", GPU), *evidence)
    assert files(node) == []


async def test_what_a_process_has_open_now_it_has_no_more_after_the_boot(node: Node) -> None:
    add_card(node)
    add_process(node, "/dev/null")
    below(node, GPU, "drm/card0", "sys/class/drm/card0", dev="1:3")
    async with simulated(node.host, GPU, AUDIO), node.kubelet():
        names(await told(node, 3, "bind", GPU), "card0", "4711")
    await told(node, 0, "bind", "--at-boot", GPU)


@pytest.mark.parametrize("verb", [("bind", "--at-boot", "5e:00.0"), ("release", GPU)])
async def test_a_file_that_somebody_has_changed_is_left_as_it_is(node: Node, verb: tuple[str, ...]) -> None:
    add_card(node)
    node.host.add_function(
        "0000:5e:00.0", vendor="8086", device="10d3", pci_class="020000", driver="e1000e", group=20
    )
    await told(node, 0, "bind", "--at-boot", GPU)
    path = node.root / UDEV
    path.write_text(path.read_text() + "# mine\n")
    before = [(node.root / each).read_text() for each in (MODPROBE, UDEV)]
    done = await node.command(*verb)
    assert done.returncode == 1
    assert f"/{UDEV}" in done.stderr
    assert [(node.root / each).read_text() for each in (MODPROBE, UDEV)] == before


async def test_what_a_boot_has_bound_stays_so_until_the_next_one_when_it_is_released(node: Node) -> None:
    add_card(node)
    await told(node, 0, "bind", "--at-boot", GPU)
    async with simulated(node.host, GPU, AUDIO) as drivers, node.kubelet():
        for address in (GPU, AUDIO):
            node.host.bind(address, "vfio-pci")
        said = await told(node, 0, "release", GPU)
        assert f"removed: /{MODPROBE}" in said
        assert f"nothing to do: {GPU} (on vfio-pci)" in said
        assert drivers.writes == []
        names(await told(node, 3, "release", GPU), GPU, "nodeagent")


async def test_rules_of_sriov_are_not_overridden_by_a_boot(node: Node) -> None:
    pf = "0000:5e:00.0"
    node.host.add_function(
        pf, vendor="8086", device="10d3", pci_class="020000", driver="ice", group=20, sriov=4
    )
    node.configure(f'sriov: [{{match: [{{addresses: ["{pf}"]}}], numVFs: 4}}]\n')
    names(await told(node, 3, "bind", "--at-boot", pf), "sriov")


def run_as_modprobe(node: Node, loaded: Path) -> None:
    """Run the line of the file, which is for /sys, on this node; what it would load is noted."""
    lines = (node.root / MODPROBE).read_text().splitlines()
    (line,) = [each for each in lines if each.startswith("install ")]
    script = line.removeprefix("install vfio-pci ").replace("/sys/bus", f"{node.root}/sys/bus")
    subprocess.run(["/bin/sh", "-c", script.replace("/sbin/modprobe", f"echo >{loaded}")], check=True)


async def test_the_line_of_modprobe_overrides_the_named_devices_and_no_other_at_their_addresses(
    node: Node,
) -> None:
    add_card(node)
    await told(node, 0, "bind", "--at-boot", GPU)
    node.host.write(AUDIO, "device", "0x0f00")  # another card is there by now
    devices, loaded = node.root / "sys/bus/pci/devices", node.root / "loaded"
    await threads.call(run_as_modprobe, node, loaded)
    assert (devices / GPU / "driver_override").read_text() == "vfio-pci\n"
    assert (devices / AUDIO / "driver_override").read_text() == "(null)\n"
    assert loaded.read_text() == "--ignore-install vfio-pci\n"
