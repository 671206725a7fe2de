# SPDX-License-Identifier: Apache-2.0
"""Fixtures: the packages, built once; systems of each release, fresh ones for tests that change them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging import building, machine, systems
from tests.packaging.building import Packages
from tests.packaging.machine import Machine

_OWN = Path(__file__).with_name("pytest.ini")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Only ``make packaging-test`` collects this tier: it needs root, containers and Debian's tools."""
    return None if config.inipath == _OWN else True


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    """Of this source."""
    return building.build(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="session")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    """Of the next version."""
    folder = tmp_path_factory.mktemp("newer")
    building.next_version(folder / "source", "99.0.0")
    return building.build(folder / "dist", folder / "source")


@pytest.fixture(scope="session")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of the executable."""
    return building.binary(tmp_path_factory.mktemp("binary"))


@pytest.fixture(params=systems.SUITES)
def empty(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """A booted system that has never seen nodeagent."""
    with machine.booted(systems.root(request.param)) as found:
        yield found


@pytest.fixture(scope="session", params=systems.SUITES)
def shared(request: pytest.FixtureRequest, packages: Packages) -> Iterator[Machine]:
    """A booted system with the .deb, for tests that leave it as it was."""
    with machine.booted(systems.root(request.param)) as found:
        found.run(f"dpkg -i {found.put(packages.deb)}")
        found.until_active()
        yield found


@pytest.fixture
def installed(empty: Machine, packages: Packages) -> Machine:
    """The same with the .deb."""
    empty.run(f"dpkg -i {empty.put(packages.deb)}")
    empty.until_active()
    return empty
