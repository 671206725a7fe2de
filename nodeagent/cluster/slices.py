# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the ResourceSlices of this node, and reads ResourceClaims (resource.k8s.io/v1).

The agent watches the slices with ``own_slices``, writes them, and reads the claims that the kubelet prepares.
The kubelet's own credentials permit all of these requests (plugin/pkg/auth/authorizer/node). This module does
not interpret the objects.
"""

from __future__ import annotations

import random

import anyio

from nodeagent.base.errors import ClusterUnavailable
from nodeagent.cluster import api
from nodeagent.cluster.api import FORBIDDEN, NOT_FOUND, TOO_MANY, UNAUTHORIZED, Object, Session
from nodeagent.cluster.watch import Resource
from nodeagent.model.claim import ClaimRef

_GROUP = "/apis/resource.k8s.io/v1"
_SLICES = f"{_GROUP}/resourceslices"
_NAME_NODE = "set node.name to the name of the Node: kubectl get nodes"
_DELETE_POD = "the claim was deleted: delete its pod, too"


def own_slices(driver: str, node: str) -> Resource:
    """Return the slices of this driver on this node, to watch."""
    return Resource(_SLICES, "ResourceSlices", f"spec.driver={driver},spec.nodeName={node}")


async def read_node_uid(session: Session, node: str) -> str:
    """Return the UID of the Node, which owns the slices.

    :raises ClusterUnavailable: if there is no such Node (NOT_FOUND), or no valid response.
    """
    metadata = (await _get(session, f"/api/v1/nodes/{node}", _NAME_NODE)).get("metadata")
    uid = metadata.get("uid") if isinstance(metadata, dict) else None
    if not isinstance(uid, str):
        raise api.unreadable("a Node without a UID")
    return uid


async def create_slice(session: Session, document: Object) -> Object:
    """Return the slice as the server has stored it.

    :raises ClusterUnavailable: if the server has not confirmed it.
    """
    return await session.create(_SLICES, document)


async def try_slice(session: Session, document: Object) -> Object:
    """Return the slice as the server would store it; a dry run stores nothing.

    :raises ClusterUnavailable: if the server refuses it, or does not answer.
    """
    return await session.create(_SLICES, document, [("dryRun", "All")])


async def update_slice(session: Session, document: Object) -> Object:
    """Return the slice as the server has stored it; the document is complete, with its present version.

    :raises ClusterUnavailable: if the server has not confirmed it; with CONFLICT for another version.
    """
    return await session.replace(f"{_SLICES}/{document['metadata']['name']}", document)


async def delete_slice(session: Session, name: str, version: str) -> None:
    """Delete the slice if it exists.

    :raises ClusterUnavailable: if the server has not confirmed it; with CONFLICT for another version.
    """
    try:
        await session.delete(f"{_SLICES}/{name}", version)
    except ClusterUnavailable as error:
        if error.status != NOT_FOUND:
            raise


async def read_claim(session: Session, ref: ClaimRef, until: float) -> Object:
    """Return the claim; its UID is not compared. While the API server does not answer, try again.

    The kubelet calls Prepare again only after 60 to 90 s, so waiting is faster than an error. ``until``: the
    end of all attempts on the clock of anyio. FORBIDDEN may end by itself, too: the authorizer learns a
    moment later that a pod of this node uses the claim.

    :raises ClusterUnavailable: soon if the server refuses the request, else at the end.
    """
    path = f"{_GROUP}/namespaces/{ref.namespace}/resourceclaims/{ref.name}"
    last = ClusterUnavailable(f"GET {path}: the API server does not answer")
    attempt, timeouts, began = 0, session.timeouts, anyio.current_time()
    with anyio.CancelScope(deadline=until):
        while True:
            try:
                return await _get(session, path, _DELETE_POD)
            except ClusterUnavailable as error:
                lags = anyio.current_time() < began + timeouts.claim_authorizer_lag
                waits = error.status in (UNAUTHORIZED, TOO_MANY) or (error.status == FORBIDDEN and lags)
                if 400 <= error.status < 500 and not waits:
                    raise
                last = error
            pause = timeouts.claim_read_retry.delay(attempt, random.random())
            await anyio.sleep(max(pause, min(last.after, timeouts.api_retry_after)))
            attempt += 1
    raise last


async def _get(session: Session, path: str, hint: str) -> Object:
    """Return the object. ``hint``: for an object that does not exist.

    :raises ClusterUnavailable: without a valid response.
    """
    try:
        return await session.get(path)
    except ClusterUnavailable as error:
        if error.status == NOT_FOUND:
            error.hint = hint
        raise
