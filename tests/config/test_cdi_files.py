# SPDX-License-Identifier: Apache-2.0
"""CDI files of other tools: what of them counts, and where one is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nodeagent.config import cdi_files
from nodeagent.config.problems import Invalid
from nodeagent.model.nodes import CdiDevice, CdiFile, resolve_cdi_names

HEAD = "cdiVersion: 0.5.0\nkind: v.com/c\n"
ALSO_COMMON = HEAD + "containerEdits: {deviceNodes: [{path: /dev/ctl}]}\ndevices: "


def nodes(devices: str) -> list[tuple[str, tuple[str, ...]]]:
    """Name and nodes of each device that a text has."""
    kind, found = cdi_files.parsed(f"{ALSO_COMMON}{devices}".encode(), "/etc/cdi/x.yaml")
    assert kind == "v.com/c"
    return [(each.name, each.nodes) for each in found]


@pytest.mark.parametrize(
    ("devices", "found"),
    [
        ("[{name: a}]", [("a", ("/dev/ctl",))]),
        ('[{name: "0", future: [1]}]', [("0", ("/dev/ctl",))]),
        (
            (
                "[{name: a, containerEdits: {deviceNodes: "
                "[{path: /dev/x, hostPath: /run/d/dev/x}, {path: /dev/ctl}]}}]"
            ),
            [("a", ("/dev/ctl", "/run/d/dev/x"))],
        ),
        (
            "[{name: a, containerEdits: {deviceNodes: [{path: /dev/x, type: c, major: 1, minor: 3}]}}]",
            [("a", ("/dev/ctl",))],
        ),
    ],
)
def test_all_nodes_that_have_to_be_there_are_found(
    devices: str, found: list[tuple[str, tuple[str, ...]]]
) -> None:
    assert nodes(devices) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cdiVersion"),
        ("cdiVersion: 2.0.0\nkind: v/c\ndevices: [{name: a}]", "cdiVersion 2.0.0"),
        ("cdiVersion: 0.5.0\nkind: v\ndevices: [{name: a}]", 'kind "v"'),
        (HEAD, "devices"),
        (f"{HEAD}devices: 7", "list"),
        (f"{HEAD}devices: [7]", "devices[0]"),
        (f"{HEAD}devices: [{{name: 0x10}}]", "devices[0].name"),
        (f"{HEAD}devices: [{{name: true}}]", "devices[0].name"),
        (f"{HEAD}devices: [{{name: -a}}]", '"-a"'),
        (f"{HEAD}devices: [{{name: a}}, {{name: a}}]", "devices[1]"),
        (f"{HEAD}devices: [{{name: a, containerEdits: 7}}]", "devices[0].containerEdits"),
        (
            f"{HEAD}devices: [{{name: a, containerEdits: {{deviceNodes: [{{}}]}}}}]",
            "devices[0].containerEdits.deviceNodes[0].path",
        ),
        (f"{HEAD}devices: [", "3: not valid YAML"),
        ("{" * 5000, "too many nested brackets"),
        ("[" * 5000, "too many nested brackets"),
        (
            f"{HEAD}x: &x [1]\ny: &y [*x, *x]\nz: &z [{'*y, ' * 9000}*y]\ndevices: [*z, *z]",
            "too many",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, said: str) -> None:
    with pytest.raises(Invalid) as caught:
        cdi_files.parsed(text.encode(), "/etc/cdi/x.yaml")
    assert said in caught.value.what


def test_a_file_that_was_not_written_again_is_not_read_again(tmp_path: Path) -> None:
    file = tmp_path / "etc/cdi/x.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"cdiVersion": "0.6.0", "kind": "v.com/c", "devices": [{"name": "a"}]}))
    known = cdi_files.Directory(str(tmp_path), 0, {}).read()
    assert cdi_files.Directory(str(tmp_path), 0, known).read()["/etc/cdi/x.json"] is known["/etc/cdi/x.json"]
    file.write_text("{")
    again = cdi_files.Directory(str(tmp_path), 0, known).read()["/etc/cdi/x.json"]
    assert again.fault
    assert again.devices == known["/etc/cdi/x.json"].devices, "they are listed as they were, with the fault"


def test_only_files_of_the_two_endings_count_and_none_hangs(tmp_path: Path) -> None:
    directory = tmp_path / "etc/cdi"
    (directory / "below.json").mkdir(parents=True)
    for name in ("x.json.tmp", "x.yml", "x"):
        (directory / name).write_text("{")
    os.mkfifo(directory / "pipe.json")
    os.symlink("nowhere", directory / "link.json")
    found = cdi_files.Directory(str(tmp_path), 0, {}).read()
    assert {path: file.fault for path, file in found.items()} == {
        "/etc/cdi/pipe.json": "it is not a regular file",
    }


A, B = CdiDevice("a", ("/dev/a",), "1"), CdiDevice("a", ("/dev/b",), "2")


@pytest.mark.parametrize(
    ("files", "counts", "rivals"),
    [
        ([CdiFile("/1", "k/c", (A,)), CdiFile("/2", "k/c", (B,), rank=1)], "/2", ()),
        ([CdiFile("/1", "k/c", (A,)), CdiFile("/2", "k/c", (B,))], "/1", ("/2",)),
        (
            [CdiFile("/1", "k/c", (A,)), CdiFile("/2", "k/c", (B,)), CdiFile("/3", "k/c", (B,), rank=1)],
            "/3",
            ("/2",),
        ),
        ([CdiFile("/1", "k/c", (A,)), CdiFile("/2", "k/c", (B,), "broken", 1)], "/1", ()),
        ([CdiFile("/1", "k/c", (A,), "broken")], "/1", ()),
    ],
)
def test_of_files_with_one_name_that_of_the_later_directory_counts(
    files: list[CdiFile], counts: str, rivals: tuple[str, ...]
) -> None:
    entry = resolve_cdi_names({file.path: file for file in files})["k/c=a"]
    assert (entry.file.path, entry.rivals) == (counts, rivals)
