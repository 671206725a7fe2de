# SPDX-License-Identifier: Apache-2.0
"""The syntax trees are kept for the tests here alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.structure import sources


@pytest.fixture(scope="package", autouse=True)
def trees() -> Iterator[None]:
    """The daemon collects garbage at its start, and so do tests that run after these in one process."""
    yield
    sources.forget()
