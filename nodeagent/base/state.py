# SPDX-License-Identifier: Apache-2.0
"""The two state files of the daemon: ``BOOT`` is valid until the next boot, ``LASTING`` longer.

Each file is a JSON object with sections, and each section has one writer. Saving replaces the whole file
atomically, so a crash loses no section; only one daemon or command writes at a time
(``kubelet.node_lock``). A damaged file or section counts as empty: its writer renames it and logs that, and
readers leave it in place. There is no checksum, because operators may edit the files. All functions block.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from nodeagent.base import files, hints
from nodeagent.base.errors import KernelRefused

T = TypeVar("T")

ASIDE = ".broken"
# raised by a parser for damaged content
WRONG = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
# errors that do not mean that the file is damaged
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_NO_FILE = (errno.ENOENT, errno.ENOTDIR)


class Damaged(ValueError):
    """Raised for a state file, or a section of it, that cannot be parsed as its type."""

    def __init__(self, path: str, section: str = "") -> None:
        part = f", section {section}," if section else ""
        super().__init__(f"{path}{part} is damaged; it is kept as {path}{ASIDE}")
        self.path = path


class StateFile:
    """The path of a state file on the host, its mode, and the lock held while a section is replaced."""

    def __init__(self, path: str, mode: int) -> None:
        self.path = path
        self.mode = mode
        self.lock = threading.Lock()


BOOT = StateFile("/run/nodeagent/state.json", 0o644)
LASTING = StateFile("/var/lib/nodeagent/last.json", 0o600)


CLAIMS = "/var/lib/nodeagent/claims"
"""A directory with a file for each prepared claim (``agent.dra.record``)."""


def has_claims(prefix: str) -> bool:
    """Return True if claims are recorded, or if the record cannot be read. Blocks."""
    try:
        return any(name.endswith(".json") for name in os.listdir(f"{prefix.rstrip('/')}{CLAIMS}"))
    except OSError as error:
        return error.errno not in _NO_FILE


class SectionId(NamedTuple):
    """The file and the key of a section."""

    file: StateFile
    key: str

    def path(self, prefix: str) -> str:
        """Return the path of the file."""
        return f"{prefix.rstrip('/')}{self.file.path}"

    def exists(self, prefix: str) -> bool:
        """Return True if the section may have a value."""
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
    """One section of a state file, with its type; ``prefix`` is the host's root directory in all methods."""

    def __init__(
        self,
        section_id: SectionId,
        empty: T,
        parse: Callable[[dict[str, Any]], T],
        plain: Callable[[T], dict[str, Any]],
        hint: str,
    ) -> None:
        """Define a section.

        ``empty`` is the value without a section. ``parse`` converts plain data into the value, ``plain``
        does the reverse. ``hint`` is the consequence if the section cannot be written.
        """
        self._id = section_id
        self._empty = empty
        self._parse = parse
        self._plain = plain
        self._hint = hint

    def read(self, prefix: str) -> T:
        """Return the value; the empty value if the section does not exist or this user may not read the file.

        :raises Damaged: if the content cannot be parsed as its type.
        :raises KernelRefused: if the file cannot be read at present.
        """
        path = self._id.path(prefix)
        sections = _read(path)
        if self._id.key not in sections:
            return self._empty
        try:
            return self._parse(sections[self._id.key])
        except WRONG as error:
            raise Damaged(path, self._id.key) from error

    def peek(self, prefix: str) -> T:
        """Return the value as ``read`` does; a damaged section counts as empty.

        :raises KernelRefused: as ``read``.
        """
        try:
            return self.read(prefix)
        except Damaged:
            return self._empty

    def load(self, prefix: str) -> T:
        """Return the value for its writer: a damaged section is renamed, logged, and counts as empty."""
        try:
            return self.read(prefix)
        except Damaged as error:
            with self._id.file.lock:
                self._set_aside(error)
            return self._empty

    def save(self, prefix: str, value: T) -> None:
        """Replace the section; the empty value removes it. :raises KernelRefused: if that fails."""
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
        """Rename a damaged file and log that; if other sections are valid, copy the file and remove this
        section.
        """
        from nodeagent.base import log  # imported here because commands also read the files

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
    """Return the sections of a file.

    ``to_replace``: the sections will be written again, so unreadable content is an error.

    :raises Damaged: if the content is not a JSON object.
    :raises KernelRefused: if the file cannot be read at present.
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
