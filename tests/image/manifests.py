# SPDX-License-Identifier: Apache-2.0
"""The manifests as a cluster would get them: from Helm with values, from kustomize with an overlay."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from tests.image import tools
from tests.image.containers import ROOT

CHART = ROOT / "packaging/helm/nodeagent"
KUSTOMIZE = ROOT / "packaging/kustomize"
OVERLAYS = ("base", "overlays/vgpu", "overlays/usb", "overlays/openshift", "overlays/openshift-vgpu")

Manifest = dict[str, Any]


def helm(kube_version: str = "1.36.0", **values: Any) -> list[Manifest]:
    """The chart with these values. :raises HelmFailed: if it refuses them."""
    text = tools.helm(
        "helm_template",
        release_name="nodeagent",
        namespace="nodeagent",
        chart=str(CHART),
        kube_version=kube_version,
        values=values,
    )
    return _documents(text)


def kustomize(overlay: str) -> list[Manifest]:
    """One of the overlays, or the base."""
    done = tools.run("kubectl", "kustomize", str(KUSTOMIZE / overlay))
    assert done.returncode == 0, done.stderr
    return _documents(done.stdout)


def composed(folder: Path, overlay: str, *components: str) -> list[Manifest]:
    """An overlay of somebody's own on top of one of ours, with further components."""
    ours = Path(os.path.relpath(KUSTOMIZE, folder.resolve()))
    wanted = {
        "resources": [str(ours / overlay)],
        "components": [str(ours / "components" / each) for each in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
    done = tools.run("kubectl", "kustomize", str(folder))
    assert done.returncode == 0, done.stderr
    return _documents(done.stdout)


def _documents(text: str) -> list[Manifest]:
    return [document for document in yaml.safe_load_all(text) if document]


def one(manifests: list[Manifest], kind: str) -> Manifest:
    """The one manifest of a kind."""
    found = [manifest for manifest in manifests if manifest["kind"] == kind]
    assert len(found) == 1, [manifest["kind"] for manifest in manifests]
    return found[0]


def pod(manifests: list[Manifest]) -> Manifest:
    """The pod that the DaemonSet makes, without the hash in the name of its ConfigMap."""
    spec: Manifest = one(manifests, "DaemonSet")["spec"]["template"]["spec"]
    for volume in spec["volumes"]:
        if "configMap" in volume:
            volume["configMap"]["name"] = "nodeagent-config"
    return spec


def container(manifests: list[Manifest]) -> Manifest:
    """Its only container."""
    (found,) = pod(manifests)["containers"]
    return dict(found)


def settings(manifests: list[Manifest]) -> str:
    """The configuration file that it gets."""
    return str(one(manifests, "ConfigMap")["data"]["config.yaml"])


def valid(manifests: list[Manifest], version: str, folder: Path) -> str:
    """What the schemas of a Kubernetes version say against them; "" for nothing. Unknown fields count."""
    path = folder / "manifests.yaml"
    path.write_text(yaml.safe_dump_all(manifests))
    done = tools.run("kubernetes-validate", "-k", version, "--strict", str(path))
    return "" if done.returncode == 0 else done.stdout + done.stderr
