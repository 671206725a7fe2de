# SPDX-License-Identifier: Apache-2.0
"""Modules, kubelet, KubeVirt, permissions, limits, versions and the daemon: what is well, and what is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nodeagent.model.desired import Desired, PciRule, UsbRule
from nodeagent.model.readiness import Verdict
from nodeagent.model.resource import Iommufd
from nodeagent.model.surroundings import Modules
from nodeagent.policy.ready import report
from tests.policy.ready.asking import DAEMON, KUBELET, STANDING, WELL, by_check, facts, short
from tests.policy.samples import function

SAVED = "not in the saved host"
UNLOADED = replace(WELL, vfio_loaded=False, nodes=frozenset())
NIC = function(driver="mlx5_vfio_pci", vfio=True)
OTHER_DRIVER = replace(UNLOADED, functions={NIC.address: NIC})
PARENT = replace(UNLOADED, mdev_parents={"mtty": ()})
NO_KUBELET = KUBELET._replace(plugins_there=False, served=False, answer="nobody")
USB, NO_CHOWN = Desired(rules=(UsbRule("a.b/c"),)), DAEMON._replace(owners=False)
SILENT = DAEMON._replace(answer="no daemon answers")


def test_where_all_is_well_nothing_is_to_do() -> None:
    told = report.report(facts())
    assert told.well
    assert {line.check for line in told.lines if line.verdict is not Verdict.OK} == {"groups", "kubelet"}


def test_of_a_saved_host_only_what_is_in_it_is_judged() -> None:
    told = report.report(facts(platform=SAVED, standing=SAVED, kubelet=SAVED, daemon=SAVED))
    assert told.well
    seen = {line.check for line in told.lines if line.seen == SAVED}
    assert {"interrupt remapping", "device plugins", "user", "inotify", "nodeagent", "/dev/kvm"} <= seen
    assert {line.verdict for line in told.lines if line.seen == SAVED} == {Verdict.UNSEEN}


@pytest.mark.parametrize(
    ("check", "verdict", "other", "advice"),
    [
        ("vfio-pci", Verdict.WRONG, {"host": UNLOADED}, "modprobe vfio-pci"),
        ("vfio-pci", Verdict.NOTE, {"host": OTHER_DRIVER}, "modprobe vfio-pci"),
        ("vfio-pci", Verdict.NOTE, {"host": PARENT}, "modprobe vfio-pci"),
        (
            "vfio-pci",
            Verdict.WRONG,
            {"host": UNLOADED, "modules": Modules(None, frozenset({"ext4"}))},
            "install",
        ),
        ("vfio_iommu_type1", Verdict.UNSEEN, {"host": UNLOADED, "modules": Modules(frozenset({"x"}))}, ""),
        ("vfio_iommu_type1", Verdict.NOTE, {"modules": Modules(frozenset({"x"}))}, "modprobe"),
        ("vfio_iommu_type1", Verdict.UNSEEN, {"modules": Modules()}, ""),
        ("iommufd", Verdict.NOTE, {"host": UNLOADED}, ""),
        (
            "iommufd",
            Verdict.WRONG,
            {"host": UNLOADED, "desired": Desired(rules=(PciRule("a.b/c", iommufd=Iommufd.ONLY),))},
            "CONFIG_IOMMUFD",
        ),
        ("device plugins", Verdict.WRONG, {"kubelet": NO_KUBELET}, "systemctl status kubelet"),
        ("device plugins", Verdict.WRONG, {"kubelet": KUBELET._replace(served=False)}, "systemctl"),
        ("device plugins", Verdict.UNSEEN, {"kubelet": KUBELET._replace(served=None)}, "root"),
        ("PodResources", Verdict.WRONG, {"kubelet": NO_KUBELET}, "systemctl"),
        ("PodResources", Verdict.WRONG, {"kubelet": NO_KUBELET._replace(elsewhere="/x.sock")}, "/x.sock"),
        ("PodResources", Verdict.UNSEEN, {"kubelet": NO_KUBELET._replace(permitted=False)}, "root"),
        ("virt-handler", Verdict.NOTE, {"kubelet": NO_KUBELET._replace(virt_handler=False)}, ""),
        ("/dev/kvm", Verdict.UNSEEN, {"nodes": None}, ""),
        ("/dev/kvm", Verdict.WRONG, {"nodes": frozenset()}, "kvm_intel"),
        ("/dev/kvm", Verdict.WRONG, {"nodes": frozenset(), "cpu_flags": frozenset({"svm"})}, "kvm_amd"),
        ("/dev/kvm", Verdict.WRONG, {"nodes": frozenset(), "cpu_flags": frozenset()}, "VT-x"),
        (
            "/dev/kvm",
            Verdict.WRONG,
            {"nodes": frozenset(), "cpu_flags": frozenset({"hypervisor"})},
            "nested",
        ),
        ("/dev/kvm", Verdict.WRONG, {"nodes": frozenset(), "cpu_flags": None}, "dmesg"),
        ("/dev/net/tun", Verdict.NOTE, {"nodes": frozenset()}, "modprobe tun"),
        ("user", Verdict.UNSEEN, {"standing": STANDING._replace(root=False)}, "root"),
        (
            "capabilities",
            Verdict.NOTE,
            {"standing": STANDING._replace(missing_capabilities=("CAP_SYS_PTRACE",))},
            "pod",
        ),
        ("USB nodes", Verdict.WRONG, {"desired": USB, "daemon": NO_CHOWN}, "SystemCallFilter=@chown"),
        ("USB nodes", Verdict.WRONG, {"desired": USB, "daemon": NO_CHOWN._replace(unit=False)}, "in a pod"),
        ("USB nodes", Verdict.WRONG, {"desired": USB, "standing": STANDING._replace(owners=False)}, "@chown"),
        ("USB nodes", Verdict.UNSEEN, {"desired": USB}, ""),
        ("USB nodes", Verdict.UNSEEN, {"desired": USB, "daemon": SAVED, "standing": SAVED}, ""),
        ("USB nodes", Verdict.OK, {"desired": USB, "daemon": DAEMON._replace(owners=True)}, ""),
        ("user namespace", Verdict.NOTE, {"standing": STANDING._replace(whole_users=False)}, "hostUsers"),
        ("directories", Verdict.WRONG, {"standing": STANDING._replace(read_only=("/run/x",))}, "written to"),
        ("/dev/vfio", Verdict.WRONG, {"host": replace(WELL, nodes=frozenset())}, "/dev/vfio"),
        ("/dev/vfio", Verdict.UNSEEN, {"host": UNLOADED}, ""),
        ("inotify", Verdict.WRONG, {"standing": STANDING._replace(inotify="Too many")}, "max_user_instances"),
        ("inotify", Verdict.WRONG, {"inotify_instances": 0}, "max_user_instances"),
        ("inotify", Verdict.NOTE, {"inotify_instances": 128}, "max_user_instances"),
        ("inotify", Verdict.UNSEEN, {"inotify_instances": None}, ""),
        ("open files", Verdict.NOTE, {"daemon": DAEMON._replace(open_files=600)}, "LimitNOFILE"),
        ("open files", Verdict.UNSEEN, {"daemon": DAEMON._replace(most_files=0)}, ""),
        ("kernel", Verdict.NOTE, {"host": replace(WELL, release="5.14.0-70.el9")}, ""),
        ("kernel", Verdict.UNSEEN, {"host": replace(WELL, release=None)}, ""),
        ("nodeagent", Verdict.WRONG, {"daemon": SILENT}, "systemctl start nodeagent"),
        ("nodeagent", Verdict.NOTE, {"daemon": SILENT._replace(unit=False)}, ""),
        ("nodeagent", Verdict.UNSEEN, {"daemon": SILENT._replace(permitted=False)}, "root"),
        ("nodeagent", Verdict.NOTE, {"daemon": DAEMON._replace(version="0")}, "restart"),
        ("problems", Verdict.WRONG, {"daemon": DAEMON._replace(problems=2)}, "nodeagent status"),
        ("at boot", Verdict.NOTE, {"daemon": DAEMON._replace(enabled=False)}, "systemctl enable"),
    ],
)
def test_what_is_not_as_it_should_be_is_told_with_what_to_do(
    check: str, verdict: Verdict, other: dict[str, Any], advice: str
) -> None:
    told = by_check(report.report(facts(**other)).lines)[check]
    assert told.verdict is verdict
    assert advice in told.to_do
    assert bool(advice) == bool(told.to_do)
    assert short(told.to_do)
    assert told.seen


def test_without_a_usb_rule_nobody_asks_who_may_change_owners() -> None:
    told = report.report(facts(daemon=NO_CHOWN, standing=STANDING._replace(owners=False)))
    assert told.well
    assert "USB nodes" not in by_check(told.lines)


def test_versions_are_those_of_this_program_and_its_names() -> None:
    asked = facts()
    told = report.report(asked._replace(around=asked.around._replace(version="1", pci_ids="2026-10-24")))
    assert by_check(told.lines)["this program"].seen == "1, pci.ids of 2026-10-24"
