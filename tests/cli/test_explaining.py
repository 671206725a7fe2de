# SPDX-License-Identifier: Apache-2.0
"""What a name means to ``explain`` by its form, and what is said of one that means nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.cli import main
from nodeagent.sim import nodes
from tests.facts import each_names, names

Explain = Callable[..., tuple[int, str, list[str]]]
RULES = """\
resources:
- {name: x/kvm, node: {path: /dev/kvm}}
- {name: x/more, node: {path: /dev/kvm}}
"""


@pytest.fixture
def explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Explain:
    """The exit code, the answer and the lines beside it, but for the one on whose settings count."""
    host = nodes.demo_node(tmp_path)
    host.write_file("/etc/nodeagent/config.yaml", RULES)

    def command(*arguments: str) -> tuple[int, str, list[str]]:
        code = main.main(["--root", host.directory, "explain", *arguments])
        out, err = capsys.readouterr()
        return code, out, [line for line in err.splitlines() if "/run/nodeagent/status.sock" not in line]

    return command


@pytest.mark.parametrize(
    ("name", "code", "facts"),
    [
        ("3b:00", 2, ("3b:00", "PCI address", "UUID")),
        ("two\nlines", 2, ("two lines", "PCI address", "UUID")),
        ("", 2, ("PCI address", "UUID")),
        ("/dev/vfio/" + "9" * 5000, 1, ("rule", "/dev/vfio/" + "9" * 5000)),
        ("/dev/vfio/99", 1, ("IOMMU group 99",)),
        ("config.yaml:1", 1, ("rule", "config.yaml:1")),
        ("ns/vm", 1, ("ns/vm",)),
        ("x.y/z", 1, ("x.y/z", "rule", "alias")),
    ],
    ids=["cut", "lines", "empty", "long", "group", "place", "pod", "resource"],
)
def test_what_means_nothing_is_two_lines(
    explain: Explain, name: str, code: int, facts: tuple[str, ...]
) -> None:
    found, out, lines = explain(name)
    assert (found, out, len(lines)) == (code, "", 2)
    assert lines[0].startswith("nodeagent: ")
    names(lines[0], *facts)


def test_a_path_of_several_resources_names_the_others_beside_the_answer(explain: Explain) -> None:
    code, out, lines = explain("/dev/kvm")
    assert (code, out.split()[0]) == (0, "x/kvm")
    each_names(lines, ("/dev/kvm", "x/more"))


def test_a_file_is_for_machines_alone(explain: Explain) -> None:
    code, _, lines = explain("x/kvm", "machine.yaml")
    assert code == 2
    names(lines[0], "FILE", "--cr")
