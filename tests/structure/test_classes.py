# SPDX-License-Identifier: Apache-2.0
"""Live classes stay small, and tests reach no class from behind."""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.structure import live, sources

MOST = live.Limits(methods=12, attributes=10, arguments=6)
NAMED_TUPLES = {"_replace", "_asdict", "_fields", "_make"}  # public, whatever their names look like
FOREIGN = {  # (module, attribute) of a library → why there is no other way
    (
        "tests/kubelet/grpc/test_server.py",
        "_stream",
    ): "grpclib shows metadata only, and not the headers of gRPC itself",
    ("tests/blackbox/wakeups.py", "_fut_waiter"): "a wakeup can be lost only where asyncio keeps it",
    ("tests/blackbox/wakeups.py", "_callbacks"): "as above",
}


def test_no_live_class_carries_much() -> None:
    sizes = {name: tuple(described.size) for name, described in live.all_live()}
    large = {name: size for name, size in sizes.items() if any(map(operator.gt, size, MOST))}
    assert large == {}


def test_the_measure_of_classes_sees_all_that_they_carry() -> None:
    text = """
class Base:
    def __init__(self, a, *, b, **c):
        self.a, (self.b, *self.c) = a, b
    @property
    def p(self):
        def nested(): ...
@dataclass(slots=True)
class Heir(Base):
    field: int
    hidden: int = field(init=False)
    def p(self):
        with x as self.opened:
            self.a += 1
"""
    base, heir = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    assert live.Class((base,)).size == (2, 3, 3)
    assert live.Class((heir, base)).size == (2, 6, 3)
    assert live.Class((heir,)).size == (1, 4, 1)


@pytest.mark.parametrize(
    "head",
    ["@dataclass(frozen=True)\nclass C", "class C(NamedTuple)", "class C(enum.Enum)", "class C(Protocol[T])"],
)
def test_values_and_shapes_are_not_live(head: str) -> None:
    (node,) = (each for each in ast.parse(f"{head}: ...").body if isinstance(each, ast.ClassDef))
    assert not live.Class((node,)).live
    assert live.Class((ast.ClassDef("C", [], [], [], []),)).live


def private(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each access to what is private to somebody else."""
    for node in ast.walk(sources.tree(path)):
        if isinstance(node, ast.Attribute) and _hidden(node.attr) and not _allowed(path, node):
            yield node.lineno, ast.unparse(node)
        if isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, each.name) for each in node.names if _hidden(each.name))


def _hidden(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLES


def _allowed(path: Path, node: ast.Attribute) -> bool:
    own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    return own or (sources.named(path), node.attr) in FOREIGN


@pytest.mark.parametrize("path", sources.modules("tests"), ids=sources.named)
def test_tests_touch_nothing_private(path: Path) -> None:
    assert list(private(path)) == []
