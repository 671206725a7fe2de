# SPDX-License-Identifier: Apache-2.0
"""Trees are kept while they are wanted, and no longer."""

from __future__ import annotations

from pathlib import Path

from tests.structure import sources

HERE = Path(__file__)


def test_a_tree_is_made_once_until_all_are_forgotten() -> None:
    kept = sources.tree(HERE)
    assert sources.tree(HERE) is kept
    sources.forget()
    assert sources.tree(HERE) is not kept
