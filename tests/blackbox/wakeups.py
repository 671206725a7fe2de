# SPDX-License-Identifier: Apache-2.0
"""``nodeagent`` in a process where a wakeup can be lost: after SIGUSR1 some tasks wait for ever.

Used as ``python wakeups.py TASK,TASK COMMAND…``: COMMAND is the daemon's, run in this process. What is lost
is what a faulty library loses: the callback by which the end of a wait goes on in the task that waits.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from typing import Any

from nodeagent.__main__ import main


def lose(names: Sequence[str]) -> None:
    """Take from each task of these names the callback that wakes it."""
    for task in asyncio.all_tasks():
        waiter: asyncio.Future[Any] | None = task._fut_waiter  # type: ignore[attr-defined]  # noqa: SLF001 - a wakeup can be lost only where asyncio keeps it
        if waiter is not None and task.get_name() in names:
            for callback, _ in tuple(waiter._callbacks or ()):  # noqa: SLF001 - as above
                waiter.remove_done_callback(callback)


if __name__ == "__main__":
    names, command = sys.argv[1].split(","), sys.argv[2:]
    signal.signal(signal.SIGUSR1, lambda *_: lose(names))
    sys.argv = command[command.index("nodeagent") :]
    main()
