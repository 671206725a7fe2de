# SPDX-License-Identifier: Apache-2.0
"""What becomes of a device, in a few words: who takes it, why nobody does, who has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from nodeagent.model.allocation import Holder
from nodeagent.model.host import HostDevice, HostUse, HostUses, UseKind
from nodeagent.model.ids import PciAddress
from nodeagent.model.resource import ReasonCode
from nodeagent.model.spec import Discovery, PciRule, PciSelector, Spec
from nodeagent.policy.explain import devices, why
from nodeagent.policy.explain.devices import DeviceRow
from nodeagent.policy.offer import turn
from tests.facts import names
from tests.policy.samples import GPU, UUID, WISH, function, holders, host, mdev, snapshot

NAMES = {"10de": "NVIDIA Corporation", "10de:1eb8": "TU104GL [Tesla T4]"}
A, B = "0000:65:00.0", "0000:65:00.1"
OFF = Spec(discovery=Discovery(enabled=False))


def row(*here: HostDevice, spec: Spec = WISH, held: Mapping[str, Holder] | None = None) -> DeviceRow:
    """That of the first device."""
    decision = turn.decide_first(snapshot(host(*here), spec, names=NAMES, holders=held))
    return devices.row(here[0], decision)


def test_what_is_offered_says_as_what_by_whom_and_its_name() -> None:
    found = row(function(A), spec=Spec())
    name = "nvidia.com/TU104GL_TESLA_T4"
    assert (found.id, found.resource, found.matched_by, found.message, found.holder) == (
        A,
        name,
        "discovery",
        "",
        None,
    )
    assert found.name == "TU104GL [Tesla T4]"
    assert (found.offered, str(found)) == (True, name)
    rule = PciRule("a.b/gpu", (PciSelector(vendors=("10de",)),))
    ruled = row(function(A), spec=Spec(rules=(rule,)))
    assert (ruled.resource, ruled.matched_by) == ("a.b/gpu", "rule a.b/gpu")


def test_what_a_pod_has_says_which() -> None:
    found = row(function(A), held=holders(A))
    names(str(found), GPU, "ns/vm")


def test_what_is_unhealthy_says_why() -> None:
    blocker = function(B, driver="e1000e", vendor="8086", pci_class="020000")
    found = row(function(A), blocker)
    assert found.code is ReasonCode.GROUP_NOT_VIABLE
    names(str(found), GPU, "IOMMU group 1")


@pytest.mark.parametrize(
    ("device", "why"),
    [
        (function(A, pci_class="020000"), ("class", "020000", "network controller")),
        (function(A, pci_class=None), ("class", "?")),
        (function(A, driver="nvidia"), ("driver", "nvidia")),
        (function(A, driver=None), ("driver",)),
        (function(A, driver="nvidia", vfs=(B,)), ("1 VF",)),
        (function(A, pci_class="060400"), ("bridge",)),
        (function(A, unreadable="no answer for 1 s", driver=None), ("no answer for 1 s",)),
    ],
    ids=["class", "no class", "driver", "no driver", "VF", "bridge", "unreadable"],
)
def test_what_nobody_takes_says_why(device: HostDevice, why: tuple[str, ...]) -> None:
    found = row(device, spec=Spec())
    assert not found.offered
    names(found.message, *why)
    assert found.message in str(found)


def test_an_mdev_that_waits_for_its_removal_says_so() -> None:
    decision = turn.decide_first(snapshot(host(mdev(leaving=True))))
    (found,) = devices.rows(decision)
    assert (found.id, found.offered, found.code) == (UUID, False, None)
    names(found.message, "in use")


def test_without_discovery_that_is_the_reason() -> None:
    for device in (function(A), mdev()):
        names(row(device, spec=OFF).message, "rule", "discovery")


def test_a_device_that_the_host_uses_has_no_advice() -> None:
    used = HostUses((HostUse(UseKind.NETWORK, "eth0", "default route"),))
    here = host(function(A, pci_class="020000", driver="e1000e", uses=used))
    kept = replace(here, groups={n: group._replace(direct=True) for n, group in here.groups.items()})
    for each in (here, kept):
        found = why.why_not_offered(each.functions[PciAddress(A)], snapshot(each, Spec()))
        names(found.text, "network controller", "eth0", "default route")
        assert found.hint == ""


def test_a_device_of_virt_handler_is_said_to_be_its_even_while_it_is_open() -> None:
    rule = PciRule("x/theirs", (PciSelector(devices=("1eb8",)),), place="KubeVirt CR: pciHostDevices[0]")
    found = row(function(A, enable=1), spec=Spec(virt_handler_rules={"10de:1eb8": rule}))
    names(found.message, "virt-handler", "x/theirs")


def test_every_device_of_a_host_has_a_row() -> None:
    here = host(function(A), mdev(), mdev("x", leaving=True))
    found = tuple(devices.rows(turn.decide_first(snapshot(here))))
    assert [each.id for each in found] == [A, UUID, "x"]
