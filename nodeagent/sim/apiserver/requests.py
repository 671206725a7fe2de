# SPDX-License-Identifier: Apache-2.0
"""Requests to the fake API server: parsed paths, errors with the texts of the real one, and access reviews.

Access reviews and discovery (authorization.k8s.io/v1, authentication.k8s.io/v1) report the available kinds,
the user of the request, and the allowed verbs. The permissions of the only user are a set of denied verbs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from nodeagent.sim.apiserver.store import KINDS, Kind, Object

_PATH = re.compile(
    r"(?P<root>/api/v1|/apis/[^/]+/[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?P<status>/status)?"
)
_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "AlreadyExists",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
}


class ApiError(Exception):
    """Raised when a request is rejected; ``after`` is sent as Retry-After."""

    def __init__(self, code: int, message: str = "", after: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.after = after
        self.message = message or HTTPStatus(code).phrase

    @property
    def status(self) -> Object:
        """Return the Status object."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": _REASONS.get(self.code, "InternalError"),
            "code": self.code,
        }


class ApiRequest(NamedTuple):
    """The object or collection of a path, and the query; ``name`` is "" for a collection."""

    kind: Kind
    namespace: str
    name: str
    of_status: bool
    query: Mapping[str, str]

    @staticmethod
    def parse(path: str, query: Mapping[str, str]) -> ApiRequest:
        """Parse a path and its query. :raises ApiError: if the path does not exist."""
        found = _PATH.fullmatch(path)
        kind = KINDS.get((found["root"], found["plural"])) if found else None
        if found is None or kind is None or (found["namespace"] and not kind.namespaced):
            raise ApiError(404, "the server could not find the requested resource")
        return ApiRequest(kind, found["namespace"] or "", found["name"] or "", bool(found["status"]), query)

    def verb_and_resource(self, method: str) -> tuple[str, str]:
        """Return verb and resource as in RBAC rules ("nodes/status")."""
        if method == "GET":
            verb = "get" if self.name else "watch" if self.query.get("watch") == "true" else "list"
        else:
            verb = {"POST": "create", "PUT": "update"}.get(method, method.lower())
        return verb, self.kind.plural + ("/status" if self.of_status else "")

    def selects(self, given: Object) -> bool:
        """Return True if the object is in the namespace and matches the field selector."""
        namespace = given["metadata"].get("namespace", "")
        pairs = (pair.split("=", 1) for pair in self.query.get("fieldSelector", "").split(",") if pair)
        return self.namespace in ("", namespace) and all(
            _field(given, path.rstrip("=")) == value.lstrip("=") for path, value in pairs
        )


def _field(given: Object, path: str) -> object:
    value: object = given
    for word in path.split("."):
        value = value.get(word) if isinstance(value, dict) else None
    return value


def line(type_: str, given: Object) -> bytes:
    """Return one line of a watch stream."""
    return json.dumps({"type": type_, "object": given}, separators=(",", ":")).encode() + b"\n"


def bookmark(kind: Kind, version: int) -> bytes:
    """Return a watch event (bookmark) that contains only a resource version."""
    metadata = {"resourceVersion": str(version)}
    return line("BOOKMARK", {"kind": kind.name, "apiVersion": kind.api, "metadata": metadata})


Denied = tuple[str, str]
"""Verb and resource: ("patch", "nodes/status")."""
USER = "system:serviceaccount:nodeagent:nodeagent"
_ACCESS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_USER = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


def answer_about_server(
    method: str, path: str, body: Any, denied: Collection[Denied], absent: Collection[str]
) -> Object | None:
    """Return the response to a review or discovery; None for other paths. ``absent``: uninstalled API groups.

    :raises ApiError: if the API group does not exist.
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
    """Return True if the API group of this kind is not installed."""
    return kind.api.partition("/")[0] in absent


def _review(attributes: dict[str, str], denied: Collection[Denied]) -> Object:
    resource = "/".join(filter(None, (attributes["resource"], attributes.get("subresource"))))
    if (attributes["verb"], resource) in denied:
        return {"allowed": False, "reason": ""}
    return {"allowed": True, "reason": "RBAC: allowed by the fake API server"}


def _discovered(version: str, absent: Collection[str]) -> Object:
    kinds = [kind for kind in KINDS.values() if kind.api == version and not is_absent(kind, absent)]
    if not kinds:
        raise ApiError(404, "the server could not find the requested resource")
    resources = [{"name": each.plural, "kind": each.name, "namespaced": each.namespaced} for each in kinds]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}
