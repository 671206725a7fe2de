# SPDX-License-Identifier: Apache-2.0
"""The effective settings as columns and as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nodeagent import config
from nodeagent.cli import config as config_command
from nodeagent.cli import output

if TYPE_CHECKING:
    from pathlib import Path


def loaded(tmp_path: Path) -> config.Settings:
    path = tmp_path / "config.yaml"
    path.write_text("timing: {settle: 2s}\nresources:\n- {name: a.b/c, pci: [{vendors: [10de]}]}\n")
    return config.check_file(str(path))


def test_text_has_a_line_for_each_setting_in_aligned_columns(tmp_path: Path) -> None:
    head, *rows = config_command.text(loaded(tmp_path).values).splitlines()
    assert len(rows) == len(config.load(config.Sources("/nonexistent", {}, {})).values)
    settle = next(row for row in rows if row.startswith("timing.settle "))
    assert settle.split() == ["timing.settle", "config.yaml:1", "2s"]
    assert settle.index("2s") == head.index("VALUE")
    assert settle.index("config.yaml") == head.index("FROM")
    assert not any(row != row.rstrip() for row in rows)


def test_programs_get_plain_values_with_their_sources(tmp_path: Path) -> None:
    shown = json.loads(
        json.dumps(output.document("Settings", config_command.as_document(loaded(tmp_path).values, ())))
    )
    assert shown["settings"]["timing.settle"] == {"value": "2s", "source": "config.yaml:1"}
    assert shown["settings"]["resources"]["value"] == [{"name": "a.b/c", "pci": [{"vendors": ["10de"]}]}]
    assert shown["warnings"] == []
