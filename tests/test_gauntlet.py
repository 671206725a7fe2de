# SPDX-License-Identifier: Apache-2.0
"""The acceptance lists: every line is shown by at least one test, and no test shows a line that is not there.

The lines are the kubelet's acceptance cases (``kubelet-N``) and what was seen to go wrong in other device
plugins: KV KubeVirt's virt-handler (U its USB devices), NG NVIDIA's kubevirt-gpu-device-plugin, SB its
sandbox-device-plugin, VD kubernetes-device-plugins, PM device-plugin-manager, HP Harvester's pcidevices, SR
the SR-IOV network device plugin, ND NVIDIA's k8s-device-plugin, IN Intel's device plugins, GD
generic-device-plugin, VG NVIDIA's vgpu-device-manager, MC mdevctl.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

REQUIRED = {
    "kubelet": [*range(1, 15), *range(16, 23), *range(24, 36), 39, 40, 42, 43],
    "KV": [*range(1, 12), *range(13, 20), *range(21, 28)],
    "U": [*range(1, 8)],
    "NG": [*range(1, 19)],
    "SB": [2, 3],
    "VD": [1, 3, 4, 5],
    "PM": [1, 2, 3],
    "HP": [2, 3, 4, 8, 9, 13, 16],
    "VG": [*range(1, 10)],
    "MC": [1, 3],
    "SR": [1, 2, 3, 4, 5, 7],
    "ND": [1, 2, 3, 5],
    "IN": [1, 3, 4, 5],
    "GD": [2],
}
ALSO = {"kubelet": [41], "KV": [20], "ND": [4]}  # known lines that may be shown


def lines(table: dict[str, list[int]]) -> set[str]:
    """``KV-1``, ``KV-2``, … of a table."""
    return {f"{source}-{number}" for source, numbers in table.items() for number in numbers}


@cache
def shown() -> tuple[tuple[str, str], ...]:
    """Each line that a ``shows`` mark names, with the file of the mark."""
    return tuple(_shown())


def _shown() -> Iterator[tuple[str, str]]:
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.shows":
                for argument in node.args:
                    yield str(ast.literal_eval(argument)), str(path.relative_to(TESTS))


@pytest.mark.parametrize("line", sorted(lines(REQUIRED)))
def test_every_line_is_shown_by_a_test(line: str) -> None:
    assert line in {name for name, _ in shown()}


def test_no_test_shows_a_line_that_is_not_on_the_lists() -> None:
    known = lines(REQUIRED) | lines(ALSO)
    assert [(name, path) for name, path in shown() if name not in known] == []
