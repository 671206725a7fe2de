# SPDX-License-Identifier: Apache-2.0
"""The list that the kubelet sees, and ids that may not leave it while they are being allocated."""

from __future__ import annotations

import anyio

from nodeagent.kubelet.deviceplugin import listing
from nodeagent.kubelet.deviceplugin.listing import Listing
from tests import virtual
from tests.kubelet.answers import BROKEN, device

LINGER = 1.0  # seconds
A, B = device("a", numa=1), device("b")


async def until_listed(shown: Listing, *names: str) -> None:
    with anyio.fail_after(LINGER + 4):
        seen = -1
        while listing.ids(shown.cell.get()) != names:
            seen, _ = await shown.cell.newer(seen)


def test_an_equal_list_is_no_news() -> None:
    shown = Listing((A, B))
    assert not shown.show((device("a", numa=1), device("b")))
    assert shown.show((B, A))
    assert listing.ids(shown.cell.get()) == ("b", "a")


def test_a_list_is_encoded_once_for_all_streams_and_for_each_kubelet_that_comes() -> None:
    shown = Listing((A, B))
    first = shown.encoded
    shown.show((device("a", numa=1), device("b")))
    shown.send_again()
    assert shown.encoded is first


def test_what_is_sent_is_the_list_that_is_shown() -> None:
    shown = Listing((A, B))
    for devices in ((A, B), (device("a", BROKEN), B), (B,), ()):
        shown.show(devices)
        assert shown.encoded == listing.encode_list(devices)


@virtual.TIME
async def test_an_id_stays_unhealthy_while_it_is_allocated_and_leaves_a_moment_later() -> None:
    shown = Listing((A, B))
    with shown.allocating(["a"], LINGER):
        shown.show((B,))
        assert listing.ids(shown.cell.get()) == ("b", "a")
        kept = shown.cell.get()[1]
        assert not kept.healthy
        assert kept.numa == 1
    assert listing.ids(shown.cell.get()) == ("b", "a")
    ended = anyio.current_time()
    await until_listed(shown, "b")
    assert anyio.current_time() - ended >= LINGER - 0.05


@virtual.TIME
async def test_a_reason_that_was_known_is_kept() -> None:
    shown = Listing((device("a", BROKEN),))
    with shown.allocating(["a"], LINGER):
        shown.show(())
        assert shown.cell.get() == (device("a", BROKEN),)
    await until_listed(shown)


@virtual.TIME
async def test_two_allocates_of_one_id_both_protect_it() -> None:
    shown = Listing((A,))
    with shown.allocating(["a"], LINGER):
        with shown.allocating(["a"], LINGER):
            shown.show(())
        released = anyio.current_time() + LINGER + 0.1
        await anyio.sleep_until(released)  # the first protection has run out by now
        assert listing.ids(shown.cell.get()) == ("a",)
    await until_listed(shown)


async def test_an_id_that_comes_back_is_shown_as_it_is() -> None:
    shown = Listing((A,))
    with shown.allocating(["a"], LINGER):
        shown.show(())
        shown.show((A,))
        assert shown.cell.get() == (A,)


async def test_an_unknown_id_is_not_made_up() -> None:
    shown = Listing((A,))
    with shown.allocating(["stranger"], LINGER):
        shown.show(())
        assert shown.cell.get() == ()


def test_a_list_that_is_to_be_sent_again_wakes_its_streams() -> None:
    listing = Listing((device("a"),))
    seen = listing.cell.version
    listing.send_again()
    assert listing.cell.version != seen
    assert listing.cell.get() == (device("a"),)
    assert listing.repeats == 1
