# SPDX-License-Identifier: Apache-2.0
"""KubeVirt's custom resource in the cluster: the definition comes from the KubeVirt module itself.

A KubeVirt object counts only with a non-empty phase (pkg/virt-config of KubeVirt), which its operator would
write; there is no operator here, so we do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from tests.e2e import building, waiting
from tests.e2e.api import Api

NAMESPACE = "kubevirt"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
OBJECTS = f"/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/kubevirts"


def install(api: Api) -> None:
    """Make the definition and the namespace; returns when objects can be made."""
    source = building.kubevirt_source() / "manifests/generated/kv-resource.yaml"
    definition = yaml.safe_load(source.read_text())
    if api.gone(f"{DEFINITIONS}/{definition['metadata']['name']}"):
        api.create(DEFINITIONS, definition)
        api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    waiting.until(lambda: api.get(OBJECTS)["kind"] == "KubeVirtList", "KubeVirt objects can be made")


def create(api: Api, configuration: Mapping[str, Any]) -> None:
    """Make the one KubeVirt object, deployed, with this configuration."""
    body = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "KubeVirt",
        "metadata": {"name": "kubevirt"},
        "spec": {"configuration": configuration},
    }
    api.create(OBJECTS, body)
    api.patch(f"{OBJECTS}/kubevirt/status", {"status": {"phase": "Deployed"}})


def delete(api: Api) -> None:
    """Delete the object."""
    api.delete(f"{OBJECTS}/kubevirt")
    waiting.until(lambda: api.gone(f"{OBJECTS}/kubevirt"), "the KubeVirt object has gone")
