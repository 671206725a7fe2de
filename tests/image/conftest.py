# SPDX-License-Identifier: Apache-2.0
"""Fixtures: the image, built once; a simulated node whose directories a container gets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.blackbox.harness import Node
from tests.image import containers
from tests.image.containers import Image

_OWN = Path(__file__).with_name("pytest.ini")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Only ``make image-test`` collects this tier: it needs root, containers and tools of its own."""
    return None if config.inipath == _OWN else True


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """Of this source."""
    yield containers.build(tmp_path_factory.mktemp("image"), "localhost/nodeagent-test:one")
    containers.podman("image", "rm", "--force", "localhost/nodeagent-test:one")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node with one GPU."""
    found = Node(tmp_path)
    found.add_gpus(1)
    return found
