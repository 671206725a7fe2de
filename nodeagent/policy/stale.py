# SPDX-License-Identifier: Apache-2.0
"""Which of the resources that a Node counts as 0 and 0 are stale, and which of them may be taken away. Pure.

A kubelet knows a resource from the first list of its plugin until five minutes after the plugin, or the
kubelet itself, was last started or heard (``endpointStopGracePeriod``). So long it writes the counts anew
whenever they differ; after that it never touches the name again, which stays as "0".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from nodeagent.model.status import StaleStatus

KNOWN = "the kubelet still knows it, and would write it again"
UNKNOWN = "whether the kubelet still knows it cannot be read"
BACK = "it came back after it was removed"


def stale(
    empty: Collection[str],
    offered: Collection[str],
    known: Collection[str] | None,
    removed: Collection[str] = (),
) -> Iterator[StaleStatus]:
    """``empty``: names that we have offered once, and that count 0 and 0. ``offered``: by us, now.

    ``known``: to the kubelet, whoever offers them; None: that cannot be told. ``removed``: by us, before.
    """
    for name in empty:
        if name in offered:
            continue
        if known is None:
            yield StaleStatus(name, UNKNOWN)
        elif name in known:
            yield StaleStatus(name, KNOWN)
        else:
            yield StaleStatus(name, BACK if name in removed else "")
