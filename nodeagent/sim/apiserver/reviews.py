# SPDX-License-Identifier: Apache-2.0
"""What the stand-in API server answers about itself: which kinds it has, who asks, and what they may do.

The paths and objects are those of the real one (authorization.k8s.io/v1, authentication.k8s.io/v1, and
discovery); who may do what is a set of denials, for one user.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from nodeagent.sim.apiserver.requests import Failure
from nodeagent.sim.apiserver.store import KINDS, Kind, Object

Denied = tuple[str, str]
"""Verb and resource: ("patch", "nodes/status")."""
USER = "system:serviceaccount:nodeagent:nodeagent"
_ACCESS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_USER = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


def about_itself(
    method: str, path: str, body: Any, denied: Collection[Denied], absent: Collection[str]
) -> Object | None:
    """The answer; None if the path asks for something else. ``absent``: groups that are not installed.

    :raises Failure: if there is no such group.
    """
    if (method, path) == ("POST", _ACCESS):
        return {**body, "status": _review(body["spec"]["resourceAttributes"], denied)}
    if (method, path) == ("POST", _USER):
        return {**body, "status": {"userInfo": {"username": USER}}}
    _, apis, *version = path.split("/")
    if method == "GET" and apis == "apis" and len(version) == 2:
        return _discovered("/".join(version), absent)
    return None


def is_absent(kind: Kind, absent: Collection[str]) -> bool:
    """True if nobody has installed what defines this kind."""
    return kind.api.partition("/")[0] in absent


def _review(asked: dict[str, str], denied: Collection[Denied]) -> Object:
    resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
    if (asked["verb"], resource) in denied:
        return {"allowed": False, "reason": ""}
    return {"allowed": True, "reason": "RBAC: allowed by the stand-in"}


def _discovered(version: str, absent: Collection[str]) -> Object:
    kinds = [kind for kind in KINDS.values() if kind.api == version and not is_absent(kind, absent)]
    if not kinds:
        raise Failure(404, "the server could not find the requested resource")
    resources = [{"name": each.plural, "kind": each.name, "namespaced": each.namespaced} for each in kinds]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}
