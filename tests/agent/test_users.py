# SPDX-License-Identifier: Apache-2.0
"""Who has what open, asked in bounded time: what is not told in time counts as in use."""

from __future__ import annotations

import os
from pathlib import Path

import anyio

from nodeagent.agent import users
from nodeagent.demo import files
from nodeagent.kernel.root import Root

UUID = "53764d0e-85a0-42b4-af5c-2046b460b1dc"


async def test_what_the_kernel_does_not_tell_in_time_is_in_use(tmp_path: Path) -> None:
    driver = tmp_path / "sys/bus/mdev/devices" / UUID / "driver"
    driver.mkdir(parents=True)
    (driver / "module").symlink_to("../../../../../module/mtty")
    (tmp_path / "proc").mkdir()
    os.mkfifo(tmp_path / "proc/modules")
    with anyio.fail_after(2 * users.DEADLINE):
        assert await users.ask(Root(tmp_path), [UUID]) == {UUID}
    files.replace_fifo(str(tmp_path / "proc/modules"), b"mtty 20480 0 - Live 0x0\n")
    assert await users.ask(Root(tmp_path), [UUID]) == frozenset()
