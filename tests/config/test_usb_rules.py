# SPDX-License-Identifier: Apache-2.0
"""Rules for USB devices: what their mistakes say. Real files below a root."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.test_loading import Etc

MISTAKES = [
    ("resources: [{name: a.b/c, usb: [{}]}]", "usb[0]: an empty selector", '["*"]'),
    ("resources: [{name: a.b/c, usb: [{products: [1]}]}]", "usb[0].products[0]:", '"1eb8"'),
    ("resources: [{name: a.b/c, usb: [{ports: [1-1]}], cdi: true}]", "cdi means nothing for USB", "remove"),
    ("resources: [{name: a.b/c, mdev: [{types: [x]}], bundle: true}]", "bundle is for USB", "remove"),
]


@pytest.mark.parametrize(("text", "what", "hint"), MISTAKES, ids=[text for text, _, _ in MISTAKES])
def test_a_mistake_is_two_lines_with_its_place(tmp_path: Path, text: str, what: str, hint: str) -> None:
    first, second = Etc(tmp_path).lines(text)[:2]
    assert first.startswith("config.yaml:")
    assert what in first
    assert hint in second


def test_the_hint_for_an_empty_mdev_selector_has_no_pattern_since_no_key_takes_one(tmp_path: Path) -> None:
    _, hint = Etc(tmp_path).lines("resources: [{name: a.b/c, mdev: [{}]}]")[:2]
    assert "types, names" in hint
    assert "*" not in hint
