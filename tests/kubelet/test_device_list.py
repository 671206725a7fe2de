# SPDX-License-Identifier: Apache-2.0
"""The list that the kubelet sees, and ids that may not leave it while they are being allocated."""

from __future__ import annotations

import anyio

from nodeagent.kubelet.device_plugin import DeviceList
from tests import virtual
from tests.kubelet.answers import BROKEN, device

LINGER = 1.0  # seconds
A, B = device("a", numa=1), device("b")


async def until_listed(shown: DeviceList, *names: str) -> None:
    with anyio.fail_after(LINGER + 4):
        seen = -1
        while ids(shown) != names:
            seen, _ = await shown.cell.newer(seen)


def ids(shown: DeviceList) -> tuple[str, ...]:
    return tuple(device.id for device in shown.cell.get())


def test_an_equal_list_is_no_news() -> None:
    shown = DeviceList((A, B))
    shown.update((device("a", numa=1), device("b")))
    assert shown.cell.version == 0
    shown.update((B, A))
    assert ids(shown) == ("b", "a")


@virtual.TIME
async def test_an_id_stays_unhealthy_while_it_is_allocated_and_leaves_a_moment_later() -> None:
    shown = DeviceList((A, B))
    with shown.allocating(["a"], LINGER):
        shown.update((B,))
        assert ids(shown) == ("b", "a")
        kept = shown.cell.get()[1]
        assert not kept.healthy
        assert kept.numa == 1
    assert ids(shown) == ("b", "a")
    ended = anyio.current_time()
    await until_listed(shown, "b")
    assert anyio.current_time() - ended >= LINGER - 0.05


@virtual.TIME
async def test_a_reason_that_was_known_is_kept() -> None:
    shown = DeviceList((device("a", BROKEN),))
    with shown.allocating(["a"], LINGER):
        shown.update(())
        assert shown.cell.get() == (device("a", BROKEN),)
    await until_listed(shown)


@virtual.TIME
async def test_two_allocates_of_one_id_both_protect_it() -> None:
    shown = DeviceList((A,))
    with shown.allocating(["a"], LINGER):
        with shown.allocating(["a"], LINGER):
            shown.update(())
        released = anyio.current_time() + LINGER + 0.1
        await anyio.sleep_until(released)  # the first protection has run out by now
        assert ids(shown) == ("a",)
    await until_listed(shown)


async def test_an_id_that_comes_back_is_shown_as_it_is() -> None:
    shown = DeviceList((A,))
    with shown.allocating(["a"], LINGER):
        shown.update(())
        shown.update((A,))
        assert shown.cell.get() == (A,)


async def test_an_unknown_id_is_not_made_up() -> None:
    shown = DeviceList((A,))
    with shown.allocating(["stranger"], LINGER):
        shown.update(())
        assert shown.cell.get() == ()


def test_a_list_is_encoded_again_only_if_the_kubelet_would_see_a_difference() -> None:
    shown = DeviceList((A, B))
    first = shown.response
    shown.resend()
    shown.update((device("a", numa=1), device("b")))
    assert shown.response is first
    shown.update((device("a", BROKEN, numa=1), B))
    unhealthy = shown.response
    shown.update((device("a", BROKEN._replace(message="another text"), numa=1), B))
    assert shown.response is unhealthy
    assert bytes(unhealthy) != bytes(first)


def test_a_list_that_is_to_be_sent_again_wakes_its_streams() -> None:
    shown = DeviceList((device("a"),))
    seen = shown.cell.version
    shown.resend()
    assert shown.cell.version != seen
    assert shown.cell.get() == (device("a"),)
