# SPDX-License-Identifier: Apache-2.0
"""``nodeagent explain vmi`` as text and as data."""

from __future__ import annotations

import json

from nodeagent.model.allocation import DeviceNode, Grant
from nodeagent.model.kubevirt import DeviceList, KubeVirtCR, UsedCR, VirtualMachine, VmDevice
from nodeagent.model.problem import misconfigured
from nodeagent.policy.explain.machines import Ask, MachineExplanation, Prospect
from nodeagent.render import documents, machine
from nodeagent.render.answers import CRAnswer
from tests.facts import names

GPU = VmDevice(DeviceList.GPUS, "gpu1", "a.b/gpu")
DISK = VmDevice(DeviceList.HOST_DEVICES, "", "a.b/nvme")
GRANT = Grant(
    (("PCI_RESOURCE_A_B_GPU", "0000:65:00.0"),), (DeviceNode("/dev/vfio/vfio"), DeviceNode("/dev/vfio/1"))
)
TOLD = MachineExplanation(
    VirtualMachine("VirtualMachineInstance", "demo", "red", (GPU, DISK)),
    (
        Ask("a.b/gpu", (GPU,), Prospect.NOW, GRANT),
        Ask("a.b/nvme", (DISK,), Prospect.LATER, why=("it asks for 1", "0000:66:00.0: held by ns/vm")),
        Ask("a.b/cdi", (GPU,), Prospect.NOW, Grant(cdi=("x/y=1", "x/y=2"))),
    ),
    ("nobody knows",),
)

NAMELESS = MachineExplanation(VirtualMachine("VirtualMachine", "", ""))
BROKEN = MachineExplanation(
    VirtualMachine("VirtualMachine", "", "red", refused=(misconfigured("spec", "x", "y"),))
)


def test_the_story_of_a_machine_begins_with_its_worst_verdict() -> None:
    head, gpu, disk, cdi, note = machine.text(TOLD).split("\n\n")
    names(head, "VirtualMachineInstance", "demo/red", verdict(disk))
    assert len({verdict(gpu), verdict(disk)}) == 2
    names(gpu, "1 x a.b/gpu", "GPU gpu1", "PCI_RESOURCE_A_B_GPU=0000:65:00.0", "/dev/vfio/vfio /dev/vfio/1")
    names(disk, "1 x a.b/nvme", "it asks for 1", "0000:66:00.0: held by ns/vm")
    names(cdi, "1 x a.b/cdi", "x/y=1 x/y=2", verdict(gpu))
    names(note, "nobody knows")


def verdict(paragraph: str) -> str:
    """The end of its first line."""
    return paragraph.splitlines()[0].rpartition("  ")[2]


def test_a_machine_that_asks_for_nothing_or_cannot_be_meant_says_so() -> None:
    nameless, broken = machine.text(NAMELESS), machine.text(BROKEN)
    assert (nameless.split()[0], broken.split()[:2]) == ("VirtualMachine", ["VirtualMachine", "red"])
    verdicts = {verdict(each) for each in (nameless, broken, *machine.text(TOLD).split("\n\n")[:2])}
    assert len(verdicts) == 4


def test_the_same_is_there_for_programs() -> None:
    document = json.loads(json.dumps(documents.document(machine.answer(TOLD))))
    assert document["machine"] == {"kind": "VirtualMachineInstance", "namespace": "demo", "name": "red"}
    assert (document["prospect"], document["notes"]) == ("later", ["nobody knows"])
    assert document["resources"][0] == {
        "resource": "a.b/gpu",
        "count": 1,
        "prospect": "now",
        "devices": [{"list": "GPU", "name": "gpu1"}],
        "env": {"PCI_RESOURCE_A_B_GPU": "0000:65:00.0"},
        "nodes": ["/dev/vfio/vfio", "/dev/vfio/1"],
        "cdi": [],
        "why": [],
    }
    assert document["cr"] is None


def test_the_cr_that_a_machine_was_judged_by_is_named() -> None:
    used = UsedCR(KubeVirtCR("kubevirt", "kv"), "record")
    names(machine.text(TOLD, used), "KubeVirt CR kubevirt/kv")
    assert machine.answer(TOLD, used).cr == CRAnswer("kubevirt/kv", "record")
    nameless = UsedCR(KubeVirtCR("", ""), "file")
    names(machine.text(TOLD, nameless), "KubeVirt CR", "--cr")
