# SPDX-License-Identifier: Apache-2.0
"""What waits for a release is looked at again and again, and nothing else ever."""

from __future__ import annotations

import anyio

from nodeagent.agent import releases
from nodeagent.base.latest import Latest


async def test_what_waits_is_looked_at_after_each_pause_until_it_waits_no_more() -> None:
    cell, pauses, looked = Latest(frozenset[str]()), iter((0.02, 0.0, 0.0)), list[frozenset[str]]()

    async def look(ids: frozenset[str]) -> None:
        looked.append(ids)
        cell.set(frozenset({"a"} if len(looked) < 3 else ()))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(releases.while_any, cell, lambda: next(pauses), look)
        await anyio.wait_all_tasks_blocked()
        assert looked == []
        began = anyio.current_time()
        cell.set(frozenset({"a", "b"}))
        with anyio.fail_after(5):
            while cell.get():
                await cell.newer(cell.version)
        assert anyio.current_time() - began >= 0.02
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert looked == [{"a", "b"}, {"a"}, {"a"}]
