# SPDX-License-Identifier: Apache-2.0
"""The shape of the repository, checked by machines: layers, purity, sizes, style, types, spelling, locks.

Classes and the page on architecture have modules of their own in ``tests/structure``.

A tool that is missing fails its test: what is not checked is not kept.
"""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from nodeagent.base import log
from tests.structure.sources import ALL, PRODUCT, ROOT, Function, forget, functions, modules, named, tree

TOOLS = Path(sys.executable).parent
PURE = ("model", "policy")
IMPURE_CALLS = {"open", "print", "input", "eval", "exec", "compile", "__import__", "breakpoint"}
PATCHES = {"setattr", "setitem", "delattr", "delitem"}  # of pytest's monkeypatch; the environment may be set


@pytest.fixture(scope="module", autouse=True)
def trees() -> Iterator[None]:
    """As in ``tests/structure``: kept for the tests here alone."""
    yield
    forget()


def length(function: Function) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


def calls(path: Path) -> Iterator[tuple[str, int]]:
    """Name and line of each plain call."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id, node.lineno


def tool(name: str, *arguments: str) -> None:
    """Run a tool on the repository; what it says is the failure."""
    done = subprocess.run(
        [TOOLS / name, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{name}:\n{done.stdout}{done.stderr}"


def files() -> list[Path]:
    """All files of the repository, new ones too, without those that git ignores."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_the_layer_rule_is_kept() -> None:
    tool("lint-imports", "--no-cache")


@pytest.mark.parametrize("path", [p for layer in PURE for p in modules(f"nodeagent/{layer}")], ids=named)
def test_pure_modules_call_nothing_that_touches_the_world(path: Path) -> None:
    assert [(name, line) for name, line in calls(path) if name in IMPURE_CALLS] == []


def test_ruff_finds_nothing() -> None:
    tool("ruff", "check", "--no-cache")


def test_all_code_is_laid_out_by_the_formatter() -> None:
    tool("ruff", "format", "--check", "--no-cache")


@pytest.mark.timeout(300)
def test_all_types_are_right() -> None:
    tool("mypy")


def test_all_words_are_spelled_right() -> None:
    tool("codespell")


def test_no_function_is_long_and_most_are_very_short() -> None:
    lengths = {f"{named(path)}:{each.name}": length(each) for path in ALL for each in functions(path)}
    assert {name: lines for name, lines in lengths.items() if lines > 60} == {}
    product = [lines for name, lines in lengths.items() if name.startswith("nodeagent/")]
    assert statistics.median(product) < 10


def test_no_module_is_long() -> None:
    sizes = {named(path): len(path.read_text().splitlines()) for path in ALL}
    assert {name: lines for name, lines in sizes.items() if lines > 400} == {}


@pytest.mark.parametrize("path", ALL, ids=named)
def test_a_module_begins_with_its_licence_and_its_story(path: Path) -> None:
    first, *rest = path.read_text().splitlines()
    assert first == "# SPDX-License-Identifier: Apache-2.0"
    if path.name == "__init__.py" and not rest and path not in PRODUCT:
        return
    story = ast.get_docstring(tree(path))
    assert story, "no story docstring"
    assert len(story.splitlines()) <= 15


@pytest.mark.parametrize("path", PRODUCT, ids=named)
def test_what_is_public_in_a_module_is_told_in_a_docstring(path: Path) -> None:
    defined = [node for node in tree(path).body if isinstance(node, Function | ast.ClassDef)]
    silent = [node.name for node in defined if node.name[0] != "_" and not ast.get_docstring(node)]
    assert silent == []


@pytest.mark.parametrize("path", PRODUCT, ids=named)
def test_no_module_keeps_state_of_its_own(path: Path) -> None:
    assert [node.lineno for node in ast.walk(tree(path)) if isinstance(node, ast.Global)] == []


@pytest.mark.parametrize("path", modules("tests"), ids=named)
def test_tests_patch_nothing_and_mock_nothing(path: Path) -> None:
    text = path.read_text()
    assert "unittest" + ".mock" not in text
    patched = [
        node.lineno
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr in PATCHES) == ("monkeypatch", True)
    ]
    assert patched == []


@pytest.mark.parametrize("path", [p for p in modules("tests") if p.name.startswith("test_")], ids=named)
def test_the_names_of_tests_are_sentences(path: Path) -> None:
    names = [each.name for each in functions(path) if each.name.startswith("test_")]
    assert names
    assert [name for name in names if name.count("_") < 3] == []
    assert len(set(names)) == len(names)


def _either(kind: ast.expr) -> list[str]:
    """The kinds of line that this may be."""
    return [
        ast.unparse(each) for each in ((kind.body, kind.orelse) if isinstance(kind, ast.IfExp) else (kind,))
    ]


def test_every_field_that_a_log_line_may_have_is_given_somewhere() -> None:
    given = defaultdict[str, set[str]](set)
    for node in (node for path in PRODUCT for node in ast.walk(tree(path)) if isinstance(node, ast.Call)):
        if ast.unparse(node.func) == "log.event":
            for kind in _either(node.args[0]):
                given[kind] |= {str(each.arg) for each in node.keywords}
    kinds = {f"log.{name}": kind for name, kind in vars(log).items() if isinstance(kind, log.Event)}
    assert {name: left for name, each in kinds.items() if (left := {*each.also} - given[name])} == {}


def test_nothing_is_left_to_do() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")  # the names of the marks stand here only
    found = [named(path) for path in ALL if path != Path(__file__) and marks.search(path.read_text())]
    assert found == []


def test_the_repository_speaks_of_itself_alone() -> None:
    hosts = (
        ".".join(parts) for parts in (("pypi", "org"), ("pythonhosted", "org"), ("proxy", "golang", "org"))
    )
    words = [*hosts, *(f"/{folder}/" for folder in ("work", "home", "root", "opt/wheels"))]
    texts = {named(path): path.read_bytes().decode(errors="replace") for path in files()}
    assert {name: word for name, text in texts.items() for word in words if word in text} == {}


def test_the_files_that_a_visitor_looks_for_are_there() -> None:
    assert "Apache License" in (ROOT / "LICENSE").read_text()[:200]
    assert (ROOT / "README.md").read_text().startswith("# nodeagent\n")
    assert (ROOT / "nodeagent/py.typed").exists()


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def locked(name: str) -> dict[str, str]:
    """Package → version of a lock; each one carries hashes."""
    text = (ROOT / f"requirements/{name}.lock").read_text()
    pins = re.findall(r"^([a-z0-9._-]+)==(\S+) \\\n +--hash=sha256:[0-9a-f]{64}", text, re.M)
    assert len(pins) == len(re.findall(r"^[a-z0-9._-]+==", text, re.M))
    return dict(pins)


def test_the_lock_of_the_daemon_holds_what_the_project_needs() -> None:
    needed = project()["dependencies"]
    assert (ROOT / "requirements/runtime.in").read_text().split() == needed
    pins = locked("runtime")
    for requirement in map(Requirement, needed):
        assert requirement.specifier.contains(pins[requirement.name]), requirement


def test_the_lock_for_development_agrees_with_the_lock_of_the_daemon() -> None:
    assert locked("runtime").items() <= locked("dev").items()
    wanted = [line for line in (ROOT / "requirements/dev.in").read_text().split("\n") if line]
    names = {re.split("[=<>~]", line)[0].lower() for line in wanted if not line.startswith("-")}
    assert names <= locked("dev").keys()
