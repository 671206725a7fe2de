# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.base.few_watches DIRECTORY``: of two watches one is refused, until there are more.

Run it in a user namespace of its own, whose limit it sets. The directory holds ``a`` and ``b``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio

from nodeagent.base.watch import Change, DirectoryWatcher
from tests.hearing import Heard


def limit(watches: int) -> None:
    """Allow so many in this namespace."""
    Path("/proc/sys/user/max_inotify_watches").write_text(str(watches))


async def main(base: Path) -> None:
    """Be refused, then not."""
    first, second = str(base / "a"), str(base / "b")
    limit(2)
    watcher = DirectoryWatcher(str(base))
    heard: Heard[Change] = Heard()
    async with anyio.create_task_group() as group:
        group.start_soon(watcher.check, 0.01)
        await anyio.wait_all_tasks_blocked()
        watcher.watch(first, heard)
        watcher.watch(second, heard)
        print(watcher.unwatched)
        limit(100)
        await heard.until_told(Change(second, lost=True))
        print(*dict.fromkeys(change.directory for change in heard.all), watcher.unwatched)
        group.start_soon(watcher.run)
        os.mkdir(f"{second}/new")
        await heard.until_told(Change(second, "new"))
        group.cancel_scope.cancel()
    watcher.close()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
