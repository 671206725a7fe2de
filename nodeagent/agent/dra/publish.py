# SPDX-License-Identifier: Apache-2.0
"""Publishes the devices of this node as ResourceSlices, and corrects each foreign change of them.

The slices are written only when they differ from the desired ones (``policy.dra``), and only after the
kubelet has registered the driver: the scheduler binds waiting pods within milliseconds, and a Prepare that
fails is repeated after a minute. The kubelet deletes all slices of its node at each start, so a deletion is
corrected at once. If another program undoes each write, the corrections become rarer.

The API server drops fields whose feature gate is disabled without an error. So a dry run finds these fields,
and each answer is compared with its request; then the slices are built without these fields.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import anyio

from nodeagent.agent.cluster.connection import Connection, follow_connection
from nodeagent.agent.core import Core
from nodeagent.base import log
from nodeagent.base.errors import ClusterUnavailable, InternalError
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.cluster import slices as api_slices
from nodeagent.cluster.api import CONFLICT, FORBIDDEN, NOT_FOUND, Object, Session, retry_delay
from nodeagent.cluster.watch import Watch, WatchState
from nodeagent.model.claim import ClaimRef
from nodeagent.model.problem import Problem, ProblemCode, note, wrong
from nodeagent.policy.dra import devices, slices, writes
from nodeagent.policy.dra.writes import Create, Delete, Owner, Write
from nodeagent.policy.offer.turn import Decision

Contents = tuple[slices.Content, ...]

_NO_CREDENTIALS = "nodeagent has no credentials for the API server, so no device is offered by DRA"
_SET_KUBECONFIG = "set kubeconfig, such as to the kubelet's own, or run nodeagent with a service account"
REPAIRS_AT_ONCE = 3  # in a row; then they become rarer


class Publisher:
    """Writes the slices, and reads claims for Prepare.

    ``missing_gates``: the feature gates whose fields the API server drops. ``error`` and ``hint``: why the
    slices cannot be written at present, or "".
    """

    name = "ResourceSlices"

    def __init__(
        self,
        core: Core,
        driver: str,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.missing_gates: frozenset[str] = frozenset()
        self.error = ""
        self.hint = ""
        self._core = core
        self._driver = driver
        self._jitter = jitter
        self._session: Session | None = None
        self._watch: Watch | None = None

    @property
    def problems(self) -> Iterator[Problem]:
        """The reasons why the scheduler does not have the right slices, and missing gates as a note."""
        known = WatchState() if self._watch is None else self._watch.state.get()
        error, hint = (self.error, self.hint) if self.error else (known.error, known.hint)
        if error and (self._session is not None or self._core.snapshots.now.spec.uses_dra):
            yield wrong(
                ProblemCode.DRA, "", f"the ResourceSlices of this node are not up to date: {error}", hint
            )
        if self.missing_gates:
            what = f"the API server drops fields of ResourceSlices: {', '.join(sorted(self.missing_gates))}"
            yield note(
                ProblemCode.DRA, what, "enable these feature gates, which are on since Kubernetes 1.36"
            )

    async def run(self, registered: Latest[bool]) -> None:
        """Publish, for ever; start again when the settings name other credentials or another node.

        ``registered``: whether the kubelet has registered the driver.
        """
        follow = partial(self._follow, registered)
        await follow_connection(self._core.settings, self._core.root, follow)

    async def read_claim(self, ref: ClaimRef, until: float) -> Object:
        """Return the claim from the API server, see ``cluster.slices.read_claim``.

        :raises ClusterUnavailable: if the API server refuses, or does not answer in time.
        """
        if self._session is None:
            raise ClusterUnavailable(_NO_CREDENTIALS, _SET_KUBECONFIG)
        return await api_slices.read_claim(self._session, ref, until)

    async def _follow(self, registered: Latest[bool], connection: Connection) -> None:
        credentials = connection.credentials_for_dra
        if credentials is None:
            await self._core.snapshots.until(lambda spec: spec.uses_dra)
            self._fail(ClusterUnavailable(_NO_CREDENTIALS, _SET_KUBECONFIG))
            return
        changed: Latest[None] = Latest(None)
        async with Session(credentials, self._core.timeouts) as session, anyio.create_task_group() as group:
            watch = Watch(session, api_slices.own_slices(self._driver, connection.node))
            self._session, self._watch = session, watch
            try:
                group.start_soon(watch.run, name=watch.name)
                for follow in (watch.state.follow, self._core.snapshots.follow, registered.follow):
                    group.start_soon(follow, lambda _: changed.touch(), name="inputs of ResourceSlices")
                owner = Owner(self._driver, connection.node, "")
                pool = _Pool(self._core, owner, session, watch, registered)
                await self._publish(pool, changed)
            finally:
                self._session = self._watch = None
        raise InternalError("a task that publishes ResourceSlices was cancelled")

    async def _publish(self, pool: _Pool, changed: Latest[None]) -> None:
        """Correct the slices after each change of an input, for ever."""
        failures, timeouts = 0, self._core.timeouts
        while True:
            seen = changed.version
            try:
                pause = await pool.update()
            except ClusterUnavailable as error:
                self._fail(error)
                await anyio.sleep(_retry_pause(error, failures, self._jitter(), pool))
                failures += 1
                continue
            failures = 0
            self._succeed(pool.dropped or ())
            if pause:
                with anyio.move_on_after(pause):
                    await changed.newer(seen)
            else:
                await anyio.sleep(timeouts.slice_write_spacing)

    def _fail(self, error: ClusterUnavailable) -> None:
        if error.status == CONFLICT:  # the watch shows the newer slice soon
            return
        if not self.error:
            log.event(log.CLUSTER_WRITE_REFUSED, object=self.name, error=error.what, hint=error.hint)
        self.error, self.hint = error.what, error.hint
        self._core.snapshots.touch()

    def _succeed(self, dropped: Collection[str]) -> None:
        missing = frozenset(writes.GATES[field] for field in dropped)
        for gate in sorted(missing - self.missing_gates):
            log.event(log.DRA_GATE_MISSING, object=gate)
        if self.error:
            log.event(log.CLUSTER_WRITE_RECOVERED, object=self.name)
        if self.error or missing != self.missing_gates:
            self.error, self.hint, self.missing_gates = "", "", missing
            self._core.snapshots.touch()


def _retry_pause(error: ClusterUnavailable, failures: int, jitter: float, pool: _Pool) -> float:
    """Return the seconds before the next try.

    The API server refuses a new slice for a moment, until its authorizer knows the Node of the slice.
    """
    timeouts = pool.timeouts
    if error.status == CONFLICT or (error.status == FORBIDDEN and failures < REPAIRS_AT_ONCE):
        return timeouts.slice_write_retry.delay(failures)
    if error.status == NOT_FOUND and not pool.owner.node_uid:
        return timeouts.node_object_poll
    return retry_delay(error, failures, jitter, timeouts)


class _Inputs(NamedTuple):
    """The inputs of one comparison; parts that have not changed are the same objects."""

    decision: Decision
    stored: Mapping[str, Object]
    dropped: frozenset[str]

    def same_as(self, other: _Inputs | None) -> bool:
        """True if all parts are the same objects."""
        return other is not None and all(mine is theirs for mine, theirs in zip(self, other, strict=True))


class _Pool:
    """The slices of this node during one session with the API server."""

    def __init__(
        self, core: Core, owner: Owner, session: Session, watch: Watch, registered: Latest[bool]
    ) -> None:
        self.owner = owner  # the UID is "" until the Node was read
        self.dropped: frozenset[str] | None = None  # the fields that the API server drops; None: not tried
        self.timeouts = core.timeouts
        self._core = core
        self._session = session
        self._watch = watch
        self._registered = registered
        self._repairs = _Repairs(core.timeouts)
        self._correct: _Inputs | None = None  # inputs for which the stored slices are the desired ones
        self._contents: Contents | None = None  # the last ones that were stored
        self._answers_since = 0.0  # the time at which the API server answered again
        self._sent: Contents = ()  # those of writes that the watch may not show yet
        self._generation = 0  # the highest one so far

    async def update(self) -> float:
        """Write the slices if they differ; return the seconds to wait for changed inputs, 0 after a write.

        :raises ClusterUnavailable: if the server has not confirmed a request.
        """
        known = self._watch.state.get()
        stored = known.objects
        if stored is None:
            return math.inf
        if known.answers and known.at != self._answers_since:  # an upgrade may have enabled the gates
            self._answers_since, self.dropped = known.at, None
        specs = [each["spec"] for each in stored.values()]
        self._generation = max([self._generation, *(spec["pool"].get("generation", 0) for spec in specs)])
        self._note_devices(*specs, *self._sent)
        if not self._registered.get():
            return math.inf
        if self.dropped is None:
            probe = writes.build_probe(self.owner)
            self.dropped = writes.dropped_fields(probe, await api_slices.try_slice(self._session, probe))
        inputs = _Inputs(self._core.offering.one_turn(), stored, self.dropped)
        if inputs.same_as(self._correct):
            return math.inf
        contents = self._build(inputs)
        planned = self._plan(contents, stored)
        repairs = bool(planned) and contents == self._contents
        if repairs and (pause := self._repairs.delay(self._registered.version)):
            return pause
        if planned:
            self._sent = contents
            self._note_devices(*specs, *self._sent)  # before the first request
            self.owner = self.owner._replace(node_uid="")
            uid = await api_slices.read_node_uid(self._session, self.owner.node)
            self.owner = self.owner._replace(node_uid=uid)
            planned = self._plan(contents, stored)
        if planned:
            await self._write(planned)
            if repairs:
                self._repairs.note()
        else:
            self._correct, self._sent = inputs, ()
            self._note_devices(*specs)
        self._contents = contents
        return 0.0 if planned else math.inf

    def _build(self, inputs: _Inputs) -> Contents:
        return slices.build_slices(inputs.decision, self.owner.driver, inputs.dropped)

    def _plan(self, contents: Contents, stored: Mapping[str, Object]) -> Sequence[Write]:
        return writes.plan_writes([*stored.values()], contents, self.owner, self._generation)

    async def _write(self, planned: Sequence[Write]) -> None:
        """Send the requests. If the watch does not show the last writes yet, the server refuses them.

        :raises ClusterUnavailable: if the server has not confirmed a request; with CONFLICT for an old plan.
        """
        for each in planned:
            if isinstance(each, Delete):
                await api_slices.delete_slice(self._session, each.name, each.resource_version)
                continue
            write = api_slices.create_slice if isinstance(each, Create) else api_slices.update_slice
            answer = await write(self._session, each.slice)
            self.dropped = (self.dropped or frozenset()) | writes.dropped_fields(each.slice, answer)

    def _note_devices(self, *contents: slices.Content) -> None:
        """Publish which devices are in slices; the device plugin must not offer them meanwhile."""
        names = (device["name"] for content in contents for device in content.get("devices") or ())
        found = frozenset(filter(None, map(devices.find_lead_id, names)))
        snapshots = self._core.snapshots
        snapshots.publish(replace(snapshots.now, in_slices=found))


class _Repairs:
    """Makes corrections of foreign changes rarer if another program undoes each of them."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._count = 0  # in a row
        self._last = -math.inf
        self._noticed = False  # a change that is not corrected yet
        self._registration = 0

    def delay(self, registration: int) -> float:
        """Return the seconds until a correction; ``registration`` changes when the kubelet registers again.

        Each kubelet that starts deletes the slices once.
        """
        now = anyio.current_time()
        if not self._noticed:
            self._noticed = True
            quiet = now - self._last > self._timeouts.slice_repair_quiet
            if quiet or registration != self._registration:
                self._count = 0
            self._registration = registration
        if self._count < REPAIRS_AT_ONCE:
            return 0.0
        return max(0.0, self._last + self._timeouts.slice_repair.delay(self._count - REPAIRS_AT_ONCE) - now)

    def note(self) -> None:
        """Count a correction, and log that they become rarer."""
        self._count += 1
        self._last = anyio.current_time()
        self._noticed = False
        if self._count == REPAIRS_AT_ONCE:
            log.event(log.DRA_SLICES_CONTESTED)
