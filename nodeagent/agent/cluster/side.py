# SPDX-License-Identifier: Apache-2.0
"""Follows the KubeVirt CR and this node's Node, and publishes what they wish, as long as the settings say so.

Whoever decides waits for none of this: what was heard last stays in force while the API server is away, also
over a reboot (``record``). Two watches, one connection each, and no polling.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import NamedTuple

import anyio

from nodeagent.agent.cluster import heard, record
from nodeagent.agent.cluster.guests import Api, Guest
from nodeagent.agent.cluster.heard import Heard
from nodeagent.agent.cluster.keeping import Keeper
from nodeagent.agent.cluster.offered import Offered
from nodeagent.agent.cluster.record import Record
from nodeagent.agent.core import Core
from nodeagent.base import log
from nodeagent.base.latest import Latest
from nodeagent.cluster import account
from nodeagent.cluster.credentials import Credentials
from nodeagent.cluster.session import Session
from nodeagent.cluster.watching import Chance, Resource, Watch
from nodeagent.config import Settings
from nodeagent.kernel.root import Root
from nodeagent.model.configuration import Configuration
from nodeagent.model.desired import Following
from nodeagent.model.kubevirt import ClusterWishes
from nodeagent.model.status import ClusterStatus, Status
from nodeagent.policy import merge

_UNHEARD = (
    "the cluster is not followed any more: what it said last stays in force until nodeagent starts again, "
    "and may then offer what virt-handler offers; give it credentials before"
)
SAID = 20  # new lines of doubts and objections that are in the log at a time
KUBEVIRTS = Resource("/apis/kubevirt.io/v1/kubevirts", "KubeVirt CRs", keep=record.of_cr)


class Place(NamedTuple):
    """What of the settings decides whom to ask, and who we are."""

    following: Following
    kubeconfig: str
    node: str

    @classmethod
    def of(cls, settings: Settings, root: Root) -> Place:
        """As they say now."""
        configuration = settings.configuration
        kubeconfig = configuration.kubeconfig and root.path(configuration.kubeconfig)
        return cls(configuration.following, kubeconfig, configuration.node.name)

    @property
    def credentials(self) -> Credentials | None:
        """What to ask with; None if nobody is to be asked."""
        return Credentials(self.kubeconfig) if account.reaches(self.following) else None


class _Judged(NamedTuple):
    """What was objected to these wishes, with these settings."""

    configuration: Configuration
    wishes: ClusterWishes
    lines: tuple[str, ...]


class ClusterSide:
    """The one writer of ``core.cluster`` once it runs."""

    name = "cluster"

    def __init__(self, core: Core, offered: Offered, guests: Sequence[Guest] = ()) -> None:
        """``offered`` says what is kept of the Node. ``guests`` run as long as there is a session."""
        self._core = core
        self._offered = offered
        self._guests = guests
        again = core.timeouts.record_write_retry
        self._keeper = Keeper(core.root.path(record.PATH), core.news.bell.touch, again)
        self._heard = Heard()
        self._watches: tuple[Watch, ...] = ()
        self._wake: Latest[None] = Latest(None)
        self._judged: _Judged | None = None

    def report(self, status: Status) -> Status:
        """Whether the cluster is heard, and how old that is what is in force of it."""
        known = [watch.known.get() for watch in self._watches]
        silent = next((each for each in known if not each.answers), None)
        since = max((each.at for each in known), default=0.0) if silent is None else silent.at
        cr = self._heard.wishes.kubevirt
        heard = ClusterStatus(
            followed=bool(known),
            answers=bool(known) and silent is None,
            since=since,
            kubevirt="" if cr is None else f"{cr.namespace}/{cr.name}",
            heard=self._keeper.saved.at,
            error=silent.error if silent is not None else "",
            hint=silent.hint if silent is not None else "",
            doubts=self._doubts,
            refused=self._objections,
        )
        return status._replace(cluster=reduce(lambda part, guest: guest.told(part), self._guests, heard))

    @property
    def _doubts(self) -> tuple[str, ...]:
        unheard = _UNHEARD if not self._watches and self._heard.wishes != ClusterWishes() else ""
        return (*self._heard.doubts, *(line for line in (self._keeper.unsaved, unheard) if line))

    @property
    def _objections(self) -> tuple[str, ...]:
        """What of the wishes is not carried out. It is asked for often, and a CR may have thousands."""
        wishes, configuration = self._heard.wishes, self._core.settings.get().configuration
        judged = self._judged
        if judged is None or judged.configuration is not configuration or judged.wishes != wishes:
            found = merge.objections(configuration, wishes.kubevirt, wishes.labels)
            judged = self._judged = _Judged(configuration, wishes, tuple(map(heard.line, found)))
        return judged.lines

    async def run(self) -> None:
        """Follow whom the settings name, for ever; begin anew when they name another one."""
        self._heard = heard.before(await self._keeper.load())
        self._core.cluster.set(self._heard.wishes)
        with anyio.move_on_after(self._core.timeouts.offered_names_read):
            await self._offered.load()
        async with anyio.create_task_group() as group:
            group.start_soon(self._keeper.run, name="record of the cluster")
            await self._follow_settings()

    async def _follow_settings(self) -> None:
        while True:
            place = self._place
            async with anyio.create_task_group() as group:
                group.start_soon(self._follow, place, name="API server")
                await self._until_other(place)
                group.cancel_scope.cancel()
            self._watches = ()

    @property
    def _place(self) -> Place:
        return Place.of(self._core.settings.get(), self._core.root)

    async def _until_other(self, place: Place) -> None:
        seen = -1
        while self._place == place:
            seen, _ = await self._core.settings.newer(seen)

    async def _follow(self, place: Place) -> None:
        credentials = place.credentials
        if credentials is None:
            return
        own = Resource("/api/v1/nodes", "Nodes", f"metadata.name={place.node}", self._offered.of_node)
        timeouts = self._core.timeouts
        async with Session(credentials, timeouts) as session, anyio.create_task_group() as group:
            chance = Chance(0.0 if self._keeper.saved == Record() else timeouts.cluster_start_spread)
            self._watches = tuple(Watch(session, each, chance) for each in (KUBEVIRTS, own))
            for watch in self._watches:
                group.start_soon(watch.run, name=watch.name)
                group.start_soon(watch.known.follow, lambda _: self._wake.touch(), name="news")
            api = Api(session, place.node, self._watches[1].known)
            for guest in self._guests:
                group.start_soon(self._core.supervisor.keep, guest.name, partial(guest.run, api))
            seen = -1
            while True:
                seen, _ = await self._wake.newer(seen)
                self._hear(place)

    def _hear(self, place: Place) -> None:
        crs, nodes = (watch.known.get().objects for watch in self._watches)
        said = {*self._heard.doubts, *self._objections}
        self._heard = heard.after(self._heard, crs, nodes, place.node)
        self._core.cluster.set(self._heard.wishes)
        _say([line for line in (*self._heard.doubts, *self._objections) if line not in said])
        self._keeper.keep(self._heard.kubevirt, self._heard.labels)
        self._core.news.bell.touch()


def _say(lines: Sequence[str]) -> None:
    """Have them in the log; of thousands the first: each takes its time, and all that is served waits."""
    for line in lines[:SAID]:
        log.event(log.CONFIG_WARNING, text=line)
    if len(lines) > SAID:
        more = f"{len(lines) - SAID} more of the cluster's wishes; nodeagent status has them all"
        log.event(log.CONFIG_WARNING, text=more)
