# SPDX-License-Identifier: Apache-2.0
"""What all verbs show on a terminal of 80 columns, in a pipe, and in the locale C, which has ASCII alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio.to_thread
import pytest

from nodeagent.sim import nodes
from tests.blackbox.harness import Node, pod
from tests.terminal import shown

WIDTH = 80
ESCAPE = "\x1b"
GPU = "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A"
NAMES = "10de  Café GmbH\n\t1eb8  Tésla T4, whose name is longer than a table has room for\n"
CONFIG = """\
discovery: {pciIds: /names}
resources:
  - {name: example.com/nic, pci: [{vendors: ["8086"]}]}
  - {name: devices.example.com/kvm, node: {path: /dev/kvm, count: 110}}
  - {name: example.com/nothing, pci: [{vendors: ["10de"], devices: ["1f09"]}]}
  - {name: nvidia.com/TU106_GEFORCE_RTX_2060_REV__A, pci: [{devices: ["1f08"]}]}
aliases: {nvidia.com/TU104GL_TESLA_T5: nvidia.com/t5}
"""
MACHINE = """\
{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {name: vm, namespace: ns},
 spec: {domain: {devices: {gpus: [{name: a, deviceName: example.com/nic}, {name: b, deviceName: a.b/c}]}}}}
"""
VERBS: tuple[tuple[str, ...], ...] = (
    ("scan",),
    ("scan", "--class", "0302"),
    ("explain", "0000:3b:00.0"),
    ("explain", "0000:3b:00.1"),
    ("explain", "0000:d8:00.0"),
    ("explain", "0000:02:00.0"),
    ("explain", "/dev/vfio/14"),
    ("explain", "/dev/kvm"),
    ("explain", GPU),
    ("explain", "example.com/nic"),
    ("explain", "example.com/nothing"),
    ("explain", "config.yaml:3"),
    ("explain", "ns/vm"),
    ("explain", "vmi", "machine.yaml"),
    ("plan",),
    ("plan", "--config", "other.yaml"),
    ("status",),
    ("config",),
    ("config", "--check"),
    ("cluster", "check"),
    ("help",),
    *(("help", verb) for verb in ("run", "scan", "plan", "explain", "status", "cluster", "config", "demo")),
    ("--version",),
)
BESIDE = [each for each in VERBS if each[0] in {"scan", "explain", "plan", "status", "config"}]
FAILURES: tuple[tuple[str, ...], ...] = (
    ("explain", "0000:ff:00.0"),
    ("explain", "banana"),
    ("explain", "nvidia.com/TU106_GEFORCE_RTX_2060_REV_A"),
    ("explain", "ns/other"),
    ("explain", "/dev/vfio/99"),
    ("scan", "--class", "banana"),
    ("plan", "--host", "there is no such file"),
    ("config", "--check", "wrong.yaml"),
    ("config", "--from", "machine.yaml"),
    ("status", "--status-socket", "/run/none.sock"),
    ("banana",),
)
# What may be wider than the terminal: "-o wide", which is asked for to have all of a device in one line, JSON
# and YAML, which are for programs, lines of the log, and one word that is longer than its place: a resource's
# name or a path is copied, so it is never broken.


@pytest.fixture
def stage(node: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    """The demo's node, with a name that is not ASCII, a machine and another configuration."""
    nodes.demo_node(node.root)
    node.configure(CONFIG)
    node.host.write_file("/names", NAMES)
    node.host.write_file("/etc/machine-id", "5f2a0c6e8b3d4f17a9c1e0d2b4f68a37")
    Path(node.root, "machine.yaml").write_text(MACHINE)
    Path(node.root, "other.yaml").write_text(CONFIG.replace("example.com/nic", "example.com/net"))
    Path(node.root, "wrong.yaml").write_text("resourcez: []\ntiming: {setle: 1s}\n")
    monkeypatch.chdir(node.root)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return node


def command(*words: str) -> list[str]:
    """As one types it on that host."""
    return [sys.executable, "-m", "nodeagent", *([] if words == ("--version",) else ["--root", "."]), *words]


def piped(words: tuple[str, ...], environ: Mapping[str, str]) -> str:
    """All that it says where nobody looks."""
    done = subprocess.run(
        command(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ, check=False
    )
    return done.stdout.decode()


def seen(words: tuple[str, ...]) -> None:
    """Look at one command on a terminal, and in a pipe where only ASCII is understood."""
    for line in shown(command(*words), WIDTH, located("C.UTF-8")).splitlines():
        assert len(line) <= WIDTH or len(line.split()) == 1, line
        assert line == line.rstrip()
    text = piped(words, located("C"))
    assert text.isascii()
    assert ESCAPE not in text
    assert "Traceback" not in text


def located(name: str) -> dict[str, str]:
    """The environment with this locale."""
    return {key: value for key, value in os.environ.items() if not key.startswith("LC_")} | {"LANG": name}


@pytest.mark.parametrize("words", [*VERBS, *FAILURES], ids=" ".join)
def test_each_verb_fits_a_terminal_and_is_plain_in_a_pipe(stage: Node, words: tuple[str, ...]) -> None:
    seen(words)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_so_does_what_is_told_of_a_daemon(stage: Node) -> None:
    async with stage.running(listed={GPU: 4}) as (_, kubelet):
        await kubelet.admit(pod("vm", {GPU: 1}))
        await stage.until_told(lambda told: bool(told["holders"]))
        for words in BESIDE:
            await anyio.to_thread.run_sync(seen, words)


def test_names_are_whole_in_a_terminal_and_a_line_is_a_device_in_a_pipe(stage: Node) -> None:
    environ = located("C.UTF-8")
    assert re.search(rf"^ +{GPU}$", shown(command("scan"), WIDTH, environ), re.MULTILINE)
    assert "Tésla" in piped(("scan",), environ)
    assert "T\\xe9sla" in piped(("scan",), located("C"))
    rows = [line for line in piped(("scan",), environ).splitlines() if line.startswith("0000:")]
    assert len(rows) == 19


def test_what_is_asked_for_as_wide_or_for_programs_is_folded_nowhere(stage: Node) -> None:
    for form in ("wide", "json", "yaml"):
        words = ("scan", "-o", form)
        whole = piped(words, located("C.UTF-8")).splitlines()[1:]  # the first says that no daemon answers
        assert shown(command(*words), WIDTH, located("C.UTF-8")).splitlines()[-len(whole) :] == whole


@pytest.mark.slow
def test_the_demo_fits_a_terminal() -> None:
    text = re.sub(rf"{ESCAPE}\[[0-9;]*m", "", shown([sys.executable, "-m", "nodeagent", "demo"]))
    assert "\n12. " in text, "all steps"
    assert "FAILED" not in text
    for line in text.splitlines():
        assert len(line) <= WIDTH or len(line.split()) == 1, line
