# SPDX-License-Identifier: Apache-2.0
"""One setting as far as it can be read: from the strongest source that gives it, whatever else is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nodeagent import config
from nodeagent.base.errors import ConfigError
from nodeagent.config import Sources

KEY = "status.socket"
DEFAULT = "/run/nodeagent/status.sock"
FLAG, ENV, FILE = (
    {KEY: "/flag.sock"},
    {"NODEAGENT_STATUS_SOCKET": "/env.sock"},
    "status: {socket: /file.sock}\n",
)


def value(prefix: str, flags: Mapping[str, str], environ: Mapping[str, str]) -> Any:
    return config.load_one(KEY, Sources(prefix, flags, environ))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc/nodeagent/conf.d").mkdir(parents=True)
    return tmp_path


def write(root: Path, text: str, name: str = "config.yaml") -> None:
    (root / "etc/nodeagent" / name).write_text(text)


def test_the_strongest_source_wins(root: Path) -> None:
    assert value(str(root), {}, {}) == DEFAULT
    write(root, FILE)
    assert value(str(root), {}, {}) == "/file.sock"
    write(root, "status: {socket: /part.sock}\n", "conf.d/1.yaml")
    assert value(str(root), {}, {}) == "/part.sock"
    assert value(str(root), {}, ENV) == "/env.sock"
    assert value(str(root), FLAG, ENV) == "/flag.sock"


@pytest.mark.parametrize("bad", ["weather: fine\n", "timing: {settle: soon}\n", "discovery: 7\n"])
def test_what_else_is_wrong_in_the_file_does_not_matter(root: Path, bad: str) -> None:
    write(root, FILE + bad)
    assert value(str(root), {"timing.settle": "soon"}, {"NODEAGENT_X": "y"}) == "/file.sock"


@pytest.mark.parametrize("bad", ["[", "status: {socket: relative}\n", "status: 7\n"])
def test_a_source_that_is_broken_does_not_count(root: Path, bad: str) -> None:
    write(root, FILE)
    write(root, bad, "conf.d/1.yaml")
    assert value(str(root), {}, {"NODEAGENT_STATUS_SOCKET": "relative"}) == "/file.sock"


def test_a_file_where_a_directory_should_be_gives_the_default(tmp_path: Path) -> None:
    (tmp_path / "etc").write_text("x")
    assert value(str(tmp_path), {}, {}) == DEFAULT


def test_its_own_flag_is_to_be_right(root: Path) -> None:
    with pytest.raises(ConfigError, match="--status-socket"):
        value(str(root), {KEY: "relative"}, {})
