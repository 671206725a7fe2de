# SPDX-License-Identifier: Apache-2.0
"""Where devices sit, among whose, and what their groups lack."""

from __future__ import annotations

import pytest

from nodeagent.model.allocation import Reservations
from nodeagent.model.host import Kind, PciFunction
from nodeagent.model.ids import DeviceId, ResourceName
from nodeagent.model.resource import Device, Reason, ReasonCode, Resource
from nodeagent.policy.offer import prefer
from nodeagent.policy.offer.topology import NOWHERE, Whose, topologies
from tests.policy.samples import GPU, function, host, reserved, snapshot

A, B, C = "0000:65:00.0", "0000:65:00.1", "0000:67:00.0"
GPUS, USB, AUDIO = ResourceName(GPU), ResourceName("example.com/usb"), ResourceName("example.com/audio")


def resource(name: ResourceName, **functions: bool) -> Resource:
    """A resource with a device of each board, by the board's name, that is Healthy or not."""
    number = {GPUS: 0, USB: 1, AUDIO: 2}[name]
    broken = Reason(ReasonCode.DRIVER_CHANGED, "")
    devices = (
        Device(DeviceId(f"{at(board)}.{number}"), None if ok else broken) for board, ok in functions.items()
    )
    return Resource(name, Kind.PCI, tuple(devices))


def at(board: str) -> str:
    return f"0000:0{board}:00"


@pytest.mark.parametrize(
    ("others", "lacks"),
    [
        ([], "000"),
        ([resource(USB, a=True, b=True, c=False)], "001"),
        ([resource(USB, a=True, c=True)], "010"),
        ([resource(USB, a=True, b=False)], "011"),
        ([resource(USB, a=False, b=False, c=False)], "000"),
        ([resource(USB, a=False, c=True), resource(AUDIO, a=True, b=False, c=True)], "120"),
        ([resource(USB, a=False, c=True), resource(AUDIO, a=False, b=False, c=False)], "110"),
        ([resource(USB, d=True, e=False)], "000"),
    ],
    ids=[
        "nothing else is offered",
        "it is Unhealthy",
        "it is not there",
        "both",
        "no board has it in order",
        "two are counted",
        "what no board has in order is not",
        "nor what other boards have",
    ],
)
def test_a_group_lacks_what_others_have_in_order(others: list[Resource], lacks: str) -> None:
    boards = [
        function(f"{at(board)}.{each}", number)
        for number, board in enumerate("abcde", 1)
        for each in range(3)
    ]
    gpus = resource(GPUS, a=True, b=True, c=True)
    ids = [each.id for each in gpus.devices]
    resources = {each.name: each for each in (gpus, *others)}
    found = topologies(ids, gpus, resources, snapshot(host(*boards)), same=False)
    assert "".join(str(place.lacks) for place in found.values()) == lacks


@pytest.mark.parametrize("gone", [True, False], ids=["left the bus", "lost its driver"])
def test_a_board_of_two_lacks_what_only_one_of_its_functions_has(gone: bool) -> None:
    """A board of another size lacks nothing by that."""
    two, like, small = ("0000:0a:00", "0000:0b:00", "0000:0c:00")
    functions = [f"{board}.{each}" for board in (two, like) for each in range(4)]
    functions += [f"{small}.0", f"{small}.2"]
    there = host(*(function(each, ord(each[6])) for each in functions))
    lost = Device(DeviceId(f"{two}.2"), Reason(ReasonCode.DRIVER_CHANGED, ""))
    others = [Device(DeviceId(each)) for each in functions if each[-1] in "23" and each != lost.id]
    gpus = Resource(GPUS, Kind.PCI, tuple(Device(DeviceId(each)) for each in functions if each[-1] in "01"))
    usb = Resource(USB, Kind.PCI, tuple(others if gone else [*others, lost]))
    found = topologies(
        [each.id for each in gpus.devices], gpus, {GPUS: gpus, USB: usb}, snapshot(there), same=False
    )
    assert [place.lacks for place in found.values()] == [1, 1, 0, 0, 0]


def test_what_this_host_does_not_have_is_nowhere() -> None:
    assert topologies([C], resource(GPUS), {}, snapshot(host()), same=False) == {C: NOWHERE}


def test_whose_a_group_is() -> None:
    here = host(function(A), function(B), function(C, 2))

    def whose(reservations: Reservations, *, same: bool = True, name: str = "example.com/usb") -> list[Whose]:
        now = snapshot(here, reservations=reservations)
        devices = (Device(DeviceId(B)), Device(DeviceId(C)))
        asked = Resource(ResourceName(name), Kind.PCI, devices)
        return [each.whose for each in topologies((B, C), asked, {}, now, same=same).values()]

    assert whose(Reservations()) == [Whose.NOBODY, Whose.NOBODY]
    assert whose(reserved([A])) == [Whose.ASKER, Whose.NOBODY]
    assert whose(reserved([A]), same=False) == [Whose.ANOTHER, Whose.NOBODY]
    assert whose(reserved([A]), name=GPU) == [Whose.ANOTHER, Whose.NOBODY]
    assert whose(reserved([A], admitting=False)) == [Whose.ANOTHER, Whose.NOBODY]


def test_what_turned_unhealthy_a_moment_ago_comes_last_and_its_board_has_one_less() -> None:
    """The kubelet has it as Healthy yet."""
    boards = [function(f"{at(board)}.{each}", ord(board)) for board in "abc" for each in range(2)]
    ids = [each.id for each in boards]
    lost = Device(DeviceId(ids[0]), Reason(ReasonCode.DRIVER_CHANGED, ""))
    gpus = Resource(GPUS, Kind.PCI, (lost, *(Device(DeviceId(each)) for each in ids[1:])))
    told = topologies(ids, gpus, {}, snapshot(host(*boards)), same=True)
    assert told[ids[0]].whose is Whose.ANOTHER
    for wanted, chosen in ((1, ids[1:2]), (2, ids[2:4]), (4, ids[2:]), (6, [*ids[2:], ids[1], ids[0]])):
        assert sorted(prefer.choose(ids, [], wanted, told)) == sorted(chosen)


@pytest.mark.parametrize("count", [0, 1], ids=["closed", "a count that may be left"])
@pytest.mark.parametrize("lately", [A, "7"], ids=["its neighbour", "the whole group"])
def test_what_a_pod_had_a_moment_ago_comes_with_its_group_after_what_is_free(lately: str, count: int) -> None:
    pair = [function(each, 7)._replace(enable=count, idle=count) for each in (A, B)]
    assert whose_lately(lately, *pair) == [Whose.LEAVING if count else Whose.LEFT, Whose.NOBODY]


def test_what_is_alone_in_its_group_comes_with_what_is_free_if_it_is_seen_to_be_closed() -> None:
    for count, whose in ((0, Whose.NOBODY), (1, Whose.LEAVING)):
        alone = function(B, 7)._replace(enable=count, idle=count)
        assert whose_lately(B, alone) == [whose, Whose.NOBODY]


def whose_lately(lately: str, *group: PciFunction) -> list[Whose]:
    """Whose ``B`` is, of this group, and ``C``, which is free."""
    now = snapshot(host(*group, function(C, 8)))
    gpus = Resource(GPUS, Kind.PCI, tuple(Device(DeviceId(each)) for each in (B, C)))
    told = topologies((B, C), gpus, {}, now, frozenset({lately}), same=False)
    whose = [each.whose for each in told.values()]
    assert prefer.choose([B, C], [], 1, told) == ((B,) if whose[0] is Whose.NOBODY else (C,))
    return whose
