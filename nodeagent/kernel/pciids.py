# SPDX-License-Identifier: Apache-2.0
"""Names from the PCI ID database (pci.ids), for the few ids that a host has.

The host's own copy wins over the bundled one, since people compare with its ``lspci``. A device's line
belongs to the vendor line above it: the same number below another vendor is another device. The file is
searched, not parsed: nothing but the wanted lines is decoded or kept. A broken or partial file gives no
names, never an error. Format: the comment at the head of pci.ids.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable
from pathlib import Path

from nodeagent.kernel.root import Root, looked

HOST_FILES = ("/usr/share/hwdata/pci.ids", "/usr/share/misc/pci.ids")
_ID = re.compile(r"[0-9a-f]{4}")
_VENDOR = re.compile(rb"\n[^\t#\n\r]")
_BLANKS = (b" ", b"\t")
_LONGEST = 1024  # bytes of a name; the longest in use has 150


def names(root: Root, wanted: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The names of (vendor, device) pairs, four lower-case hexadecimal digits each: "10de", "10de:1eb8".

    The first file that names at least one of the vendors is the source; files are not mixed.
    """
    ids = frozenset(wanted)
    bundled = Path(__file__).parent.parent / "data" / "pci.ids"
    for path in (*(root.path(file) for file in HOST_FILES), str(bundled)):
        if texts := _search(path, ids):
            return texts
    return {}


def _search(path: str, wanted: frozenset[tuple[str, str]]) -> dict[str, str]:
    try:
        with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _names(data, wanted)
    except OSError as error:  # absent or unreadable
        looked(error)
        return {}
    except ValueError:  # empty
        return {}


def _names(data: mmap.mmap, wanted: frozenset[tuple[str, str]]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for vendor in {vendor for vendor, _ in wanted if _ID.fullmatch(vendor)}:
        at = _find(data, vendor.encode(), 0, len(data))
        if at is None:
            continue
        texts[vendor] = _name(data, at)
        end = _end_of_vendor(data, at)
        for device in {device for owner, device in wanted if owner == vendor}:
            line = _find(data, b"\t" + device.encode(), at, end) if _ID.fullmatch(device) else None
            if line is not None:
                texts[f"{vendor}:{device}"] = _name(data, line)
    return texts


def _find(data: mmap.mmap, number: bytes, start: int, end: int) -> int | None:
    """Where in the file the name begins on the line that starts with ``number`` as a whole word."""
    size = len(number)
    if start == 0 and data[:size] == number and data[size : size + 1] in _BLANKS:
        return size
    while (at := data.find(b"\n" + number, start, end)) >= 0:
        start = at + 1 + size
        if data[start : start + 1] in _BLANKS:
            return start
    return None


def _name(data: mmap.mmap, start: int) -> str:
    """The rest of the line, as far as a name can go."""
    end = data.find(b"\n", start, start + _LONGEST)
    return data[start : end if end >= 0 else start + _LONGEST].decode("utf-8", "replace").strip()


def _end_of_vendor(data: mmap.mmap, start: int) -> int:
    """Where the next line begins that is neither indented nor a comment nor empty."""
    following = _VENDOR.search(data, start)
    return len(data) if following is None else following.start() + 1
