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


def test_objects_that_refer_to_each_other_in_circles_are_freed() -> None:
    gc.disable()
    try:
        circle = weakref.ref(Circle())
        assert circle() is not None
        memory.tidy()
        assert circle() is None
    finally:
        gc.enable()
