# SPDX-License-Identifier: Apache-2.0
"""``nodeagent scan`` and ``explain`` on captured hosts, on this machine, and on trees that are no hosts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.cli import main
from nodeagent.kernel.root import Root
from tests.facts import contains, each_names, names
from tests.looking import Looks
from tests.machines.capture import materialise

HOSTS = Path(__file__).parent / "hosts"
NAMES = sorted(path.stem for path in HOSTS.glob("*.json"))


def is_notice(text: str, root: Path) -> bool:
    """True for the one line that says that no daemon was asked."""
    facts = (f"{root}/run/nodeagent/status.sock", "No such file or directory")
    return text.startswith("nodeagent: ") and text.count("\n") == 1 and contains(text, *facts)


class Said(NamedTuple):
    """What a command answered."""

    code: int
    out: str
    err: str


Command = Callable[..., Said]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs one command in this process; an exception that gets out fails the test."""

    def run(*arguments: object) -> Said:
        code = main.main([str(argument) for argument in arguments])
        return Said(code, *capsys.readouterr())

    return run


@pytest.mark.parametrize("name", NAMES)
def test_scan_and_explain_answer_on_every_captured_host(name: str, tmp_path: Path, command: Command) -> None:
    materialise(HOSTS / f"{name}.json", tmp_path)
    said = command("--root", tmp_path, "scan")
    assert (said.code, is_notice(said.err, tmp_path)) == (0, True)
    assert "0000:01:00.0" in said.out
    told = command("--root", tmp_path, "explain", "01:00.0")
    assert (told.code, is_notice(told.err, tmp_path)) == (0, True)
    assert told.out.startswith("0000:01:00.0  ")


@pytest.mark.parametrize("name", ["6.12-iommufd-vfio", "6.1-unbind-blocked", "6.12-iommufd-no-iommu-unsafe"])
def test_a_saved_host_explains_itself_elsewhere_as_it_did_at_home(
    name: str, tmp_path: Path, command: Command
) -> None:
    there, elsewhere, saved = tmp_path / "there", tmp_path / "elsewhere", tmp_path / "host.json"
    elsewhere.mkdir()
    materialise(HOSTS / f"{name}.json", there)
    rule = "resources: [{name: a.b/c, pci: [{drivers: [vfio-pci]}]}]\n"
    for root in (there, elsewhere):
        (root / "etc/nodeagent").mkdir(parents=True)
        (root / "etc/nodeagent/config.yaml").write_text(rule)
    saved.write_text(command("--root", there, "scan", "-o", "json").out)
    for address in ("0000:01:00.0", "0000:03:00.0", "0000:05:01.0", "0000:04:00.0"):
        here = command("--root", there, "explain", "-o", "json", address)
        again = command("--root", elsewhere, "explain", "-o", "json", address, "--host", saved)
        assert here.code == again.code == 0
        assert json.loads(again.out) == without_costly_facts(json.loads(here.out))


@pytest.mark.parametrize(
    "content", ["", "[]", '{"format": "x"}', '{"format": "nodeagent-host/v1", "functions": [1]}']
)
def test_a_file_that_is_no_saved_host_costs_two_lines(content: str, tmp_path: Path, command: Command) -> None:
    (tmp_path / "host.json").write_text(content)
    said = command("--root", tmp_path, "explain", "01:00.0", "--host", tmp_path / "host.json")
    assert (said.code, said.out) == (2, "")
    assert len(said.err.splitlines()) == 2


def test_this_machine_can_be_scanned(command: Command) -> None:
    said = command("scan")
    assert said.code == 0
    assert "Traceback" not in said.err
    document = json.loads(command("scan", "-o", "json").out)
    assert (document["apiVersion"], document["kind"]) == ("nodeagent/v1", "Host")
    assert f"{len(document['functions'])} functions" in said.out


def test_a_device_that_is_not_there_costs_two_lines_and_exit_code_1(command: Command) -> None:
    said = command("explain", "ffff:ff:1f.7")
    assert (said.code, said.out) == (1, "")
    each_names(said.err.splitlines(), ("nodeagent", "ffff:ff:1f.7"), ("nodeagent scan",))


def test_what_is_no_address_costs_two_lines_and_exit_code_2(command: Command) -> None:
    said = command("explain", "the gpu")
    assert (said.code, len(said.err.splitlines())) == (2, 2)


# A name, and what stands at which path: text or bytes of a file, None for a directory, "→" for a link.
FOREIGN: list[tuple[str, dict[str, Any]]] = [
    ("an empty directory", {}),
    ("files instead of directories", {"sys/bus": "x", "dev": "x", "proc": "x"}),
    ("a file as the list of devices", {"sys/bus/pci/devices": "x", "sys/kernel/iommu_groups": "x"}),
    ("a file as a device", {"sys/bus/pci/devices/0000:01:00.0": "x"}),
    ("a broken link as a device", {"sys/bus/pci/devices/0000:01:00.0": "→../nowhere"}),
    ("a link to itself", {"sys/bus/pci/devices/0000:01:00.0": "→0000:01:00.0"}),
    ("directories as attributes", {"sys/bus/pci/devices/0000:01:00.0/vendor": None}),
    (
        "names that are none",
        {"sys/bus/pci/devices/nonsense/vendor": "0x10de", "sys/bus/mdev/devices/x": None},
    ),
    (
        "binary attributes",
        {
            f"sys/bus/pci/devices/0000:01:00.0/{name}": b"\xff\x00\xfe"
            for name in ("vendor", "class", "enable")
        },
    ),
    ("a driver that is a file", {"sys/bus/pci/devices/0000:01:00.0/driver": "vfio-pci"}),
    ("a group that is no number", {"sys/bus/pci/devices/0000:01:00.0/iommu_group": "→../../x"}),
    (
        "a group that is not there",
        {
            "sys/bus/pci/devices/0000:01:00.0/iommu_group": "→../../kernel/iommu_groups/7",
            "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
        },
    ),
    (
        "a group of strangers",
        {"sys/kernel/iommu_groups/7/devices/x": "→y", "sys/kernel/iommu_groups/x": None},
    ),
    ("huge numbers", {"sys/bus/pci/devices/0000:01:00.0/numa_node": "9" * 50}),
    ("half a pci.ids", {"usr/share/misc/pci.ids": b"10de NV\xff\n\tzzzz\n"}),
]


def without_costly_facts(document: dict[str, Any]) -> dict[str, Any]:
    """Those are read of the present host alone."""
    facts = {key: value for key, value in document["facts"].items() if key not in ("resets", "errors")}
    return {**document, "facts": facts}


def plant(root: Path, tree: dict[str, Any]) -> None:
    if "sys" not in tree:
        (root / "sys").mkdir(parents=True, exist_ok=True)
    for path, content in tree.items():
        at = root / path
        at.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            at.mkdir()
        elif isinstance(content, bytes):
            at.write_bytes(content)
        elif content.startswith("→"):
            at.symlink_to(content[1:])
        else:
            at.write_text(content)


@pytest.mark.parametrize("tree", [tree for _, tree in FOREIGN], ids=[name for name, _ in FOREIGN])
def test_a_foreign_tree_is_told_as_it_is(tree: dict[str, Any], tmp_path: Path, command: Command) -> None:
    plant(tmp_path, tree)
    said = command("--root", tmp_path, "scan")
    assert (said.code, is_notice(said.err, tmp_path)) == (0, True)
    assert "IOMMU groups" in said.out
    told = command("--root", tmp_path, "explain", "01:00.0")
    assert told.code == (0 if "0000:01:00.0" in said.out else 1)
    saved = tmp_path / "saved.json"
    saved.write_text(command("--root", tmp_path, "scan", "-o", "json").out)
    assert command("explain", "01:00.0", "--host", saved).code == told.code


FUNCTION = "sys/bus/pci/devices/0000:01:00.0"
PLACES = [
    *(f"{FUNCTION}/{name}" for name in ("vendor", "device", "class", "numa_node", "enable", "power_state")),
    *(f"{FUNCTION}/{name}" for name in ("driver", "iommu_group", "physfn", "virtfn0", "vfio-dev", "virtfnx")),
    "sys/kernel/iommu_groups/1/devices/0000:01:00.0",
    "sys/kernel/iommu_groups/1/type",
    "sys/bus/mdev/devices/00000001-0000-4000-8000-000000000001",
    "sys/class/mdev_bus/0000:01:00.0/mdev_supported_types/t-1/available_instances",
    "sys/devices/system/node/node0",
    "dev/vfio/1",
    "usr/share/hwdata/pci.ids",
]
contents = st.one_of(
    st.none(),
    st.binary(max_size=12),
    st.sampled_from(
        ["0x10de\n", "-1\n", "1\n", "0x030000\n", "→../1", "→nowhere", "→/", "→..", "→x/vfio-pci"]
    ),
)


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.sampled_from(PLACES), contents))
def test_any_content_at_the_places_that_are_read_is_survived(tree: dict[str, Any]) -> None:
    with TemporaryDirectory() as directory:
        plant(Path(directory), tree)
        host = Looks(Root(directory)).full()
        assert Looks(Root(directory)).full(host) is host
        assert main.main(["--root", directory, "scan"]) == 0
        found = main.main(["--root", directory, "explain", "01:00.0"])
        assert found == (0 if host.functions else 1)


def test_a_device_that_cannot_be_read_is_told_as_such(tmp_path: Path, command: Command) -> None:
    plant(tmp_path, {FUNCTION: "→0000:01:00.0"})
    names(command("--root", tmp_path, "scan").out, "0000:01:00.0", "Too many levels of symbolic links")


def test_a_file_in_the_place_of_the_configuration_directory_is_refused_in_plain_words(
    tmp_path: Path, command: Command
) -> None:
    plant(tmp_path, {"etc": "x"})
    said = command("--root", tmp_path, "scan")
    assert (said.code, said.out) == (2, "")
    assert "Not a directory" in said.err
