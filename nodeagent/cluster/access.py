# SPDX-License-Identifier: Apache-2.0
"""What the API server lets us do, asked of itself: reviews of our own access, which change nothing.

Every user may make these reviews (the ClusterRoles system:basic-user and system:discovery). Knows no
settings, and none of the objects.
"""

from __future__ import annotations

from typing import NamedTuple

from nodeagent.base.errors import ClusterUnavailable
from nodeagent.cluster import fields, refusals
from nodeagent.cluster.fields import Notes, Text
from nodeagent.cluster.session import Object, Session
from nodeagent.model.access import Right

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
USERS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


class Verdict(NamedTuple):
    """Whether it is allowed, and what the API server says to that ("" for nothing)."""

    allowed: bool
    reason: str = ""


async def review(session: Session, right: Right) -> Verdict:
    """Whether we have that right. :raises ClusterUnavailable: if there is no answer."""
    wanted = {
        "verb": right.verb,
        "group": right.group,
        "resource": right.resource,
        "subresource": right.subresource,
        "namespace": right.namespace,
        "name": right.name,
    }
    attributes = {key: text for key, text in wanted.items() if text}
    spec = {"resourceAttributes": attributes}
    answer = await session.create(REVIEWS, _object("authorization", "SelfSubjectAccessReview", spec))
    status = fields.table(answer.get("status"))
    return Verdict(status.get("allowed") is True, _shown(status, "reason"))


async def user(session: Session) -> str:
    """Who we are to the API server; "" where it does not tell (before Kubernetes 1.28).

    :raises ClusterUnavailable: if there is no answer at all, or it does not know us.
    """
    try:
        answer = await session.create(USERS, _object("authentication", "SelfSubjectReview", {}))
    except ClusterUnavailable as error:
        if error.status in (refusals.FORBIDDEN, refusals.NOT_FOUND):
            return ""
        raise
    return _shown(fields.table(fields.table(answer.get("status")).get("userInfo")), "username")


async def serves(session: Session, version: str, plural: str) -> bool:
    """True if the API server has such objects: "kubevirt.io/v1", "kubevirts".

    :raises ClusterUnavailable: if there is no answer.
    """
    try:
        answer = await session.get(f"/apis/{version}")
    except ClusterUnavailable as error:
        if error.status == refusals.NOT_FOUND:
            return False
        raise
    return any(each.get("name") == plural for _, each in fields.tables(answer, "resources", "", Notes()))


def _object(group: str, kind: str, spec: Object) -> Object:
    return {"apiVersion": f"{group}.k8s.io/v1", "kind": kind, "spec": spec}


def _shown(status: Object, key: str) -> str:
    return fields.text(status, key, Text("a text"), "", Notes()) or ""
