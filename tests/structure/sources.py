# SPDX-License-Identifier: Apache-2.0
"""The source files of the repository, and their syntax trees, for the tests of its shape."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "nodeagent/kubelet/api"

Function = ast.FunctionDef | ast.AsyncFunctionDef
Maker = TypeVar("Maker", bound=Callable[..., Any])

_kept: list[Callable[[], None]] = []


def kept(make: Maker) -> Maker:
    """What it returns is made once, and kept until ``forget``."""
    made: Any = cache(make)
    _kept.append(made.cache_clear)
    return made  # type: ignore[no-any-return]


def forget() -> None:
    """A million objects: to collect garbage among them takes most of a second."""
    for clear in _kept:
        clear()


def modules(folder: str) -> list[Path]:
    """The hand-written modules below a folder."""
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if GENERATED not in path.parents]


PRODUCT = modules("nodeagent")
ALL = [*PRODUCT, *modules("tests"), *modules("proto"), *modules("packaging")]


@kept
def tree(path: Path) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(path.read_text())


def named(path: Path) -> str:
    """The path within the repository."""
    return str(path.relative_to(ROOT))


def functions(path: Path) -> Iterator[Function]:
    """All functions of a module, methods and nested ones too."""
    nodes = ast.walk(tree(path))
    return (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def classes(path: Path) -> Iterator[ast.ClassDef]:
    """All classes of a module."""
    return (node for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef))
