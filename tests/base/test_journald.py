# SPDX-License-Identifier: Apache-2.0
"""A real systemd-journald takes our records, and finds them by their fields."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from nodeagent.base import log
from nodeagent.render import logs
from tests import journal

pytestmark = pytest.mark.skipif(bool(journal.missing()), reason=journal.missing() or "it is there")

SPEAKER = """
import sys
from nodeagent.base import log, log_handlers
log_handlers.setup("journald", "info", {}, sys.stderr, 60.0)
"""
FIND = "journalctl --sync; journalctl --no-pager --all -o json "


def said(code: str) -> str:
    """A shell command that logs; a line on stderr would say that the journal did not take it."""
    command = shlex.join([sys.executable, "-c", SPEAKER + code])
    return f'told=$({command} 2>&1); [ -z "$told" ]; '


def test_a_record_is_found_by_each_of_its_devices_and_by_its_pod() -> None:
    code = "log.event(log.ALLOCATED, resource='example.com/gpu', device=('a', 'b'), pod=('ns/p',))"
    searches = ("NODEAGENT_DEVICE=b", "NODEAGENT_POD=ns/p", f"MESSAGE_ID={log.ALLOCATED.id}")
    found = journal.run(said(code) + "".join(f"{FIND} {search}; " for search in searches))
    records = journal.records(found)
    assert len(records) == len(searches)
    assert {record["NODEAGENT_EVENT"] for record in records} == {"allocated"}
    assert records[0]["NODEAGENT_DEVICE"] == ["a", "b"]


def test_a_record_of_many_lines_arrives() -> None:
    code = "log.event(log.CONFIG_REFUSED, error='line\\n' * 4_000)"
    (record,) = journal.records(journal.run(said(code) + f"{FIND} NODEAGENT_EVENT=config-refused"))
    assert record["NODEAGENT_ERROR"] == "line\n" * 4_000


def test_journalctl_x_explains_a_line_with_its_fields(tmp_path: Path) -> None:
    catalog = tmp_path / "nodeagent.catalog"
    catalog.write_text(logs.catalog())
    lost = "log.event(log.KUBELET_UNREACHABLE, socket='/s')"
    code = f"{lost}; log.event(log.RESOURCE_ADDED, resource='x/y', devices=2)"
    show = "journalctl --sync; journalctl --no-pager -x SYSLOG_IDENTIFIER=nodeagent"
    told = journal.run(said(code) + show, catalog)
    assert "Subject: The kubelet is unreachable" in told
    assert "Subject: x/y is a new resource" in told
    assert "Documentation: man:nodeagent(8)" in told
