# SPDX-License-Identifier: Apache-2.0
"""Looks up names in the PCI ID database (pci.ids) for the few ids of a host.

The name of an id comes from the first of three files that contains it: the file that the operator configured,
the bundled copy (the same on all nodes of a cluster), then the file of the host. In the file, the lines of
devices follow the line of their vendor. Files are searched, not parsed: only the requested lines are decoded.
A broken file yields no names instead of an error. Format: the comment at the beginning of pci.ids.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable
from pathlib import Path

from nodeagent.kernel.root import Root, raise_if_out_of_resources

HOST_FILES = ("/usr/share/hwdata/pci.ids", "/usr/share/misc/pci.ids")
BUNDLED = Path(__file__).parent.parent / "data" / "pci.ids"
_HEAD = 1024  # bytes; the comment at the beginning of the file is shorter
_DATE = re.compile(rb"^#\s+Date:\s+(\d{4}-\d\d-\d\d)", re.MULTILINE)
_ID = re.compile(r"[0-9a-f]{4}")
_VENDOR = re.compile(rb"\n[^\t#\n\r]")
_BLANKS = (b" ", b"\t")
_LONGEST = 1024  # bytes of a name; the longest existing one has 150


def names(root: Root, wanted: Iterable[tuple[str, str]], chosen: str = "") -> dict[str, str]:
    """Return the names of (vendor, device) pairs, four lower-case hexadecimal digits each: "10de",
    "10de:1eb8".

    ``chosen`` is the host path of the configured file, "" for none.
    """
    own = (chosen,) if chosen else ()
    files = (*map(root.path, own), str(BUNDLED), *map(root.path, HOST_FILES))
    missing, texts = frozenset(wanted), dict[str, str]()
    for path in files:
        if not missing:
            break
        texts = _search(path, missing) | texts
        missing = frozenset(pair for pair in missing if not {pair[0], ":".join(pair)} <= texts.keys())
    return texts


def bundled_date() -> str:
    """Return the date of the bundled copy, "2026-10-24"; "" if the file has none."""
    with BUNDLED.open("rb") as file:
        found = _DATE.search(file.read(_HEAD))
    return found[1].decode() if found else ""


def _search(path: str, wanted: frozenset[tuple[str, str]]) -> dict[str, str]:
    try:
        with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return {key: text for key, text in _names(data, wanted).items() if text}
    except OSError as error:  # missing or unreadable
        raise_if_out_of_resources(error)
        return {}
    except ValueError:  # empty file
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
    """Return the offset of the name on the line that starts with ``number`` as a whole word; None if not
    found.
    """
    size = len(number)
    if start == 0 and data[:size] == number and data[size : size + 1] in _BLANKS:
        return size
    while (at := data.find(b"\n" + number, start, end)) >= 0:
        start = at + 1 + size
        if data[start : start + 1] in _BLANKS:
            return start
    return None


def _name(data: mmap.mmap, start: int) -> str:
    """Return the name in the rest of the line, up to the maximum length."""
    end = data.find(b"\n", start, start + _LONGEST)
    return data[start : end if end >= 0 else start + _LONGEST].decode("utf-8", "replace").strip()


def _end_of_vendor(data: mmap.mmap, start: int) -> int:
    """Return the offset of the next line that is not indented, empty or a comment."""
    following = _VENDOR.search(data, start)
    return len(data) if following is None else following.start() + 1
