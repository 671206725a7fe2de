# SPDX-License-Identifier: Apache-2.0
"""The names that were offered here come back after a restart, bounded, or not at all."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.agent import core as cores
from nodeagent.agent.cluster.stale import MOST, StaleResources, add_names
from nodeagent.agent.core import Core
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.root import Root
from tests.agent.cluster.telling import DEFAULTS

OLD, NEW = "example.com/old", "example.com/new"


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    made = cores.build(Root(str(tmp_path)), Latest(DEFAULTS), Timeouts())
    yield made
    made.watcher.close()


async def test_names_are_kept_over_a_restart(core: Core, tmp_path: Path) -> None:
    first = StaleResources(core)
    await first.learn_names((OLD,))
    await first.learn_names((NEW,))
    assert await StaleResources(core).learn_names(()) == (OLD, NEW)
    path = tmp_path / "var/lib/nodeagent/last.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["{", '{"offered": {"body": "{}"}}', "[]"])
async def test_a_damaged_file_is_set_aside_and_names_are_learned_anew(
    core: Core, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "var/lib/nodeagent/last.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert await StaleResources(core).learn_names((NEW,)) == (NEW,)
    assert (path.parent / "last.json.broken").read_text() == text
    assert json.loads(path.read_text()) == {"offered": {"names": [NEW]}}


async def test_what_cannot_be_written_counts_until_the_end(core: Core, tmp_path: Path) -> None:
    (tmp_path / "var").write_text("no directory")
    made = StaleResources(core)
    await made.learn_names((OLD,))
    assert await made.learn_names((NEW,)) == (OLD, NEW)


def test_of_too_many_names_the_oldest_are_forgotten() -> None:
    names = add_names((), (f"a.b/{number:03}" for number in range(MOST)))
    assert len(names) == MOST
    more = add_names(names, ("a.b/new", "a.b/000"))
    assert len(more) == MOST
    assert "a.b/001" not in more
    assert more[-2:] == ("a.b/000", "a.b/new")
