# SPDX-License-Identifier: Apache-2.0
"""How one resource stands with the kubelet: the value that ``status`` shows, and each change said once."""

from __future__ import annotations

from typing import NamedTuple

from nodeagent.base import log
from nodeagent.kubelet.deviceplugin.listing import Listing


class Registration(NamedTuple):
    """Whether the resource is registered now, how often it was, and what is wrong (None: nothing is)."""

    registered: bool = False
    registrations: int = 0
    last_error: str | None = None


class Standing:
    """One resource's registration as it changes; ``registration`` is how it is now."""

    def __init__(self, resource: str, listing: Listing) -> None:
        self.registration = Registration()
        self._resource = resource
        self._listing = listing
        self._complained = False  # of a refusal, since it was accepted last

    def accepted(self) -> None:
        """Note that the kubelet has taken the resource."""
        self.registration = Registration(True, self.registration.registrations + 1)
        self._complained = False
        devices = len(self._listing.cell.get())
        log.event(log.RESOURCE_REGISTERED, resource=self._resource, devices=devices)

    def refused(self, error: str) -> None:
        """Note why the resource is not registered; said once until it is."""
        if not self._complained:
            log.event(log.REGISTER_FAILING, resource=self._resource, error=error)
        self._complained = True
        self.unreachable(error)

    def unreachable(self, error: str) -> None:
        """Note that nobody answers; the Registrar says it, once for all resources."""
        self.registration = self.registration._replace(last_error=error)

    def ended(self) -> None:
        """Note that what was registered is not served any more."""
        self.registration = self.registration._replace(registered=False)

    def lost(self, why: str) -> None:
        """Say that a registration was lost, if there has been one."""
        if self.registration.registrations:
            log.event(log.REGISTRATION_LOST, resource=self._resource, why=why)
