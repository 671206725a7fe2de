# SPDX-License-Identifier: Apache-2.0
"""A scan shared by threads: what happens at its end. How threads are started is in test_look.py."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.lowlevel

from nodeagent.demo import nodes
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import Item, Scanner
from nodeagent.kernel.survey import Survey
from nodeagent.model.host import Host


async def test_a_finding_that_comes_after_the_end_is_not_noted(tmp_path: Path) -> None:
    host = nodes.many(tmp_path, 2)
    host.hang(nodes.address(0), "enable")
    scanner = Scanner(Root(tmp_path))
    survey = Survey(scanner, scanner.plan(None, Host()), Host(), frozenset())
    call = survey.start()
    with anyio.fail_after(10):
        while not survey.overdue(0):
            await anyio.lowlevel.checkpoint()
    hanging = Item("function", nodes.address(0))
    assert [item for item, _ in survey.close(older_than=0)] == [hanging]
    host.unhang(nodes.address(0), "enable")
    await call.wait()
    assert survey.findings.functions == {}
    assert hanging in survey.missing()


async def test_items_to_skip_are_missing_and_not_read(tmp_path: Path) -> None:
    nodes.many(tmp_path, 3)
    scanner = Scanner(Root(tmp_path))
    skipped = Item("function", nodes.address(1))
    survey = Survey(scanner, scanner.plan(None, Host()), Host(), frozenset({skipped}))
    await survey.start().wait()
    assert survey.done
    assert survey.missing() == [skipped]
    assert list(survey.findings.functions) == [nodes.address(0), nodes.address(2)]
