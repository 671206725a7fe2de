# SPDX-License-Identifier: Apache-2.0
"""USB devices and sets of them, for tests: what to plug in, which rules offer it, who has a node open."""

from __future__ import annotations

import os
from pathlib import Path

from nodeagent.sim import files
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox.harness import Node
from tests.sim.usb import STICK, Plug

SET, ONE = "example.com/set", "example.com/stick"
BUNDLE = "{name: example.com/set, bundle: true, usb: [{vendors: ['46f4']}, {vendors: ['1234']}]}"
SINGLE = "{name: example.com/stick, usb: [{vendors: ['46f4']}]}"
QEMU = "/proc/4711"
_MAJOR = 189  # USB_DEVICE_MAJOR in include/linux/usb.h


def stick(serial: str) -> Plug:
    return STICK._replace(serial=serial)


def key(serial: str) -> Plug:
    return Plug("1234", "5678", serial)


def configured(node: Node, *rules: str) -> None:
    node.configure("resources:\n" + "".join(f"  - {rule}\n" for rule in rules))


def all_seen(node: Node) -> None:
    """All processes of the host are seen: else who had a device counts as having it for five seconds."""
    files.directory(node.host.path(f"{QEMU}/fd"))


def places(admitted: Pod) -> set[str]:
    """Bus and number of all that the pod was given."""
    return {each for env in admitted.result.envs.values() for each in env.split(",")}


def lent(node: Node) -> dict[str, set[str]]:
    """Head of a set → bus and number of each device of it, as they are on record."""
    return {head: {loan[2] for loan in several} for head, several in node.state("usb").items()}


def plugged(node: Node, port: str, plug: Plug, number: int) -> str:
    """Plug it in, with a node of the number that the kernel gives it; where that is on this machine."""
    node.usb.plug(port, plug, number)
    bus = int(port.partition("-")[0])
    minor, place = (bus - 1) * 128 + number - 1, node.usb.path(port)
    files.write(node.host.path(f"{place}/dev"), f"{_MAJOR}:{minor}\n")
    files.directory(node.host.path("/sys/dev/char"))
    node.host.tree.link(f"/sys/dev/char/{_MAJOR}:{minor}", place)
    path = node.host.path(f"/dev/bus/usb/{bus:03}/{number:03}")
    aside = f"{path}.new"
    os.mknod(aside, 0o020600, os.makedev(_MAJOR, minor))
    Path(aside).rename(path)  # the daemon never sees the device without its node, as on a real host
    return path


def opened(node: Node, path: str) -> Path:
    """A process has the node open, until this is removed."""
    node.host.write_file(f"{QEMU}/comm", "qemu-system-x86\n")
    descriptor = Path(node.host.path(f"{QEMU}/fd/7"))
    files.directory(str(descriptor.parent))
    descriptor.symlink_to(path)
    return descriptor
