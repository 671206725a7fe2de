# SPDX-License-Identifier: Apache-2.0
"""Mediated devices of the kernel's sample drivers: made to order, kept while in use, made again.

One mtty has 24 ports: room for 24 of mtty-1, 12 of mtty-2, or a mixture; one mdpy has room for 4 screens.
"""

from __future__ import annotations

import errno
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread

from nodeagent.kernel import uevents
from nodeagent.sim.kubelet.state import Pod
from tests.vm.guest import mdev, pci, vfio
from tests.vm.guest.node import HEALTHY, LOOK, PATIENCE, PROMISED, UNHEALTHY, Node, until

_SINGLE, _DUAL, _XGA, _HD = (f"example.com/{name}" for name in ("single", "dual", "xga", "hd"))
_VARIABLE = "MDEV_PCI_RESOURCE_EXAMPLE_COM_XGA"
_FULL = {_SINGLE: 24, _DUAL: 12, _XGA: 4, _HD: 4}


async def a_parent_that_appears_is_filled_and_listed_at_once(node: Node) -> None:
    """From the parent's event on nothing else is needed; the next turns write nothing."""
    await node.wish(["mtty-2", "mtty-1"])
    before = (await _changes(node))["writes"]
    async with _binds() as binds:
        loaded = await node.change(mdev.load, "mtty")
        listed = await _until_listed(node, _DUAL, _FULL[_DUAL])
    assert len(binds) == _FULL[_DUAL]
    print(
        f"    listed {listed - loaded:.2f} s after insmod, {listed - binds[-1]:.3f} s after the last bind",
        flush=True,
    )
    assert listed - binds[-1] <= PROMISED
    assert _listed(node, _DUAL) == set(mdev.instances("mtty-2"))
    assert _no_room() == errno.ENOSPC
    await _turns_that_find_nothing_to_do(node)
    assert (await _changes(node))["writes"] == before + _FULL[_DUAL]


def _no_room() -> int | None:
    """What the kernel says to one instance too many, of a type that shares the room."""
    assert mdev.available("mtty", "mtty-1") == 0
    try:
        mdev.create("mtty", "mtty-1", *_by_hand(1))
    except OSError as error:
        return error.errno
    return None


async def _turns_that_find_nothing_to_do(node: Node) -> None:
    """The host changes elsewhere, so that it is planned anew."""
    await node.change(pci.unbind, node.second)
    await node.until(node.second, UNHEALTHY)
    await node.change(pci.bind, node.second, pci.VFIO)
    await node.until(node.second, HEALTHY)


async def an_instance_that_is_open_keeps_its_card_from_a_new_type_until_it_is_closed(node: Node) -> None:
    """Its card waits, and the other card does not wait with it."""
    await node.wish(["mtty-2", "mdpy-xga"])
    await node.change(mdev.load, *mdev.DRIVERS)
    await _until_listed(node, _DUAL, _FULL[_DUAL])
    await _until_listed(node, _XGA, _FULL[_XGA])
    held = mdev.instances("mtty-2")[3]
    with vfio.held(held, mdev.group(held)):
        await node.wish(["mtty-1", "mdpy-hd"])
        await _until_listed(node, _HD, _FULL[_HD])
        await until(lambda: mdev.instances("mtty-2") == [held], "only the one that is open is left")
        await _until_waiting(node, held, "a process on this host has it open")
        assert mdev.instances("mtty-1") == []
    await _becomes(node, _DUAL, _SINGLE)


async def an_instance_of_a_pod_outlives_a_new_list_of_types_until_the_pod_has_gone(node: Node) -> None:
    """The pod gets one instance, by variable and node; nothing has it open. Later no other pod gets it."""
    await node.wish(["mdpy-xga"])
    await node.change(mdev.load, "mdpy")
    await _until_listed(node, _XGA, _FULL[_XGA])
    pod = await node.kubelet.admit(Pod("ns", "vm", [{_XGA: 1}]))
    assert pod.phase == "Running", pod.message
    assert set(pod.result.envs) == {_VARIABLE}
    held = pod.result.envs[_VARIABLE]
    nodes = [host for host, _, _ in pod.result.devices]
    assert nodes == ["/dev/vfio/vfio", f"/dev/vfio/{mdev.group(held)}"]
    with vfio.held(held, mdev.group(held)):
        pass  # what was given can be opened
    await node.wish(["mdpy-hd"])
    lists = node.kubelet.statistics.lists[_XGA]
    await node.kubelet.until(lambda: lists[-1].health == {held: UNHEALTHY}, PATIENCE)
    await _until_waiting(node, held, "in use by ns/vm")
    assert mdev.instances("mdpy-xga") == [held]
    assert mdev.instances("mdpy-hd") == []
    node.kubelet.delete(pod)
    await _becomes(node, _XGA, _HD)


async def _becomes(node: Node, old: str, new: str) -> None:
    """The card has nothing but the new type, to the maximum, and nothing is left to do."""
    released = time.monotonic()
    listed = await _until_listed(node, new, _FULL[new])
    print(f"    the new type is complete {listed - released:.2f} s after the release", flush=True)
    await _until_listed(node, old, 0)
    changes = await _changes(node)
    assert (changes["waiting"], changes["failing"]) == ([], [])


async def room_that_others_take_meanwhile_is_no_failure_and_their_instances_stay(node: Node) -> None:
    """Five of another type are made by hand while the daemon stands still in the middle of its work."""
    foreign = _by_hand(5)
    left = (_FULL[_SINGLE] - len(foreign)) // 2
    await node.wish(["mtty-2"])
    await node.change(mdev.load, "mtty")
    await until(lambda: bool(mdev.instances("mtty-2")), "the first instance")
    node.pause_daemon(True)
    try:
        assert len(mdev.instances("mtty-2")) <= left, "it was too quick"
        for each in foreign:
            await node.change(mdev.create, "mtty", "mtty-1", each)
    finally:
        node.pause_daemon(False)
    await _until_listed(node, _SINGLE, len(foreign))
    await _until_left_alone(node)
    made = len(mdev.instances("mtty-2"))
    assert made <= left, "beside what is not ours nothing is made"
    await _until_listed(node, _DUAL, made)
    assert (await _changes(node))["failing"] == []
    for each in foreign:
        await node.change(mdev.remove, each)
    await _until_listed(node, _DUAL, _FULL[_DUAL])


async def a_card_with_a_foreign_instance_is_left_as_it_is(node: Node) -> None:
    """Also when all wishes go; it is offered all the same. When it goes, the card is filled."""
    [foreign] = _by_hand(1)
    await node.change(mdev.load, "mtty")
    await node.change(mdev.create, "mtty", "mtty-1", foreign)
    await node.wish(["mtty-2"])
    await _until_left_alone(node)
    await _until_listed(node, _SINGLE, 1)
    await node.wish([])
    changes = await _changes(node)
    assert (mdev.instances("mtty-1"), mdev.instances("mtty-2")) == ([foreign], [])
    assert changes["inProgress"] == changes["waiting"] == []
    await node.wish(["mtty-2"])
    done = await node.change(mdev.remove, foreign)
    listed = await _until_listed(node, _DUAL, _FULL[_DUAL])
    print(f"    filled and listed {listed - done:.2f} s after the foreign one went", flush=True)


async def a_parent_driver_that_is_loaded_again_gets_the_same_instances(node: Node) -> None:
    """Unloading takes idle instances along; nobody tries to make them meanwhile."""
    await node.wish(["mtty-2"])
    await node.change(mdev.load, "mtty")
    await _until_listed(node, _DUAL, _FULL[_DUAL])
    before, failures = _listed(node, _DUAL), node.logged("action-failed")
    done = await node.change(mdev.unload, "mtty")
    listed = await _until_listed(node, _DUAL, 0)
    print(f"    empty {listed - done:.2f} s after rmmod", flush=True)
    assert listed - done <= PROMISED
    await node.change(mdev.load, "mtty")
    await _until_listed(node, _DUAL, _FULL[_DUAL])
    assert _listed(node, _DUAL) == before
    assert node.logged("action-failed") == failures


def _by_hand(count: int) -> list[str]:
    """UUIDs for instances that are not nodeagent's."""
    return [str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{number}.example.com")) for number in range(count)]


async def an_instance_that_is_removed_by_hand_while_open_is_made_again_once_it_is_closed(node: Node) -> None:
    """Until then its id cannot be used again and its room is not free: nothing is tried."""
    await node.wish(["mtty-2"])
    await node.change(mdev.load, "mtty")
    await _until_listed(node, _DUAL, _FULL[_DUAL])
    failures, everything = node.logged("action-failed"), _listed(node, _DUAL)
    held = mdev.instances("mtty-2")[3]
    with vfio.held(held, mdev.group(held)):
        waiting = pci.provoke(mdev.removal(held), "1")
        await node.until_reason(held, "going-away")
        assert waiting.poll() is None
    await anyio.to_thread.run_sync(waiting.wait, 20)
    await _until_listed(node, _DUAL, _FULL[_DUAL])
    assert _listed(node, _DUAL) == everything
    assert node.logged("action-failed") == failures


@asynccontextmanager
async def _binds() -> AsyncIterator[list[float]]:
    """The moments at which instances got their driver, from the kernel's own events."""
    found: list[float] = []

    async def note(reader: uevents.Reader) -> None:
        while True:
            events = [event for event in await reader.receive() if event is not None]
            binds = [event for event in events if (event.subsystem, event.action) == ("mdev", "bind")]
            found.extend(time.monotonic() for _ in binds)

    with uevents.open_socket() as sock:
        async with anyio.create_task_group() as group:
            group.start_soon(note, uevents.Reader(sock, uevents.from_kernel))
            yield found
            group.cancel_scope.cancel()


def _listed(node: Node, resource: str) -> set[str]:
    """The Healthy devices of the newest list at the kubelet."""
    lists = node.kubelet.statistics.lists[resource]
    return {name for name, health in lists[-1].health.items() if health == HEALTHY}


async def _until_listed(node: Node, resource: str, count: int) -> float:
    """Wait until the kubelet has a list of so many, all Healthy; the moment at which it came."""
    lists = node.kubelet.statistics.lists[resource]
    try:
        await node.kubelet.until(
            lambda: len(_listed(node, resource)) == count == len(lists[-1].health), PATIENCE
        )
    except TimeoutError:
        raise AssertionError(f"{resource}: {lists[-1].health}, not {count}: {await _changes(node)}") from None
    return lists[-1].when


async def _changes(node: Node) -> Any:
    """What the daemon tells of its work on the host."""
    return (await node.status())["changes"]


async def _until_waiting(node: Node, device: str, why: str) -> None:
    """Wait until the removal of this device, and nothing else, waits for that."""

    def waits(changes: Any) -> bool:
        return [device in each["action"] and why in each["message"] for each in changes["waiting"]] == [True]

    await _until_changes(node, waits, f"{device} waits: {why}")


async def _until_left_alone(node: Node) -> None:
    """Wait until the daemon says of its only card that others use it, and has nothing to do on it."""

    def says(changes: Any) -> bool:
        notes = [note for card in changes["cards"] for note in card["notes"]]
        return not changes["inProgress"] and any("not created by nodeagent" in note for note in notes)

    await _until_changes(node, says, "the card is left alone")


async def _until_changes(node: Node, look: Callable[[Any], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not look(found := await _changes(node)):
        assert time.monotonic() < deadline, f"not {what}: {found}"
        await anyio.sleep(LOOK)
