# SPDX-License-Identifier: Apache-2.0
"""What a loop reports: sockets that could not be accepted become an event, all else is asyncio's to tell."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from nodeagent.base import log, loopfaults
from tests.conftest import Said


async def test_an_accept_without_descriptors_is_told_without_a_traceback(
    said: Said, caplog: pytest.LogCaptureFixture
) -> None:
    error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    context = {"message": "socket.accept() out of system resource", "exception": error, "socket": None}
    loopfaults.handle(asyncio.get_running_loop(), context)
    (line,) = said(log.NO_DESCRIPTORS)
    assert line["error"] == "Too many open files"
    assert [record.exc_info for record in caplog.records] == [None]


@pytest.mark.parametrize("error", [ValueError("why"), OSError(errno.EMFILE, "elsewhere")])
async def test_all_else_is_told_as_asyncio_does(
    said: Said, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    loopfaults.handle(asyncio.get_running_loop(), {"message": "a callback failed", "exception": error})
    assert said(log.NO_DESCRIPTORS) == []
    assert [(record.name, record.exc_info is not None) for record in caplog.records] == [("asyncio", True)]
