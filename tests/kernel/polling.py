# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.kernel.polling``: what is watched on a host without uevents.

Run it in a user namespace of its own, where none arrive, and nobody may have a buffer beyond the limit.
"""

from __future__ import annotations

import socket

import anyio

from nodeagent.base.timeouts import Timeouts
from nodeagent.base.watch import DirectoryWatcher
from nodeagent.kernel import uevents
from nodeagent.kernel.events import KernelEvents
from nodeagent.kernel.root import Root
from tests.hearing import Heard
from tests.kernel.requesting import HeardScanRequests


async def main() -> None:
    """Watch until armed."""
    heard: Heard[str | None] = Heard()
    watcher = DirectoryWatcher()
    watch = KernelEvents(Root(), watcher, HeardScanRequests(heard), timeouts=Timeouts())
    async with anyio.create_task_group() as group:
        group.start_soon(watch.run)
        await heard.until_told(None)
        print(watch.statistics.source, watch.armed.is_set(), watcher.watches > 0)
        group.cancel_scope.cancel()
    watcher.close()
    with uevents.open_socket() as sock:
        print(sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF))


if __name__ == "__main__":
    anyio.run(main)
