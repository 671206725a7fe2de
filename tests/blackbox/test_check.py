# SPDX-License-Identifier: Apache-2.0
"""``nodeagent check``: can a host give devices to virtual machines, and what is to do where it cannot."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from nodeagent.base import threads
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox.harness import T4, Node
from tests.blackbox.test_advice import add_network
from tests.blackbox.test_watches import NONE
from tests.facts import names
from tests.namespaces import namespaces
from tests.people import as_nobody, needs_root, open_directory
from tests.sim.usb import STICK

INTEL, AMD, ARM = "vendor_id\t: GenuineIntel\n", "vendor_id\t: AuthenticAMD\n", "CPU implementer\t: 0x41\n"
INTERRUPTS = " 24:  0  0  IR-PCI-MSI 327680-edge  nvme0q0\n"
RELEASE = "/lib/modules/6.12.95"
ALL_MODULES = "kernel/drivers/vfio/pci/vfio-pci.ko.xz: kernel/drivers/vfio/vfio.ko.xz\n"


def prepare(node: Node, files: Mapping[str, str] | None = None) -> None:
    """A machine that shows all: Intel, VT-d and remapped interrupts, its modules, a /dev/kvm."""
    shown = {
        "/proc/cpuinfo": INTEL + "flags\t\t: fpu vmx\n",
        "/proc/cmdline": "root=/dev/sda1 quiet intel_iommu=on",
        "/proc/interrupts": INTERRUPTS,
        "/sys/firmware/acpi/tables/DMAR": "x",
        "/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts": "N",
        f"{RELEASE}/modules.dep": ALL_MODULES,
        f"{RELEASE}/modules.builtin": "",
        "/etc/default/grub": "GRUB_CMDLINE_LINUX=",
        "/usr/sbin/update-grub": "",
        "/proc/sys/fs/inotify/max_user_instances": "8192",
        "/proc/sys/fs/inotify/max_user_watches": "1048576",
        "/sys/class/misc/hw_random": "",
        "/dev/kvm": "",
        "/dev/net/tun": "",
        "/dev/vhost-net": "",
    }
    for path, text in {**shown, **(files or {})}.items():
        node.host.write_file(path, text)


async def checked(node: Node, code: int, *arguments: str) -> dict[str, dict[str, Any]]:
    """The lines of a report by what was looked at."""
    done = await node.command("check", "-o", "json", *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["ok"] == (code == 0)
    return {line["check"]: line for line in document["lines"]}


def without_iommu(root: Path) -> Node:
    """A host whose IOMMU is off, with a GPU that nobody can be given."""
    node = Node(root)
    node.host = SimulatedHost(root, iommu=False)
    (root / "sys/class/iommu/dmar0").unlink(missing_ok=True)
    node.host.add_function("0000:65:00.0", vendor="10de", device="1eb8", pci_class="030200")
    prepare(node)
    return node


async def test_a_host_that_is_ready_is_told_so(node: Node) -> None:
    prepare(node)
    node.add_gpus(2)
    async with node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed(T4, 2)
        lines = await checked(node, 0)
        done = await node.command("check")
    for check in (
        "IOMMU",
        "interrupt remapping",
        "vfio-pci",
        "groups of one",
        "device plugins",
        "PodResources",
    ):
        assert lines[check]["verdict"] == "ok", lines[check]
    assert lines["nodeagent"]["verdict"] == "ok"
    assert "dmar0" in lines["IOMMU"]["message"]
    assert "IR-PCI-MSI" in lines["interrupt remapping"]["message"]
    assert done.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has a capability to lose")
async def test_a_daemon_that_may_not_lend_usb_nodes_is_told_of_where_a_rule_needs_it(node: Node) -> None:
    prepare(node)
    node.add_gpus(1)
    node.usb.plug("1-1", STICK)
    rule = '{name: example.com/stick, usb: [{vendors: ["46f4"]}]}'
    drop = ("setpriv", "--bounding-set=-chown", "--inh-caps=-chown")
    async with node.kubelet(), node.daemon(under=drop) as daemon:
        assert "USB nodes" not in await checked(node, 0)
        node.configure(f"resources:\n  - {rule}\n")
        await daemon.logged("resource-added", resource="example.com/stick")
        line = (await checked(node, 3))["USB nodes"]
    assert "CAP_CHOWN" in line["message"]
    assert "usb: true" in line["hint"]
    async with node.kubelet(), node.daemon():
        assert (await checked(node, 0))["USB nodes"]["verdict"] == "ok"


async def test_functions_without_an_iommu_group_are_named(node: Node) -> None:
    prepare(node)
    node.add_gpus(1)
    node.host.add_function("0000:65:00.0", vendor="10de", device="1eb8", pci_class="030200")
    line = (await checked(node, 3))["groups"]
    assert line["verdict"] == "note"
    names(line["message"], "0000:65:00.0")
    names(line["hint"], "dmesg")


@pytest.mark.parametrize(("processor", "word"), [(INTEL, "remapping"), (AMD, "remapping"), (ARM, "ITS")])
async def test_unreadable_interrupts_are_looked_for_in_the_log_of_this_processor(
    node: Node, processor: str, word: str
) -> None:
    prepare(node, {"/proc/cpuinfo": processor})
    node.add_gpus(1)
    (node.root / "proc/interrupts").unlink()
    hint = (await checked(node, 3))["interrupt remapping"]["hint"]
    names(hint, "dmesg", word)
    assert "AMD-Vi" not in hint


async def test_an_iommu_that_intels_kernel_was_not_asked_for_is_a_word_to_add(tmp_path: Path) -> None:
    node = without_iommu(tmp_path)
    node.host.write_file("/proc/cmdline", "quiet")
    line = (await checked(node, 3))["IOMMU"]
    assert line["verdict"] == "wrong"
    assert "DMAR" in line["message"]
    assert "intel_iommu=on" in line["hint"]
    assert "update-grub" in line["hint"]


async def test_vtd_that_the_firmware_keeps_to_itself_is_its_to_switch_on(tmp_path: Path) -> None:
    node = without_iommu(tmp_path)
    (tmp_path / "sys/firmware/acpi/tables/DMAR").rename(tmp_path / "sys/firmware/acpi/tables/FACP")
    line = (await checked(node, 3))["IOMMU"]
    assert "no DMAR" in line["message"]
    assert "VT-d" in line["hint"]
    assert "firmware" in line["hint"]
    assert "intel_iommu" not in line["hint"], "it is not the kernel's to give"


async def test_a_virtual_machine_without_an_iommu_has_no_firmware_to_look_into(tmp_path: Path) -> None:
    node = without_iommu(tmp_path)
    node.host.write_file("/proc/cpuinfo", f"{INTEL}flags\t\t: fpu hypervisor vmx\n")
    (tmp_path / "sys/firmware/acpi/tables/DMAR").rename(tmp_path / "sys/firmware/acpi/tables/FACP")
    line = (await checked(node, 3))["IOMMU"]
    assert "virtual machine" in line["hint"]
    assert "firmware's setup" not in line["hint"]


@pytest.mark.parametrize(
    ("cpu", "table", "words", "seen", "to_do"),
    [
        (AMD, "FACP", "quiet", "no IVRS", "AMD-Vi"),
        (AMD, "IVRS", "quiet amd_iommu=off", "amd_iommu=off", "take amd_iommu=off out"),
        (AMD, "IVRS", "quiet", "IVRS", "AMD-Vi"),
        (INTEL, "DMAR", "intel_iommu=on intel_iommu=off", "intel_iommu=off", "take intel_iommu=off out"),
        (INTEL, "DMAR", "iommu=off", "iommu=off", "take iommu=off out"),
        (ARM, "FACP", "quiet", "no IORT", "SMMU"),
    ],
)
async def test_an_iommu_that_is_off_is_explained_by_processor_firmware_and_command_line(
    tmp_path: Path, cpu: str, table: str, words: str, seen: str, to_do: str
) -> None:
    node = without_iommu(tmp_path)
    (tmp_path / "sys/firmware/acpi/tables/DMAR").rename(tmp_path / f"sys/firmware/acpi/tables/{table}")
    node.host.write_file("/proc/cpuinfo", cpu)
    node.host.write_file("/proc/cmdline", words)
    line = (await checked(node, 3))["IOMMU"]
    assert seen in line["message"]
    assert to_do in line["hint"]
    assert ("intel_iommu=on" in line["hint"]) is False


@pytest.mark.parametrize(
    ("there", "to_do"),
    [
        ("/run/ostree-booted", "rpm-ostree kargs --append-if-missing=intel_iommu=on"),
        ("/usr/sbin/grubby", "grubby --update-kernel=ALL --args=intel_iommu=on"),
        ("/usr/sbin/grub2-mkconfig", "grub2-mkconfig -o /boot/grub2/grub.cfg"),
        ("/etc/kernel/cmdline", "/etc/kernel/cmdline"),
        ("/etc/hostname", "command line of the kernel"),
    ],
)
async def test_the_boot_loader_of_this_host_is_what_is_to_be_told(
    tmp_path: Path, there: str, to_do: str
) -> None:
    node = without_iommu(tmp_path)
    node.host.write_file("/proc/cmdline", "quiet")
    (tmp_path / "usr/sbin/update-grub").unlink()
    node.host.write_file(there, "")
    assert to_do in (await checked(node, 3))["IOMMU"]["hint"]


async def test_interrupts_that_are_not_remapped_keep_devices_from_machines(node: Node) -> None:
    prepare(node, {"/proc/interrupts": " 24:  0  0  PCI-MSI 327680-edge  nvme0q0\n"})
    node.add_gpus(1)
    line = (await checked(node, 3))["interrupt remapping"]
    assert line["verdict"] == "wrong"
    unsafe = "/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts"
    node.host.write_file(unsafe, "Y")
    line = (await checked(node, 3))["interrupt remapping"]
    assert (line["verdict"], "allow_unsafe_interrupts" in line["message"]) == ("note", True)


async def test_vfio_pci_that_is_not_loaded_can_be_loaded_if_the_kernel_has_it(node: Node) -> None:
    prepare(node)
    (node.root / "sys/bus/pci/drivers/vfio-pci").rmdir()
    line = (await checked(node, 3))["vfio-pci"]
    assert line["verdict"] == "wrong"
    assert "modprobe vfio-pci" in line["hint"]
    node.host.write_file(f"{RELEASE}/modules.dep", "kernel/fs/ext4/ext4.ko:\n")
    line = (await checked(node, 3))["vfio-pci"]
    assert "no vfio-pci" in line["message"]
    assert "modprobe" not in line["hint"]


async def test_a_group_that_is_not_viable_is_told_with_all_that_is_in_it(node: Node) -> None:
    prepare(node)
    node.add_gpu("0000:d8:00.0", 14)
    node.host.add_function(
        "0000:d8:01.0", vendor="8086", device="10d3", pci_class="020000", driver="e1000e", group=14
    )
    lines = await checked(node, 3)
    line = lines["group 14"]
    assert line["verdict"] == "wrong"
    assert "0000:d8:01.0 (e1000e)" in line["message"]
    assert "nodeagent explain 0000:d8:00.0" in line["hint"]


async def test_each_problem_of_the_daemon_is_a_line_with_its_hint(node: Node) -> None:
    prepare(node)
    node.add_gpu("0000:d8:00.0", 14)
    node.host.add_function(
        "0000:d8:01.0", vendor="8086", device="10d3", pci_class="020000", driver="e1000e", group=14
    )
    node.configure("resources: [{name: example.com/gpu, pci: [{addresses: ['0000:d8:00.0']}]}]\n")
    async with node.kubelet(), node.daemon():
        told = await node.until_told(lambda told: len(told["problems"]) == 1)
        line = (await checked(node, 3))["problem"]
    (problem,) = [each for each in told["findings"] if each["actionRequired"]]
    names(line["message"], "example.com/gpu", "0000:d8:00.0", "0000:d8:01.0 (e1000e)")
    assert (line["message"], line["hint"]) == (problem["message"], problem["hint"])


async def test_a_vf_that_the_status_lists_as_unhealthy_is_not_ready(node: Node) -> None:
    prepare(node)
    node.add_gpu("0000:3b:00.0", 10, sriov=1)
    node.add_gpu("0000:3b:00.4", 11, physfn="0000:3b:00.0")
    lines = await checked(node, 3)
    assert lines["groups of one"]["message"] == "ready: 10 (0000:3b:00.0)"
    assert lines["group 11"]["verdict"] == "wrong"
    names(lines["group 11"]["message"], "0000:3b:00.4", "VF token")
    assert "nodeagent explain 0000:3b:00.4" in lines["group 11"]["hint"]


async def test_a_bridge_that_keeps_cards_together_is_named_with_what_it_costs(node: Node) -> None:
    prepare(node)
    node.host.add_function("0000:00:10.0", vendor="8086", device="a1", pci_class="060400", port=None, group=9)
    for address in ("0000:65:00.0", "0000:66:00.0"):
        node.add_gpu(address, 9)
    lines = await checked(node, 3)
    line = lines["ACS above group 9"]
    assert line["verdict"] == "note"
    assert line["message"].startswith("0000:00:10.0 ")
    assert "0000:65:00.0, 0000:66:00.0" in line["message"]
    assert "one virtual machine" in line["hint"]
    assert lines["group 9"]["verdict"] == "ok"


async def test_what_would_wake_or_open_a_device_is_not_read(node: Node) -> None:
    """Whoever opened one of these would wait for ever."""
    prepare(node)
    node.host.add_function("0000:00:10.0", vendor="8086", device="a1", pci_class="060400", port=None, group=9)
    for address in ("0000:65:00.0", "0000:66:00.0"):
        node.add_gpu(address, 9)
        for name in ("config", "current_link_speed", "max_link_speed", "uevent", "sriov_numvfs"):
            os.mkfifo(node.host.path(f"/sys/bus/pci/devices/{address}/{name}"))
    for path in ("/dev/vfio/vfio", "/dev/vfio/9", "/dev/kvm"):
        node.host.remove_node(path)
        os.mkfifo(node.host.path(path))
    lines = await checked(node, 3)
    assert lines["interrupt remapping"]["verdict"] == lines["/dev/kvm"]["verdict"] == "ok"
    names(lines["ACS above group 9"]["message"], "0000:00:10.0", "ACS")
    assert "conventional PCI" not in lines["ACS above group 9"]["message"]
    assert lines["group 9"]["verdict"] == "ok"


async def test_what_the_host_lives_on_is_told_and_never_to_be_bound(node: Node) -> None:
    prepare(node)
    add_network(node)
    line = (await checked(node, 3))["used by the host"]
    assert "0000:03:00.0 (eth0, default route)" in line["message"]
    done = await node.command("check")
    assert "bind 0000:03:00.0" not in done.stdout


async def test_without_a_kubelet_nobody_asks_for_devices(node: Node) -> None:
    prepare(node)
    lines = await checked(node, 3)
    assert lines["device plugins"]["verdict"] == "wrong"
    assert "no /var/lib/kubelet/device-plugins" in lines["device plugins"]["message"]
    assert "systemctl status kubelet" in lines["device plugins"]["hint"]
    node.host.write_file("/var/lib/k0s/kubelet/pod-resources/kubelet.sock", "")
    line = (await checked(node, 3))["PodResources"]
    assert line["verdict"] == "wrong"
    assert "kubelet.podResources: /var/lib/k0s/kubelet/pod-resources/kubelet.sock" in line["hint"]


async def test_a_kubelet_that_is_there_tells_how_many_pods_it_has(node: Node) -> None:
    prepare(node)
    node.add_gpus(1)
    async with node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed(T4, 1)
        await kubelet.admit(Pod("ns", "a", [{T4: 1}]))
        assert "1 pod" in (await checked(node, 0))["PodResources"]["message"]


@pytest.mark.slow
async def test_a_kubelet_that_does_not_answer_holds_nobody_up(node: Node) -> None:
    prepare(node)
    async with node.kubelet() as kubelet:
        kubelet.faults.set("pod-resources-delay", 60.0)
        lines = await checked(node, 3)
    assert lines["device plugins"]["verdict"] == "ok"
    assert (lines["PodResources"]["verdict"], lines["IOMMU"]["verdict"]) == ("wrong", "ok")
    assert "no answer" in lines["PodResources"]["message"]


async def test_limits_that_are_too_low_are_told_before_they_are_hit(node: Node) -> None:
    prepare(node, {"/proc/sys/fs/inotify/max_user_instances": "128"})
    line = (await checked(node, 3))["inotify"]
    assert line["verdict"] == "note"
    assert "fs.inotify.max_user_instances" in line["hint"]
    node.host.write_file("/proc/sys/fs/inotify/max_user_instances", "0")
    assert (await checked(node, 3))["inotify"]["verdict"] == "wrong"


@pytest.mark.skipif(not namespaces(), reason="no user namespaces here")
async def test_a_process_that_gets_no_inotify_is_told_which_limit_to_raise() -> None:
    command = [*NONE, sys.executable, "-m", "nodeagent", "check", "-o", "json"]
    done = await anyio.run_process(command, check=False)
    lines = {line["check"]: line for line in json.loads(done.stdout)["lines"]}
    assert lines["inotify"]["verdict"] == "wrong"
    assert "Too many open files" in lines["inotify"]["message"]
    assert "fs.inotify.max_user_instances" in lines["inotify"]["hint"]
    assert lines["user namespace"]["verdict"] == "note"


async def test_a_host_without_hardware_virtualization_runs_no_machines(node: Node) -> None:
    prepare(node, {"/proc/cpuinfo": f"{INTEL}flags\t\t: fpu\n"})
    (node.root / "dev/kvm").unlink()
    line = (await checked(node, 3))["/dev/kvm"]
    assert line["verdict"] == "wrong"
    assert "VT-x" in line["hint"]


async def test_a_saved_host_is_judged_by_what_is_in_it_and_this_machine_is_not_named(
    node: Node, tmp_path: Path
) -> None:
    node.add_gpus(1)
    saved = tmp_path / "host.json"
    saved.write_text((await node.command("scan", "-o", "json")).stdout)
    elsewhere = Node(tmp_path / "elsewhere")
    lines = await checked(elsewhere, 0, "--host", str(saved))
    assert lines["IOMMU"]["verdict"] == lines["vfio-pci"]["verdict"] == "ok"
    for check in ("interrupt remapping", "device plugins", "user", "nodeagent", "/dev/kvm"):
        assert (lines[check]["verdict"], lines[check]["message"]) == ("unseen", lines["user"]["message"])
    done = await elsewhere.command("check", "--host", str(saved))
    assert os.uname().release not in done.stdout
    assert str(tmp_path) not in done.stdout


@needs_root
async def test_a_user_who_may_not_look_into_the_kubelets_directory_gets_a_report() -> None:
    with open_directory() as root:
        node = Node(root)
        prepare(node)
        node.plugins.mkdir(parents=True, exist_ok=True)
        (root / "var/lib/kubelet").chmod(0o750)
        done = await threads.call(as_nobody, "--root", str(root), "check", "-o", "json")
    assert done.returncode == 0, done.stderr
    lines = {line["check"]: line for line in json.loads(done.stdout)["lines"]}
    assert lines["device plugins"]["verdict"] == "unseen"
