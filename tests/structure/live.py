# SPDX-License-Identifier: Apache-2.0
"""What a class is and how much it carries, read from its syntax tree.

Live is a class whose objects change: neither a frozen dataclass, a NamedTuple, an enumeration, a Protocol nor
an exception. What it inherits from a class of ours counts as its own; nested functions are no methods.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.structure import sources

VALUES = {"NamedTuple", "TypedDict", "Protocol", "Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"}
ERRORS = {
    name
    for name, made in vars(builtins).items()
    if isinstance(made, type) and issubclass(made, BaseException)
}
CONSTRUCTOR = "__init__"


class Limits(NamedTuple):
    """How much one class may carry, or carries."""

    methods: int
    attributes: int
    arguments: int


@dataclass(frozen=True)
class Class:
    """A class with all classes of ours that it inherits from, itself first."""

    family: tuple[ast.ClassDef, ...]

    @property
    def live(self) -> bool:
        """True if its objects change."""
        bases = {_last(base) for node in self.family for base in node.bases}
        return not bases & (VALUES | ERRORS) and not any(_dataclass(node, "frozen") for node in self.family)

    @property
    def size(self) -> Limits:
        """What it carries."""
        methods = {method.name for node in self.family for method in _methods(node)}
        attributes = {name for node in self.family for name in _attributes(node)}
        return Limits(len(methods), len(attributes), self._arguments())

    def _arguments(self) -> int:
        for node in self.family:
            made = [method for method in _methods(node) if method.name == CONSTRUCTOR]
            if made:
                arguments = made[0].args
                plain = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
                return len(plain) - 1 + bool(arguments.vararg) + bool(arguments.kwarg)
        return len({name for node in self.family for name, given in _fields(node).items() if given})


def all_live() -> Iterator[tuple[str, Class]]:
    """``path:Class`` → the class, for all live classes of the product."""
    for path in sources.PRODUCT:
        for node in sources.classes(path):
            described = Class(tuple(_family(node, path)))
            if described.live:
                yield f"{sources.named(path)}:{node.name}", described


@sources.kept
def _public() -> Mapping[str, ast.ClassDef]:
    found = (node for path in sources.PRODUCT for node in sources.classes(path))
    return {node.name: node for node in found if node.name[0] != "_"}


@sources.kept
def _by_name(heir: Path) -> Mapping[str, ast.ClassDef]:
    """The classes that a class of this module may inherit from: all public ones, and its neighbours."""
    return {**_public(), **{node.name: node for node in sources.classes(heir)}}


def _family(node: ast.ClassDef, path: Path) -> Iterator[ast.ClassDef]:
    yield node
    for base in node.bases:
        parent = _by_name(path).get(_last(base))
        if parent is not None and parent is not node:
            yield from _family(parent, path)


def _last(base: ast.expr) -> str:
    """``Base`` of ``module.Base[T]``."""
    if isinstance(base, ast.Subscript):
        base = base.value
    return ast.unparse(base).rpartition(".")[2]


def _methods(node: ast.ClassDef) -> list[sources.Function]:
    return [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]


def _dataclass(node: ast.ClassDef, option: str = "") -> bool:
    """True if the class is a dataclass, with this option if one is asked for."""
    marks = [mark for mark in node.decorator_list if "dataclass" in ast.unparse(mark)]
    return bool(marks) and (not option or f"{option}=True" in ast.unparse(marks[0]))


def _fields(node: ast.ClassDef) -> dict[str, bool]:
    """The fields of a dataclass, and whether the constructor takes them."""
    if not _dataclass(node):
        return {}
    fields = (each for each in node.body if isinstance(each, ast.AnnAssign))
    return {
        ast.unparse(field.target): "init=False" not in ast.unparse(field.value or field.target)
        for field in fields
        if "ClassVar" not in ast.unparse(field.annotation)
    }


def _attributes(node: ast.ClassDef) -> set[str]:
    """Fields, and whatever a method binds on self."""
    bound = {
        each.attr
        for method in _methods(node)
        for each in ast.walk(method)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }
    return bound | _fields(node).keys()
