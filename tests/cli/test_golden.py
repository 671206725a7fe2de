# SPDX-License-Identifier: Apache-2.0
"""The golden pages: each renderer's output, whole."""

from __future__ import annotations

import pytest

from tests.cli.golden import pages


@pytest.mark.parametrize("name", pages.PAGES)
def test_a_page_is_as_it_was_reviewed(name: str) -> None:
    assert pages.PAGES[name]() == pages.path(name).read_text(), "run: python -m tests.cli.golden"


def test_there_is_no_page_without_a_renderer() -> None:
    here = pages.path("x").parent
    assert {each.stem for each in here.glob("*.txt")} == set(pages.PAGES)
