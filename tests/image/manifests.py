# SPDX-License-Identifier: Apache-2.0
"""The manifests as a cluster would get them: from Helm with values, or the static files made of the chart.

``make manifests`` runs this module: it writes the files of ``STATIC`` to ``packaging/manifests``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.image import tools
from tests.image.containers import ROOT

CHART = ROOT / "packaging/helm/nodeagent"
FILES = ROOT / "packaging/manifests"
VGPUS = {"apiVersion": "nodeagent/v1", "mdevs": {"manage": True, "types": []}}
DRA = {"apiVersion": "nodeagent/v1", "resources": []}
USB = {"apiVersion": "nodeagent/v1", "resources": []}
STATIC: dict[str, dict[str, Any]] = {
    "nodeagent": {},
    "nodeagent-vgpu": {"config": VGPUS},
    "nodeagent-usb": {"usb": True, "config": USB},
    "nodeagent-dra": {"dra": {"enabled": True}, "config": DRA},
    "nodeagent-openshift": {"openshift": True},
    "nodeagent-openshift-vgpu": {"openshift": True, "config": VGPUS},
}
"""Static file → the chart's values."""
_HEADER = """\
# SPDX-License-Identifier: Apache-2.0
# Made of the Helm chart by "make manifests". Set the image, and config.yaml in the ConfigMap.
"""
_NAMESPACE = """\
---
# Pods with directories of the host fit no other level.
apiVersion: v1
kind: Namespace
metadata:
  name: nodeagent
  labels:
    pod-security.kubernetes.io/enforce: privileged
    pod-security.kubernetes.io/audit: privileged
    pod-security.kubernetes.io/warn: privileged
"""
_OF_HELM = ("helm.sh/chart", "app.kubernetes.io/managed-by", "checksum/config")

Manifest = dict[str, Any]


def helm(kube_version: str = "1.36.0", **values: Any) -> list[Manifest]:
    """The chart with these values. :raises HelmFailed: if it refuses them."""
    return _documents(_render(kube_version, values))


def static(name: str) -> list[Manifest]:
    """One of the static files."""
    return _documents((FILES / f"{name}.yaml").read_text())


def build_static(name: str) -> str:
    """The text of a static file: the chart without the labels and the checksum that only Helm uses."""
    lines = _render("1.36.0", STATIC[name]).splitlines()
    kept = [each for each in lines if each.split(":")[0].strip() not in _OF_HELM and each[:1] != "#"]
    return _HEADER + _NAMESPACE + "\n".join(kept).strip() + "\n"


def _render(kube_version: str, values: dict[str, Any]) -> str:
    text: str = tools.helm(
        "helm_template",
        release_name="nodeagent",
        namespace="nodeagent",
        chart=str(CHART),
        kube_version=kube_version,
        values=values,
    )
    return text


def _documents(text: str) -> list[Manifest]:
    return [document for document in yaml.safe_load_all(text) if document]


def one(manifests: list[Manifest], kind: str) -> Manifest:
    """The one manifest of a kind."""
    found = [manifest for manifest in manifests if manifest["kind"] == kind]
    assert len(found) == 1, [manifest["kind"] for manifest in manifests]
    return found[0]


def pod(manifests: list[Manifest]) -> Manifest:
    """The pod that the DaemonSet makes."""
    spec: Manifest = one(manifests, "DaemonSet")["spec"]["template"]["spec"]
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


if __name__ == "__main__":
    FILES.mkdir(exist_ok=True)
    for each in STATIC:
        (FILES / f"{each}.yaml").write_text(build_static(each))
