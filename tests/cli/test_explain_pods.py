# SPDX-License-Identifier: Apache-2.0
"""``nodeagent explain`` of a pod and of a group, as text."""

from __future__ import annotations

from nodeagent.cli import explain
from nodeagent.model.resource import Reason, ReasonCode
from nodeagent.policy.explain import groups
from nodeagent.policy.explain.groups import GroupExplanation
from nodeagent.policy.explain.pods import PodExplanation, PodResource
from nodeagent.policy.explain.resources import ListedDevice
from nodeagent.policy.offer import turn
from tests.facts import names
from tests.policy.samples import GPU, function, host, mdev, snapshot

A, B = "0000:65:00.0", "0000:65:00.1"
BROKEN = ListedDevice("b", False, Reason(ReasonCode.UNREADABLE, "it is broken", "mend it"), "ns/vm")
POD = PodExplanation(
    "ns/vm",
    (
        PodResource("other/plugin", False, (ListedDevice("x", True, None, "ns/vm"),), (), {}, (), ()),
        PodResource(
            GPU,
            True,
            (ListedDevice("a", True, None, "ns/vm"), BROKEN),
            ("c",),
            {"KEY": "a,b"},
            ("/dev/vfio/1",),
            ("kind=a",),
        ),
    ),
)


def group(number: int) -> GroupExplanation:
    blocker = function(B, driver="snd_hda_intel", pci_class="040300")
    found = groups.explain(number, turn.decide_first(snapshot(host(function(A), blocker, mdev()))))
    assert found is not None
    return found


def test_a_pod_is_told_resource_by_resource() -> None:
    head, other, gpu = (each.splitlines() for each in explain.pod_text(POD).split("\n\n"))
    names(head[0], "ns/vm", "4")
    assert (other[0].strip(), gpu[0].strip()) == ("other/plugin", GPU)
    names(other[1], "x: ", "device plugin")
    assert gpu[1:4] == ["    a: Healthy", "    b: Unhealthy: it is broken", "      to do: mend it"]
    names(gpu[4], "c: ")
    assert [line.split() for line in gpu[5:]] == [
        ["env", "KEY=a,b"],
        ["node", "/dev/vfio/1"],
        ["cdi", "kind=a"],
    ]


def test_a_group_is_told_with_what_each_member_means_and_becomes() -> None:
    first, _, _, _, beside = explain.group_text(group(1)).splitlines()
    names(first, "IOMMU group 1", "NOT viable", "/dev/vfio/1")
    names(beside, B)
    gpu, sound = group(1).members
    assert (gpu.role, gpu.resource, sound.role, sound.driver) == ("vfio", GPU, "blocks", "snd_hda_intel")


def test_the_group_of_an_mdev_is_its_own() -> None:
    names(explain.group_text(group(50)).splitlines()[0], "IOMMU group 50", "mdev")
    assert [member.role for member in group(50).members] == ["mdev"]
