# SPDX-License-Identifier: Apache-2.0
"""The manifests: what clusters take, what the pod may do, and what is said of the settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from nodeagent import config
from tests.image import manifests, tools
from tests.image.containers import ROOT
from tests.image.manifests import STATIC, VGPUS

VERSIONS = ("1.30", "1.33", "1.37")
FOREIGN = {"SecurityContextConstraints", "PodMonitor"}  # kinds that Kubernetes does not have
ALL = {
    "apiVersion": "nodeagent/v1",
    "mdevs": {"manage": True, "mdevctl": True},
    "kubelet": {"registration": "plugins-registry"},
    "resources": [
        {"name": "example.com/gpu", "cdi": True, "pci": [{"vendors": ["10de"]}]},
        {"name": "example.com/cuda", "cdiDevices": {"kind": "nvidia.com/gpu"}},
        {"name": "example.com/stick", "usb": [{"vendors": ["46f4"]}]},
    ],
}
CASES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "vGPUs": {"config": VGPUS},
    "OpenShift": {"openshift": True},
    "all": {
        "config": ALL,
        "openshift": True,
        "podMonitor": {"enabled": True, "labels": {"team": "blue"}},
        "kubeletRoot": "/data/kubelet",
        "hostDev": "/dev",
        "imagePullSecrets": [{"name": "pull"}],
        "nodeSelector": {"gpu": "true"},
        "serviceAccount": {"annotations": {"a": "b"}},
        "podLabels": {"c": "d"},
        "podAnnotations": {"e": "f"},
        "extraArgs": ["--log-level", "debug"],
        "extraEnv": [{"name": "NODEAGENT_LOG_FORMAT", "value": "text"}],
        "extraVolumes": [{"name": "more", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
        "podSecurityContext": {"seLinuxOptions": {"type": "spc_t"}},
    },
    "a ConfigMap of one's own": {"existingConfigMap": "mine", "changes": True},
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", [pytest.param(values, id=name) for name, values in CASES.items()])
def test_the_chart_is_valid_for_kubernetes(values: dict[str, Any], version: str, tmp_path: Path) -> None:
    made = [each for each in manifests.helm(f"{version}.0", **values) if each["kind"] not in FOREIGN]
    assert manifests.valid(made, version, tmp_path) == ""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", STATIC)
def test_each_static_file_is_valid_for_kubernetes(name: str, version: str, tmp_path: Path) -> None:
    made = [each for each in manifests.static(name) if each["kind"] not in FOREIGN]
    assert manifests.valid(made, version, tmp_path) == ""


@pytest.mark.parametrize("name", STATIC)
def test_each_static_file_is_made_of_the_chart(name: str) -> None:
    assert (manifests.FILES / f"{name}.yaml").read_text() == manifests.build_static(name), "make manifests"
    kinds = [each["kind"] for each in manifests.static(name)]
    assert kinds == ["Namespace", *(each["kind"] for each in manifests.helm(**STATIC[name]))]


def test_a_field_that_kubernetes_does_not_know_would_be_found(tmp_path: Path) -> None:
    made = manifests.static("nodeagent")
    manifests.one(made, "DaemonSet")["spec"]["template"]["spec"]["hostPids"] = True
    assert "hostPids" in manifests.valid(made, VERSIONS[0], tmp_path)


def test_before_1_30_apparmor_is_switched_off_by_annotation(tmp_path: Path) -> None:
    made = manifests.helm("1.28.0", config=VGPUS)
    assert manifests.valid(made, "1.28", tmp_path) == ""
    notes = manifests.one(made, "DaemonSet")["spec"]["template"]["metadata"]["annotations"]
    assert notes["container.apparmor.security.beta.kubernetes.io/nodeagent"] == "unconfined"


@pytest.mark.parametrize("name", STATIC)
def test_a_pod_gets_no_more_than_its_features_need(name: str) -> None:
    made = manifests.static(name)
    pod, container = manifests.pod(made), manifests.container(made)
    changes, usb, dra = name.endswith("vgpu"), name.endswith("usb"), name.endswith("dra")
    security = container["securityContext"]
    assert security["privileged"] is security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"]["drop"] == ["ALL"]
    added = (["SYS_PTRACE", "DAC_READ_SEARCH"] if changes else []) + (["CHOWN"] if usb else [])
    assert security["capabilities"].get("add", []) == added
    assert pod.get("hostPID", False) is changes
    assert not {"hostNetwork", "hostIPC"} & pod.keys()
    assert pod["automountServiceAccountToken"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    writable = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
    more = ({"/sys"} if changes else set()) | ({"/dev/bus/usb"} if usb else set())
    more |= {"/var/run/cdi", f"{PLUGINS}/nodeagent.local", REGISTRY} if dra else set()
    always = {"/var/lib/kubelet/device-plugins", "/run/nodeagent", "/var/lib/nodeagent"}
    assert writable == always | more


def test_features_add_to_each_other_on_openshift(tmp_path: Path) -> None:
    made = manifests.helm(openshift=True, usb=True, changes=True, config={"resources": DESCRIBED})
    capabilities = ["SYS_PTRACE", "DAC_READ_SEARCH", "CHOWN"]
    assert manifests.container(made)["securityContext"]["capabilities"]["add"] == capabilities
    assert manifests.one(made, "SecurityContextConstraints")["allowedCapabilities"] == capabilities


DESCRIBED = [{"name": "a.b/gpu", "cdiDevices": {"kind": "nvidia.com/gpu"}}]
MADE = [{"name": "a.b/one", "cdi": True, "pci": [{"vendors": ["10de"]}]}]


@pytest.mark.parametrize(
    ("resources", "mounted"),
    [
        ([], {}),
        (MADE, {"/var/run/cdi": "written"}),
        (DESCRIBED, {"/var/run/cdi": "read", "/etc/cdi": "read"}),
        ([*MADE, *DESCRIBED], {"/var/run/cdi": "written", "/etc/cdi": "read"}),
    ],
)
def test_cdi_files_of_others_are_read_where_a_resource_is_of_what_they_describe(
    resources: list[dict[str, Any]], mounted: dict[str, str]
) -> None:
    made = manifests.helm(config={"resources": resources})
    mounts = manifests.container(made)["volumeMounts"]
    found = {each["mountPath"]: "read" if each.get("readOnly") else "written" for each in mounts}
    assert {path: how for path, how in found.items() if path.endswith("/cdi")} == mounted
    paths = {each["hostPath"]["path"] for each in manifests.pod(made)["volumes"] if "hostPath" in each}
    assert {path for path in paths if path.endswith("/cdi")} == set(mounted)


USB = [{"name": "a.b/stick", "usb": [{"vendors": ["46f4"]}]}]


@pytest.mark.parametrize(
    ("values", "wanted"),
    [({"config": {"resources": USB}}, True), ({"usb": True}, True), ({}, False), ({"usb": False}, False)],
)
def test_owners_of_usb_nodes_can_be_changed_where_somebody_wishes_for_usb_devices(
    values: dict[str, Any], wanted: bool
) -> None:
    made = manifests.helm(openshift=True, **values)
    container = manifests.container(made)
    added = container["securityContext"]["capabilities"].get("add", [])
    writable = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
    assert added == (["CHOWN"] if wanted else [])
    assert ("/dev/bus/usb" in writable) is wanted
    constraints = manifests.one(made, "SecurityContextConstraints")
    assert constraints["allowedCapabilities"] == added


PLUGINS, REGISTRY = "/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins_registry"
T4 = "nvidia.com/TU104GL_TESLA_T4"
BY_DRA = {
    "dra": {"driver": "vfio.example.com"},
    "resources": [
        {"name": T4, "via": "dra", "pci": [{"devices": ["1eb8"]}]},
        {"name": T4, "via": "dra", "pci": [{"devices": ["1eb9"]}]},
        {"name": f"example.com/{'x' * 60}", "via": "dra", "pci": [{"vendors": ["8086"]}]},
        {"name": "example.com/other", "pci": [{"vendors": ["1002"]}]},
    ],
}
ON_DRA = {
    (("resourceslices",), ("list", "watch", "create", "update", "delete")),
    (("resourceclaims",), ("get",)),
    (("nodes",), ("get",)),
}


def rights(made: list[manifests.Manifest]) -> set[object]:
    rules = manifests.one(made, "ClusterRole")["rules"]
    return {(tuple(rule["resources"]), tuple(rule["verbs"])) for rule in rules}


def test_each_resource_by_dra_has_one_class_by_which_pods_can_request_it(tmp_path: Path) -> None:
    made = manifests.helm(config=BY_DRA)
    assert manifests.valid(made, VERSIONS[-1], tmp_path) == ""
    classes = [each for each in made if each["kind"] == "DeviceClass"]
    assert [each["metadata"]["name"] for each in classes] == [
        "tu104gl-tesla-t4.nvidia.com",
        f"{'x' * 60}.example.com",
    ]
    first, long = (each["spec"] for each in classes)
    assert first["extendedResourceName"] == T4
    assert first["selectors"][0]["cel"]["expression"] == (
        'device.driver == "vfio.example.com" && '
        f'device.attributes["vfio.example.com"].?resource.orValue("") == "{T4}"'
    )
    attribute = f"example.com/{'x' * 60}"[-64:]  # as long as an attribute can be
    assert long["selectors"][0]["cel"]["expression"].endswith(f'== "{attribute}"')


def test_with_dra_the_pod_has_the_directories_and_rights_for_it() -> None:
    made = manifests.helm(config=BY_DRA | {"kubevirt": {"enabled": "false"}}, kubeletRoot="/data/kubelet")
    mounts = manifests.container(made)["volumeMounts"]
    writable = {each["mountPath"] for each in mounts if not each.get("readOnly")}
    socket = "/data/kubelet/plugins/vfio.example.com"
    assert {"/var/run/cdi", socket, "/data/kubelet/plugins_registry"} <= writable
    assert manifests.pod(made)["automountServiceAccountToken"] is True
    assert rights(made) == ON_DRA
    assert rights(manifests.helm(config=BY_DRA)) == READS | ON_DRA | {EVENTS}


def test_without_dra_there_is_nothing_of_it() -> None:
    for made in (manifests.helm(), manifests.helm(config=BY_DRA, dra={"enabled": False})):
        kinds = {each["kind"] for each in made}
        assert not {"DeviceClass", "ValidatingAdmissionPolicy"} & kinds
        assert rights(made) == READS | {EVENTS}
        assert REGISTRY not in {each["mountPath"] for each in manifests.container(made)["volumeMounts"]}


def test_the_account_of_the_pods_can_write_slices_of_its_own_node_and_driver_only() -> None:
    made = manifests.helm(config=BY_DRA, serviceAccount={"name": "mine"})
    policy = manifests.one(made, "ValidatingAdmissionPolicy")
    binding = manifests.one(made, "ValidatingAdmissionPolicyBinding")
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    (condition,) = policy["spec"]["matchConditions"]
    assert '"system:serviceaccount:nodeagent:mine"' in condition["expression"]
    by_node, by_driver = (each["expression"] for each in policy["spec"]["validations"])
    assert 'variables.node != "" && ' in by_node
    assert by_driver.endswith('== "vfio.example.com"')
    assert "ValidatingAdmissionPolicy" not in {
        each["kind"] for each in manifests.helm(config=BY_DRA, dra={"admissionPolicy": False})
    }


def test_the_driver_of_a_config_map_of_ones_own_is_named_by_a_value() -> None:
    made = manifests.helm(existingConfigMap="mine", dra={"enabled": True, "driver": "vfio.example.com"})
    paths = {each["mountPath"] for each in manifests.container(made)["volumeMounts"]}
    assert f"{PLUGINS}/vfio.example.com" in paths
    policy = manifests.one(made, "ValidatingAdmissionPolicy")
    assert policy["spec"]["validations"][1]["expression"].endswith('== "vfio.example.com"')
    with pytest.raises(tools.HelmFailed, match=r"config\.dra\.driver"):
        manifests.helm(config=BY_DRA, dra={"driver": "other.example.com"})


def test_two_resources_with_one_class_name_are_refused() -> None:
    alike = [{"name": f"example.com/{name}", "via": "dra"} for name in ("a_b", "a-b")]
    with pytest.raises(tools.HelmFailed, match=r"example\.com/a_b and example\.com/a-b"):
        manifests.helm(config={"resources": alike})
    assert manifests.helm(config={"resources": alike}, dra={"deviceClasses": False})


READS = {(("kubevirts",), ("list", "watch")), (("nodes",), ("list", "watch"))}
EVENTS, CONDITION = (("events",), ("create", "patch")), (("nodes/status",), ("patch",))
WRITES: list[tuple[dict[str, object], set[object]]] = [
    ({}, {EVENTS}),
    ({"events": False}, set()),
    ({"condition": True}, {EVENTS, CONDITION}),
    ({"staleResources": "remove"}, {EVENTS, CONDITION}),
    ({"staleResources": "report"}, {EVENTS}),
]


@pytest.mark.parametrize(("cluster", "writes"), WRITES)
def test_of_the_cluster_only_that_can_be_written_which_the_settings_ask_for(
    cluster: dict[str, object], writes: set[object]
) -> None:
    made = manifests.helm(config={"cluster": cluster})
    assert rights(made) == READS | writes


def test_the_rights_are_those_of_the_account_that_the_pods_run_as() -> None:
    for made in (manifests.helm(), manifests.static("nodeagent")):
        binding = manifests.one(made, "ClusterRoleBinding")
        (subject,) = binding["subjects"]
        assert subject["name"] == manifests.pod(made)["serviceAccountName"]
        assert subject["namespace"] == manifests.one(made, "ServiceAccount")["metadata"]["namespace"]
        assert binding["roleRef"]["name"] == manifests.one(made, "ClusterRole")["metadata"]["name"]


def test_who_is_not_to_follow_the_cluster_gets_no_token_and_no_rights() -> None:
    made = manifests.helm(config={"kubevirt": {"enabled": "false"}})
    pod, container = manifests.pod(made), manifests.container(made)
    assert pod["automountServiceAccountToken"] is False
    assert "/var/lib/nodeagent" in {
        each["mountPath"] for each in container["volumeMounts"]
    }  # names, settings
    assert not {"ClusterRole", "ClusterRoleBinding"} & {each["kind"] for each in made}


def test_openshift_lets_its_constraints_be_used_and_no_more() -> None:
    rules = manifests.one(manifests.static("nodeagent-openshift"), "Role")["rules"]
    constraints = manifests.one(manifests.static("nodeagent-openshift"), "SecurityContextConstraints")
    assert [(rule["verbs"], rule["resourceNames"]) for rule in rules] == [
        (["use"], [constraints["metadata"]["name"]])
    ]


def test_openshift_allows_just_what_the_pod_wants() -> None:
    for name in ("nodeagent-openshift", "nodeagent-openshift-vgpu"):
        made = manifests.static(name)
        allowed, pod = manifests.one(made, "SecurityContextConstraints"), manifests.pod(made)
        wanted = manifests.container(made)["securityContext"]["capabilities"].get("add", [])
        kinds = {key for volume in pod["volumes"] for key in volume if key != "name"}
        assert allowed["allowHostPID"] == pod.get("hostPID", False)
        assert allowed["allowedCapabilities"] == wanted
        assert set(allowed["volumes"]) == kinds | {"emptyDir"}
        assert allowed["allowPrivilegedContainer"] is False


def test_the_namespace_lets_pods_with_host_directories_in() -> None:
    labels = manifests.one(manifests.static("nodeagent"), "Namespace")["metadata"]["labels"]
    modes = {key.partition("/")[2]: value for key, value in labels.items() if key.startswith("pod-security")}
    assert modes == dict.fromkeys(("enforce", "audit", "warn"), "privileged")


def test_other_settings_roll_the_pods() -> None:
    def mark(**values: Any) -> str:
        spec = manifests.one(manifests.helm(**values), "DaemonSet")["spec"]["template"]
        return str(spec["metadata"]["annotations"]["checksum/config"])

    assert mark() == mark()
    assert mark() != mark(config=VGPUS)


@pytest.mark.parametrize("values", [pytest.param(values, id=name) for name, values in CASES.items()])
def test_every_variable_and_flag_of_the_pod_is_in_the_table_of_settings(values: dict[str, Any]) -> None:
    container = manifests.container(manifests.helm(**values))
    known = {setting.env for setting in config.SETTINGS}
    flags = {setting.flag for setting in config.SETTINGS}
    given = {each["name"] for each in container["env"]}
    assert {"NODEAGENT_NODE_NAME", "NODEAGENT_HTTP_LISTEN"} <= given <= known
    verb, *rest = container["args"]
    assert verb == "run"
    assert {flag for flag in rest if flag.startswith("--")} <= flags


@pytest.mark.parametrize("name", STATIC)
def test_the_daemon_takes_the_settings_of_each_static_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(manifests.settings(manifests.static(name)))
    assert config.check_file(str(path)).warnings == ()


def test_the_port_of_the_probes_is_the_one_that_is_served() -> None:
    container = manifests.container(manifests.helm(http={"host": "[::]", "port": 9999}))
    (port,) = container["ports"]
    values = {each["name"]: each.get("value") for each in container["env"]}
    assert values["NODEAGENT_HTTP_LISTEN"] == "[::]:9999"
    assert (port["name"], port["containerPort"]) == ("http", 9999)
    for probe, path in (
        ("startupProbe", "/healthz"),
        ("livenessProbe", "/healthz"),
        ("readinessProbe", "/readyz"),
    ):
        assert container[probe]["httpGet"] == {"path": path, "port": "http"}


def test_every_mount_has_a_line_in_the_documentation() -> None:
    page = (ROOT / "docs/kubernetes.md").read_text()
    paths = {each["mountPath"] for each in manifests.container(manifests.helm(config=ALL))["volumeMounts"]}
    assert [path for path in sorted(paths) if not re.search(rf"(?m)^\| `{re.escape(path)}` \|", page)] == []
