# SPDX-License-Identifier: Apache-2.0
"""The document of a Status key by key; the problems found in it, and their order."""

from __future__ import annotations

import json

import pytest

from nodeagent.model import plain
from nodeagent.model.allocation import Holder
from nodeagent.model.host import Host, Kind
from nodeagent.model.ids import DeviceId, ResourceName
from nodeagent.model.problem import ProblemCode, misconfigured, note, wrong
from nodeagent.model.resource import Device, Reason, ReasonCode, Resource
from nodeagent.model.status import (
    ANSWERS,
    NO_CHANGES,
    RUNNING_AGAIN,
    CardStatus,
    ChangesStatus,
    ConfigurationStatus,
    Durations,
    EventsStatus,
    FailingStatus,
    HolderStatus,
    HostStatus,
    HttpStatus,
    KubeletStatus,
    ProcessStatus,
    ResourceStatus,
    ResultsStatus,
    Status,
    WaitingStatus,
)
from nodeagent.policy import diagnose
from tests.facts import each_names, names

GPU, OTHER = ResourceName("example.com/gpu"), ResourceName("example.com/other")
ONE, TWO = DeviceId("0000:01:00.0"), DeviceId("0000:02:00.0")
RESOURCE = Resource(
    GPU,
    Kind.PCI,
    (Device(ONE, numa=0), Device(TWO, Reason(ReasonCode.NODE_MISSING, "no node", "look"))),
)
PROBLEM = wrong(ProblemCode.CHANGE, ONE, "no card supports it", "use another type")
FAILING = FailingStatus(ONE, "nvidia-222", "create mdev x", "no room", "wait", 2, 1.5)

REFUSED = misconfigured("", "config.yaml:1: bad", "hint")
UNSERVED = note(ProblemCode.HTTP, "the address a:1 cannot be served: busy")
TIMES = Durations().and_one(0.5)
ALL = Status(
    "0.1.0",
    7,
    61.4,
    "/",
    KubeletStatus("/k.sock", False, "no answer in time", True),
    HostStatus.of(Host(iommu=True), ("0000:09:00.0",), EventsStatus("netlink", 5, 1, 2, 3)),
    (ResourceStatus.of(RESOURCE, False, 3, "the name is taken"),),
    ChangesStatus(
        (CardStatus(ONE, ("nvidia-222",), 1, ("a note",)),),
        ("create mdev y",),
        (WaitingStatus(ONE, "remove mdev z", "in use by ns/p"),),
        (FAILING, FAILING._replace(message="no room either"), FAILING._replace(type=None, message="other")),
        (PROBLEM,),
        4,
        ("set the number of VFs",),
        (ResultsStatus("create-mdev", 3, 1),),
    ),
    {ONE: HolderStatus("ns/p", GPU)},
    {"inotify": "no instance", "kubelet": RUNNING_AGAIN},
    (),
    ProcessStatus(9.5, 1.5, 4096, 7, 1024, 3),
    ConfigurationStatus(2, 7.5, 1, REFUSED),
    HttpStatus(None, UNSERVED),
    TIMES,
)
WELL = Status(
    version="0.1.0",
    pid=7,
    uptime_seconds=61.4,
    root="/",
    kubelet=KubeletStatus("", True, ANSWERS, False),
    host=HostStatus(0, 0, 0, False, (), EventsStatus("", 0, 0, 0, 0)),
    resources=(),
    changes=NO_CHANGES,
    holders={},
    subsystems={},
    problems=(),
    process=ProcessStatus(),
)


def texts(status: Status) -> tuple[str, ...]:
    return tuple(problem.message for problem in diagnose.problems(status) if problem.action_required)


def test_the_document_is_what_programs_have_always_read() -> None:
    document = plain.dump(ALL)
    assert list(document) == [
        *("version", "pid", "uptimeSeconds", "root", "kubelet", "host", "resources", "changes"),
        *("holders", "subsystems", "problems"),
        *("process", "configuration", "http", "allocating"),
    ]
    assert document["kubelet"] == {
        "socket": "/k.sock",
        "present": False,
        "podResources": "no answer in time",
        "holdersKnown": True,
    }
    assert document["host"] == {
        "functions": 0,
        "groups": 0,
        "mdevs": 0,
        "iommu": True,
        "notReadable": ["0000:09:00.0"],
        "events": {"source": "netlink", "events": 5, "lost": 1, "foreign": 2, "unwatched": 3},
    }
    assert document["resources"] == [
        {
            "name": "example.com/gpu",
            "devices": [
                {"id": ONE, "healthy": True, "numa": 0},
                {
                    "id": TWO,
                    "healthy": False,
                    "numa": None,
                    "reason": "node-missing",
                    "message": "no node",
                    "hint": "look",
                },
            ],
            "healthy": 1,
            "registered": False,
            "registrations": 3,
            "error": "the name is taken",
        }
    ]
    assert document["holders"] == {ONE: {"pod": "ns/p", "resource": "example.com/gpu"}}
    assert document["subsystems"] == {"inotify": "no instance", "kubelet": "running again"}


def test_what_is_changed_is_told_as_it_has_always_been() -> None:
    changes = plain.dump(ALL)["changes"]
    assert changes["cards"] == [{"card": ONE, "types": ["nvidia-222"], "instances": 1, "notes": ["a note"]}]
    assert changes["inProgress"] == ["create mdev y"]
    assert changes["waiting"] == [{"card": ONE, "action": "remove mdev z", "message": "in use by ns/p"}]
    assert changes["failing"][0] == {
        "card": ONE,
        "type": "nvidia-222",
        "action": "create mdev x",
        "message": "no room",
        "hint": "wait",
        "tries": 2,
        "nextTrySeconds": 1.5,
    }
    assert changes["writes"] == 4
    assert changes["problems"] == [
        {
            "code": "change",
            "subject": ONE,
            "message": "no card supports it",
            "hint": "use another type",
            "actionRequired": True,
        }
    ]
    assert plain.dump(ALL._replace(changes=NO_CHANGES))["changes"] == {
        "cards": [],
        "inProgress": [],
        "waiting": [],
        "failing": [],
        "problems": [],
        "writes": 0,
    }


def test_numbers_of_the_process_and_of_what_happened_are_told() -> None:
    document = plain.dump(ALL)
    assert document["process"] == {
        "started": 9.5,
        "cpuSeconds": 1.5,
        "residentBytes": 4096,
        "openFiles": 7,
        "mostFiles": 1024,
        "threads": 3,
    }
    assert document["configuration"] == {
        "generation": 2,
        "since": 7.5,
        "refused": 1,
        "problem": plain.dump(REFUSED),
    }
    assert document["http"]["problem"]["message"] == "the address a:1 cannot be served: busy"
    assert document["allocating"] == {"counts": [*TIMES.counts], "seconds": 0.5}
    assert document["changes"]["results"] == [{"kind": "create-mdev", "made": 3, "refused": 1}]


def test_problems_come_in_one_order_and_a_card_with_one_type_only_once() -> None:
    each_names(
        texts(ALL),
        ("inotify", "no instance"),
        ("configuration", "config.yaml:1", "bad"),
        ("no answer in time",),
        ("no card supports it",),
        ("kernel", "set the number of VFs"),
        (ONE, "no room"),
        (ONE, "other"),
        ("kubelet", "/k.sock"),
        (GPU, "the name is taken"),
        (GPU, TWO, "Unhealthy", "no node"),
    )


@pytest.mark.parametrize(
    ("code", "holder", "told"),
    [
        (ReasonCode.GROUP_HELD, None, False),
        (ReasonCode.GROUP_HELD, Holder("ns", "p", OTHER), False),
        (ReasonCode.GROUP_HELD, Holder("ns", "p", GPU), True),  # and another pod has the rest of its group
        (ReasonCode.GOING_AWAY, Holder("ns", "p", GPU), False),  # a removal waits for that pod
        (ReasonCode.GOING_AWAY, None, True),  # and nobody knows for whom it waits
        (ReasonCode.HELD_OUTSIDE, None, True),
    ],
)
def test_what_only_waits_for_a_pod_is_no_problem(code: ReasonCode, holder: Holder | None, told: bool) -> None:
    resource = Resource(GPU, Kind.PCI, (Device(TWO, Reason(code, "why", "")),))
    holders: dict[str, HolderStatus] = {TWO: HolderStatus(str(holder), holder.resource)} if holder else {}
    listed = WELL._replace(resources=(ResourceStatus.of(resource, True, 1, None),), holders=holders)
    assert texts(listed) == ((f"{GPU}: {TWO} is Unhealthy: why",) if told else ())


def test_an_address_that_cannot_be_served_is_a_note() -> None:
    (note,) = [each for each in diagnose.problems(ALL) if not each.action_required]
    names(note.message, "a:1", "busy")


def test_directories_that_cannot_be_watched_are_named_up_to_five() -> None:
    (problem,) = diagnose.find_unwatched(tuple("abcdef"), has_instance=True)
    names(problem.message, "a, b, c, d, e and others")
    names(problem.hint, "fs.inotify.max_user_watches")
    (problem,) = diagnose.find_unwatched(("a",), has_instance=False)
    names(problem.hint, "fs.inotify.max_user_instances")
    assert list(diagnose.find_unwatched((), has_instance=False)) == []


def test_a_daemon_that_is_well_has_no_problems() -> None:
    assert texts(WELL) == ()


def test_a_status_comes_back_as_it_was() -> None:
    status = ALL
    assert plain.load(Status, json.loads(json.dumps(plain.dump(status)))) == status
