# SPDX-License-Identifier: Apache-2.0
"""The active faults of a fake kubelet or API server, each with a setting."""

from __future__ import annotations

from typing import Any

from nodeagent.base.latest import Latest


class Faults:
    """The active faults: each applies to all resources (``name``) or to one resource (``name:resource``)."""

    def __init__(self, changes: Latest[int]) -> None:
        self._changes = changes
        self._settings: dict[str, Any] = {}

    def set(self, name: str, setting: Any = True) -> None:
        """Enable a fault."""
        self._settings[name] = setting
        self._changes.touch()

    def clear(self, name: str) -> None:
        """Disable a fault."""
        self._settings.pop(name, None)
        self._changes.touch()

    def get(self, name: str, resource: str = "") -> Any:
        """Return the setting of a fault for this resource, or else for all; None if it is inactive."""
        return self._settings.get(f"{name}:{resource}", self._settings.get(name))
