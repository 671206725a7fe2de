# SPDX-License-Identifier: Apache-2.0
"""What cannot be read is said when it begins and when it ends."""

from __future__ import annotations

from nodeagent.agent.observe import ReadReports
from nodeagent.base import log
from nodeagent.base.errors import KernelRefused
from tests.conftest import Said

BLIND = KernelRefused("the host cannot be looked at: Too many open files", "look", errno=24)
HANGING = KernelRefused("the list cannot be read", path="/sys")


def test_a_host_that_cannot_be_looked_at_is_said_once_and_so_is_the_end(said: Said) -> None:
    reads = ReadReports(0.5)
    for _ in range(3):
        reads.report((), BLIND)
    assert [reads.unreadable] == [BLIND.what]
    for _ in range(2):
        reads.report((), None)
    assert reads.unreadable is None
    assert [event["error"] for event in said(log.HOST_READ_FAILED)] == [BLIND.what]
    assert [event["object"] for event in said(log.HOST_READ_RECOVERED)] == ["the host"]


def test_what_hangs_is_something_else(said: Said) -> None:
    reads = ReadReports(0.5)
    reads.report(("0000:01:00.0",), HANGING)
    reads.report(("0000:01:00.0",), None)
    assert reads.unreadable is None
    assert [event["object"] for event in said(log.HOST_READ_SLOW)] == ["/sys", "0000:01:00.0"]
    assert [event["object"] for event in said(log.HOST_READ_RECOVERED)] == ["/sys"]
