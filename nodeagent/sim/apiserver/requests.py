# SPDX-License-Identifier: Apache-2.0
"""What a request to the stand-in API server asks for, and refusals as the real one words them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import NamedTuple

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


class Failure(Exception):
    """Raised when a request is refused; ``after`` goes into Retry-After."""

    def __init__(self, code: int, message: str = "", after: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.after = after
        self.message = message or HTTPStatus(code).phrase

    @property
    def status(self) -> Object:
        """The Status object."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": _REASONS.get(self.code, "InternalError"),
            "code": self.code,
        }


class Asked(NamedTuple):
    """What a path and a query ask for; ``name`` is "" for a collection."""

    kind: Kind
    namespace: str
    name: str
    of_status: bool
    query: Mapping[str, str]

    @staticmethod
    def of(path: str, query: Mapping[str, str]) -> Asked:
        """:raises Failure: if there is nothing at that path."""
        found = _PATH.fullmatch(path)
        kind = KINDS.get((found["root"], found["plural"])) if found else None
        if found is None or kind is None or (found["namespace"] and not kind.namespaced):
            raise Failure(404, "the server could not find the requested resource")
        return Asked(kind, found["namespace"] or "", found["name"] or "", bool(found["status"]), query)

    def right(self, method: str) -> tuple[str, str]:
        """Verb and resource, as rules of RBAC name them ("nodes/status")."""
        if method == "GET":
            verb = "get" if self.name else "watch" if self.query.get("watch") == "true" else "list"
        else:
            verb = {"POST": "create", "PATCH": "patch"}.get(method, method.lower())
        return verb, self.kind.plural + ("/status" if self.of_status else "")

    def selects(self, given: Object) -> bool:
        """True if the object is in that namespace and has the values of the field selector."""
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
    """An event of a watch."""
    return json.dumps({"type": type_, "object": given}, separators=(",", ":")).encode() + b"\n"


def bookmark(kind: Kind, version: int) -> bytes:
    """An event that tells of nothing but a version."""
    metadata = {"resourceVersion": str(version)}
    return line("BOOKMARK", {"kind": kind.name, "apiVersion": kind.api, "metadata": metadata})
