# SPDX-License-Identifier: Apache-2.0
"""What a plugin asks, for the tests of the kubelet door: a small agent that grants, waits or refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio
import anyio.lowlevel

from nodeagent.model.allocation import DeviceNode, Grant
from nodeagent.model.ids import DeviceId
from nodeagent.model.resource import Device, Reason, ReasonCode

BROKEN = Reason(ReasonCode.DRIVER_CHANGED, "its driver is nouveau", "bind it to vfio-pci")


def device(name: str, reason: Reason | None = None, numa: int | None = None) -> Device:
    """One Device."""
    return Device(DeviceId(name), reason, numa)


class Answers:
    """Grants what is asked, after its gate is open; raises ``error`` instead if there is one."""

    def __init__(self) -> None:
        self.preferring = True
        self.error: Exception | None = None
        self.before_error: Callable[[], object] = lambda: None
        self.gate = anyio.Event()
        self.gate.set()
        self.entered = anyio.Event()
        self.asked: list[tuple[str, ...]] = []

    async def allocate(self, device_ids: Sequence[str]) -> Grant:
        """The grant names its ids."""
        self.asked.append(tuple(device_ids))
        self.entered.set()
        await self.gate.wait()
        if self.error is not None:
            self.before_error()
            raise self.error
        envs = (("IDS", ",".join(device_ids)),)
        return Grant(envs, (DeviceNode("/dev/vfio/vfio"),), tuple(f"x/y={each}" for each in device_ids))

    async def ready(self) -> None:
        """All that is held is known."""
        await anyio.lowlevel.checkpoint()

    async def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        """The last ones first."""
        if self.error is not None:
            raise self.error
        rest = [each for each in reversed(available) if each not in must]
        return [*must, *rest][:size]
