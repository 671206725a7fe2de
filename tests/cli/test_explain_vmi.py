# SPDX-License-Identifier: Apache-2.0
"""``nodeagent explain vmi`` as text and as data."""

from __future__ import annotations

import json

from nodeagent.cli import explain_vmi, output
from nodeagent.policy.explain.machines import (
    Availability,
    CRName,
    RequestedDevice,
    ResourceRequest,
    VMExplanation,
    VMName,
)
from tests.facts import names

GPU, DISK = (RequestedDevice("GPU", "gpu1"),), (RequestedDevice("HostDevice", ""),)
ENV, NODES = {"PCI_RESOURCE_A_B_GPU": "0000:65:00.0"}, ("/dev/vfio/vfio", "/dev/vfio/1")
WHY = ("it asks for 1", "0000:66:00.0: in use by ns/vm")
TOLD = VMExplanation(
    VMName("VirtualMachineInstance", "demo", "red"),
    Availability.LATER,
    (
        ResourceRequest("a.b/gpu", 1, Availability.NOW, GPU, ENV, NODES, (), ()),
        ResourceRequest("a.b/nvme", 1, Availability.LATER, DISK, {}, (), (), WHY),
        ResourceRequest("a.b/cdi", 1, Availability.NOW, GPU, {}, (), ("x/y=1", "x/y=2"), ()),
    ),
    ("nobody knows",),
    None,
)
NAMELESS = VMExplanation(VMName("VirtualMachine", "", ""), Availability.NOW, (), (), None)
BROKEN = VMExplanation(VMName("VirtualMachine", "", "red"), Availability.NEVER, (), (), None)


def test_the_story_of_a_machine_begins_with_its_worst_verdict() -> None:
    head, gpu, disk, cdi, note = explain_vmi.text(TOLD).split("\n\n")
    names(head, "VirtualMachineInstance", "demo/red", verdict(disk))
    assert len({verdict(gpu), verdict(disk)}) == 2
    names(gpu, "1 x a.b/gpu", "GPU gpu1", "PCI_RESOURCE_A_B_GPU=0000:65:00.0", "/dev/vfio/vfio /dev/vfio/1")
    names(disk, "1 x a.b/nvme", "it asks for 1", "0000:66:00.0: in use by ns/vm")
    names(cdi, "1 x a.b/cdi", "x/y=1 x/y=2", verdict(gpu))
    names(note, "nobody knows")


def verdict(paragraph: str) -> str:
    """The end of its first line."""
    return paragraph.splitlines()[0].rpartition("  ")[2]


def test_a_machine_that_asks_for_nothing_or_cannot_be_meant_says_so() -> None:
    nameless, broken = explain_vmi.text(NAMELESS), explain_vmi.text(BROKEN)
    assert (nameless.split()[0], broken.split()[:2]) == ("VirtualMachine", ["VirtualMachine", "red"])
    verdicts = {verdict(each) for each in (nameless, broken, *explain_vmi.text(TOLD).split("\n\n")[:2])}
    assert len(verdicts) == 4


def test_the_same_is_there_for_programs() -> None:
    document = json.loads(json.dumps(output.document("VMExplanation", TOLD)))
    assert document["vm"] == {"kind": "VirtualMachineInstance", "namespace": "demo", "name": "red"}
    assert (document["availability"], document["notes"]) == ("later", ["nobody knows"])
    assert document["resources"][0] == {
        "resource": "a.b/gpu",
        "count": 1,
        "availability": "now",
        "devices": [{"list": "GPU", "name": "gpu1"}],
        "env": {"PCI_RESOURCE_A_B_GPU": "0000:65:00.0"},
        "nodes": ["/dev/vfio/vfio", "/dev/vfio/1"],
        "cdi": [],
        "messages": [],
    }
    assert document["cr"] is None


def test_the_cr_that_a_machine_was_judged_by_is_named() -> None:
    named = TOLD._replace(cr=CRName("kubevirt/kv", "record"))
    names(explain_vmi.text(named), "KubeVirt CR kubevirt/kv")
    nameless = TOLD._replace(cr=CRName("", "file"))
    names(explain_vmi.text(nameless), "KubeVirt CR", "--cr")
