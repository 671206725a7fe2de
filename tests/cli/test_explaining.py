# SPDX-License-Identifier: Apache-2.0
"""What a name means to ``explain`` by its form, and what is said of one that means nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.cli import main
from nodeagent.sim import nodes

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
        return code, out, [line for line in err.splitlines() if "no daemon answers" not in line]

    return command


@pytest.mark.parametrize(
    ("name", "code", "what"),
    [
        ("3b:00", 2, "3b:00 is no PCI address, UUID, resource, /dev path, pod or rule"),
        ("two\nlines", 2, "two lines is no PCI address, UUID, resource, /dev path, pod or rule"),
        ("", 2, " is no PCI address, UUID, resource, /dev path, pod or rule"),
        ("/dev/vfio/" + "9" * 5000, 1, "no rule is for /dev/vfio/" + "9" * 5000),
        ("/dev/vfio/99", 1, "there is no IOMMU group 99 on this host"),
        ("config.yaml:1", 1, "no rule of a resource begins at config.yaml:1"),
        ("ns/vm", 1, "who has devices is not known here, so neither is what ns/vm has"),
        (
            "x.y/z",
            1,
            "nothing here is offered as x.y/z, and no rule, alias or card would make it",
        ),
    ],
    ids=["cut", "lines", "empty", "long", "group", "place", "pod", "resource"],
)
def test_what_means_nothing_is_two_lines(explain: Explain, name: str, code: int, what: str) -> None:
    found, out, lines = explain(name)
    assert (found, out, len(lines)) == (code, "", 2)
    assert lines[0] == f"nodeagent: {what}"


def test_a_path_of_several_resources_names_the_others_beside_the_answer(explain: Explain) -> None:
    code, out, lines = explain("/dev/kvm")
    assert (code, out.split()[0]) == (0, "x/kvm")
    assert lines == ["nodeagent: /dev/kvm is given as x/more, too"]


def test_a_file_is_for_machines_alone(explain: Explain) -> None:
    code, _, lines = explain("x/kvm", "machine.yaml")
    assert (code, lines[0]) == (2, "nodeagent: FILE and --cr are for machines")
