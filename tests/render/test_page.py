# SPDX-License-Identifier: Apache-2.0
"""The page as a document: nothing from elsewhere, nothing taken for markup, and a policy that says so."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from nodeagent.render import page

HTML = page.load().html.decode()
POLICY = dict(part.split(" ", 1) for part in page.load().policy.split("; "))


def inside(tag: str) -> str:
    """The text of the one element of this name."""
    (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", HTML, re.S)
    return str(text)


@pytest.mark.parametrize("tag", ["style", "script"])
def test_the_policy_allows_the_one_style_and_the_one_script_and_no_other(tag: str) -> None:
    digest = base64.b64encode(hashlib.sha256(inside(tag).encode()).digest()).decode()
    assert POLICY[f"{tag}-src"] == f"'sha256-{digest}'"
    assert (POLICY["default-src"], POLICY["frame-ancestors"], POLICY["form-action"]) == ("'none'",) * 3


def test_nothing_is_fetched_from_elsewhere() -> None:
    assert re.findall(r"""(?:https?:)?//[a-z]|@import|url\(|<link(?! rel="icon" href="data:,")""", HTML) == []
    assert re.findall(r"""EventSource\((.*?)\)|fetch\(""", HTML) == ['"/events"']


def test_no_text_of_a_document_can_become_markup_or_code() -> None:
    words = (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        " style=",
    )
    assert [word for word in words if word in HTML] == []
    assert re.findall(r"<[^>]+ on[a-z]+=", HTML) == []


def test_it_is_small_and_says_what_to_do_without_a_script() -> None:
    assert len(HTML) < 40_000
    assert "nodeagent status" in inside("noscript")
