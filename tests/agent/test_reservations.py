# SPDX-License-Identifier: Apache-2.0
"""Reservations: allocated or withdrawn, never both; until when an allocation is pending; which pod asks."""

from __future__ import annotations

import anyio
import pytest

from nodeagent.agent.reservations import Admission, Pending
from nodeagent.base.errors import AllocationRefused
from nodeagent.base.timeouts import Timeouts
from nodeagent.model.allocation import ResourceDevice, unnamed
from nodeagent.model.ids import ResourceName
from tests.agent.kubelets import A, B, Kubelet, Node

BRIEF = Timeouts()._replace(pod_resources_after_allocate=0.01, foreign_allocate=0.1, admission_settle=0.03)
NOBODY = Admission()


def allocated(*ids: str, resource: ResourceName = A) -> dict[ResourceDevice, Pending]:
    """These ids."""
    return {(resource, each): Pending(unnamed(resource, None)) for each in ids}


async def test_an_id_is_allocated_or_withdrawn_and_never_both() -> None:
    book = (node := Node(Kubelet())).reservations
    book.allocate(NOBODY, allocated("x"))
    assert not book.withdraw({"x", "y"}, ())
    assert book.withdraw({"y"}, ())
    with pytest.raises(AllocationRefused):
        book.allocate(NOBODY, allocated("z", "y"))
    assert node.pending == {"x"}, "all of them, or none"
    book.restore({"y"}, ())
    book.allocate(NOBODY, allocated("y"))


async def test_a_function_behind_an_allocated_node_keeps_its_driver_and_the_other_way_round() -> None:
    node = Node(Kubelet(), BRIEF)
    book = node.reservations
    behind = {(A, "node"): Pending(None, frozenset({"f"}))}
    assert book.withdraw((), {"f"})
    with pytest.raises(AllocationRefused, match="f"):
        book.allocate(NOBODY, behind)
    book.restore((), {"f"})
    book.allocate(NOBODY, behind)
    await node.usage.request()
    assert node.snapshots.now.recently_allocated == {"f"}
    assert not book.withdraw((), {"f"})
    with anyio.fail_after(5):
        while node.snapshots.now.recently_allocated:  # no checkpoint ever had it: its pod was refused
            await node.usage.request()
    assert book.withdraw((), {"f"})


async def test_an_allocation_is_pending_until_the_kubelet_lists_it() -> None:
    node = Node(kubelet := Kubelet())
    kubelet.add("ns/vm")
    await node.allocate(A, "x")
    assert node.pending == {"x"}
    kubelet.add("ns/vm", (A, "x"))
    await node.usage.request()
    assert node.pending == set()
    assert node.in_use == {(A, "x")}


async def test_a_device_of_a_plain_init_container_is_pending_until_the_checkpoint_has_it() -> None:
    node = Node(kubelet := Kubelet())
    kubelet.add("ns/vm")
    await node.allocate(A, "x")
    await node.usage.request()
    assert node.pending == {"x"}
    kubelet.add("ns/vm", (A, "x"), listed=False)
    await node.usage.request()
    assert node.pending == set()
    assert node.in_use == {(A, "x")}


async def test_the_checkpoint_is_written_again_before_an_allocation_counts_as_refused() -> None:
    """Its container asks another plugin for more, so the kubelet has not written the file yet."""
    node = Node(kubelet := Kubelet(), BRIEF)
    kubelet.add("ns/vm")
    await node.allocate(A, "x")
    kubelet.entries.add(("uid-ns/vm", (A, "x")))
    await anyio.sleep(0.02)
    await node.usage.request()
    assert kubelet.lists == 1
    assert node.in_use == {(A, "x")}


@pytest.mark.parametrize("asked", [True, False])
async def test_the_devices_of_a_refused_pod_are_free_again_although_its_name_stays(asked: bool) -> None:
    node = Node(kubelet := Kubelet(), BRIEF)
    kubelet.add("ns/vm")
    await node.allocate(A, "x", asked=asked)
    with anyio.fail_after(5):
        while node.pending:
            await node.usage.request()
    assert not node.reservations.is_admitting


async def test_the_pod_under_admission_is_the_same_until_another_one_comes() -> None:
    node = Node(kubelet := Kubelet())
    kubelet.add("ns/old", (B, "y"))
    kubelet.add("ns/vm")
    await node.allocate(A, "x")
    kubelet.add("ns/vm", (A, "x"))
    assert (await node.identify()).owned == {(A, "x")}
    kubelet.add("ns/next")
    assert (await node.identify()).owned == frozenset()
    assert not node.reservations.is_admitting


async def test_the_next_pod_ends_at_once_what_a_refused_pod_had_pending() -> None:
    node = Node(kubelet := Kubelet())
    kubelet.add("ns/vm")
    await node.allocate(A, "x")
    kubelet.end("ns/vm")
    kubelet.add("ns/next")
    await node.identify()
    assert node.pending == set()


async def test_without_an_answer_nobody_is_known_to_ask() -> None:
    node = Node(kubelet := Kubelet())
    kubelet.add("ns/vm")
    await node.allocate(A, "x")
    assert node.reservations.identify(None).owned == frozenset()
    assert node.reservations.is_admitting, "it may be another container's plugin that takes its time"


async def test_an_admission_goes_on_while_another_plugin_takes_its_time() -> None:
    node = Node(kubelet := Kubelet(), BRIEF._replace(foreign_allocate=5.0))
    kubelet.add("ns/vm")
    await node.allocate(A, "x")
    kubelet.listed["ns/vm"].add((A, "x"))
    await anyio.sleep(2 * BRIEF.admission_settle)
    await node.usage.request()
    assert node.snapshots.now.reservations.admitting == {"x"}


async def test_an_admission_ends_some_time_after_the_checkpoint_has_all_of_it() -> None:
    node = Node(kubelet := Kubelet(), BRIEF._replace(foreign_allocate=5.0))
    kubelet.add("ns/vm")
    await node.allocate(A, "x")
    kubelet.add("ns/vm", (A, "x"))
    await node.usage.request()
    assert node.reservations.is_admitting
    with anyio.fail_after(4):
        while node.reservations.is_admitting:
            await node.usage.request()


async def test_an_admission_of_which_nothing_is_heard_ends_by_itself() -> None:
    node = Node(kubelet := Kubelet(), BRIEF)
    kubelet.add("ns/vm")
    await node.allocate(A, "x")
    kubelet.silent = True
    with anyio.fail_after(5):
        while node.reservations.is_admitting:
            await node.usage.request()
    assert node.pending == {"x"}, "silence proves nothing"


async def test_a_new_kubelet_admits_no_pod_of_the_one_before() -> None:
    node = Node(kubelet := Kubelet())
    kubelet.add("ns/vm")
    await node.allocate(A, "x")
    node.usage.kubelet_changed()
    assert not node.reservations.is_admitting


async def test_a_pod_that_comes_again_under_its_name_is_another_one() -> None:
    node = Node(kubelet := Kubelet())
    kubelet.add("ns/vm")
    await node.allocate(A, "x")
    kubelet.add("ns/vm", (A, "x"))
    await node.usage.request()
    kubelet.end("ns/vm")
    kubelet.add("ns/vm")
    assert (await node.identify()).owned == frozenset()


async def test_an_answer_without_the_pod_ends_its_admission() -> None:
    """A kubelet that was started again names some pods only."""
    node = Node(kubelet := Kubelet())
    kubelet.add("ns/static")
    kubelet.add("ns/vm")
    await node.allocate(A, "x")
    kubelet.add("ns/vm", (A, "x"))
    await node.usage.request()
    del kubelet.listed["ns/vm"]
    assert (await node.identify()).owned == frozenset()
