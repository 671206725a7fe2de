# SPDX-License-Identifier: Apache-2.0
"""What has to be there before devices are given: each kind of it has somebody who sees to it.

CDI files are always seen to. What few nodes want is a feature, and enters itself when it is loaded: who asks
before that waits for it, but not long.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import anyio

from nodeagent.base.errors import Refused
from nodeagent.base.latest import Latest
from nodeagent.model.host import Kind
from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import Resource


class Ensures(Protocol):
    """Sees to what devices need."""

    async def ensure(self, name: ResourceName, device_ids: Sequence[str]) -> None:
        """Raise Refused if these devices cannot have it."""
        ...


class Lends(Protocol):
    """Sees to the nodes of USB devices."""

    async def ensure(self, name: ResourceName, device_ids: Sequence[str], had: Collection[str]) -> None:
        """Raise Refused if these cannot be lent; of what the pod that asks ``had``, nobody has to let go."""
        ...


class Provisions:
    """Who sees to what."""

    def __init__(self, feature_load: float) -> None:
        """``feature_load``: seconds that the code for USB devices may take to be loaded."""
        self._feature_load = feature_load
        self._cdi: Ensures | None = None
        self._usb: Latest[Lends | None] = Latest(None)

    def serve_cdi(self, by: Ensures) -> None:
        """Devices that are given by CDI names have their files from now on."""
        self._cdi = by

    def serve_usb(self, by: Lends) -> None:
        """USB devices have nodes that QEMU can open from now on."""
        self._usb.set(by)

    async def ensure(self, resource: Resource, device_ids: Sequence[str], had: Collection[str]) -> None:
        """See to all that these devices need, of which the pod that asks ``had`` some before.

        :raises Refused: if they cannot have it.
        """
        if resource.cdi and self._cdi is not None:
            await self._cdi.ensure(resource.name, device_ids)
        if resource.kind is Kind.USB:
            await (await self._lender(resource)).ensure(resource.name, device_ids, had)

    async def _lender(self, resource: Resource) -> Lends:
        with anyio.move_on_after(self._feature_load):
            while (lender := self._usb.get()) is None:
                await self._usb.newer(self._usb.version)
            return lender
        raise Refused(f"{resource.name}: USB devices cannot be given yet", "try the pod again")
