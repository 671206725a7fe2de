# SPDX-License-Identifier: Apache-2.0
"""What would come of following the cluster: rights, objects, and what of the KubeVirt CR would not count.

It asks what a daemon with these settings would ask, once, and changes nothing. Knows neither disk nor
terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nodeagent.agent.cluster import state
from nodeagent.agent.cluster.state import ClusterState
from nodeagent.base.errors import ClusterUnavailable
from nodeagent.cluster import access, kept, kubevirt, refusals
from nodeagent.cluster.session import Object, Parameters, Session
from nodeagent.config import Settings
from nodeagent.model.access import AccessReport, Check, Right
from nodeagent.model.configuration import Configuration
from nodeagent.model.spec import Following
from nodeagent.policy import merge

VERSION, PLURAL = "kubevirt.io/v1", "kubevirts"
KUBEVIRTS, NODES = f"/apis/{VERSION}/{PLURAL}", "/api/v1/nodes"
_FOR_EXPLAIN = "not used by the daemon; for: nodeagent explain vmi NAMESPACE/NAME"
_INSTALL = "install KubeVirt, or set kubevirt.enabled: false"
_NONE = "make one, or wait for virt-operator to take it up: kubectl get kubevirt -A"


def needed_rights(settings: Settings, node: str) -> Iterator[Right]:
    """The rights at the API server that the settings ask for; the last is for the command line.

    The ClusterRole of the chart gives these, each only where the settings that need it are on: a new use of
    the API server is one more row here and one more rule there.
    """
    if settings.configuration.following is Following.NO:
        return
    for verb in ("list", "watch"):
        yield Right(verb, "kubevirt.io", PLURAL, purpose="to follow the KubeVirt CR")
    for verb in ("list", "watch"):
        yield Right(verb, "", "nodes", name=node, purpose="to follow this Node and its labels")
    if settings.cluster.events:
        for verb in ("create", "patch"):
            yield Right(verb, "", "events", purpose="for cluster.events")
    writers = {
        "cluster.condition": settings.cluster.condition,
        "cluster.staleResources: remove": settings.cluster.stale_resources == "remove",
    }
    if any(writers.values()):
        purpose = " and ".join(key for key, on in writers.items() if on)
        yield Right("patch", "", "nodes", "status", name=node, purpose=f"for {purpose}")
    yield Right("get", "kubevirt.io", "virtualmachineinstances", purpose=_FOR_EXPLAIN, required=False)


async def inspect(session: Session, settings: Settings, node: str) -> AccessReport:
    """Look at all of it. :raises ClusterUnavailable: if the API server does not answer or know us."""
    user = await access.user(session)
    found = [await _right(session, need) for need in needed_rights(settings, node)]
    known = await access.serves(session, VERSION, PLURAL)
    found.append(Check("object", f"the kind {PLURAL}.kubevirt.io", known, "", _INSTALL))
    nodes = await listed(session, NODES, (("fieldSelector", f"metadata.name={node}"),))
    crs = await listed(session, KUBEVIRTS) if known else None
    if nodes is not None:
        found.append(
            Check("object", f"the Node {node}", node in nodes, "", "set node.name to the Node's name")
        )
    if crs is not None:
        labels = state.update(ClusterState(), None, nodes, node).wishes.labels
        found += _of_crs(crs, settings.configuration, labels)
    return AccessReport(user, tuple(found))


async def listed(session: Session, path: str, parameters: Parameters = ()) -> dict[str, Object] | None:
    """The objects by ``namespace/name``; None if we may not list them.

    :raises ClusterUnavailable: if there is no answer that can be read.
    """
    try:
        answer = await session.get(path, parameters)
    except ClusterUnavailable as error:
        if error.status == refusals.FORBIDDEN:
            return None
        raise
    items = answer.get("items")
    if not isinstance(items, list) or not all(isinstance(each, dict) for each in items):
        raise refusals.unreadable("no list of objects")
    return {kept.key(each): each for each in items}


async def _right(session: Session, right: Right) -> Check:
    verdict = await access.review(session, right)
    why = f"{right.purpose} ({verdict.reason})" if verdict.reason and not verdict.allowed else right.purpose
    hint = f"add the rule {right.rule} to the ClusterRole of this user"
    return Check("right", f"{right.verb} {right.object}", verdict.allowed, why, hint, right.required)


def _of_crs(
    crs: Mapping[str, Object], configuration: Configuration, labels: Mapping[str, str] | None
) -> Iterator[Check]:
    """Which CR would be in force, and what of it would not."""
    document = kubevirt.chosen(crs.values())
    if document is None:
        why = "none is taken up by virt-operator" if crs else "there is none"
        yield Check("object", "a KubeVirt CR", well=False, why=why, hint=_NONE)
        return
    cr = kubevirt.cr(document)
    others = f", the one that counts of {len(crs)}" if len(crs) > 1 else ""
    what = f"the KubeVirt CR {cr.namespace}/{cr.name}{others}"
    if cr.fault is not None:
        yield Check("object", what, well=False, why=cr.fault.what, hint=cr.fault.hint)
        return
    yield Check("object", what, well=True)
    for each in merge.objections(configuration, cr, labels):
        yield Check("entry", state.place(each), well=False, why=each.what, hint=each.hint)
