# SPDX-License-Identifier: Apache-2.0
"""A scan shared by threads: what happens at its end. How threads are started is in test_runner.py."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from nodeagent.kernel.root import Root
from nodeagent.kernel.scan.queue import ReadQueue, Worklist
from nodeagent.kernel.scan.readers import Item
from nodeagent.kernel.scan.scanner import Scanner
from nodeagent.model.host import Group, Host, MdevType
from nodeagent.model.ids import GroupNumber
from nodeagent.sim import files, nodes
from tests.sim import fifos

CARD = nodes.address(0)
ROOM = f"{CARD}/mdev_supported_types/nvidia-228/available_instances"
GROUP = GroupNumber(40)
UUID = "53764d0e-85a0-42b4-af5c-2046b460b1dc"

LONG = 0.5  # seconds


async def test_a_value_that_comes_after_the_end_is_not_noted(tmp_path: Path) -> None:
    host = nodes.many(tmp_path, 2)
    fifos.hang(host, nodes.address(0), "enable")
    scanner = Scanner(Root(tmp_path))
    items = Worklist(scanner.plan(None, Host(), ()), Host(), frozenset())
    queue = ReadQueue(scanner, items)
    call = queue.start()
    with anyio.fail_after(10):
        while not queue.overdue(0):
            await anyio.lowlevel.checkpoint()
    hanging = Item("functions", nodes.address(0))
    assert [item for item, _ in queue.close(older_than=0)] == [hanging]
    fifos.unhang(host, nodes.address(0), "enable")
    await call.wait()
    assert items.findings.tables["functions"] == {}
    assert hanging in queue.missing()


async def test_a_scan_is_overdue_when_all_that_is_being_read_has_been_for_long(tmp_path: Path) -> None:
    host = nodes.many(tmp_path, 2)
    for number in range(2):
        fifos.hang(host, nodes.address(number), "enable")
    scanner = Scanner(Root(tmp_path))
    plan = scanner.plan(None, Host(), ())
    others = frozenset(item for item in plan.items if item.table != "functions")
    queue = ReadQueue(scanner, Worklist(plan, Host(), others))
    assert not queue.overdue(-1)  # nothing is being read yet
    calls = [queue.start()]
    with anyio.fail_after(10):
        while not queue.overdue(LONG):
            await anyio.lowlevel.checkpoint()
        calls.append(queue.start())
        while queue.pending:
            await anyio.lowlevel.checkpoint()
        assert not queue.overdue(LONG)  # the second has just begun
        while not queue.overdue(LONG):
            await anyio.lowlevel.checkpoint()
    for number, call in enumerate(calls):
        fifos.unhang(host, nodes.address(number), "enable")
        await call.wait()
    assert queue.done
    assert not queue.overdue(-1)


async def test_items_to_skip_are_missing_and_not_read(tmp_path: Path) -> None:
    nodes.many(tmp_path, 3)
    scanner = Scanner(Root(tmp_path))
    skipped = Item("functions", nodes.address(1))
    items = Worklist(scanner.plan(None, Host(), ()), Host(), frozenset({skipped}))
    queue = ReadQueue(scanner, items)
    await queue.start().wait()
    assert queue.done
    assert queue.missing() == [skipped]
    assert list(items.findings.tables["functions"]) == [nodes.address(0), nodes.address(2)]


@pytest.mark.parametrize("keys", [None, frozenset({CARD, "/sys/kernel/iommu_groups/40"})])
async def test_room_that_was_read_before_an_mdev_was_seen_to_leave_is_read_again(
    tmp_path: Path, keys: frozenset[str] | None
) -> None:
    """A removal gives its room back at its end, and room has no event: this scan is the last to hear."""
    host = nodes.many(tmp_path, 1)
    group, room = (host.path(f"/sys/{path}") for path in ("kernel/iommu_groups/40", f"class/mdev_bus/{ROOM}"))
    files.write(room, "0\n")
    files.write(f"{group}/type", "unknown\n")
    fifos.replace_by_fifo(f"{group}/type")
    before = Host(groups={GROUP: Group(GROUP, (UUID,))}, mdev_parents={CARD: (MdevType("nvidia-228"),)})
    scanner = Scanner(Root(tmp_path))
    items = Worklist(scanner.plan(keys, before, ()), before, frozenset())
    queue = ReadQueue(scanner, items)
    calls = [queue.start(), queue.start()]
    with anyio.fail_after(10):
        while CARD not in items.findings.tables["mdev_parents"]:
            await anyio.lowlevel.checkpoint()
    files.write(room, "2\n")
    fifos.replace_fifo(f"{group}/type", b"unknown\n")
    for call in calls:
        await call.wait()
    assert items.findings.tables["mdev_parents"][CARD] == (MdevType("nvidia-228", available=2),)
