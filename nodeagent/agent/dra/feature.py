# SPDX-License-Identifier: Apache-2.0
"""Builds the DRA driver: the publisher of ResourceSlices, the answers about claims, the sockets.

``app`` loads this module if a rule has ``via: dra``, or if a claim is prepared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from nodeagent.agent.core import Core
from nodeagent.agent.dra import device_changes
from nodeagent.agent.dra.claims import Claims
from nodeagent.agent.dra.publish import Publisher
from nodeagent.base.supervise import Component, Task
from nodeagent.base.systemd import DescriptorStore
from nodeagent.kubelet.dra import DraPlugin, Health
from nodeagent.model.problem import Problem, ProblemCode, wrong
from nodeagent.model.resource import Reason
from nodeagent.policy.dra import slices, writes


class DraDriver:
    """The DRA driver of this node; its name is that at the start."""

    def __init__(self, core: Core, store: DescriptorStore) -> None:
        settings = core.settings.get()
        driver = settings.dra.driver

        def find_pool() -> str:
            return writes.pool_name(driver, core.settings.get().configuration.node.name)

        self._core = core
        self._publisher = Publisher(core, driver)
        self._claims = Claims(core, self._publisher.read_claim, driver, find_pool)
        self._plugin = DraPlugin(
            driver,
            find_pool,
            self._claims,
            settings.kubelet.plugins_registry_dir,
            core.watcher,
            core.timeouts,
            prefix=core.root.prefix,
            store=store,
        )

    @property
    def components(self) -> Sequence[Component]:
        """The components to run."""
        return (
            Task(self._plugin.name, self._serve),
            Task(self._publisher.name, partial(self._publisher.run, self._plugin.registered)),
            Task("health of claimed devices", self._follow_health),
            Task("claims without a pod", self._claims.release_orphans),
            Task("log of devices by DRA", partial(device_changes.follow, self._core.offering)),
        )

    @property
    def registered(self) -> bool:
        """True if the kubelet has registered the driver."""
        return self._plugin.registered.get()

    def find_problems(self, *, kubelet_present: bool) -> Iterator[Problem]:
        """The problems of the driver, for the status."""
        error, hint = self._plugin.find_problem()
        if error and kubelet_present:
            what = f"{self._plugin.driver}: the DRA driver is not registered: {error}"
            yield wrong(ProblemCode.DRA_NOT_REGISTERED, self._plugin.driver, what, hint)
        yield from self._publisher.problems

    async def _serve(self) -> None:
        """Write the files of the prepared claims, for containers that restart, then serve the kubelet."""
        await self._claims.restore()
        await self._plugin.run()

    async def _follow_health(self) -> None:
        """Report the health of the devices of claims to the kubelet, for the status of their pods."""
        snapshots, before, seen = self._core.snapshots, None, -1
        while True:
            decision = self._core.offering.one_turn()
            if decision is not before:
                found = slices.find_health(decision)
                self._plugin.health.set({name: _health(reason) for name, reason in found.items()})
                before = decision
            seen, _ = await snapshots.newer(seen)


def _health(reason: Reason | None) -> Health:
    return Health(True) if reason is None else Health(False, f"{reason.message}; {reason.hint}")
