# SPDX-License-Identifier: Apache-2.0
"""Which rights at the API server the settings ask for. Pure.

The ClusterRole of the chart gives these, each only where the settings that need it are on: a new use of the
API server is one more row here and one more rule there.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.model.access import Right, Uses

KUBEVIRT = "kubevirt.io"
_MACHINES = "not used by the daemon; for: nodeagent explain vmi NAMESPACE/NAME"


def needed(uses: Uses) -> Iterator[Right]:
    """All of them; the last is for whoever asks on the command line."""
    if not uses.follow:
        return
    for verb in ("list", "watch"):
        yield Right(verb, KUBEVIRT, "kubevirts", purpose="to follow the KubeVirt CR")
    for verb in ("list", "watch"):
        yield Right(verb, "", "nodes", name=uses.node, purpose="to follow this Node and its labels")
    if uses.events:
        for verb in ("create", "patch"):
            yield Right(verb, "", "events", purpose="for cluster.events")
    writers = {"cluster.condition": uses.condition, "cluster.staleResources: remove": uses.remove_stale}
    if any(writers.values()):
        purpose = " and ".join(key for key, on in writers.items() if on)
        yield Right("patch", "", "nodes", "status", name=uses.node, purpose=f"for {purpose}")
    yield Right("get", KUBEVIRT, "virtualmachineinstances", purpose=_MACHINES, required=False)
