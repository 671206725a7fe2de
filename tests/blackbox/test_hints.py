# SPDX-License-Identifier: Apache-2.0
"""What a daemon advises when it cannot write or listen: by what is wrong with the place. For root."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.blackbox.harness import Node
from tests.mounts import mounted, needs_root
from tests.sim import hosts


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """A file system that takes nothing."""
    with mounted(path):
        subprocess.run(["mount", "-o", "remount,ro", str(path)], check=True)
        yield


@contextmanager
def full(path: Path) -> Iterator[None]:
    """A file system without room for another file."""
    with mounted(path):
        subprocess.run(["mount", "-o", "remount,nr_inodes=1", str(path)], check=True)
        yield


@contextmanager
def a_file(path: Path) -> Iterator[None]:
    """A file in place of the directory."""
    path.rmdir()
    path.write_text("")
    yield


PLACES: dict[str, tuple[Callable[[Path], AbstractContextManager[None]], str]] = {
    "read-only": (read_only, "mount it writable"),
    "full": (full, "make room"),
    "a file": (a_file, "a part of that path is no directory"),
}


@needs_root
@pytest.mark.parametrize("wrong", PLACES)
async def test_a_place_for_records_says_what_is_wrong_with_it_and_what_goes_without(
    node: Node, wrong: str
) -> None:
    make, helps = PLACES[wrong]
    node.add_gpus(1)
    state = node.root / "var/lib/nodeagent"
    state.mkdir(parents=True)
    with make(state):
        async with node.daemon() as daemon:
            hint = (await daemon.logged("config-not-saved"))["hint"]
    assert helps in hint
    assert "start" in hint.partition(helps)[2], "what goes without it"


@needs_root
@pytest.mark.parametrize("wrong", PLACES)
async def test_a_place_for_cdi_files_says_it_to_the_log_and_the_status(node: Node, wrong: str) -> None:
    make, helps = PLACES[wrong]
    hosts.many(node.root, 1)
    node.configure('resources: [{name: a.b/c, cdi: true, pci: [{vendors: ["10de"]}]}]\n')
    place = node.root / "var/run/cdi"
    place.mkdir(parents=True)
    with make(place):
        async with node.kubelet(), node.daemon() as daemon:
            hint = (await daemon.logged("cdi-failed"))["hint"]
            told = await node.until_told(lambda told: any("CDI file" in each for each in told["problems"]))
    assert helps in hint
    assert "cdi: false" in hint
    assert any(hint in each for each in told["problems"])
