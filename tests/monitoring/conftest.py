# SPDX-License-Identifier: Apache-2.0
"""Only ``make monitoring-test`` collects this tier: it needs promtool, Prometheus and Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.monitoring import programs

_OWN = Path(__file__).with_name("pytest.ini")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave this tier to its own runner."""
    return None if config.inipath == _OWN else True


@pytest.fixture(scope="session")
def promtool() -> str:
    """The program that checks metrics and rules."""
    return programs.needed("promtool")


@pytest.fixture(scope="session")
def prometheus() -> str:
    """The server itself."""
    return programs.needed("prometheus")


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser."""
    return programs.needed("chromium")
