# SPDX-License-Identifier: Apache-2.0
"""What a kernel shows and tells: a tree of sysfs, and uevents."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from hypothesis import strategies as st

from nodeagent.base.errors import KernelRefused
from nodeagent.kernel import uevents
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import scanner
from nodeagent.kernel.scan_requests import ScanRequests
from nodeagent.sim import nodes
from tests import places
from tests.fuzz import judging, mutations
from tests.fuzz.running import Target
from tests.looking import Looks

_UUID = "53764d0e-85a0-42b4-af5c-2046b460b1dc"
_KEYS = (b"\0", b"=", b"@", b"/", b"add", b"PCI_SLOT_NAME=", b"0000:3b:00.0", b"ERROR_EVENT=FAILED_RECOVERY")
_TOKENS = (
    *_KEYS,
    b"SUBSYSTEM=vfio",
    b"DEVNAME=vfio/10",
    _UUID.encode(),
    b"MDEV_STATE=",
    b"\xff",
    b"DEVICE_ONLINE=",
)
_EVENTS = [
    b"bind@/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0\0ACTION=bind\0SUBSYSTEM=pci\0PCI_SLOT_NAME=0000:3b:00.0",
    b"change@/devices/pci0000:3a/0000:3b:00.0\0SUBSYSTEM=pci\0PCI_SLOT_NAME=0000:3b:00.0\0ERROR_EVENT=FAILED_RECOVERY",
    b"add@/devices/virtual/vfio/10\0SUBSYSTEM=vfio\0DEVNAME=vfio/10\0SEQNUM=7",
    b"change@/devices/pci0000:3a/0000:3b:00.0\0MDEV_STATE=registered\0SUBSYSTEM=pci",
    f"add@/devices/pci0000:3a/0000:3b:00.0/{_UUID}\0SUBSYSTEM=mdev".encode(),
    b"libudev\0\xfe\xed\xca\xfe\0\0\0(\0\0\0",
]
_TEXTS = st.sampled_from(
    [
        b"",
        b"\n",
        b"0x10de\n",
        b"-1\n",
        b"99999999999999999999\n",
        b"\xff\xfe\n",
        b"1\0",
        b"0x\n",
        b"x" * 70_000,
        b"..\n",
        b" 1 \n",
        "\u0663\n".encode(),
        b"-7\n",
        b"0x030200\n",
        b"a\nb\n",
        b"[" * 4000,
        b"*" * 4000,
        b"1e3\n",
    ]
) | st.binary(max_size=40)
_NAMES = st.sampled_from(
    [
        "0000:3b:00.0",
        "0000:ff:1f.7",
        "10000:00:00.0",
        "x",
        "vfio-pci",
        "12",
        "-1",
        "99999999999",
        _UUID,
        "a b",
        "\u0663",
        "virtfn0",
        "driver",
        "iommu_group",
        "physfn",
        "mdev_supported_types",
        "nvidia",
        "..x",
        "node7",
        "vfio-dev",
    ]
)
_WAYS = (
    "write",
    "write",
    "write",
    "empty",
    "directory",
    "dangling",
    "loop",
    "astray",
    "add file",
    "add directory",
)
_CHANGES = st.lists(st.tuples(st.integers(0, 1 << 20), st.sampled_from(_WAYS), _TEXTS, _NAMES), max_size=8)


def _looked_at(given: tuple[bool, Sequence[tuple[int, str, bytes, str]]]) -> None:
    split, changes = given
    with places.in_memory("nodeagent-fuzz-") as directory:
        (nodes.vgpu_node if split else nodes.demo_node)(directory)
        looks = Looks(Root(directory))
        before = looks.full()
        paths = sorted(_tree(Path(directory, "sys")))
        for number, way, text, name in changes:
            _change(paths[number % len(paths)], way, text, name)
        try:
            whole = looks.full(before)
            looks.refresh(before, frozenset(before.functions) | {"0000:ff:1f.7"})
        except KernelRefused:
            return
    judging.decided(whole)


def _tree(directory: Path) -> list[Path]:
    """All that is below, links not followed."""
    found = []
    for base, directories, files in os.walk(directory):
        found += [Path(base, name) for name in (*directories, *files)]
    return found


def _change(path: Path, way: str, text: bytes, name: str) -> None:
    """One thing that no kernel shows, or not yet. What an earlier one took away stays away."""
    parent = path if path.is_dir() and not path.is_symlink() else path.parent
    try:
        if way.startswith("add"):
            path = parent / name
        elif path.is_dir() and not path.is_symlink():
            if path.name in ("sys", "bus", "pci", "devices"):
                return
            shutil.rmtree(path)
        elif way != "write" or path.is_symlink():
            path.unlink()
        _put(path, way, text, name)
    except OSError:
        return


def _put(path: Path, way: str, text: bytes, name: str) -> None:
    if way in ("write", "add file"):
        path.write_bytes(text)
    elif way in ("directory", "add directory"):
        path.mkdir()
    elif way != "empty":
        path.symlink_to({"dangling": "../nowhere", "loop": path.name, "astray": f"../{name}"}[way])


def _told(datagram: bytes) -> None:
    event = uevents.parse(datagram)
    if event is None:
        return
    scan_requests = ScanRequests()
    uevents.request_scans(event, scan_requests)
    named = uevents.device_key(event)
    if named is not None:
        scanner.resolve(frozenset({named}), judging.demo_host())


def targets() -> list[Target]:
    """All of this module."""
    tree = st.tuples(st.booleans(), _CHANGES)
    return [
        Target("sysfs", tree, _looked_at, lambda given: sum(len(text) for _, _, text, _ in given[1])),
        Target("uevent", mutations.damaged(_EVENTS, _TOKENS), _told),
    ]
