# SPDX-License-Identifier: Apache-2.0
"""Assertions on the facts in a text: addresses, drivers, pods, keys, numbers; not on its wording."""

from __future__ import annotations


def names(text: str, *facts: str) -> None:
    """Assert that the text has each of these facts in it."""
    for fact in facts:
        assert fact in text, f"{fact!r} is not in: {text}"
