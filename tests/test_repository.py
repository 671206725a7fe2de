# SPDX-License-Identifier: Apache-2.0
"""Rules of the repository that no linter knows, one test each. Part of ``make lint``."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from nodeagent.base import log
from nodeagent.policy import naming

ROOT = Path(__file__).parents[1]
PCI_IDS = "nodeagent/data/pci.ids"
GENERATED = ROOT / "nodeagent/kubelet/api"
IMPURE_CALLS = {"open", "print", "input", "eval", "exec", "compile", "__import__", "breakpoint"}
PATCHES = {"setattr", "setitem", "delattr", "delitem"}  # of pytest's monkeypatch; the environment may be set


def find_modules(*folders: str) -> Iterator[Path]:
    """Yield the hand-written Python files below these folders."""
    for folder in folders:
        yield from (path for path in sorted((ROOT / folder).rglob("*.py")) if GENERATED not in path.parents)


def git(*arguments: str) -> str:
    """Return the output of git in the repository."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def find_files() -> Iterator[Path]:
    """Yield all files of the repository, new ones too, without those that git ignores."""
    names = git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    yield from (ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file())


def find_calls(path: Path) -> Iterator[ast.Call]:
    """Yield each call in a module."""
    yield from (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))


def name_of(path: Path) -> str:
    """Return the path within the repository."""
    return str(path.relative_to(ROOT))


def test_every_module_begins_with_its_licence() -> None:
    missing = [
        name_of(path)
        for path in find_modules("nodeagent", "tests", "proto", "packaging")
        if not path.read_text().startswith("# SPDX-License-Identifier: Apache-2.0\n")
    ]
    assert missing == []


def test_pure_modules_call_no_builtin_that_does_io() -> None:
    impure = [
        (name_of(path), call.lineno)
        for path in find_modules("nodeagent/model", "nodeagent/policy")
        for call in find_calls(path)
        if isinstance(call.func, ast.Name) and call.func.id in IMPURE_CALLS
    ]
    assert impure == []


def test_tests_neither_patch_nor_mock_our_code() -> None:
    patches = [
        (name_of(path), call.lineno)
        for path in find_modules("tests")
        for call in find_calls(path)
        if isinstance(call.func, ast.Attribute)
        and ast.unparse(call.func.value) == "monkeypatch"
        and call.func.attr in PATCHES
    ]
    assert patches == []


def test_each_field_of_a_log_event_is_passed_somewhere() -> None:
    passed = defaultdict[str, set[str]](set)
    for path in find_modules("nodeagent"):
        for call in find_calls(path):
            if ast.unparse(call.func) == "log.event":
                kind = call.args[0]
                kinds = (kind.body, kind.orelse) if isinstance(kind, ast.IfExp) else (kind,)
                for each in kinds:
                    passed[ast.unparse(each)] |= {str(keyword.arg) for keyword in call.keywords}
    events = {f"log.{name}": event for name, event in vars(log).items() if isinstance(event, log.Event)}
    assert {name: unused for name, event in events.items() if (unused := {*event.also} - passed[name])} == {}


def test_the_repository_names_no_host_or_path_of_a_development_machine() -> None:
    hosts = [
        ".".join(parts) for parts in (("pypi", "org"), ("pythonhosted", "org"), ("proxy", "golang", "org"))
    ]
    words = [*hosts, *(f"/{folder}/" for folder in ("work", "home", "root", "opt/wheels"))]
    texts = {name_of(path): path.read_bytes().decode(errors="replace") for path in find_files()}
    assert {name: word for name, text in texts.items() for word in words if word in text} == {}


def test_no_text_has_words_that_readers_stumble_over() -> None:
    shown = re.compile(
        r"\b(anew|whoever|a person|what becomes|trying on)\b|, for it\b|(?:^|[.:] )Who\b(?!.*\?)", re.I
    )
    kinds = {".py", ".md", ".toml", ".html", ".js", ".yaml", ".json", ".service"}
    texts = [
        path
        for path in find_files()
        if path.suffix in kinds
        and path.relative_to(ROOT).parts[0] in ("nodeagent", "docs", "packaging", "README.md")
    ]
    found = [
        f"{name_of(path)}:{number}: {line.strip()[:80]}"
        for path in texts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if shown.search(line)
    ]
    assert found == []


def test_each_path_on_the_architecture_page_exists() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    bare = re.findall(r"(?<!tests/)\b(?:agent|policy|kernel)/[a-z_]+", page)
    quoted = {*re.findall(r"`([^`\n]+)`", page), *bare}
    paths = {each for each in quoted if re.fullmatch(r"[A-Za-z][\w.]*/[\w./]*|[a-z_]+\.py", each)}
    assert paths
    places = (ROOT, ROOT / "nodeagent")
    assert [
        each
        for each in paths
        if not any((place / name).exists() for place in places for name in (each, f"{each}.py"))
    ] == []


def find_anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_each_link_of_the_pages_leads_to_a_file_and_a_heading() -> None:
    broken = []
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))):
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            if "://" not in link and not (target.exists() and (not anchor or anchor in find_anchors(target))):
                broken.append((name_of(page), link))
    assert broken == []


def is_in_the_package(reference: str) -> bool:
    """Return True if a dotted name leads to a module of the package, or to a word in one."""
    path, names = ROOT / "nodeagent", reference.split(".")
    while names and (path / names[0]).is_dir():
        path /= names.pop(0)
    if names:
        path = path / f"{names[0]}.py" if (path / f"{names[0]}.py").exists() else path / "__init__.py"
        names = names[1:] if path.stem == names[0] else names
        return path.exists() and all(re.search(rf"\b{name}\b", path.read_text()) for name in names)
    return True


def test_each_module_that_a_docstring_or_comment_names_exists() -> None:
    packages = (
        "agent|base|check|cli|kernel|model|policy|render|sim"  # others are names of sections of settings too
    )
    wrong = [
        (name_of(path), reference)
        for path in find_modules("nodeagent")
        for reference in re.findall(rf"``(?:nodeagent\.)?((?:{packages})\.[\w.]+)", path.read_text())
        if not is_in_the_package(reference)
    ]
    assert wrong == []


def read_lock(name: str) -> dict[str, str]:
    """Return package → version of a lock file, each of which must carry hashes."""
    text = (ROOT / f"requirements/{name}.lock").read_text()
    pins = re.findall(r"^([a-z0-9._-]+)==(\S+) \\\n +--hash=sha256:[0-9a-f]{64}", text, re.M)
    assert len(pins) == len(re.findall(r"^[a-z0-9._-]+==", text, re.M))
    return dict(pins)


def test_the_runtime_lock_satisfies_the_dependencies_of_the_project() -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert (ROOT / "requirements/runtime.in").read_text().split() == needed
    pins = read_lock("runtime")
    for requirement in map(Requirement, needed):
        assert requirement.specifier.contains(pins[requirement.name]), requirement


def test_the_development_lock_agrees_with_the_runtime_lock() -> None:
    assert read_lock("runtime").items() <= read_lock("dev").items()
    wanted = [line for line in (ROOT / "requirements/dev.in").read_text().split("\n") if line]
    names = {re.split("[=<>~]", line)[0].lower() for line in wanted if not line.startswith("-")}
    assert names <= read_lock("dev").keys()


def test_vfio_pci_is_loaded_at_boot_since_the_unit_may_load_no_module_later() -> None:
    listed = (ROOT / "packaging/modules-load.conf").read_text().splitlines()
    assert [line for line in listed if not line.startswith("#")] == ["vfio-pci"]
    assert " /usr/lib/modules-load.d/nodeagent.conf," in (ROOT / "packaging/nodeagent.yaml").read_text()
    unit = (ROOT / "packaging/nodeagent.service").read_text().splitlines()
    assert "ExecStartPre=+-/sbin/modprobe -qa vfio-pci" in unit
    assert "ProtectKernelModules=yes" in unit


@pytest.mark.parametrize(
    "unit",
    [
        *("kubelet", "k3s", "k3s-agent", "rke2-server", "rke2-agent", "k0scontroller", "k0sworker"),
        *("snap.microk8s.daemon-kubelite", "snap.microk8s.daemon-kubelet"),
    ],
)
def test_the_service_starts_before_each_unit_that_runs_a_kubelet(unit: str) -> None:
    lines = (ROOT / "packaging/nodeagent.service").read_text().splitlines()
    before = [line.partition("=")[2].split() for line in lines if line.startswith("Before=")]
    assert f"{unit}.service" in itertools.chain.from_iterable(before)


def read_names(pci_ids: str) -> dict[str, str]:
    """Return the names of the resources of all ids in a pci.ids."""
    names, vendor = dict[str, str](), ("", "")
    for line in pci_ids.splitlines():
        number, _, text = line.partition("  ")
        if re.fullmatch("[0-9a-f]{4}", number):
            vendor = number, text.strip()
        elif re.fullmatch("\t[0-9a-f]{4}", number):
            device = number.strip()
            name = naming.discovered_name("name", "", vendor[0], device, vendor[1], text.strip())
            names[f"{vendor[0]}:{device}"] = name
    return names


def test_the_bundled_pci_ids_rename_no_resource_of_a_version_before() -> None:
    """A committed copy counts as shipped: keep its texts of ids that a newer copy names otherwise."""
    text = (ROOT / PCI_IDS).read_text()
    copies = [
        git("show", f"{commit}:{PCI_IDS}") for commit in git("log", "--format=%H", "--", PCI_IDS).split()
    ]
    now = read_names(text)
    renamed = {
        (key, name, now.get(key))
        for copy in copies
        if copy != text
        for key, name in read_names(copy).items()
        if now.get(key) != name
    }
    assert renamed == set()
