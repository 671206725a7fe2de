# SPDX-License-Identifier: Apache-2.0
"""What is advised when a file cannot be had: by what is wrong with it, and by who asks. As processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.people import NOBODY, as_confined_root, as_nobody, as_oneself, needs_root, open_directory
from tests.sim import hosts

SUDO, CONFINED = "sudo", "AppArmor, SELinux"
ONE = hosts.address(0)


class World:
    """A simulated host that everybody may read, and ``file``, which is asked for."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "host"
        self.file = directory / "asked"
        self.etc = self.root / "etc/nodeagent"
        hosts.many(self.root, 1)
        self.etc.mkdir(parents=True)


@pytest.fixture
def world() -> Iterator[World]:
    with open_directory() as directory:
        yield World(directory)


def secret(path: Path) -> None:
    """Nobody's, and for nobody: so also not for a root without its powers."""
    path.write_text("{}")
    path.chmod(0)
    os.chown(path, NOBODY + 1, NOBODY + 1)


def circle(path: Path) -> None:
    path.symlink_to(path)


def nothing(_: Path) -> None:
    """Leave it as it is."""


FILE = {  # what is wrong with a file → how it comes, who asks, what is to be advised
    "a user may not read it": (secret, as_nobody, SUDO),
    "root itself may not read it": (secret, as_confined_root, CONFINED),
    "it is not there": (nothing, as_oneself, "path"),
    "it is a directory": (Path.mkdir, as_oneself, "a directory"),
    "it is a circle of links": (circle, as_oneself, "loop"),
}
ASKED = {  # who is given a file
    "a saved host": ("explain", ONE, "--host"),
    "a configuration to check": ("config", "--check"),
    "a configuration to try": ("plan", "--config"),
    "a file of another tool": ("config", "--from"),
    "a machine": ("explain", "vmi"),
    "a KubeVirt CR": ("explain", ONE, "--cr"),
}
_MACHINE = "{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {name: a}, spec: {}}"


@needs_root
@pytest.mark.parametrize("wrong", FILE)
@pytest.mark.parametrize("asked", ASKED)
def test_a_file_that_is_asked_for_cannot_be_read(world: World, asked: str, wrong: str) -> None:
    make, who, advice = FILE[wrong]
    make(world.file)
    arguments = [*ASKED[asked]]
    if arguments[-1] == "--cr":
        machine = world.root.parent / "machine.yaml"
        machine.write_text(_MACHINE)
        arguments = ["explain", "vmi", str(machine), "--cr"]
    told(who("--root", str(world.root), *arguments, str(world.file)), 2, str(world.file), advice)


@pytest.mark.parametrize(
    "asked", ["a saved host", "a configuration to check", "a file of another tool", "a machine"]
)
def test_a_file_is_asked_for_with_a_name_that_is_too_long(world: World, asked: str) -> None:
    name = "a" * 300 + ".yaml"
    told(as_oneself("--root", str(world.root), *ASKED[asked], name), 2, name, "shorten")


@needs_root
@pytest.mark.parametrize("wrong", [each for each in FILE if each != "it is not there"])
def test_the_configuration_of_a_node_cannot_be_read(world: World, wrong: str) -> None:
    make, who, advice = FILE[wrong]
    make(world.etc / "config.yaml")
    told(who("--root", str(world.root), "config"), 2, f"{world.etc}/config.yaml", advice)


PARTS = {  # what is wrong with a directory of files
    "a user may not list it": (0o700, as_nobody, SUDO),
    "root itself may not list it": (0o700, as_confined_root, CONFINED),
    "it is a file": (None, as_oneself, "make it a directory"),
}


def closed(path: Path, mode: int | None) -> None:
    """A directory of somebody else, or a file in its place."""
    if mode is None:
        path.write_text("")
        return
    path.mkdir(mode)
    os.chown(path, NOBODY + 1, NOBODY + 1)


@needs_root
@pytest.mark.parametrize("wrong", PARTS)
def test_a_directory_of_settings_cannot_be_listed(world: World, wrong: str) -> None:
    mode, who, advice = PARTS[wrong]
    closed(world.etc / "conf.d", mode)
    told(who("--root", str(world.root), "config"), 2, f"{world.etc}/conf.d", advice)


@needs_root
@pytest.mark.parametrize("wrong", PARTS)
def test_definitions_of_mdevctl_cannot_be_listed(world: World, wrong: str) -> None:
    mode, who, advice = PARTS[wrong]
    (world.etc / "config.yaml").write_text("mdevs: {mdevctl: true}\n")
    closed(world.root / "etc/mdevctl.d", mode)
    done = who("--root", str(world.root), "config")
    (line,) = [each for each in done.stderr.splitlines() if "mdevctl.d" in each]
    assert advice in line


def test_the_socket_of_the_daemon_is_for_root_alone(world: World) -> None:
    run = world.root / "run/nodeagent"
    run.mkdir(parents=True)
    run.chmod(0o700)
    told(as_nobody("--root", str(world.root), "status"), 1, "/run/nodeagent/status.sock", SUDO)


def test_a_root_that_may_not_be_looked_into_is_no_traceback(world: World) -> None:
    world.root.chmod(0o700)
    told(as_nobody("--root", str(world.root), "scan"), 2, f'--root "{world.root}"', SUDO)


def test_credentials_that_may_not_be_read_are_no_traceback(world: World) -> None:
    inside = world.root.parent / "closed"
    inside.mkdir(0o700)
    arguments = ("--root", str(world.root), "explain", "vmi", "ns/vm", "--kubeconfig", "/kubeconfig")
    (world.root / "kubeconfig").symlink_to(inside / "kubeconfig")
    told(as_nobody(*arguments), 1, "kubeconfig", SUDO)


def test_a_full_disk_takes_no_answer(world: World) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "nodeagent", "--root", str(world.root), "scan"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    told(
        subprocess.CompletedProcess([], done.returncode, "", done.stderr.partition("\n")[2]),
        1,
        "No space",
        "room",
    )


def told(done: subprocess.CompletedProcess[str], code: int, what: str, advice: str) -> None:
    """Two lines and no more; never the number of an error, which says nothing to people."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    first, second, *rest = done.stderr.splitlines()
    assert rest == []
    assert what in first
    assert "[Errno" not in done.stderr
    assert advice in second
    if advice != SUDO:
        assert SUDO not in second
