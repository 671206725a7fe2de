# SPDX-License-Identifier: Apache-2.0
"""Configurations and commands in README and the pages are valid; the first steps have the shown results."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent import config
from nodeagent.cli import main, parser
from nodeagent.sim import nodes

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGE = (ROOT / "docs/configuration.md").read_text()
PAGES = {page.name: page.read_text() for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
IDS = ["0000:3b:00.0", "0000:5e:00.0", "0000:86:00.0", "0000:af:00.0"]


def blocks(text: str) -> list[str]:
    """The YAML of a page, that of lists too."""
    return [textwrap.dedent(each) for each in re.findall(r"^ *```yaml\n(.*?)^ *```", text, re.M | re.S)]


OURS = [
    each for text in PAGES.values() for each in blocks(text) if each.startswith("apiVersion: nodeagent/v1")
]
COMMANDS = [
    pytest.param(command, id=f"{name}: {command.strip()}")
    for name, text in PAGES.items()
    for command in re.findall(r"^    (?:sudo )?nodeagent ([^#>\n…]*)", text, re.M)
]
(MACHINE,) = (each for each in blocks(README) if "kind: VirtualMachineInstance" in each)
(PERMITTED,) = (each for each in blocks(README) if each.startswith("permittedHostDevices"))


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    nodes.demo_node(tmp_path).write_file("/etc/machine-id", "0123456789abcdef" * 2)
    return tmp_path


def resources(root: Path, text: str, capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """The devices of each resource that a configuration makes, as far as they are not as before."""
    (root / "new.yaml").write_text(text)
    assert main.main(["--root", str(root), "plan", "--config", str(root / "new.yaml"), "-o", "json"]) == 0
    found: dict[str, list[str]] = {}
    for each in json.loads(capsys.readouterr().out)["devices"]:
        if each["after"] is not None:
            found.setdefault(each["after"]["resource"], []).append(each["id"])
    return found


@pytest.mark.parametrize("block", OURS)
def test_each_configuration_of_the_pages_is_valid(block: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(block)
    assert config.check_file(str(tmp_path / "config.yaml")).warnings == ()


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_of_the_pages_parses(command: str) -> None:
    """An unknown word ends the parser with SystemExit."""
    parser.parser().parse_args(shlex.split(command))


def test_the_first_machine_gets_the_first_resource(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (demo / "etc/nodeagent").mkdir()
    (demo / "etc/nodeagent/config.yaml").write_text(OURS[0])
    (demo / "first.yaml").write_text(MACHINE)
    (demo / "cr.yaml").write_text(yaml.safe_dump({"spec": {"configuration": yaml.safe_load(PERMITTED)}}))
    asked = ["--root", str(demo), "explain", "vmi", str(demo / "first.yaml"), "--cr", str(demo / "cr.yaml")]
    assert main.main([*asked, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["availability"] == "now"


def test_selectors_combine_as_the_page_says(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = (each for each in blocks(PAGE) if "numaNodes: [0]" in each)
    (taken,) = (ids for name, ids in resources(demo, block, capsys).items() if name == "example.com/gpu")
    on_node_0, in_slot_86 = IDS[:2], [f"0000:86:00.{number}" for number in range(4)]
    assert set(taken) == {*on_node_0, *in_slot_86}


def test_the_narrow_rule_comes_first(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = (each for each in blocks(PAGE) if "gpu-for-tests" in each)
    found = resources(demo, block, capsys)
    assert (found["example.com/gpu-for-tests"], found["example.com/gpu"]) == (IDS[:1], IDS[1:])


def test_rules_that_share_a_name_are_one_resource_each_at_its_own_place(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rule(name: str, **selector: Any) -> dict[str, Any]:
        return {"name": name, "pci": [selector]}

    first, second = rule("a.b/gpu", addresses=[IDS[3]]), rule("a.b/other", addresses=IDS[2:])
    document = {"resources": [first, second, rule("a.b/gpu", devices=["1f08"])]}
    assert resources(demo, yaml.safe_dump(document), capsys) == {
        "a.b/other": [IDS[2]],
        "a.b/gpu": [IDS[0], IDS[1], IDS[3]],
    }


def keys_of(title: str) -> dict[str, str]:
    """Key → default, as the page has them."""
    part = PAGE.partition(f"Keys of `{title}`:")[2].lstrip().partition("\n\n")[0]
    rows = [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in part.splitlines()[2:]]
    return {row[0].strip("`"): row[2].strip("` ") for row in rows}


@pytest.mark.parametrize(
    ("title", "place"),
    [
        ("resources[]", lambda shown: {"name": "a.b/c", "pci": [{"vendors": ["10de"]}], **shown}),
        ("resources[].pci[]", lambda shown: {"name": "a.b/c", "pci": [{**shown, "vendors": ["10de"]}]}),
        ("resources[].mdev[]", lambda shown: {"name": "a.b/c", "mdev": [{**shown, "names": ["x"]}]}),
        ("resources[].node", lambda shown: {"name": "a.b/c", "node": {"path": "/dev/kvm", **shown}}),
    ],
)
def test_defaults_of_keys_in_lists_are_what_holds_without_them(
    title: str, place: Any, tmp_path: Path
) -> None:
    shown = {key: json.loads(text) for key, text in keys_of(title).items() if text not in ("", "required")}
    assert shown
    rules = []
    for given in ({}, shown):
        (tmp_path / "config.yaml").write_text(json.dumps({"resources": [place(given)]}))
        rules.append(config.check_file(str(tmp_path / "config.yaml")).configuration.rules)
    assert rules[0] == rules[1]
