# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.base.few_instances DIRECTORY``: no inotify instance at all, until there is one.

Run it in a user namespace of its own, whose limit it sets.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from nodeagent.base.watch import Change, DirectoryWatcher
from tests.hearing import Heard


def limit(instances: int) -> None:
    """Allow so many in this namespace."""
    Path("/proc/sys/user/max_inotify_instances").write_text(str(instances))


async def main(base: Path) -> None:
    """Be refused and polled, then not."""
    limit(0)
    watcher = DirectoryWatcher()
    heard: Heard[Change] = Heard()
    async with anyio.create_task_group() as group:
        group.start_soon(watcher.check, 0.01)
        group.start_soon(watcher.run)
        watcher.watch(str(base), heard)
        print(watcher.watches, watcher.unwatched == (str(base),))
        for _ in range(2):
            await heard.until_told(Change(str(base), lost=True))
            heard.clear()
        limit(10)
        heard.clear()
        await heard.until(lambda _: not watcher.unwatched)
        (base / "new").mkdir()
        await heard.until_told(Change(str(base), "new"))
        print(watcher.unwatched)
        watcher.unwatch(str(base), heard)
        group.cancel_scope.cancel()
    watcher.close()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
