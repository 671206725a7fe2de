# SPDX-License-Identifier: Apache-2.0
"""DeviceClasses, ResourceClaims and their templates in the cluster, and pods that use claims."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from tests.e2e import pods as pods_of
from tests.e2e.api import Answer, Api

DRIVER = "nodeagent.local"  # the default of dra.driver
API = "/apis/resource.k8s.io/v1"
CLASSES = f"{API}/deviceclasses"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
TEMPLATES = f"{API}/namespaces/default/resourceclaimtemplates"
SLICES = f"{API}/resourceslices"


def resource_is(name: str) -> str:
    """The CEL expression for devices of one resource, which fails for no device."""
    return f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].?resource.orValue("") == "{name}"'


def request(name: str, class_name: str, **fields: Any) -> dict[str, Any]:
    """A request for exactly one device of a class, or with other fields of it."""
    return {"name": name, "exactly": {"deviceClassName": class_name, **fields}}


class Objects:
    """Objects of resource.k8s.io, which ``close`` deletes."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._made: list[str] = []

    def device_class(self, name: str, resource: str, *, extended: bool = False, **config: Any) -> str:
        """Make the class of a resource; ``extended``: pods may also request it by the resource's name."""
        spec: dict[str, Any] = {"selectors": [{"cel": {"expression": resource_is(resource)}}]}
        if extended:
            spec["extendedResourceName"] = resource
        if config:
            spec["config"] = [{"opaque": {"driver": DRIVER, "parameters": config}}]
        self._create(CLASSES, {"metadata": {"name": name}, "spec": spec})
        return name

    def claim(self, name: str, *requests: Mapping[str, Any], constraints: Sequence[Any] = ()) -> str:
        """Make a claim that pods use by its name."""
        self._create(CLAIMS, {"metadata": {"name": name}, "spec": _spec(requests, constraints)})
        return name

    def template(self, name: str, *requests: Mapping[str, Any], constraints: Sequence[Any] = ()) -> str:
        """Make a template; each pod that uses it gets a claim of its own."""
        spec = {"spec": _spec(requests, constraints)}
        self._create(TEMPLATES, {"metadata": {"name": name}, "spec": spec})
        return name

    def _create(self, collection: str, body: Mapping[str, Any]) -> None:
        self._api.create(collection, body)
        self._made.append(f"{collection}/{body['metadata']['name']}")

    def close(self) -> None:
        """Delete all of them; a claim goes when its pod has gone."""
        for path in self._made:
            with contextlib.suppress(Answer):
                self._api.delete(path)


def _spec(requests: Sequence[Mapping[str, Any]], constraints: Sequence[Any]) -> dict[str, Any]:
    return {"devices": {"requests": list(requests), "constraints": list(constraints)}}


def from_template(template: str) -> dict[str, str]:
    """The entry of a pod for a claim that is made from a template."""
    return {"resourceClaimTemplateName": template}


def by_name(claim: str) -> dict[str, str]:
    """The entry of a pod for a claim that exists."""
    return {"resourceClaimName": claim}


def pod(name: str, *commands: str, user: int = 0, **entries: Mapping[str, str]) -> Any:
    """A pod whose one container, ``main``, uses these claims; the keywords are their names in the pod."""
    container = pods_of.container("main", {}, *commands)
    container["resources"]["claims"] = [{"name": entry} for entry in entries]
    container["securityContext"] = {"runAsUser": user}
    made = pods_of.manifest(name, container)
    made["spec"]["resourceClaims"] = [{"name": entry, **source} for entry, source in entries.items()]
    return made


def claims_of(api: Api, pod_name: str) -> list[Any]:
    """The claims that are reserved for a pod, also those that the scheduler has made."""
    return [
        claim
        for claim in api.get(CLAIMS)["items"]
        for user in claim.get("status", {}).get("reservedFor", ())
        if user["name"] == pod_name
    ]


def devices_of(api: Api, pod_name: str) -> list[str]:
    """The names of the devices that are allocated to a pod, in the order of the results."""
    return [
        result["device"]
        for claim in claims_of(api, pod_name)
        for result in claim["status"]["allocation"]["devices"]["results"]
        if result["driver"] == DRIVER
    ]


def event(api: Api, pod_name: str, reason: str) -> str | None:
    """The message of the pod's newest Event with this reason; None if there is none."""
    uid = api.get(f"{pods_of.PODS}/{pod_name}")["metadata"]["uid"]
    path = f"{pods_of.EVENTS}?fieldSelector=involvedObject.uid%3D{uid},reason%3D{reason}"
    messages = [str(each["message"]) for each in api.get(path)["items"]]
    return messages[-1] if messages else None
