# SPDX-License-Identifier: Apache-2.0
"""What the API server lets nodeagent do, and what a look at it has shown. Frozen values, no I/O."""

from __future__ import annotations

from typing import NamedTuple


class Right(NamedTuple):
    """One verb on one resource of the API; ``namespace`` and ``name`` "": on all of them.

    ``purpose`` is what it is for. One that is not ``required`` is for a command, not for the daemon.
    """

    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    purpose: str = ""
    required: bool = True

    @property
    def object(self) -> str:
        """Its resource as kubectl writes it: "kubevirts.kubevirt.io", "nodes/status"."""
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f"{resource}.{self.group}" if self.group else resource

    @property
    def rule(self) -> str:
        """The rule of a Role or ClusterRole that gives it."""
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f'{{apiGroups: ["{self.group}"], resources: ["{resource}"], verbs: ["{self.verb}"]}}'


class Check(NamedTuple):
    """One thing that was looked at. ``kind``: right, object, entry. ``hint``: what to do if it is not well.

    What is not ``required`` may be missing.
    """

    kind: str
    what: str
    well: bool
    why: str = ""
    hint: str = ""
    required: bool = True


class AccessReport(NamedTuple):
    """All of it, and as whom it was asked for ("" where the API server does not tell)."""

    user: str = ""
    checks: tuple[Check, ...] = ()

    @property
    def well(self) -> bool:
        """True if nothing is missing that is required."""
        return all(check.well for check in self.checks if check.required)
