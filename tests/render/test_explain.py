# SPDX-License-Identifier: Apache-2.0
"""``nodeagent explain`` as text and as data."""

from __future__ import annotations

import json

from nodeagent.model.desired import Desired
from nodeagent.model.host import Hints, PciFunction, Sight
from nodeagent.model.ids import PciAddress
from nodeagent.policy.offer import explain as policy
from nodeagent.policy.offer import turn
from nodeagent.policy.offer.explain import Explanation
from nodeagent.render import documents, explain
from tests.policy.samples import GPU, UUID, function, holders, host, mdev, snapshot

A = PciAddress("0000:65:00.0")
NAMES = {"10de": "NVIDIA Corporation", "10de:1eb8": "TU104GL [Tesla T4]"}


def told(*functions: PciFunction) -> Explanation:
    found = policy.explain(A, turn.first(snapshot(host(*functions), names=NAMES, holders=holders(A))))
    assert found is not None
    return found


def test_the_story_begins_with_the_verdict_and_tells_all_that_led_to_it() -> None:
    hints = Hints(reset_methods=("flr", "bus"), aer_fatal=2)
    text = explain.text(told(function(A, enable=1, power_state="D0", hints=hints)))
    assert text.splitlines() == [
        f"{A}  offered as {GPU}, Healthy, held by ns/vm",
        "",
        "  device  10de:1eb8  NVIDIA Corporation TU104GL [Tesla T4]",
        "  class   030200  a display controller",
        "  driver  vfio-pci",
        "  numa    0",
        "  power   D0",
        "  opens   1",
        "  resets  flr bus",
        "  errors  2 fatal PCIe errors",
        "",
        "  group   1  viable",
        "          MEMBER        DRIVER    MEANS",
        f"          {A}  vfio-pci  ready for VFIO",
        "",
        "  rules",
        f"          rule {GPU}: takes it",
        "",
        f"  a pod would get  PCI_RESOURCE_NVIDIA_COM_GPU={A}",
        "                   /dev/vfio/vfio /dev/vfio/1",
        "",
        "  held by ns/vm",
    ]


def test_what_to_do_comes_right_after_a_bad_verdict() -> None:
    blocker = function("0000:65:00.1", driver="snd_hda_intel", vendor="1022", pci_class="040300")
    first, second, *rest = explain.text(told(function(A), blocker)).splitlines()
    assert "Unhealthy: IOMMU group 1 is not viable" in first
    assert not any("a pod would get" in line for line in rest), "it would get nothing"
    assert second == "  to do: bind 0000:65:00.1 to vfio-pci as well, or unbind it"
    assert any("NOT viable" in line for line in rest)
    assert any(line.endswith("BLOCKS the group: a host driver has it") for line in rest)


def test_a_driver_matters_to_the_device_itself_although_it_does_not_to_its_group() -> None:
    text = explain.text(told(function(A, driver=None), function("0000:65:00.1", driver=None)))
    assert f"{A}  -       no driver, so VFIO cannot give it" in text
    assert "0000:65:00.1  -       no driver, does not matter" in text


def test_a_device_of_which_nothing_is_known_has_a_story_too() -> None:
    nothing = PciFunction(A)._replace(unreadable="not readable: Input/output error")
    text = explain.text(told(nothing))
    assert "?:?  unknown to pci.ids" in text
    assert "  group   none" in text
    assert "  fault   not readable: Input/output error" in text


def test_the_data_say_the_same_as_the_text() -> None:
    document = json.loads(json.dumps(documents.document(explain.answer(told(function(A, driver=None))))))
    assert document["verdict"] == f"offered as {GPU}, Unhealthy: it has no driver, not a VFIO driver"
    assert document["reason"] == {
        "code": "driver-changed",
        "what": "it has no driver, not a VFIO driver",
        "hint": f"bind {A} to vfio-pci",
    }
    assert (document["healthy"], document["group"], document["holder"]) == (False, 1, "ns/vm")
    assert document["members"] == [{"address": A, "driver": None, "role": "unbound"}]
    assert document["rules"] == [{"rule": f"rule {GPU}", "says": "takes it"}]
    assert explain.answer(told(function(A, vendor="8086"))).healthy is None


def test_an_mdev_has_a_story_too() -> None:
    here = host(mdev())
    found = policy.explain(UUID, turn.first(snapshot(here, Desired(), names=NAMES)))
    assert found is not None
    assert explain.text(found).splitlines() == [
        f"{UUID}  offered as nvidia.com/GRID_T4-1Q, Healthy",
        "",
        "  device  mdev  NVIDIA Corporation GRID T4-1Q",
        "  type    nvidia-222",
        "  driver  nvidia-vgpu-vfio",
        "  numa    0",
        "  parent  0000:65:00.0",
        "",
        "  group   50  its own",
        "",
        "  rules",
        "          discovery: takes it",
        "",
        f"  a pod would get  MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-1Q={UUID}",
        "                   /dev/vfio/vfio /dev/vfio/50",
    ]
    answer = explain.answer(found)
    assert (answer.uuid, answer.type, answer.parent) == (UUID, "nvidia-222", "0000:65:00.0")


def test_an_nvswitch_says_that_nobody_here_sets_its_partitions_up() -> None:
    note = "note    nodeagent sets no fabric partitions up"
    assert note in explain.text(told(function(A, pci_class="068000")))
    assert note not in explain.text(told(function(A)))
    assert note not in explain.text(told(function(A, pci_class="068000", vendor="8086")))


def test_a_count_of_opens_that_proves_nothing_has_its_note() -> None:
    nobody, hidden, somebody = Sight(whole=True), Sight(), Sight("process 7 (qemu)")
    texts = [
        explain.text(told(function(A, enable=1, idle=1, sight=sight))) for sight in (nobody, hidden, somebody)
    ]
    assert "opens   1 by its count, which a former driver has left: no process has it open" in texts[0]
    assert "who has it open cannot be seen from here" in texts[1]
    assert "opens   1 in process 7 (qemu)" in texts[2]
