# SPDX-License-Identifier: Apache-2.0
"""What the kubelet does beside admissions: it asks when it starts a container, and forgets what it gives.

A pod that came while its resource was not registered is admitted without (``removeMissingExtendedResources``
in pkg/kubelet/lifecycle/predicate.go); a static pod that comes again under its UID is started without an
admission (``HandlePodCleanups`` in pkg/kubelet/kubelet_pods.go); a List that is late takes away what it did
not know of (``UpdateAllocatedDevices``). At the next start of a container all of it is allocated in the pod's
own worker (``GetDeviceRunContainerOptions`` in pkg/kubelet/cm/devicemanager/manager.go): no name is new, and
no lock keeps it from being at the same time as an admission.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox.boards import (
    FOR_EVER,
    GPU,
    HARDLY,
    LONE,
    USB,
    all_listed,
    apart,
    running,
    started,
    usb_boards,
    usb_lists,
)
from tests.blackbox.harness import PATIENCE, Node, pod

GPU_AT = "0000:20:00.0"


@asynccontextmanager
async def beside(
    node: Node, waiting: Pod, *flags: str, boards: int = 1, **options: Any
) -> AsyncIterator[FakeKubelet]:
    """Daemon and kubelet; this pod was admitted before there was a daemon, and has got nothing."""
    listed = usb_lists(usb_boards(node, boards))
    async with node.kubelet(**options) as kubelet:
        running(await kubelet.admit(waiting))
        async with node.daemon(*flags):
            await all_listed(kubelet, listed)
            yield kubelet


def asking(name: str, has: str, resource: str) -> Pod:
    """A pod of which a ``container`` asks for one of the resource, or only an ``init container``."""
    wish = {resource: 1}
    return pod(name, wish) if has == "container" else pod(name, {}, init_containers=[wish])


@pytest.mark.parametrize("flags", [FOR_EVER, (), HARDLY], ids=["60 s", "default", "50 ms"])
@pytest.mark.parametrize("boards", [1, 2])
async def test_a_container_that_starts_gets_nothing_of_the_board_that_another_pod_was_admitted_with(
    node: Node, boards: int, flags: Sequence[str]
) -> None:
    """Once another pod was admitted; before that it may be taken for the one under admission."""
    waiting = pod("waiting", {USB: 1})
    async with beside(node, waiting, *flags, boards=boards) as kubelet:
        vm = await kubelet.admit(pod("vm", {GPU: 1}))
        running(await kubelet.admit(pod("next", {})))
        await kubelet.admit(waiting, again=True)
        running(vm)
        apart(vm, waiting)
        if boards > 1:
            assert waiting.message == "", "the other board is free, and preferred"
        else:
            kubelet.delete(vm)
            await kubelet.until(lambda: kubelet.capacity(USB) == (1, 1), PATIENCE)
            await kubelet.admit(waiting, again=True)
            assert waiting.message == ""


@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("resource", [LONE, GPU])
@pytest.mark.parametrize("has", ["container", "init container"])
async def test_what_a_pod_had_for_a_short_time_goes_to_the_next_one_at_once(
    node: Node, has: str, resource: str, others: int
) -> None:
    async with started(node, listed=usb_lists(usb_boards(node, 1))) as (_, kubelet):
        for number in range(others):
            running(await kubelet.admit(pod(f"other{number}", {})))
        for number in range(2):
            wanted = asking(f"short{number}", has, resource)
            running(await kubelet.admit(wanted))
            kubelet.delete(wanted)
        running(await kubelet.admit(pod("next", {resource: 1})))
