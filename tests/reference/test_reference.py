# SPDX-License-Identifier: Apache-2.0
"""The page of the commands and the schemas are what the program says, and what it says is spelled one way."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.cli import parser
from tests.reference import DOCS, RENEW, commands, log_events, settings

CAMEL = re.compile(r"[a-z]+([A-Z0-9][a-z0-9]*)*")


def test_the_page_is_up_to_date() -> None:
    text = (DOCS / "commands.md").read_text()
    assert commands.page(text) == text, RENEW
    assert all(f"| `{command.name}` |" in text for command in parser.COMMANDS)


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("metrics.md", commands.metrics_page),
        ("configuration.md", settings.page),
        ("logs.md", log_events.page),
    ],
)
def test_the_table_of_a_page_is_up_to_date(name: str, page: Callable[[str], str]) -> None:
    text = (DOCS / name).read_text()
    assert page(text) == text, RENEW


def test_the_schemas_are_up_to_date_and_complete() -> None:
    assert {f"schemas/{file.name}" for file in (DOCS / "schemas").iterdir()} == set(commands.files()), RENEW
    for name, text in commands.files().items():
        assert (DOCS / name).read_text() == text, RENEW


def keys(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for each in schema.values():
            yield from keys(each)


def test_all_keys_are_spelled_as_in_the_configuration_file() -> None:
    for name, text in commands.files().items():
        assert [key for key in keys(json.loads(text)) if not CAMEL.fullmatch(key)] == [], name


def test_a_kind_of_document_is_one_word_in_all_places() -> None:
    for name, text in commands.files().items():
        assert json.loads(text)["properties"]["kind"]["const"] == Path(name).stem
