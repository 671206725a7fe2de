# SPDX-License-Identifier: Apache-2.0
"""Configuration: the settings of this node, each parsed and checked, before they are merged with the settings
of the cluster.

It also contains the files of other tools: ``policy.merge`` decides which part of them applies, and determines
the node's labels. The order of entries in a file matters, so they are stored in tuples. ``place`` is the
complete path and line of a value ("/etc/nodeagent/config.yaml:12"), for messages only.
"""

# Annotations are not postponed here: plain.fields_of evaluates them at each start, and that takes time.
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from nodeagent.model.plain import Key
from nodeagent.model.problem import Problem
from nodeagent.model.spec import (
    CardTypes,
    ClusterMode,
    Discovery,
    MdevDefinition,
    NodeTypes,
    PassthroughRule,
    Rule,
    SriovRule,
    WantedType,
)


class Alias(NamedTuple):
    """A discovered name, and the name that is advertised instead."""

    name: str
    target: str
    place: str = ""


class Mdevs(NamedTuple):
    """The section ``mdevs`` of the settings; the last three fields name further sources of vGPU types."""

    manage: Annotated[bool, Key("create and remove mdevs and vGPUs")] = False
    types: Annotated[
        tuple[WantedType, ...],
        Key("vGPU types to create, in order: ids or names; count is per card, default: as many as fit"),
    ] = ()
    nodes: Annotated[
        tuple[NodeTypes, ...],
        Key(
            "vGPU types for Nodes with certain labels; the lists of all matching entries replace mdevs.types"
        ),
    ] = ()
    adopt: Annotated[bool, Key("manage mdevs and vGPUs of other tools as if nodeagent had created them")] = (
        False
    )
    exclude: Annotated[
        tuple[str, ...], Key("vGPU types of which nodeagent creates and removes no vGPUs")
    ] = ()
    mdevctl: Annotated[bool, Key("create the mdevs that /etc/mdevctl.d defines with automatic start")] = False
    vgpu_config_file: Annotated[
        str,
        Key("configuration file of NVIDIA's vgpu-device-manager to apply", "optional file"),
    ] = ""
    vgpu_config: Annotated[
        str,
        Key(
            "name of the configuration in vgpuConfigFile, unless node.labels has nvidia.com/vgpu.config",
            "optional text",
        ),
    ] = ""


class Node(NamedTuple):
    """The section ``node``. ``name`` defaults to the host name."""

    name: Annotated[
        str,
        Key(
            "name of the Node, default: the host name; without a cluster also the label "
            "kubernetes.io/hostname",
            "node name",
        ),
    ] = ""
    labels: Annotated[
        tuple[tuple[str, str], ...], Key("labels of the Node, if no cluster is watched", "label")
    ] = ()


class KubeVirt(NamedTuple):
    """The section ``kubevirt``: whether the KubeVirt CR is read, and how it is used.

    ``enabled``: auto, true, false. ``serve`` selects the permitted devices to advertise: external, all,
    none.
    """

    enabled: Annotated[
        str,
        Key(
            "watch the KubeVirt CR and the Node; auto: if a kubeconfig or a pod's service account exists",
            choices=("auto", "true", "false"),
        ),
    ] = "auto"
    serve: Annotated[
        str,
        Key(
            "permittedHostDevices of the CR to advertise: external (externalResourceProvider: "
            "true), all, or none",
            choices=("external", "all", "none"),
        ),
    ] = "external"
    manage_mdevs: Annotated[
        bool,
        Key(
            "create the mdevs that the KubeVirt CR lists, if "
            "the CR has mediatedDevicesConfiguration.enabled: false"
        ),
    ] = False


class MdevctlDefinitions(NamedTuple):
    """The definitions of mdevctl; ``wanted`` are those that start automatically.

    ``uuids`` has the UUIDs of all definitions; ``reserved`` are the parents on which mdevctl creates devices
    that nodeagent does not support.
    """

    wanted: tuple[MdevDefinition, ...] = ()
    uuids: frozenset[str] = frozenset()
    reserved: frozenset[str] = frozenset()


class VgpuConfiguration(NamedTuple):
    """One named configuration in a vgpu-device-manager file."""

    name: str
    cards: tuple[CardTypes, ...]


class VgpuFile(NamedTuple):
    """All configurations in a file of NVIDIA's vgpu-device-manager; ``fault`` is the error if it is
    invalid.
    """

    path: str
    configurations: tuple[VgpuConfiguration, ...] = ()
    fault: Problem | None = None


class Imported(NamedTuple):
    """The contents of files of other tools; ``vgpu`` is None if no such file is configured or read."""

    mdevctl: MdevctlDefinitions = MdevctlDefinitions()
    vgpu: VgpuFile | None = None


@dataclass(frozen=True, slots=True)
class Configuration:
    """The complete configuration for ``policy.merge``.

    ``home`` is the directory of the configuration files; tables for users show paths without it.
    """

    discovery: Discovery = field(default_factory=Discovery)
    aliases: Annotated[
        tuple[Alias, ...],
        Key("map discovered resource names to the names that are advertised instead", "resource"),
    ] = ()
    rules: Annotated[
        tuple[Rule, ...],
        Key("resource rules; a device belongs to the first rule that matches it", name="resources"),
    ] = ()
    mdevs: Mdevs = field(default_factory=Mdevs)
    passthrough: Annotated[
        tuple[PassthroughRule, ...],
        Key(
            "PCI functions to bind to a VFIO driver; when the rule is removed, their host driver is restored"
        ),
    ] = ()
    sriov: Annotated[tuple[SriovRule, ...], Key("virtual functions to create")] = ()
    kubevirt: KubeVirt = field(default_factory=KubeVirt)
    kubeconfig: Annotated[
        str,
        Key(
            "file with the API server and credentials; default: the pod's service account",
            "optional file",
        ),
    ] = ""
    node: Node = field(default_factory=Node)
    imported: Imported = field(default_factory=Imported)
    home: str = field(default="", compare=False)

    @property
    def following(self) -> ClusterMode:
        """Return whether to watch the cluster; ``auto`` means yes with a kubeconfig or in a pod."""
        if self.kubevirt.enabled == "auto":
            return ClusterMode.YES if self.kubeconfig else ClusterMode.AS_POD
        return ClusterMode.YES if self.kubevirt.enabled == "true" else ClusterMode.NO
