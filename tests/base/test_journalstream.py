# SPDX-License-Identifier: Apache-2.0
"""A stream that is the journal's, by the device and inode that systemd names."""

from __future__ import annotations

import io
import os
from pathlib import Path

from nodeagent.base.journalstream import is_journal


def test_a_stream_is_the_journal_s_if_it_is_the_one_that_systemd_names(tmp_path: Path) -> None:
    with (tmp_path / "stream").open("w") as stream, (tmp_path / "other").open("w") as other:
        stat = os.fstat(stream.fileno())
        environ = {"JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino}"}
        assert is_journal(environ, stream)
        assert not is_journal(environ, other)
        assert not is_journal({}, stream)
        assert not is_journal(environ, io.StringIO())
