# SPDX-License-Identifier: Apache-2.0
"""Kinds of host devices: each kind has all of its parts, which no type checker sees."""

from __future__ import annotations

from typing import get_args

from nodeagent.kernel.scan import scanner
from nodeagent.model.host import Changes, Host
from nodeagent.model.spec import DeviceRule
from nodeagent.policy.offer import kinds


def test_each_kind_is_scanned_compared_and_offered() -> None:
    host = Host()
    tables = {name for name in Changes._fields if name != "groups"}
    assert [getattr(host, name) for name in Changes._fields if name in tables] == list(host.tables.values())
    assert tables <= scanner.READERS.keys()
    rules = [kind.rule for kind in kinds.KINDS.values()]
    assert rules == list(get_args(DeviceRule))
    assert [rule.kind for rule in rules] == list(host.tables)
