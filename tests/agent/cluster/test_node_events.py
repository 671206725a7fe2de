# SPDX-License-Identifier: Apache-2.0
"""The Events on differences of two Statuses: reason, words, and the pod concerned."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.agent.cluster import node_events
from nodeagent.agent.cluster.node_events import FEW, EventReason, NodeEvent, compare_cards
from nodeagent.model.allocation import UNNAMED
from nodeagent.model.change import ActionKind
from nodeagent.model.problem import ProblemCode, virt_handler_conflict, wrong
from nodeagent.model.resource import ReasonCode
from nodeagent.model.status import (
    NO_CHANGES,
    ChangesStatus,
    ClusterStatus,
    FailingStatus,
    Status,
    WaitingStatus,
)
from tests.agent.cluster.statuses import (
    GPU,
    GPU_AT,
    OTHER_AT,
    SOUND_AT,
    UUID,
    bad,
    cards,
    good,
    group,
    status,
)
from tests.facts import each_names, names

HELD = bad(code=ReasonCode.GROUP_HELD)
CONFLICT = bad(code=ReasonCode.GROUP_NOT_VIABLE)
WAITING = WaitingStatus("0000:3b:00.0", "remove mdev x", "in use by ns/vm", "remove-mdev")
FAILING = FailingStatus(
    "0000:3b:00.0", "nvidia-222", "create mdev x", "Input/output error", "look at dmesg", 1, 1.0
)
OBSTACLE = virt_handler_conflict("kubevirt.manageMdevs", "it makes mdevs itself", "tell it not to")
ENTRY = wrong(ProblemCode.CONFIGURATION, "", "KubeVirt CR: pciHostDevices[0]: no selector", "write one")
WRONG = wrong(ProblemCode.CONFIGURATION, "", "config.yaml:3: x", "write y\nand z")
UNMET = wrong(ProblemCode.CHANGE, "", "no card has the type that virt-handler had", "choose another")
GONE = "the cluster has no deployed KubeVirt CR any more: the last CR stays in force"
PAGE = Path(__file__).parents[3] / "docs/events.md"


def broken(code: str) -> tuple[str, ...]:
    """What is said of the GPU that has this code."""
    return (GPU, GPU_AT, f"it is {code}", f"mend {GPU_AT}")


CHANGED = broken("driver-changed")

Told = tuple[str, str, tuple[str, ...]]
"""Reason, pod, and the facts that the message names."""

CASES: dict[str, tuple[Status, Status, list[Told]]] = {
    "a stale resource is removed": (
        status()._replace(cluster=ClusterStatus(stale_removed=("a.b/older",))),
        status()._replace(cluster=ClusterStatus(stale_removed=("a.b/older", "a.b/old"))),
        [("StaleResourceRemoved", "", ("a.b/old",))],
    ),
    "a device breaks": (
        status(good()),
        status(bad()),
        [("DeviceUnhealthy", "", CHANGED)],
    ),
    "and says something else": (
        status(bad()),
        status(bad(code=ReasonCode.GONE)),
        [("DeviceUnhealthy", "", broken("fallen-off-the-bus"))],
    ),
    "and there is other advice on it": (
        status(bad()),
        status(bad()._replace(hint="leave it")),
        [],
    ),
    "it is whole again": (
        status(bad()),
        status(good()),
        [("DeviceHealthy", "", (GPU, GPU_AT, "Healthy"))],
    ),
    "it is whole again and held": (
        status(bad()),
        status(HELD),
        [("DeviceHealthy", "", (GPU, GPU_AT, "it is group-held"))],
    ),
    "it waits for a pod": (status(good()), status(HELD), []),
    "it waited for a pod": (status(HELD), status(good()), []),
    "it is new, and fine": (status(), status(good()), []),
    "it is new, and broken": (
        status(),
        status(bad()),
        [("DeviceUnhealthy", "", CHANGED)],
    ),
    "it goes": (status(good()), status(), [("DeviceRemoved", "", (GPU, GPU_AT))]),
    "an mdev goes": (status(good(UUID)), status(), []),
    "a pod has the broken one": (
        status(good(), held={GPU_AT: "ns/vm"}),
        status(bad(), held={GPU_AT: "ns/vm"}),
        [
            ("DeviceUnhealthy", "", CHANGED),
            ("DeviceUnhealthy", "ns/vm", CHANGED),
        ],
    ),
    "and a pod without a name": (
        status(good()),
        status(bad(), held={GPU_AT: UNNAMED}),
        [("DeviceUnhealthy", "", CHANGED)],
    ),
    "the pod lets the broken one go": (status(bad(), held={GPU_AT: "ns/vm"}), status(bad()), []),
    "the pod's device is whole again": (
        status(bad(), held={GPU_AT: "ns/vm"}),
        status(good(), held={GPU_AT: "ns/vm"}),
        [
            ("DeviceHealthy", "", (GPU, GPU_AT, "Healthy")),
            ("DeviceHealthy", "ns/vm", (GPU, GPU_AT, "Healthy")),
        ],
    ),
    "a host driver takes a part of the group": (
        status(good()),
        status(CONFLICT),
        [("GroupConflict", "", broken("group-not-viable"))],
    ),
    "two pods have parts of a group": (
        status(good()),
        status(HELD, held={GPU_AT: "ns/one", SOUND_AT: "ns/two"}, groups=[group(GPU_AT, SOUND_AT)]),
        [
            ("GroupConflict", "", broken("group-held")),
            ("GroupConflict", "ns/one", broken("group-held")),
        ],
    ),
    "one pod has two parts of a group": (
        status(good()),
        status(HELD, held={GPU_AT: "ns/one", SOUND_AT: "ns/one"}, groups=[group(GPU_AT, SOUND_AT)]),
        [],
    ),
    "a change waits": (
        status(),
        status(changes=NO_CHANGES._replace(waiting=(WAITING,))),
        [("ChangeWaiting", "", ("0000:3b:00.0", WAITING.action, WAITING.message))],
    ),
    "a change is refused": (
        status(),
        status(changes=NO_CHANGES._replace(failing=(FAILING,))),
        [("ChangeFailed", "", ("0000:3b:00.0", FAILING.message, FAILING.hint))],
    ),
    "it is refused once more": (
        status(changes=NO_CHANGES._replace(failing=(FAILING,))),
        status(changes=NO_CHANGES._replace(failing=(FAILING._replace(tries=2, next_try_seconds=4.0),))),
        [],
    ),
    "the kernel does not answer": (
        status(),
        status(changes=NO_CHANGES._replace(stuck=("create mdev x",))),
        [("ChangeFailed", "", ("kernel", "create mdev x"))],
    ),
    "a wish cannot be met": (
        status(),
        status(
            changes=NO_CHANGES._replace(problems=(wrong(ProblemCode.CHANGE, "", "no card has the type x"),))
        ),
        [("DesiredStateUnmet", "", ("no card has the type x",))],
    ),
    "virt-handler makes mdevs, too": (
        status(),
        status(changes=NO_CHANGES._replace(problems=(OBSTACLE,)), refused=(OBSTACLE,)),
        [("VirtHandlerConflict", "", (OBSTACLE.message, OBSTACLE.hint))],
    ),
    "a text that names virt-handler is no conflict": (
        status(),
        status(changes=NO_CHANGES._replace(problems=(UNMET,))),
        [("DesiredStateUnmet", "", (UNMET.message,))],
    ),
    "the configuration is wrong": (
        status(),
        status(wrong_settings=WRONG),
        [("ConfigurationRefused", "", ("config.yaml:3", "x", "write y"))],
    ),
    "the configuration is right again": (
        status(wrong_settings=WRONG),
        status(),
        [("ConfigurationAccepted", "", ("configuration",))],
    ),
    "the CR is gone": (status(), status(doubts=(GONE,)), [("CRNotInForce", "", (GONE,))]),
    "another doubt": (status(), status(doubts=("the cluster has no Node of the name x",)), []),
    "an entry is refused": (
        status(),
        status(refused=(ENTRY,)),
        [("CREntryRefused", "", (ENTRY.message, ENTRY.hint))],
    ),
    "nothing is new": (status(bad(), refused=(ENTRY,)), status(bad(), refused=(ENTRY,)), []),
}


@pytest.mark.parametrize(("before", "now", "expected"), CASES.values(), ids=CASES)
def test_what_is_new_is_told(before: Status, now: Status, expected: list[Told]) -> None:
    found = node_events.diff(before, now)
    assert [(each.reason.name, each.pod) for each in found] == [(reason, pod) for reason, pod, _ in expected]
    each_names([each.message for each in found], *(facts for _, _, facts in expected))


REASONS = [each for each in vars(node_events).values() if isinstance(each, EventReason)]


def test_every_reason_is_given_and_its_name_is_one_word() -> None:
    given = {name for _, _, expected in CASES.values() for name, _, _ in expected}
    given |= {each.reason.name for each in (*made(4, 4), *made(0, 0, removed=4))}
    assert given == {each.name for each in REASONS}
    assert all(each.name.isalnum() and each.name[0].isupper() for each in REASONS)


def test_the_page_has_all_reasons_and_their_types() -> None:
    of_events, _, _ = PAGE.read_text().partition("## The condition")
    rows = [line.split(" | ")[:2] for line in of_events.splitlines() if line.startswith("| `")]
    assert rows == [[f"| `{each.name}`", "Warning" if each.warning else "Normal"] for each in REASONS]


def test_the_kinds_of_changes_are_those_that_there_are() -> None:
    assert {ActionKind.CREATE_MDEV, ActionKind.SET_VGPU_TYPE} == node_events.CREATES
    assert {ActionKind.REMOVE_MDEV, ActionKind.CLEAR_VGPU_TYPE} == node_events.REMOVES


def made(instances: int, number: int, removed: int = 0) -> list[NodeEvent]:
    return compare_cards(cards(removed), cards(instances, made=number, removed=removed))[0]


def test_what_was_made_on_a_card_and_removed_is_told_by_its_number() -> None:
    created, gone = made(4, 4), made(0, 0, removed=4)
    for found, reason in ((created, node_events.MDEV_CREATED), (gone, node_events.MDEV_REMOVED)):
        assert [each.reason for each in found] == [reason]
        each_names([each.message for each in found], ("0000:3b:00.0", 4, "nvidia-222"))
    assert made(4, 0) == [], "others have made them"


@pytest.mark.parametrize("between", [cards(2, made=2, busy=True), cards(0, made=16)])
def test_a_card_is_one_event_when_it_is_worked_on_no_more_and_a_scan_shows_it(between: ChangesStatus) -> None:
    before, after = cards(0), cards(16, made=16)
    found, rest = compare_cards(before, between)
    assert (found, rest) == ([], before)
    (only,), rest = compare_cards(rest, after)
    assert only.reason is node_events.MDEV_CREATED
    names(only.message, "0000:3b:00.0", 16, "nvidia-222")
    assert compare_cards(rest, after) == ([], after)


def test_a_type_that_is_added_to_a_card_leaves_the_mdevs_of_the_others_uncounted() -> None:
    one, both = cards(8), cards(12, made=4, types=("nvidia-222", "nvidia-223"))
    (created,), _ = compare_cards(one, both)
    names(created.message, "0000:3b:00.0: 4 x")
    (removed,), _ = compare_cards(both, cards(8, made=4, removed=4))
    names(removed.message, "0000:3b:00.0: 4 x")
    assert removed.reason is node_events.MDEV_REMOVED


def test_of_two_statuses_the_warnings_that_last_are_found() -> None:
    before = status(bad(), bad(OTHER_AT), changes=NO_CHANGES._replace(waiting=(WAITING,)))
    (only,) = node_events.find_lasting(
        before, before._replace(resources=status(bad(), good(OTHER_AT)).resources)
    )
    assert (only.reason.name, GPU_AT in only.text) == ("DeviceUnhealthy", True)
    assert node_events.find_lasting(before, status(bad(code=ReasonCode.GONE))) == []


def test_many_of_one_reason_are_one() -> None:
    several = [NodeEvent(node_events.DEVICE_UNHEALTHY, f"device {number}", "mend it") for number in range(15)]
    other = NodeEvent(node_events.DEVICE_REMOVED, "device x")
    of_pod = several[0]._replace(pod="ns/vm")
    assert node_events.fold([*several[:FEW], other, of_pod]) == [*several[:FEW], other, of_pod]
    first, *rest = node_events.fold([*several, other, of_pod, other])
    names(first.text, *(f"device {number}" for number in range(FEW)), 15 - FEW)
    assert f"device {FEW}" not in first.text
    names(first.hint, "nodeagent status")
    assert rest == [other, of_pod]
