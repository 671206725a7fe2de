# SPDX-License-Identifier: Apache-2.0
"""The whole report, line by line: a node that is ready, one that is not, a saved host, a read that hangs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from nodeagent.base.timeouts import Timeouts
from nodeagent.check import report
from nodeagent.check.findings import ReadinessLine, Verdict
from nodeagent.kernel.root import Root
from nodeagent.model.resource import Iommufd
from nodeagent.model.spec import PciRule, Spec
from nodeagent.sim.kubelet.server import FakeKubelet
from tests.check.trees import DEP, ENABLED, INSTANCES, PLUGINS, UNIT, UNSAFE, WELL, make_node, put, short
from tests.policy.samples import function

SAVED = "not in the saved host"
UNLOADED = replace(WELL, vfio_loaded=False, nodes=frozenset())
NIC = function(driver="mlx5_vfio_pci", vfio=True)
OTHER_DRIVER = replace(UNLOADED, functions={NIC.address: NIC})
PARENT = replace(UNLOADED, mdev_parents={"mtty": ()})
IOMMUFD = Spec(rules=(PciRule("a.b/c", iommufd=Iommufd.ONLY),))
K0S = "/var/lib/k0s/kubelet/pod-resources/kubelet.sock"
MISC, CPUINFO = "/sys/class/misc/hw_random", "/proc/cpuinfo"


def cpu(flags: str) -> dict[str, str | None]:
    """Return the files of a node without /dev/kvm."""
    return {"/dev/kvm": None, CPUINFO: f"vendor_id\t: GenuineIntel\nflags\t\t: fpu {flags}\n"}


async def lines_of(root: Path, changed: Mapping[str, str | None], **other: Any) -> dict[str, ReadinessLine]:
    return {line.check: line for line in await report.run(make_node(root, changed=changed, **other))}


async def test_of_a_saved_host_only_what_is_in_it_is_judged(tmp_path: Path) -> None:
    node = make_node(tmp_path, root=Root(os.devnull), saved=True)
    lines = {line.check: line for line in await report.run(node)}
    saved = {line.check for line in lines.values() if line.message == SAVED}
    assert {"interrupt remapping", "device plugins", "user", "inotify", "nodeagent", "/dev/kvm"} <= saved
    assert {lines[check].verdict for check in saved} == {Verdict.UNSEEN}
    assert Verdict.WRONG not in {line.verdict for line in lines.values()}
    assert lines["IOMMU"].verdict is lines["vfio-pci"].verdict is Verdict.OK


async def test_a_read_that_hangs_is_reported_and_holds_up_no_other_check(tmp_path: Path) -> None:
    make_node(tmp_path, changed={"/proc/interrupts": None})
    os.mkfifo(tmp_path / "proc/interrupts")
    async with FakeKubelet(tmp_path):
        timeouts = Timeouts()._replace(check_step=0.3)
        lines = await lines_of(tmp_path, {"/proc/interrupts": None}, timeouts=timeouts)
        with anyio.move_on_after(5):
            await anyio.to_thread.run_sync((tmp_path / "proc/interrupts").write_text, "end the read")
    assert (lines["interrupt remapping"].verdict, lines["interrupt remapping"].message) == (
        Verdict.UNSEEN,
        "no answer in time",
    )
    assert lines["IOMMU"].verdict is lines["device plugins"].verdict is Verdict.OK


@pytest.mark.parametrize(
    ("check", "verdict", "changed", "other", "advice"),
    [
        ("vfio-pci", Verdict.WRONG, {}, {"host": UNLOADED}, "modprobe vfio-pci"),
        ("vfio-pci", Verdict.NOTE, {}, {"host": OTHER_DRIVER}, "modprobe vfio-pci"),
        ("vfio-pci", Verdict.NOTE, {}, {"host": PARENT}, "modprobe vfio-pci"),
        ("vfio-pci", Verdict.WRONG, {DEP: None}, {"host": UNLOADED}, "modprobe vfio-pci"),
        ("vfio-pci", Verdict.WRONG, {DEP: "kernel/fs/ext4/ext4.ko:\n"}, {"host": UNLOADED}, "install"),
        ("vfio_iommu_type1", Verdict.OK, {}, {}, ""),
        ("vfio_iommu_type1", Verdict.UNSEEN, {UNSAFE: None, "/sys/module/x/y": ""}, {"host": UNLOADED}, ""),
        ("vfio_iommu_type1", Verdict.NOTE, {UNSAFE: None, "/sys/module/x/y": ""}, {}, "modprobe"),
        ("vfio_iommu_type1", Verdict.UNSEEN, {UNSAFE: None}, {}, ""),
        ("iommufd", Verdict.NOTE, {}, {"host": UNLOADED}, ""),
        ("iommufd", Verdict.WRONG, {}, {"host": UNLOADED, "spec": IOMMUFD}, "CONFIG_IOMMUFD"),
        ("device plugins", Verdict.WRONG, {}, {"plugin_dir": "/absent"}, "systemctl status kubelet"),
        ("device plugins", Verdict.WRONG, {}, {}, "systemctl"),
        ("PodResources", Verdict.WRONG, {}, {}, "systemctl"),
        ("PodResources", Verdict.WRONG, {K0S: ""}, {}, K0S),
        ("virt-handler", Verdict.OK, {}, {}, ""),
        ("virt-handler", Verdict.NOTE, {f"{PLUGINS}/kubevirt-kvm.sock": None}, {}, ""),
        ("/dev/kvm", Verdict.OK, {"/dev/kvm": None, "/sys/class/misc/kvm/dev": ""}, {}, ""),
        ("/dev/kvm", Verdict.UNSEEN, {"/dev/kvm": None, MISC: None}, {}, ""),
        ("/dev/kvm", Verdict.WRONG, cpu("vmx"), {}, "kvm_intel"),
        ("/dev/kvm", Verdict.WRONG, cpu("svm"), {}, "kvm_amd"),
        ("/dev/kvm", Verdict.WRONG, cpu(""), {}, "VT-x"),
        ("/dev/kvm", Verdict.WRONG, cpu("hypervisor"), {}, "nested"),
        ("/dev/kvm", Verdict.WRONG, {"/dev/kvm": None, CPUINFO: "CPU implementer\t: 0x41\n"}, {}, "dmesg"),
        ("/dev/net/tun", Verdict.NOTE, {"/dev/net/tun": None}, {}, "modprobe tun"),
        ("/dev/vhost-net", Verdict.NOTE, {"/dev/vhost-net": None}, {}, "modprobe vhost_net"),
        ("/dev/vfio", Verdict.WRONG, {}, {"host": replace(WELL, nodes=frozenset())}, "/dev/vfio"),
        ("/dev/vfio", Verdict.UNSEEN, {}, {"host": UNLOADED}, ""),
        ("inotify", Verdict.WRONG, {INSTANCES: "0\n"}, {}, "max_user_instances"),
        ("inotify", Verdict.NOTE, {INSTANCES: "128\n"}, {}, "max_user_instances"),
        ("inotify", Verdict.UNSEEN, {INSTANCES: "x\n"}, {}, ""),
        ("kernel", Verdict.NOTE, {}, {"host": replace(WELL, release="5.14.0-70.el9")}, ""),
        ("kernel", Verdict.UNSEEN, {}, {"host": replace(WELL, release=None)}, ""),
        ("nodeagent", Verdict.WRONG, {}, {}, "systemctl start nodeagent"),
        ("nodeagent", Verdict.NOTE, {UNIT: None}, {}, ""),
        ("open files", Verdict.UNSEEN, {}, {}, ""),
        ("at boot", Verdict.NOTE, {}, {}, "systemctl enable"),
    ],
)
async def test_each_check_has_a_verdict_and_an_advice_of_two_lines_at_most(
    tmp_path: Path,
    check: str,
    verdict: Verdict,
    changed: dict[str, str | None],
    other: dict[str, Any],
    advice: str,
) -> None:
    line = (await lines_of(tmp_path, changed, **other))[check]
    assert line.verdict is verdict, line
    assert advice in line.hint
    assert bool(advice) == bool(line.hint)
    assert short(line.hint)
    assert line.message


async def test_a_service_that_is_enabled_has_no_line(tmp_path: Path) -> None:
    put(tmp_path, ENABLED)
    (tmp_path / ENABLED.removeprefix("/")).unlink()
    (tmp_path / ENABLED.removeprefix("/")).symlink_to(UNIT)
    assert "at boot" not in await lines_of(tmp_path, {})
