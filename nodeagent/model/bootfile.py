# SPDX-License-Identifier: Apache-2.0
"""What makes a boot give functions to VFIO before any driver of the host: which, and by which files."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class AtBoot(NamedTuple):
    """A function that is to have a VFIO driver from boot on; another device at its address is not."""

    address: str
    vendor: str
    device: str
    driver: str


class FileFate(StrEnum):
    """What becomes of a file."""

    WRITTEN = "written"
    REMOVED = "removed"


class BootFile(NamedTuple):
    """A file to write whole, or to remove: then ``text`` is empty."""

    path: str
    fate: FileFate
    text: str = ""
    runs: bool = False


class BootFiles(NamedTuple):
    """The files that change, in order; ``then`` is the command that makes a new initramfs of them, or ""."""

    files: tuple[BootFile, ...] = ()
    then: str = ""
