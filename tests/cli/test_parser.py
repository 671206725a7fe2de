# SPDX-License-Identifier: Apache-2.0
"""What one can write, and what help says of it, as a terminal of 80 columns and 24 lines shows it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.cli import main, parser
from tests.facts import each_names, names
from tests.sim import hosts

COMMANDS = [command.name for command in parser.COMMANDS]
LONG = {"run", "config"}  # which show the settings


def nodeagent(
    *arguments: str, given: str = "", stdout: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nodeagent", *arguments],
        input=given,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "80"},
        check=False,
    )


def helped(*arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What it prints before it ends well."""
    with pytest.raises(SystemExit) as ended:
        main.main(arguments)
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("command", ["", *(command for command in COMMANDS if command not in LONG)])
def test_help_fits_a_screen(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = helped(*filter(None, [command]), "--help", capsys=capsys).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_settings_are_shown_where_they_are_the_subject(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = helped(command, "--help", capsys=capsys)
    assert ("--timing-settle" in text) == (command in LONG)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_verb_tells_examples_that_parse_and_its_exit_codes(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = helped(command, "--help", capsys=capsys)
    examples = re.search(r"^examples:\n((?:  nodeagent .*\n)+)", text, re.MULTILINE)
    assert examples, text
    for line in examples.group(1).splitlines():
        words = shlex.split(line.partition(" > ")[0])[1:]
        assert command in words
        assert callable(parser.parser().parse_args(words).run)
    (codes,) = re.findall(r"^Exit codes: (.*(?:\n.+)*)", text, re.MULTILINE)
    for code in (0, 1, 2):
        names(codes, code)


def test_a_command_loads_no_other_one() -> None:
    code = "import sys; from nodeagent.cli import parser; parser.parser(['run']); print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.startswith("nodeagent.cli.")}
    assert loaded == {f"nodeagent.cli.{name}" for name in ("args", "output", "parser", "run")}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_a_verb_too(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    if command != "help":
        asked = helped("help", command, capsys=capsys)
        assert asked == helped(command, "--help", capsys=capsys)
    assert helped("help", capsys=capsys) == helped("--help", capsys=capsys)


def test_the_root_may_stand_before_and_after_the_verb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = hosts.many(tmp_path, 1).directory
    outputs = []
    for arguments in (
        ["--root", root, "scan"],
        ["scan", "--root", root],
        ["scan", "-o", "text", f"--root={root}"],
    ):
        assert main.main(arguments) == 0
        outputs.append(capsys.readouterr().out)
    assert hosts.address(0) in outputs[0]
    assert len(set(outputs)) == 1


@pytest.mark.parametrize(
    ("root", "what"), [("", "empty"), ("no", "directory"), (".", "sys/")], ids=["empty", "absent", "no host"]
)
def test_a_root_without_a_host_is_a_mistake(
    root: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(["--root", root, "scan"]) == 2
    out, err = capsys.readouterr()
    first, second = err.splitlines()
    assert out == ""
    names(first, f'--root "{root}"', what)
    names(second, "sys/", "dev/")


def test_a_configuration_is_checked_from_standard_input() -> None:
    fine = nodeagent("config", "--check", "-", given="discovery: {enabled: false}\n")
    assert (fine.returncode, fine.stdout, fine.stderr) == (0, "-: fine\n", "")
    wrong = nodeagent("config", "--check", "-", given="\ndiscovry: 1\n")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    each_names(wrong.stderr.splitlines(), ("-:2", "discovry"), ('"discovery"',))
    assert nodeagent("config", "--check", "-").returncode == 0, "an empty file is fine"


def test_a_saved_host_comes_from_standard_input(tmp_path: Path) -> None:
    root = hosts.many(tmp_path, 1).directory
    saved = nodeagent("--root", root, "scan", "-o", "json").stdout
    told = nodeagent("explain", hosts.address(0), "--host", "-", given=saved)
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith(hosts.address(0))
    cut = nodeagent("explain", hosts.address(0), "--host", "-", given=saved[:100])
    assert cut.returncode == 2
    assert cut.stderr.startswith("nodeagent: -: ")


def test_a_machine_comes_from_standard_input(tmp_path: Path) -> None:
    root = hosts.many(tmp_path, 1).directory
    machine = (
        "{kind: VirtualMachineInstance, apiVersion: kubevirt.io/v1, metadata: {name: a}, spec: {domain: {}}}"
    )
    told = nodeagent("--root", root, "explain", "vmi", "-", given=machine)
    assert told.returncode == 0, told.stderr


def test_a_full_disk_is_a_sentence() -> None:
    with open("/dev/full", "w") as full:
        done = nodeagent("config", "--schema", stdout=full.fileno())
    assert done.returncode == 1
    each_names(done.stderr.splitlines(), ("standard output", "No space left on device"), ("df", "df -i"))


def test_a_closed_standard_output_is_a_sentence() -> None:
    command = f"{shlex.quote(sys.executable)} -m nodeagent config --schema >&-"
    done = subprocess.run(["/bin/sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("nodeagent: ")
    names(done.stderr.splitlines()[0], "standard output")


def test_a_reader_that_has_seen_enough_is_no_mistake() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = nodeagent("config", "--schema", stdout=writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
