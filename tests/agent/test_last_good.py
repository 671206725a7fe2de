# SPDX-License-Identifier: Apache-2.0
"""Settings in force are put on disk; that they cannot be is told once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio

from nodeagent import config
from nodeagent.agent.config_loop import LastGood
from nodeagent.base import log
from nodeagent.base.latest import Latest
from nodeagent.base.state import SETTINGS
from nodeagent.config import Sources
from nodeagent.kernel.root import Root
from tests.conftest import Said


async def test_a_refusal_is_told_once_until_it_has_ended(tmp_path: Path, said: Said) -> None:
    settings = config.load(Sources(str(tmp_path), {}, {}))
    keeper, state = LastGood(Root(tmp_path), Latest(settings), again=60.0), tmp_path / "var/lib/nodeagent"
    in_the_way(state)
    for _ in range(2):
        await keeper.one_turn(settings)
    (line,) = said(log.CONFIG_NOT_SAVED)
    assert str(state) in str(line["error"])
    remove(state)
    await keeper.one_turn(settings)
    assert is_kept(tmp_path)
    remove(Path(SETTINGS.path(str(tmp_path))))
    state.rmdir()
    in_the_way(state)
    await keeper.one_turn(settings)
    assert len(said(log.CONFIG_NOT_SAVED)) == 2


async def test_what_could_not_be_written_is_written_when_it_can_be(tmp_path: Path, said: Said) -> None:
    settings, state = config.load(Sources(str(tmp_path), {}, {})), tmp_path / "var/lib/nodeagent"
    in_the_way(state)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(LastGood(Root(tmp_path), Latest(settings), again=0.01).run)
        await until(lambda: said(log.CONFIG_NOT_SAVED))
        remove(state)
        await until(lambda: is_kept(tmp_path))
        tasks.cancel_scope.cancel()


async def until(seen: Callable[[], object]) -> None:
    with anyio.fail_after(10):
        while not seen():  # noqa: ASYNC110 - lines and files tell nobody
            await anyio.sleep(0.01)


def in_the_way(directory: Path) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.write_text("")


def remove(file: Path) -> None:
    file.unlink()


def is_kept(root: Path) -> bool:
    return Path(SETTINGS.path(str(root))).is_file()
