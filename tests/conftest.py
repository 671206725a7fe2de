# SPDX-License-Identifier: Apache-2.0
"""What all tests share: asyncio is the one backend of anyio that nodeagent runs on."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of every async test."""
    return "asyncio"
