# SPDX-License-Identifier: Apache-2.0
"""Configuration: the settings of this node, read and checked one by one, before they are merged.

Besides the operator's own settings it has the whole content of files of other tools: ``policy.merge`` decides
which part of it counts, and which labels the node has. The order in a file is data: tuples from end to end.
Places are written in full ("/etc/nodeagent/config.yaml:12"), for messages only.
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
    """A discovered name, and the name that is offered instead."""

    name: str
    target: str
    place: str = ""


class Mdevs(NamedTuple):
    """The section ``mdevs``; the last three name sources of wishes beside it ("" and False: none)."""

    manage: Annotated[bool, Key("make and remove mdevs and vGPUs")] = False
    types: Annotated[
        tuple[WantedType, ...],
        Key("types to make, in order: ids or names; a count is for each card, none means all that fit"),
    ] = ()
    nodes: Annotated[
        tuple[NodeTypes, ...],
        Key("types for nodes with certain labels; the lists of all that fit replace mdevs.types"),
    ] = ()
    adopt: Annotated[bool, Key("take over what others made: keep it, or remove it")] = False
    exclude: Annotated[tuple[str, ...], Key("types that are neither made nor removed")] = ()
    mdevctl: Annotated[bool, Key("make what /etc/mdevctl.d defines to start by itself")] = False
    vgpu_config_file: Annotated[
        str,
        Key("configuration file of NVIDIA's vgpu-device-manager that is to be carried out", "optional file"),
    ] = ""
    vgpu_config: Annotated[
        str,
        Key(
            "which configuration of that file, unless the label nvidia.com/vgpu.config in node.labels names "
            "one",
            "optional text",
        ),
    ] = ""


class Node(NamedTuple):
    """The section ``node``. ``name``: the host's, unless set."""

    name: Annotated[
        str,
        Key(
            "name of the node, by default the host's; without a cluster also its label "
            "kubernetes.io/hostname",
            "node name",
        ),
    ] = ""
    labels: Annotated[
        tuple[tuple[str, str], ...], Key("labels of the node, where no cluster tells them", "label")
    ] = ()


class KubeVirt(NamedTuple):
    """The section ``kubevirt``: whether the KubeVirt CR is read, and what is done with it.

    ``enabled``: auto, true, false. ``serve`` says which of the devices that it permits: external, all, none.
    """

    enabled: Annotated[
        str,
        Key(
            "follow the KubeVirt CR and the Node; auto: with a kubeconfig, or a pod's service account",
            choices=("auto", "true", "false"),
        ),
    ] = "auto"
    serve: Annotated[
        str,
        Key(
            "which devices that the CR permits are served: those with externalResourceProvider, all, or none",
            choices=("external", "all", "none"),
        ),
    ] = "external"
    manage_mdevs: Annotated[
        bool,
        Key("make the mdevs that the CR asks for, where virt-handler does not (enabled: false in the CR)"),
    ] = False


class MdevctlDefinitions(NamedTuple):
    """The definitions of mdevctl. ``wanted`` are those that start by themselves.

    ``uuids`` are those of all definitions; ``reserved`` are the parents on which mdevctl is to make something
    that nodeagent cannot make.
    """

    wanted: tuple[MdevDefinition, ...] = ()
    uuids: frozenset[str] = frozenset()
    reserved: frozenset[str] = frozenset()


class VgpuConfiguration(NamedTuple):
    """One named configuration of a vgpu-device-manager file."""

    name: str
    cards: tuple[CardTypes, ...]


class VgpuFile(NamedTuple):
    """A file of NVIDIA's vgpu-device-manager: all its configurations. ``fault``: why there are none."""

    path: str
    configurations: tuple[VgpuConfiguration, ...] = ()
    fault: Problem | None = None


class Imported(NamedTuple):
    """The content of files of other tools. ``vgpu`` None: no such file is named, or it was not read."""

    mdevctl: MdevctlDefinitions = MdevctlDefinitions()
    vgpu: VgpuFile | None = None


@dataclass(frozen=True, slots=True)
class Configuration:
    """All that ``policy.merge`` needs of the configuration.

    ``home`` is the directory of the configuration files: tables for people name places without it.
    """

    discovery: Discovery = field(default_factory=Discovery)
    aliases: Annotated[
        tuple[Alias, ...], Key("discovered name to the name that is offered instead", "resource")
    ] = ()
    rules: Annotated[
        tuple[Rule, ...],
        Key("resources by rule; the first rule that matches takes a device", name="resources"),
    ] = ()
    mdevs: Mdevs = field(default_factory=Mdevs)
    passthrough: Annotated[
        tuple[PassthroughRule, ...],
        Key("functions to bind to a VFIO driver; they go back to their own when no rule names them any more"),
    ] = ()
    sriov: Annotated[tuple[SriovRule, ...], Key("virtual functions to make")] = ()
    kubevirt: KubeVirt = field(default_factory=KubeVirt)
    kubeconfig: Annotated[
        str,
        Key(
            "how to reach the API server and as whom; without it as the pod's service account",
            "optional file",
        ),
    ] = ""
    node: Node = field(default_factory=Node)
    imported: Imported = field(default_factory=Imported)
    home: str = field(default="", compare=False)

    @property
    def following(self) -> ClusterMode:
        """Whether the cluster is to be followed; auto does so with a kubeconfig, or as a pod."""
        if self.kubevirt.enabled == "auto":
            return ClusterMode.YES if self.kubeconfig else ClusterMode.AS_POD
        return ClusterMode.YES if self.kubevirt.enabled == "true" else ClusterMode.NO
