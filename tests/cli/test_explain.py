# SPDX-License-Identifier: Apache-2.0
"""``nodeagent explain`` as text and as data."""

from __future__ import annotations

import json
import re

from nodeagent.cli import explain, output
from nodeagent.model.host import Hints, PciFunction, Sight
from nodeagent.model.ids import PciAddress
from nodeagent.model.spec import Spec
from nodeagent.policy.explain import devices
from nodeagent.policy.explain.devices import DeviceExplanation
from nodeagent.policy.offer import turn
from tests.facts import names
from tests.policy.samples import GPU, UUID, function, holders, host, mdev, snapshot

A = PciAddress("0000:65:00.0")
NAMES = {"10de": "NVIDIA Corporation", "10de:1eb8": "TU104GL [Tesla T4]"}


def told(*functions: PciFunction) -> DeviceExplanation:
    found = devices.explain(A, turn.decide_first(snapshot(host(*functions), names=NAMES, holders=holders(A))))
    assert found is not None
    return found


def test_the_story_begins_with_the_verdict_and_tells_all_that_led_to_it() -> None:
    hints = Hints(reset_methods=("flr", "bus"), aer_fatal=2)
    text = explain.text(told(function(A, enable=1, power_state="D0", hints=hints)))
    first, *rest = text.splitlines()
    names(first, A, GPU, "Healthy", "ns/vm")
    keys = [line.split()[0] for line in rest if re.match(r"  \w", line)]
    assert keys[:10] == [
        *("device", "class", "driver", "numa", "power", "opens", "resets", "errors", "group", "rules"),
    ]
    names(text, "10de:1eb8", "NVIDIA Corporation TU104GL [Tesla T4]", "flr bus", "2 fatal")
    names(text, f"PCI_RESOURCE_NVIDIA_COM_GPU={A}", "/dev/vfio/vfio /dev/vfio/1")
    assert "ns/vm" in rest[-1]


def test_what_to_do_comes_right_after_a_bad_verdict() -> None:
    blocker = function("0000:65:00.1", driver="snd_hda_intel", vendor="1022", pci_class="040300")
    found = told(function(A), blocker)
    first, second, *rest = explain.text(found).splitlines()
    names(first, "Unhealthy", "IOMMU group 1")
    assert not any("PCI_RESOURCE" in line for line in rest), "it would get nothing"
    assert second.endswith(found.hint)
    names(second, "0000:65:00.1", "vfio-pci")
    assert any("NOT viable" in line for line in rest)
    assert [member.role for member in found.members] == ["vfio", "blocks"]
    assert any(line.split()[:2] == ["0000:65:00.1", "snd_hda_intel"] for line in rest)


def test_a_driver_matters_to_the_device_itself_although_it_does_not_to_its_group() -> None:
    first, second = told(function(A, driver=None), function("0000:65:00.1", driver=None)).members
    assert (
        explain.role_text(first.role, own=True)
        != explain.role_text(second.role)
        == explain.role_text(first.role)
    )
    names(explain.role_text(first.role, own=True), "VFIO")


def test_a_device_of_which_nothing_is_known_has_a_story_too() -> None:
    nothing = PciFunction(A)._replace(unreadable="not readable: Input/output error")
    text = explain.text(told(nothing))
    names(text, "?:?", "  group   none", "Input/output error")


def test_the_data_say_the_same_as_the_text() -> None:
    found = told(function(A, driver=None))
    document = json.loads(json.dumps(output.document("DeviceExplanation", found)))
    assert explain.text(found).splitlines()[0] == f"{A}  {document['verdict']}"
    assert document["reason"]["code"] == "driver-changed"
    names(document["verdict"], GPU, "Unhealthy", document["reason"]["message"])
    names(document["reason"]["hint"], A, "vfio-pci")
    assert (document["healthy"], document["group"], document["holder"]) == (False, 1, "ns/vm")
    assert document["members"] == [{"address": A, "driver": None, "role": "unbound"}]
    assert [each["rule"] for each in document["rules"]] == [f"rule {GPU}"]
    assert told(function(A, vendor="8086")).healthy is None


def test_an_mdev_has_a_story_too() -> None:
    here = host(mdev())
    found = devices.explain(UUID, turn.decide_first(snapshot(here, Spec(), names=NAMES)))
    assert found is not None
    text = explain.text(found)
    names(text.splitlines()[0], UUID, "nvidia.com/GRID_T4-1Q", "Healthy")
    names(text, "NVIDIA Corporation GRID T4-1Q", "nvidia-222", "nvidia-vgpu-vfio", "0000:65:00.0")
    names(text, f"MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-1Q={UUID}", "/dev/vfio/vfio /dev/vfio/50")
    assert (found.uuid, found.type, found.parent) == (UUID, "nvidia-222", "0000:65:00.0")


def test_an_nvswitch_says_that_nobody_here_sets_its_partitions_up() -> None:
    note = "  note  "
    assert note in explain.text(told(function(A, pci_class="068000")))
    assert note not in explain.text(told(function(A)))
    assert note not in explain.text(told(function(A, pci_class="068000", vendor="8086")))


def test_a_count_of_opens_that_proves_nothing_has_its_note() -> None:
    nobody, hidden, somebody = Sight(whole=True), Sight(), Sight("process 7 (qemu)")
    first, second, third = (
        told(function(A, enable=1, idle=1, sight=sight)).facts["opens"]
        for sight in (nobody, hidden, somebody)
    )
    assert len({first, second, third}) == 3
    assert [each.split()[0] for each in (first, second, third)] == ["1", "1", "1"]
    names(third, "process 7 (qemu)")
