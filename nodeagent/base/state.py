# SPDX-License-Identifier: Apache-2.0
"""The two files in which values outlive the daemon: ``BOOT`` until the next boot, ``LASTING`` for longer.

Each file is a JSON object with sections, and each section has one writer. Save replaces the whole file at
once, so a crash loses no section; one daemon or command at a time writes (``kubelet.node_lock``). A file or
section that cannot be read counts as none: its writer sets it aside and logs that, and others leave it
alone. There is no checksum: operators may edit the files. All functions block.
"""

from __future__ import annotations

import contextlib
import errno
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from nodeagent.base import files, hints
from nodeagent.base.errors import KernelRefused

T = TypeVar("T")

ASIDE = ".broken"
_WRONG = (ValueError, LookupError, TypeError, AttributeError, RecursionError)  # of a parser
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # say nothing of the file
_NO_FILE = (errno.ENOENT, errno.ENOTDIR)


class Damaged(ValueError):
    """Raised for a file, or a section of it, that cannot be read as its type."""

    def __init__(self, path: str, section: str = "") -> None:
        part = f", section {section}," if section else ""
        super().__init__(f"{path}{part} is damaged; it is kept as {path}{ASIDE}")
        self.path = path


class StateFile:
    """The path of a file on the host, and its mode. The lock is held while a section is replaced."""

    def __init__(self, path: str, mode: int) -> None:
        self.path = path
        self.mode = mode
        self.lock = threading.Lock()


BOOT = StateFile("/run/nodeagent/state.json", 0o644)
LASTING = StateFile("/var/lib/nodeagent/last.json", 0o600)


class SectionId(NamedTuple):
    """The file and the key of a section."""

    file: StateFile
    key: str

    def path(self, prefix: str) -> str:
        """The path of its file."""
        return f"{prefix.rstrip('/')}{self.file.path}"

    def exists(self, prefix: str) -> bool:
        """True if there may be a value to read."""
        try:
            return self.key in _read(self.path(prefix))
        except (Damaged, KernelRefused):
            return True


LEDGER = SectionId(BOOT, "ledger")
USB = SectionId(BOOT, "usb")
RECOVERIES = SectionId(BOOT, "recoveries")
SETTINGS = SectionId(LASTING, "settings")
CLUSTER = SectionId(LASTING, "cluster")
OFFERED = SectionId(LASTING, "offered")


class Section(Generic[T]):
    """The value of a section. ``prefix``, of all methods: the directory that is the host's root."""

    def __init__(
        self,
        section_id: SectionId,
        empty: T,
        parse: Callable[[dict[str, Any]], T],
        plain: Callable[[T], dict[str, Any]],
        hint: str,
    ) -> None:
        """``empty``: the value without a section. ``parse`` makes the value of plain data, ``plain`` the data
        of the value. ``hint``: the consequence if it cannot be written.
        """
        self._id = section_id
        self._empty = empty
        self._parse = parse
        self._plain = plain
        self._hint = hint

    def read(self, prefix: str) -> T:
        """The value; the empty one if there is none, or the file is not ours to read.

        :raises Damaged: if it cannot be read as its type.
        :raises KernelRefused: if nothing can be read at present.
        """
        path = self._id.path(prefix)
        sections = _read(path)
        if self._id.key not in sections:
            return self._empty
        try:
            return self._parse(sections[self._id.key])
        except _WRONG as error:
            raise Damaged(path, self._id.key) from error

    def peek(self, prefix: str) -> T:
        """As ``read``, but a damaged value counts as none, and stays. :raises KernelRefused: as ``read``."""
        try:
            return self.read(prefix)
        except Damaged:
            return self._empty

    def load(self, prefix: str) -> T:
        """As ``peek``, by the writer: a damaged value is set aside, and logged."""
        try:
            return self.read(prefix)
        except Damaged as error:
            with self._id.file.lock:
                self._set_aside(error)
            return self._empty

    def save(self, prefix: str, value: T) -> None:
        """Replace the section; remove it for the empty value. :raises KernelRefused: if that fails."""
        path = self._id.path(prefix)
        with self._id.file.lock:
            try:
                before = _read(path, to_replace=True)
            except Damaged as error:
                self._set_aside(error)
                before = {}
            others = {key: section for key, section in before.items() if key != self._id.key}
            sections = others if value == self._empty else {**others, self._id.key: self._plain(value)}
            self._write(path, before, sections)

    def _write(self, path: str, before: dict[str, Any], sections: dict[str, Any]) -> None:
        if sections:
            files.put(path, json.dumps(sections, sort_keys=True), self._hint, mode=self._id.file.mode)
        elif before:
            try:
                Path(path).unlink(missing_ok=True)
            except OSError as error:
                what = f"{path} cannot be removed: {hints.strerror(error)}"
                raise KernelRefused(what, self._hint, errno=error.errno or 0, path=path) from error

    def _set_aside(self, damaged: Damaged) -> None:
        """Rename a damaged file, and log that; with other good sections: copy it and remove this one."""
        from nodeagent.base import log  # here: commands read the files, too

        path = damaged.path
        with contextlib.suppress(OSError, KernelRefused):
            try:
                sections = _read(path)
            except Damaged:
                sections = {}
            others = {key: section for key, section in sections.items() if key != self._id.key}
            if others:
                files.replace(path + ASIDE, Path(path).read_text(encoding="utf-8"), mode=self._id.file.mode)
                self._write(path, sections, others)
            else:
                Path(path).replace(path + ASIDE)
        log.event(log.STATE_DAMAGED, error=str(damaged))


def _read(path: str, *, to_replace: bool = False) -> dict[str, Any]:
    """The sections of a file. ``to_replace``: they will be written again, so none may be missed.

    :raises Damaged: if it is no JSON object.
    :raises KernelRefused: if it cannot be read at present.
    """
    try:
        data = files.read_regular(path)
    except files.NotRegular:
        return {}
    except OSError as error:
        if error.errno in _OUT_OF_RESOURCES or (to_replace and error.errno not in _NO_FILE):
            what = f"{path} cannot be read: {hints.strerror(error)}"
            raise KernelRefused(what, hints.for_errno(error, "read"), path=path) from error
        return {}
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Damaged(path) from error
    if not isinstance(document, dict):
        raise Damaged(path)
    return document
