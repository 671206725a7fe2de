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
    try:
        before = gc.get_freeze_count()
        kept = Circle()
        memory.end_start()
        assert not gc.isenabled(), "any thread would collect"
        assert gc.get_freeze_count() > before
        assert not any(each is kept for each in gc.get_objects())
    finally:
        gc.enable()


def test_what_python_would_have_collected_is_collected_when_asked_for() -> None:
    with memory.uncollected():
        gc.collect()
        circle = weakref.ref(Circle())
        memory.collect()
        assert circle() is not None, "there is too little of it"
        many = [Circle() for _ in range(gc.get_threshold()[0])]
        memory.collect()
        assert circle() is None
        del many


def test_what_has_grown_old_is_looked_at_in_its_turn() -> None:
    with memory.uncollected():
        gc.collect()
        old = Circle()
        gc.collect(0)  # it has survived one
        circle = weakref.ref(old)
        del old
        for _ in range(gc.get_threshold()[1] + 1):
            many = [Circle() for _ in range(gc.get_threshold()[0] + 1)]
            memory.collect()
            del many
        assert circle() is None


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
