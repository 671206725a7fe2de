# SPDX-License-Identifier: Apache-2.0
"""The size of most cases, and what they wait for at the fake kubelet."""

from __future__ import annotations

from nodeagent.sim.kubelet.server import FakeKubelet

RESOURCES, DEVICES = 60, 1000


async def all_listed(kubelet: FakeKubelet, began: float = 0.0, resources: int = RESOURCES) -> float:
    """Wait until that many resources have a stream, and have sent a list after ``began`` (monotonic).

    Return the seconds from then to the moment when the last of the first lists came.
    """
    lists = kubelet.statistics.lists
    await kubelet.until(
        lambda: (
            sum(seen[-1].when >= began for seen in lists.values()) == resources
            and sum(kubelet.statistics.streams.values()) == resources
        ),
        30,
    )
    since = [[one.when for one in seen if one.when >= began] for seen in lists.values()]
    return max(times[0] for times in since if times) - began


async def lists(kubelet: FakeKubelet, at_least: int) -> None:
    """Wait until so many lists have been sent in all."""
    await kubelet.until(lambda: kubelet.statistics.lists_total >= at_least, 30)


async def all_gone(kubelet: FakeKubelet) -> None:
    """Wait until no stream is open."""
    await kubelet.until(lambda: not any(kubelet.statistics.streams.values()), 10)
