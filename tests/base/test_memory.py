# SPDX-License-Identifier: Apache-2.0
"""Giving memory back. Left out: how many pages the C library returns, which is its own business."""

from __future__ import annotations

import gc
import weakref

from nodeagent.base import memory


class Circle:
    """Refers to itself."""

    def __init__(self) -> None:
        self.me = self


def test_what_was_made_while_starting_is_neither_collected_nor_looked_at_again() -> None:
    memory.begin_start()
    assert not gc.isenabled()
    before = gc.get_freeze_count()
    kept = Circle()
    memory.end_start()
    assert gc.isenabled()
    assert gc.get_freeze_count() > before
    assert not any(each is kept for each in gc.get_objects())


def test_objects_that_refer_to_each_other_in_circles_are_freed() -> None:
    gc.disable()
    try:
        circle = weakref.ref(Circle())
        assert circle() is not None
        memory.tidy()
        assert circle() is None
    finally:
        gc.enable()


def test_nothing_is_collected_in_a_block_that_says_so_and_then_as_before() -> None:
    with memory.uncollected():
        assert not gc.isenabled()
        with memory.uncollected():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
