# SPDX-License-Identifier: Apache-2.0
"""The names that were offered here come back after a restart, bounded, or not at all."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeagent import config
from nodeagent.agent import core as cores
from nodeagent.agent.cluster import offered
from nodeagent.agent.cluster.offered import MOST, Offered
from nodeagent.agent.core import Core
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Sources
from nodeagent.kernel.root import Root

OLD, NEW = "example.com/old", "example.com/new"
COUNTS = {"cpu": "4", OLD: "0", "example.com/foreign": "0"}
NODE: dict[str, Any] = {
    "metadata": {"name": "n", "managedFields": [1]},
    "status": {"capacity": COUNTS, "allocatable": COUNTS, "images": [1]},
}


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    made = cores.build(Root(str(tmp_path)), Latest(config.load(Sources("/nowhere", {}, {}))), Timeouts())
    yield made
    made.watcher.close()


async def test_names_are_kept_over_a_restart(core: Core, tmp_path: Path) -> None:
    first = Offered(core)
    await first.learn((OLD,))
    await first.learn((NEW,))
    again = Offered(core)
    await again.load()
    assert again.names == (OLD, NEW)
    path = tmp_path / "var/lib/nodeagent/offered.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["{", '{"sha256": "x", "body": "{}"}', "[]"])
async def test_a_damaged_file_is_set_aside_and_names_are_learned_anew(
    core: Core, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "var/lib/nodeagent/offered.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    made = Offered(core)
    await made.learn((NEW,))
    assert made.names == (NEW,)
    assert (path.parent / "offered.json.broken").read_text() == text
    assert json.loads(path.read_text()) == {"names": [NEW]}


async def test_what_cannot_be_written_counts_until_the_end(core: Core, tmp_path: Path) -> None:
    (tmp_path / "var").write_text("no directory")
    made = Offered(core)
    await made.learn((OLD,))
    await made.learn((NEW,))
    assert made.names == (OLD, NEW)


def test_of_too_many_names_the_oldest_are_forgotten() -> None:
    names = offered.merged((), (f"a.b/{number:03}" for number in range(MOST)))
    assert len(names) == MOST
    more = offered.merged(names, ("a.b/new", "a.b/000"))
    assert len(more) == MOST
    assert "a.b/001" not in more
    assert more[-2:] == ("a.b/000", "a.b/new")


async def test_of_the_node_the_counts_are_kept_of_what_was_offered_here(core: Core) -> None:
    made = Offered(core)
    metadata = {"metadata": {"name": "n"}}
    assert made.of_node(NODE) == metadata
    await made.learn((OLD,))
    assert made.of_node(NODE) == metadata | {"status": {"capacity": {OLD: "0"}, "allocatable": {OLD: "0"}}}
    settings = core.settings.get()
    core.settings.set(replace(settings, cluster=settings.cluster._replace(stale_resources="off")))
    assert made.of_node(NODE) == metadata
