# SPDX-License-Identifier: Apache-2.0
"""Who has got a function since its driver began to change: by itself, or by what was behind it until then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.model.action import Move
from nodeagent.model.allocation import Allocations, Holder, Knowledge
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import PciAddress, ResourceName
from nodeagent.model.nodes import DevNode
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.change import guards
from tests.facts import names

CARD, BESIDE = PciAddress("0000:07:00.0"), PciAddress("0000:07:00.1")
TTY = "/dev/ttyX"
NAME = ResourceName("vendor.example/serial")
ONE = Holder("ns", "one", NAME)
FUNCTIONS = {each: PciFunction(each, vendor="10b5", device="9030") for each in (CARD, BESIDE)}
KVM = {"/dev/kvm": DevNode("/dev/kvm")}
BEFORE = Host(FUNCTIONS, dev_nodes={TTY: DevNode(TTY, function=CARD), **KVM})
NOW = Snapshot(Host(FUNCTIONS, dev_nodes=KVM))


def given(allocations: Allocations, now: str | None = "serial") -> str | None:
    moves = [Move(each, now, "vfio-pci", now) for each in (BESIDE, CARD)]
    return guards.given_since(moves, Snapshot(BEFORE), replace(NOW, allocations=allocations))


@pytest.mark.parametrize(
    ("allocations", "facts"),
    [
        pytest.param(Allocations.of({}, Knowledge.COMPLETE), None, id="nobody"),
        pytest.param(Allocations.of({}, Knowledge.UNKNOWN), None, id="no kubelet"),
        pytest.param(Allocations.of({}, Knowledge.SILENT), (guards.UNKNOWN,), id="a silent kubelet"),
        pytest.param(Allocations.of({CARD: ONE}), (CARD, "ns/one"), id="the function"),
        pytest.param(
            Allocations.of({"port-0": ONE}, nodes={NAME: {"port-0": (TTY,)}}),
            ("ns/one", TTY),
            id="a node that has gone with its driver",
        ),
        pytest.param(
            Allocations.of({"port-0": ONE}, nodes={NAME: {"port-0": ("/dev/kvm",)}}),
            None,
            id="a node of others",
        ),
        pytest.param(
            Allocations.of({"port-0": ONE}, written=frozenset()),
            ("ns/one", "port-0", NAME),
            id="in no file yet",
        ),
    ],
)
def test_a_function_or_what_was_behind_it_may_have_been_given_since(
    allocations: Allocations, facts: tuple[str, ...] | None
) -> None:
    found = given(allocations)
    assert (found is None) is (facts is None)
    names(found, *(facts or ()))


@pytest.mark.parametrize("now", [None, "vfio-pci"], ids=["no driver", "VFIO"])
def test_nothing_is_behind_a_function_on(now: str | None) -> None:
    unwritten = Allocations.of({"port-0": ONE}, written=frozenset())
    assert given(unwritten, now) is None
    names(given(Allocations.of({CARD: ONE}), now), CARD, "ns/one")
