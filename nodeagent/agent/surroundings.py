# SPDX-License-Identifier: Apache-2.0
"""One look at a node's surroundings, for ``check``: machine, process, kubelet and daemon.

Changes nothing and opens no device. Each look is in a thread of its own that may be left behind; one that
does not answer in time is told as such, and the others count.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable
from pathlib import Path
from typing import NamedTuple, TypeVar

import anyio

from nodeagent import __version__
from nodeagent.agent.kubelet_side import RUNTIME
from nodeagent.base import sockets, threads, unix_http
from nodeagent.base.errors import KernelRefused, KubeletUnavailable
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel import pciids, platform
from nodeagent.kernel.root import Root
from nodeagent.kubelet.pod_resources import PodReader, VirtHandler
from nodeagent.model import plain
from nodeagent.model.host import Host
from nodeagent.model.status import Status
from nodeagent.model.surroundings import DaemonSight, KubeletSight, Platform, Standing, Surroundings

T = TypeVar("T")

SAVED, TREE, SILENT = "not in the saved host", "not this process's host", "no answer in time"
_POD_RESOURCES = "pod-resources/kubelet.sock"
_KUBELETS = (  # root directories of kubelets elsewhere: README has the table
    "/var/lib/kubelet",
    "/var/lib/k0s/kubelet",
    "/var/snap/microk8s/common/var/lib/kubelet",
)
_KVM = "kubevirt-kvm.sock"  # of virt-handler, which serves /dev/kvm on each of its nodes
_UNITS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
_UNIT, _WANTED = "nodeagent.service", "multi-user.target.wants/nodeagent.service"


class Places(NamedTuple):
    """Where to look, by the settings: host paths."""

    plugins: str
    pod_resources: str
    status: str


def saved() -> Surroundings:
    """Those of a saved host: none."""
    return Surroundings(SAVED, SAVED, SAVED, SAVED, __version__, pciids.bundled_date())


async def look(root: Root, host: Host, places: Places, timeouts: Timeouts) -> Surroundings:
    """Those of a host that is there."""
    limit = timeouts.check_step
    return Surroundings(
        await _in_time(_platform(root, host), limit),
        await _in_time(_standing(root, places), limit) if root.is_host else TREE,
        await _in_time(_kubelet(root, places, timeouts.pod_resources_rpc), limit),
        await _in_time(_daemon(root, places, timeouts.local_socket_answer), limit),
        __version__,
        pciids.bundled_date(),
    )


async def _in_time(looking: Awaitable[T], limit: float) -> T | str:
    with anyio.move_on_after(limit):
        try:
            return await looking
        except KernelRefused as error:
            return error.what
    return SILENT


async def _platform(root: Root, host: Host) -> Platform:
    return await threads.call(platform.read, root, host)


async def _standing(root: Root, places: Places) -> Standing:
    return await threads.call(platform.read_privileges, root, (RUNTIME, places.plugins))


async def _kubelet(root: Root, places: Places, limit: float) -> KubeletSight:
    answer, permitted, pods = await _pods(root, places, limit)
    return await threads.call(_sockets, root, places, answer, permitted, pods)


async def _pods(root: Root, places: Places, limit: float) -> tuple[str, bool, int]:
    """Why PodResources does not answer or "", whether this user may ask, and how many pods it names."""
    path = root.path(places.pod_resources)
    reader = PodReader(path, VirtHandler(root.path(places.plugins)), limit)
    try:
        found = await reader.pods()
    except KubeletUnavailable as error:
        return root.host_path(error.what), await threads.call(_may_ask, path), 0
    finally:
        reader.close()
    return "", True, len(found.pods)


def _may_ask(path: str) -> bool:
    """False if this user may not even look, or may not connect."""
    try:
        os.stat(path)  # noqa: PTH116 - an error is the answer
    except PermissionError:
        return False
    except OSError:
        return True
    return os.access(path, os.W_OK)


def _may_be_directory(path: str) -> bool:
    """True if the path is a directory, or if this user may not find out."""
    try:
        return Path(path).is_dir()
    except PermissionError:
        return True


def _sockets(root: Root, places: Places, answer: str, permitted: bool, pods: int) -> KubeletSight:
    socket = f"{root.path(places.plugins)}/kubelet.sock"
    served = sockets.is_served(socket)
    return KubeletSight(
        plugins=places.plugins,
        plugins_there=_may_be_directory(root.path(places.plugins)),
        served=served if served or _may_ask(socket) else None,
        pod_resources=places.pod_resources,
        answer=answer,
        permitted=permitted,
        pods=pods,
        elsewhere=_elsewhere(root, places) if answer else "",
        virt_handler=root.exists(f"{places.plugins}/{_KVM}"),
    )


def _elsewhere(root: Root, places: Places) -> str:
    """The socket of a kubelet with another root directory; "" if there is none."""
    if root.exists(places.pod_resources):
        return ""
    paths = (f"{directory}/{_POD_RESOURCES}" for directory in _KUBELETS)
    return next((path for path in paths if path != places.pod_resources and root.exists(path)), "")


async def _daemon(root: Root, places: Places, limit: float) -> DaemonSight:
    return await threads.call(_ask, root, places.status, limit)


def _ask(root: Root, path: str, limit: float) -> DaemonSight:
    unit = any(root.exists(f"{directory}/{_UNIT}") for directory in _UNITS)
    enabled = root.target(f"{_UNITS[0]}/{_WANTED}") is not None
    sight = DaemonSight(unit, enabled, "")
    try:
        status = plain.load(Status, unix_http.ask(root.path(path), "/status", limit))
    except OSError as error:
        what = f"no daemon answers at {path}: {error.strerror or error}"
        return sight._replace(answer=what, permitted=not isinstance(error, PermissionError))
    except (TypeError, ValueError) as error:  # another version's may be of another shape
        return sight._replace(answer=f"the daemon's answer cannot be read: {error}")
    effective = status.process.capabilities
    return sight._replace(
        version=status.version,
        problems=len(status.problems),
        open_files=status.process.open_files,
        most_files=status.process.most_files,
        owners=None if effective is None else platform.owners(effective),
    )
