# SPDX-License-Identifier: Apache-2.0
"""The page of the verbs and the schemas are what the program says, and what it says is spelled one way."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nodeagent.cli import parser, reference

DOCS = Path(__file__).parents[2] / "docs"
RENEW = "run: python -m nodeagent.cli.reference docs"
CAMEL = re.compile(r"[a-z]+([A-Z0-9][a-z0-9]*)*")


def test_the_page_is_up_to_date() -> None:
    text = (DOCS / reference.PAGE).read_text()
    assert reference.page(text) == text, RENEW
    assert all(f"| `{verb.name}` |" in text for verb in parser.VERBS)


def test_the_schemas_are_up_to_date_and_complete() -> None:
    assert {f"schemas/{file.name}" for file in (DOCS / "schemas").iterdir()} == set(reference.files()), RENEW
    for name, text in reference.files().items():
        assert (DOCS / name).read_text() == text, RENEW


def keys(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for each in schema.values():
            yield from keys(each)


def test_all_keys_are_spelled_as_in_the_configuration_file() -> None:
    for name, text in reference.files().items():
        assert [key for key in keys(json.loads(text)) if not CAMEL.fullmatch(key)] == [], name


def test_a_kind_of_document_is_one_word_in_all_places() -> None:
    for name, text in reference.files().items():
        assert json.loads(text)["properties"]["kind"]["const"] == Path(name).stem
