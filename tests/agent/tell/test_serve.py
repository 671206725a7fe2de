# SPDX-License-Identifier: Apache-2.0
"""The two sockets: the Status at the path of the setting, what is in force beside it."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from nodeagent.agent import tell
from nodeagent.agent.tell import basis, status
from nodeagent.agent.tell.basis import Basis
from nodeagent.base import sockets, threads
from nodeagent.base.errors import KernelRefused
from nodeagent.model import plain
from nodeagent.model.snapshot import Snapshot
from tests.render.statuses import WELL

BASIS = Basis(Snapshot(machine_id="7"), {}, (), ())


async def test_each_socket_gives_its_own_document(tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(status.serve_status, path, lambda: WELL, 5.0)
        tasks.start_soon(status.serve_snapshot, path, lambda: BASIS, 5.0)
        await anyio.wait_all_tasks_blocked()
        assert await threads.call(sockets.ask, path, 5.0) == plain.dump(WELL)
        document = await threads.call(sockets.ask, tell.snapshot_socket(path), 5.0)
        tasks.cancel_scope.cancel()
    assert basis.load(document) == BASIS
    assert os.listdir(tmp_path) == []


async def test_a_socket_that_cannot_be_had_names_its_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = str(tmp_path / "file" / "s.sock")
    for name, serving in (
        ("s.sock", status.serve_status(path, lambda: WELL, 5.0)),
        ("s.sock.snapshot", status.serve_snapshot(path, lambda: BASIS, 5.0)),
    ):
        with pytest.raises(KernelRefused, match=name) as caught:
            await serving
        assert "--status-socket" in caught.value.hint
