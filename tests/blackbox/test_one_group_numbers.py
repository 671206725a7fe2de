# SPDX-License-Identifier: Apache-2.0
"""Numbers of groups come again: the kernel gives a new group the lowest one that is free."""

from __future__ import annotations

import signal

from tests.blackbox.boards import named, running
from tests.blackbox.harness import T4, Node, pod, until_health


async def test_a_new_group_with_the_number_of_one_that_has_gone_with_a_held_device_is_free(
    node: Node,
) -> None:
    """The daemon sees both at once: the processor was busy elsewhere, or the events came in one burst."""
    old, new = "0000:50:00.0", "0000:60:00.0"
    node.add_gpu(old, 50)
    async with node.running(listed={T4: 1}) as (daemon, kubelet):
        vm = await kubelet.admit(pod("vm", {T4: 1}))
        running(vm)
        await named(node, old, vm)
        daemon.send(signal.SIGSTOP)
        node.host.unplug(old)
        node.add_gpu(new, 50)
        daemon.send(signal.SIGCONT)
        await until_health(kubelet, T4, old, "Unhealthy")
        await until_health(kubelet, T4, new, "Healthy")
        running(await kubelet.admit(pod("next", {T4: 1})))
