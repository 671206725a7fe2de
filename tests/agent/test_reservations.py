# SPDX-License-Identifier: Apache-2.0
"""Reservations: allocated or withdrawn, never both; until when an allocation is pending; who asks."""

from __future__ import annotations

import anyio
import pytest

from nodeagent.base.errors import Refused
from nodeagent.base.timeouts import Timeouts
from nodeagent.model.allocation import unnamed
from tests.agent.kubelets import A, B, Kubelet, Node

BRIEF = Timeouts()._replace(pod_resources_after_allocate=0.01, foreign_allocate=0.05)


async def test_an_id_is_allocated_or_withdrawn_and_never_both() -> None:
    book = (node := Node(Kubelet())).reservations
    nobody = book.identify(None)
    book.allocate(nobody, {"x": unnamed(A, None)}, {})
    assert not book.withdraw({"x", "y"}, ())
    assert book.withdraw({"y"}, ())
    with pytest.raises(Refused):
        book.allocate(nobody, {"z": unnamed(A, None), "y": unnamed(A, None)}, {})
    assert node.pending == {"x"}, "all of them, or none"
    book.restore({"y"}, ())
    book.allocate(nobody, {"y": unnamed(A, None)}, {})


async def test_a_function_behind_what_is_allocated_keeps_its_driver_and_the_other_way_round() -> None:
    node = Node(Kubelet(), BRIEF)
    book = node.reservations
    nobody = book.identify(None)
    assert book.withdraw((), {"f"})
    with pytest.raises(Refused, match="f"):
        book.allocate(nobody, {}, {(A, "node"): frozenset({"f"})})
    book.restore((), {"f"})
    book.allocate(nobody, {}, {(A, "node"): frozenset({"f"})})
    assert node.snapshots.now.behind == {"f"}
    assert not book.withdraw((), {"f"})
    with anyio.fail_after(5):
        while node.snapshots.now.behind:  # no pod was ever named with it: it was refused
            await anyio.sleep(0.01)
            book.expire()
    assert book.withdraw((), {"f"})


async def test_what_is_allocated_is_pending_until_the_kubelet_lists_it() -> None:
    node = Node(kubelet := Kubelet())
    kubelet.add("ns/vm")
    await node.allocate(A, "x")
    assert node.pending == {"x"}
    kubelet.add("ns/vm", (A, "x"))
    await node.usage.request()
    assert node.pending == set()
    assert node.in_use == {(A, "x")}


async def test_what_a_plain_init_container_gets_is_pending_until_the_checkpoint_has_it() -> None:
    node = Node(kubelet := Kubelet())
    kubelet.add("ns/vm")
    await node.allocate(A, "x")
    await node.usage.request()
    assert node.pending == {"x"}
    kubelet.add("ns/vm", (A, "x"), listed=False)
    await node.usage.request()
    assert node.pending == set()
    assert node.in_use == {(A, "x")}


async def test_an_old_entry_of_the_checkpoint_does_not_end_what_is_pending() -> None:
    node = Node(kubelet := Kubelet(reads_lists=False))
    kubelet.add("ns/old", (A, "x"))
    await node.usage.request()
    kubelet.end("ns/old")
    kubelet.add("ns/vm")
    kubelet.written = kubelet.written._replace(entries=node.kubelet.read_checkpoint().entries)
    await node.allocate(A, "x")
    await node.usage.request()
    assert node.pending == {"x"}


@pytest.mark.parametrize("asked", [True, False])
async def test_what_a_refused_pod_got_is_free_again(asked: bool) -> None:
    node = Node(kubelet := Kubelet(), BRIEF)
    kubelet.add("ns/vm")
    await node.allocate(A, "x", asked=asked)
    kubelet.end("ns/vm")
    with anyio.fail_after(5):
        while node.pending:
            await node.usage.request()


async def test_the_pod_under_admission_is_the_same_until_another_one_comes() -> None:
    node = Node(kubelet := Kubelet())
    kubelet.add("ns/old", (B, "y"))
    kubelet.add("ns/vm")
    await node.allocate(A, "x")
    kubelet.add("ns/vm", (A, "x"))
    answer, _ = await node.usage.request_in_allocate()
    assert answer is not None
    same = node.reservations.identify(answer.pods)
    assert same.name == "ns/vm"
    assert same.owned == {(A, "x")}
    kubelet.add("ns/next")
    answer, _ = await node.usage.request_in_allocate()
    assert answer is not None
    other = node.reservations.identify(answer.pods)
    assert other.owned == frozenset()
    assert not node.reservations.is_admitting
    assert other.is_of("ns/next")


async def test_without_an_answer_nobody_is_known_to_ask() -> None:
    node = Node(kubelet := Kubelet())
    kubelet.add("ns/vm")
    await node.allocate(A, "x")
    assert node.reservations.identify(None).owned == frozenset()
    assert node.reservations.is_admitting, "it may be another container's plugin that takes its time"


async def test_an_admission_goes_on_for_as_long_as_the_kubelet_may_be_at_it() -> None:
    """Also where a list of another plugin makes it write the checkpoint between two Allocates."""
    node = Node(kubelet := Kubelet(started=frozenset()), BRIEF)
    kubelet.add("ns/vm")
    await node.allocate(A, "x")
    kubelet.add("ns/vm", (A, "x"))
    await node.usage.request()
    assert node.snapshots.now.reservations.admitting == {"x"}
    kubelet.started = frozenset({"uid-ns/vm"})
    await node.usage.request()
    assert node.snapshots.now.reservations.admitting == set()


async def test_an_admission_of_which_nothing_is_heard_ends_by_itself() -> None:
    node = Node(kubelet := Kubelet(), BRIEF)
    kubelet.add("ns/vm")
    await node.allocate(A, "x")
    with anyio.fail_after(5):
        while node.reservations.is_admitting:
            await node.usage.request()
            node.reservations.expire()
    await node.usage.request()
    assert node.pending == set()


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
    answer, _ = await node.usage.request_in_allocate()
    assert answer is not None
    assert node.reservations.identify(answer.pods).owned == frozenset()


async def test_what_is_pending_gets_the_name_of_its_pod_as_soon_as_that_is_known() -> None:
    node = Node(kubelet := Kubelet())
    kubelet.add("ns/vm")
    await node.allocate(A, "init")
    await node.allocate(B, "app")
    kubelet.add("ns/vm", (B, "app"))
    await node.usage.request()
    assert str(node.snapshots.now.reservations.pending["init"]) == "ns/vm"


async def test_all_that_one_pod_gets_has_one_holder_also_before_it_is_named() -> None:
    node = Node(kubelet := Kubelet())
    kubelet.add("ns/vm")
    await node.allocate(A, "init")
    kubelet.add("ns/vm", (A, "init"), listed=False)
    await node.allocate(B, "app")
    one, other = node.allocations.holder("init"), node.snapshots.now.holder("app")
    assert one is not None
    assert other is not None
    assert one.is_with(other)


async def test_a_pod_may_ask_again_for_what_it_has_until_it_is_started() -> None:
    node = Node(kubelet := Kubelet(started=frozenset()))
    kubelet.add("ns/vm")
    await node.allocate(A, "x")
    assert node.reservations.is_admitted((A, "x")), "its container has not got all yet"
    kubelet.add("ns/vm", (A, "x"))
    await node.usage.request()
    assert node.reservations.is_admitted((A, "x"))
    kubelet.started = frozenset({"uid-ns/vm"})
    await node.usage.request()
    assert not node.reservations.is_admitted((A, "x"))
