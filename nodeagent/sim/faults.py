# SPDX-License-Identifier: Apache-2.0
"""The faults of a fake kubelet or API server: which are on, and how each is set."""

from __future__ import annotations

from typing import Any

from nodeagent.base.latest import Latest


class Faults:
    """How a fake misbehaves, each fault for all resources (``name``) or for one (``name:resource``)."""

    def __init__(self, changes: Latest[int]) -> None:
        self._changes = changes
        self._settings: dict[str, Any] = {}

    def set(self, name: str, setting: Any = True) -> None:
        """Switch a fault on."""
        self._settings[name] = setting
        self._changes.touch()

    def clear(self, name: str) -> None:
        """Switch a fault off."""
        self._settings.pop(name, None)
        self._changes.touch()

    def get(self, name: str, resource: str = "") -> Any:
        """The setting of a fault, or None: for this resource if there is one, else for all."""
        return self._settings.get(f"{name}:{resource}", self._settings.get(name))
