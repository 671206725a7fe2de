# SPDX-License-Identifier: Apache-2.0
"""What the chart takes and what it refuses, with a sentence that helps."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from builder import chart

from tests.image import manifests, tools
from tests.image.manifests import CHART
from tests.image.tools import HelmFailed

LISTEN = {"apiVersion": "nodeagent/v1", "http": {"listen": "127.0.0.1:1"}}


def test_helm_finds_nothing_to_complain_of() -> None:
    told = json.loads(tools.helm("helm_lint", paths=[str(CHART)], strict=True))
    assert told["passed"]
    assert [each for each in told["messages"] if each["severity"] != "INFO"] == []


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"tolerationz": []}, "tolerationz"),
        ({"image": {"tagg": "1"}}, "tagg"),
        ({"nodeSelector": ["gpu"]}, "/nodeSelector"),
        ({"http": {"port": 0}}, "/http/port"),
        ({"http": {"host": "localhost"}}, "/http/host"),
        ({"changes": "yes"}, "/changes"),
        ({"kubeletRoot": "var/lib/kubelet"}, "/kubeletRoot"),
        ({"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}}, "/maxSurge"),
        ({"config": {"mdev": {}}}, "'mdev' not allowed"),
        ({"config": {"resources": [{"name": "a.b/c", "pci": [{"vendor": "10de"}]}]}}, "'vendor' not allowed"),
        ({"config": LISTEN}, "http.host and http.port"),
        ({"config": {"kubelet": {"podResources": "/x"}}}, "set instead: kubeletRoot"),
        ({"config": {"status": {"socket": "/x"}}}, "only /run/nodeagent"),
        ({"existingConfigMap": "mine", "config": {"log": {"level": "debug"}}}, "both given"),
    ],
)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], told: str) -> None:
    with pytest.raises(HelmFailed) as caught:
        manifests.helm(**values)
    assert told in str(caught.value)


def test_a_cluster_that_is_too_old_is_refused() -> None:
    with pytest.raises(HelmFailed, match="kubeVersion"):
        manifests.helm("1.24.0")


def test_the_schema_of_config_is_the_daemons_own() -> None:
    assert chart.SCHEMA.read_text() == chart.text(), "run: PYTHONPATH=packaging python -m builder.chart"


def test_every_value_is_known_to_the_schema_and_used() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    known = json.loads((CHART / "values.schema.json").read_text())
    templates = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    assert values.keys() == known["properties"].keys() - {"global"}
    assert known["additionalProperties"] is False
    assert [key for key in values if f".Values.{key}" not in templates] == []


def test_vgpus_of_the_kubevirt_cr_get_the_mounts_of_changes() -> None:
    pod = manifests.pod(manifests.helm(config={"kubevirt": {"manageMdevs": True}}))
    assert pod["hostPID"] is True
    assert "/etc/machine-id" in {each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}


@pytest.mark.parametrize(
    ("rule", "dev"),
    [
        ({"pci": [{"vendors": ["10de"]}]}, "/dev/vfio"),
        ({"pci": [{"vendors": ["10de"]}], "iommufd": "never"}, "/dev/vfio"),
        ({"pci": [{"vendors": ["10de"]}], "iommufd": "auto"}, "/dev"),
        ({"node": {"path": "/dev/kvm"}}, "/dev"),
        ({"cdiDevices": {"kind": "nvidia.com/gpu"}}, "/dev"),
    ],
)
def test_rules_that_need_device_nodes_get_all_of_dev(rule: dict[str, Any], dev: str) -> None:
    config = {"resources": [{"name": "example.com/x", **rule}]}
    assert mounted_dev(config=config) == dev
    assert mounted_dev(config=config, hostDev="/dev/vfio") == "/dev/vfio"


def mounted_dev(**values: Any) -> str:
    """The part of the host's /dev in the pod."""
    mounts = manifests.container(manifests.helm(**values))["volumeMounts"]
    return next(str(each["mountPath"]) for each in mounts if each["name"] == "dev")


@pytest.mark.parametrize("changes", [True, False])
def test_what_is_said_of_changes_counts_more_than_config(*, changes: bool) -> None:
    asking = {"apiVersion": "nodeagent/v1", "sriov": [{"match": [{"vendors": ["10de"]}], "numVFs": 2}]}
    assert manifests.pod(manifests.helm(config=asking))["hostPID"] is True
    said = manifests.pod(manifests.helm(config=asking, changes=changes))
    assert said.get("hostPID", False) is changes


def test_sections_that_are_there_but_empty_ask_for_nothing() -> None:
    made = manifests.helm(config={"apiVersion": "nodeagent/v1", "mdevs": None, "resources": None})
    assert "hostPID" not in manifests.pod(made)


def test_the_version_is_the_programs() -> None:
    from nodeagent import __version__

    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["version"] == about["appVersion"] == __version__
    images = [
        manifests.container(made)["image"] for made in (manifests.helm(), manifests.static("nodeagent"))
    ]
    assert images == [f"nodeagent:{__version__}"] * 2
