# SPDX-License-Identifier: Apache-2.0
"""A fake API server, and watches on it by the real client, for the tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.cluster import kube_client
from nodeagent.cluster.api import Session
from nodeagent.cluster.credentials import Credentials
from nodeagent.cluster.watch import Resource, Watch, WatchState
from nodeagent.sim.apiserver.server import FakeApiServer
from nodeagent.sim.apiserver.store import KUBEVIRTS, Object

PATH = "/apis/kubevirt.io/v1/kubevirts"
NAMESPACE = "kubevirt"
SERVED = f"{NAMESPACE}/kubevirt"
RESOURCE = Resource(PATH, "KubeVirt resources")
kube_client.kubernetes()  # in a thread it would get no time where time is virtual


def cr(gates: int, **more: Any) -> Object:
    """A KubeVirt CR that says a number."""
    metadata = {"name": "kubevirt", "namespace": NAMESPACE}
    return {"metadata": metadata, "spec": {"configuration": {"gates": gates}} | more}


def gates(objects: Mapping[str, Object] | None) -> int | None:
    """The number in the CR, if there is one."""
    found = (objects or {}).get(SERVED)
    return found["spec"]["configuration"]["gates"] if found else None


async def until(
    cell: Latest[WatchState], holds: Callable[[WatchState], bool], within: float = 5.0
) -> WatchState:
    """Wait until the cell is so; its value."""
    seen = -1
    with anyio.fail_after(within):
        while True:
            seen, known = await cell.newer(seen)
            if holds(known):
                return known


async def until_gates(watch: Watch, number: int | None, within: float = 5.0) -> WatchState:
    """Wait until it knows a CR with that number."""
    return await until(watch.state, lambda known: gates(known.objects) == number, within)


@asynccontextmanager
async def served(*, edit: int | None = 1) -> AsyncIterator[FakeApiServer]:
    """A server, with a CR that says this number."""
    async with FakeApiServer() as server:
        if edit is not None:
            server.store.put(KUBEVIRTS, cr(edit))
        yield server


@asynccontextmanager
async def session(server: FakeApiServer, folder: Path, token: str = "") -> AsyncIterator[Session]:
    """A session with a kubeconfig for the server."""
    path = server.kubeconfig(folder / "kubeconfig", token)
    async with Session(Credentials(kubeconfig=path), Timeouts()) as made:
        yield made


@asynccontextmanager
async def followed(
    server: FakeApiServer,
    folder: Path,
    resource: Resource = RESOURCE,
    spread: float = 0.0,
    jitter: float = 0.0,
) -> AsyncIterator[Watch]:
    """A watch that runs. Without jitter pauses are as long as they can be."""
    async with session(server, folder) as made, anyio.create_task_group() as group:
        watch = Watch(made, resource, spread, lambda: jitter, anyio.current_time)
        group.start_soon(watch.run, name=watch.name)
        yield watch
        group.cancel_scope.cancel()
