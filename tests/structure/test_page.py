# SPDX-License-Identifier: Apache-2.0
"""The page on architecture names the whole house: each path exists, each module and each word is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.structure import sources

PAGE = (sources.ROOT / "docs/architecture.md").read_text()
CHANGING = ("agent/changing", "policy/change/plan", "kernel/apply")
NO_STORY = {"__init__", "__main__"}  # a package is named by its folder


def section(title: str) -> str:
    """The text below a heading, up to the next one of its rank."""
    _, _, rest = PAGE.partition(f"\n## {title}\n")
    return rest.partition("\n## ")[0]


def rows(text: str) -> list[tuple[str, str]]:
    """First cell and the rest of each row of the tables."""
    cells = (line.strip().strip("|").partition("|") for line in text.splitlines() if line.startswith("|"))
    return [(first.strip(), rest) for first, _, rest in cells]


def quoted(text: str) -> set[str]:
    """All that stands in backticks."""
    return set(re.findall(r"`([^`\n]+)`", text))


def test_every_path_that_the_page_on_architecture_names_exists() -> None:
    paths = {each for each in quoted(PAGE) if re.fullmatch(r"[A-Za-z][\w.]*/[\w./]*|[a-z_]+\.py", each)}
    assert len(paths) > 40
    bases = ("", "nodeagent")
    assert [each for each in paths if not any((sources.ROOT / base / each).exists() for base in bases)] == []


def names(path: Path) -> set[str]:
    """How the page may name a module by itself: ``policy/merge.py``, ``policy/merge``, ``policy.merge``."""
    inner = path.relative_to(sources.ROOT / "nodeagent").with_suffix("")
    dotted = ".".join(inner.parts)
    return {dotted, f"nodeagent.{dotted}"} | {
        f"{base}{inner}{end}" for base in ("", "nodeagent/") for end in ("", ".py")
    }


def in_a_row(path: Path) -> bool:
    """True if the row of the module's folder names it, in backticks, with or without ``.py``."""
    folder = path.parent.relative_to(sources.ROOT)
    heads = {f"{folder}/", f"{folder.relative_to('nodeagent')}/"} if folder.parts[1:] else {"nodeagent/"}
    return any(
        quoted(first) & heads and any(path.stem in re.split(r"[\s,.·]+", each) for each in quoted(rest))
        for first, rest in rows(PAGE)
    )


def test_every_module_is_on_the_page() -> None:
    told = [path for path in sources.PRODUCT if path.stem not in NO_STORY]
    missing = [sources.named(path) for path in told if not (names(path) & quoted(PAGE) or in_a_row(path))]
    assert missing == []


def test_every_public_class_of_model_and_policy_is_a_word_of_the_page() -> None:
    words = {word for first, _ in rows(section("Words")) for word in re.findall(r"\w+", first)}
    pure = [*sources.modules("nodeagent/model"), *sources.modules("nodeagent/policy")]
    defined = [node.name for path in pure for node in sources.classes(path) if node.name[0] != "_"]
    assert [name for name in defined if name not in words] == []


@pytest.mark.parametrize("side", CHANGING)
def test_the_flow_has_the_side_that_changes_the_host(side: str) -> None:
    assert side in section("Flow")
