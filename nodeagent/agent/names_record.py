# SPDX-License-Identifier: Apache-2.0
"""The names that were in force, on disk: after an update, or a reboot, one is not another in silence.

Texts, not names of resources: what the operator changes in the settings is nothing to tell of. What is not
on the host any more stays on record, for it may come back.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Any

from nodeagent.base import log, threads
from nodeagent.base.errors import KernelRefused
from nodeagent.base.files import StateFile
from nodeagent.model.snapshot import Names

PATH = "/var/lib/nodeagent/names.json"
MOST = 1024  # texts; a host has some dozens


def _texts(document: dict[str, Any]) -> dict[str, str | None]:
    texts = dict(document["names"])
    if not all(isinstance(text, str | None) for text in texts.values()):
        raise TypeError("a name is a text")
    return texts


FILE: StateFile[dict[str, str | None]] = StateFile(
    {},
    _texts,
    lambda texts: {"names": texts},
    "without it a name that an update changes is not told",
    log.NAMES_RECORD_BROKEN,
)


class Record:
    """The one reader and writer of the file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._on_disk: dict[str, str | None] | None = None  # None: not read yet
        self._keys: dict[str, None] = {}  # of what was looked up in this life
        self._saved: Names | None = None
        self._refused = False

    async def before(self, keys: Collection[str]) -> dict[str, str | None]:
        """What was in force in the life before for those of the keys that are on record."""
        if self._on_disk is None:
            self._on_disk = await threads.call(FILE.load, self._path)
        self._keys |= dict.fromkeys(keys)
        return {key: self._on_disk[key] for key in keys if key in self._on_disk}

    async def save(self, names: Names) -> bool:
        """Put on disk what is in force, unless it is there; False if that is refused, which is told once."""
        if names is self._saved or self._on_disk is None:
            return True
        fresh = {key: names.get(key) for key in self._keys}
        others = ((key, text) for key, text in self._on_disk.items() if key not in fresh)
        texts = dict(itertools.islice((*fresh.items(), *others), MOST))
        if texts != self._on_disk:
            try:
                await threads.call(FILE.save, self._path, texts)
            except KernelRefused as error:
                self._tell(error)
                return False
        self._saved, self._on_disk, self._refused = names, texts, False
        return True

    def _tell(self, error: KernelRefused) -> None:
        if not self._refused:
            log.event(log.NAMES_UNRECORDED, error=error.what, hint=error.hint)
        self._refused = True
