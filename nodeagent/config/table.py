# SPDX-License-Identifier: Apache-2.0
"""THE table of settings: keys, shapes, defaults and help, each written once.

Flags, environment variables, the reader of the files, the JSON schema and the reference in
``docs/configuration.md`` all come from it. A setting that is read ``at_start`` only says so wherever it is
shown, and when the daemon reads a new value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from nodeagent.config import scalars, selectors, shapes
from nodeagent.config.shapes import Either, Key, ListOf, MapOf, Record, Shape, Word
from nodeagent.model.spec import (
    API_VERSION,
    DISCOVERED_CLASSES,
    Extent,
    NodeTypes,
    PassthroughRule,
    SriovRule,
    WantedType,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


class Setting(NamedTuple):
    """One setting: its key ("timing.settle"), shape, default (as read), and help for people."""

    key: str
    shape: Shape
    default: Any
    help: str
    file_only: bool = False
    at_start: bool = False
    obsolete: bool = False  # accepted, without effect, and in no page

    @property
    def section(self) -> str:
        """The key of the table that it stands in; "" at the top of the file."""
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        """Its key inside its section."""
        return self.key.rpartition(".")[2]

    @property
    def field(self) -> str:
        """The field that it fills in the record of its section."""
        return shapes.snake(self.name)

    @property
    def flag(self) -> str | None:
        """``--timing-settle``; None if it can be given in a file only."""
        return None if self.file_only else f"--{self._words}"

    @property
    def env(self) -> str | None:
        """``NODEAGENT_TIMING_SETTLE``; None if it can be given in a file only."""
        if self.file_only:
            return None
        return f"NODEAGENT_{self._words.replace('-', '_').upper()}"

    @property
    def _words(self) -> str:
        return shapes.kebab(self.key.replace(".", "-"))


TYPE = Record(
    "type with count",
    (
        Key("type", scalars.TEXT, "type id or name", required=True, field="name"),
        Key("count", scalars.integer(1, 1024), "how many to make on each card"),
    ),
    WantedType,
)
_TYPES = ListOf(Either(scalars.TEXT, TYPE))
MDEV_NODE = Record(
    "node",
    (
        Key(
            "nodeSelector",
            MapOf(scalars.LABEL_KEY, scalars.LABEL_VALUE),
            "labels of the node",
            field="labels",
        ),
        Key("types", _TYPES, "types on such a node, in order"),
    ),
    NodeTypes,
)
_MDEV_NODES = ListOf(MDEV_NODE)
PASSTHROUGH = Record(
    "binding",
    (
        Key("match", selectors.PCI, "which functions", required=True, field="selectors"),
        Key("driver", scalars.VFIO_DRIVER, "the VFIO driver to bind them to; vfio-pci if none is given"),
        Key(
            "group",
            scalars.member(Extent),
            "whole: bind all of their IOMMU groups, at once or not at all; matched: them alone",
        ),
        Key(
            "force",
            ListOf(scalars.EXACT_ADDRESS),
            "addresses of functions that this host may lose although its network or display is on them",
        ),
    ),
    PassthroughRule,
    placed=True,
)
SRIOV = Record(
    "card",
    (
        Key("match", selectors.PCI, "which functions", required=True, field="selectors"),
        Key("numVFs", scalars.integer(0, 65535), "how many VFs", required=True),
        Key("driver", scalars.VFIO_DRIVER, "the VFIO driver of the VFs: none of the host's gets them first"),
    ),
    SriovRule,
    placed=True,
)

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "apiVersion",
        scalars.choice(API_VERSION),
        API_VERSION,
        "version of the file format",
        file_only=True,
    ),
    Setting("discovery.enabled", scalars.FLAG, True, "offer VFIO-bound functions without a rule"),
    Setting(
        "discovery.naming",
        scalars.choice("name", "id"),
        "name",
        "name discovered resources after pci.ids, or after vendor and device id",
    ),
    Setting(
        "discovery.prefix",
        scalars.DOMAIN,
        "",
        'domain of discovered names; "" takes one per vendor, such as nvidia.com',
    ),
    Setting(
        "discovery.pciIds",
        scalars.OPTIONAL_FILE,
        "",
        "a pci.ids whose names go before those of the bundled copy; the host's own comes last",
        at_start=True,
    ),
    Setting(
        "discovery.classes",
        ListOf(scalars.CLASS),
        DISCOVERED_CLASSES,
        "PCI classes that are discovered, 2, 4 or 6 digits each; 0680 (NVSwitch) of NVIDIA alone",
    ),
    Setting(
        "aliases",
        MapOf(scalars.RESOURCE, scalars.RESOURCE),
        {},
        "discovered name to the name that is offered instead",
    ),
    Setting(
        "resources",
        ListOf(selectors.RESOURCE),
        (),
        "resources by rule; the first rule that matches takes a device",
        file_only=True,
    ),
    Setting("mdevs.manage", scalars.FLAG, False, "make and remove mdevs and vGPUs"),
    Setting(
        "mdevs.types",
        _TYPES,
        (),
        "types to make, in order: ids or names; a count is for each card, none means all that fit",
        file_only=True,
    ),
    Setting(
        "mdevs.nodes",
        _MDEV_NODES,
        (),
        "types for nodes with certain labels; the lists of all that fit replace mdevs.types",
        file_only=True,
    ),
    Setting("mdevs.adopt", scalars.FLAG, False, "take over what others made: keep it, or remove it"),
    Setting("mdevs.exclude", ListOf(scalars.TEXT), (), "types that are neither made nor removed"),
    Setting("mdevs.mdevctl", scalars.FLAG, False, "make what /etc/mdevctl.d defines to start by itself"),
    Setting(
        "mdevs.vgpuConfigFile",
        scalars.OPTIONAL_FILE,
        "",
        "configuration file of NVIDIA's vgpu-device-manager that is to be carried out",
    ),
    Setting(
        "mdevs.vgpuConfig",
        scalars.OPTIONAL_TEXT,
        "",
        "which configuration of that file, unless the label nvidia.com/vgpu.config in node.labels names one",
    ),
    Setting(
        "passthrough",
        ListOf(PASSTHROUGH),
        (),
        "functions to bind to a VFIO driver; they go back to their own when no rule names them any more",
        file_only=True,
    ),
    Setting("sriov", ListOf(SRIOV), (), "virtual functions to make", file_only=True),
    Setting(
        "kubevirt.enabled",
        scalars.choice("auto", "true", "false"),
        "auto",
        "follow the KubeVirt CR and the Node; auto: with a kubeconfig, or a pod's service account",
    ),
    Setting(
        "kubevirt.serve",
        scalars.choice("external", "all", "none"),
        "external",
        "which devices that the CR permits are served: those with externalResourceProvider, all, or none",
    ),
    Setting(
        "kubevirt.manageMdevs",
        scalars.FLAG,
        False,
        "make the mdevs that the CR asks for, where virt-handler does not (enabled: false in the CR)",
    ),
    Setting(
        "cluster.staleResources",
        scalars.choice("report", "remove", "off"),
        "report",
        "extended resources on the Node that were offered here once and that nobody gives any more: "
        "report them in status, remove them, or leave them alone",
    ),
    Setting(
        "kubeconfig",
        scalars.OPTIONAL_FILE,
        "",
        "how to reach the API server and as whom; without it as the pod's service account",
    ),
    Setting(
        "cluster.events",
        scalars.FLAG,
        True,
        "write Events about this node and its pods, where the cluster is followed (kubevirt.enabled)",
    ),
    Setting(
        "cluster.condition",
        scalars.FLAG,
        False,
        "keep the condition DevicesUsable of the Node: False while something needs a person",
    ),
    Setting(
        "kubelet.registration",
        scalars.choice("classic", "plugins-registry"),
        "classic",
        "how the kubelet learns of resources: by Register, or from sockets in pluginsRegistryDir",
        at_start=True,
    ),
    Setting(
        "kubelet.devicePluginDir",
        scalars.SOCKET_DIRECTORY,
        "/var/lib/kubelet/device-plugins",
        "directory of kubelet.sock and of the sockets of all resources",
        at_start=True,
    ),
    Setting(
        "kubelet.pluginsRegistryDir",
        scalars.SOCKET_DIRECTORY,
        "/var/lib/kubelet/plugins_registry",
        "directory for registration: plugins-registry; it follows the kubelet's --root-dir",
        at_start=True,
    ),
    Setting(
        "kubelet.podResources",
        scalars.SOCKET,
        "/var/lib/kubelet/pod-resources/kubelet.sock",
        "socket of the PodResources API; it follows the kubelet's --root-dir",
        at_start=True,
    ),
    Setting(
        "node.name",
        scalars.NODE_NAME,
        "",
        "name of the node, by default the host's; without a cluster also its label kubernetes.io/hostname",
    ),
    Setting(
        "node.labels",
        MapOf(scalars.LABEL_KEY, scalars.LABEL_VALUE),
        {},
        "labels of the node, where no cluster tells them",
    ),
    Setting(
        "timing.settle",
        scalars.duration(0.0, 60.0),
        1.0,
        "no effect any more; accepted for configurations of before",
        obsolete=True,
    ),
    Setting(
        "timing.resync",
        scalars.duration(1.0, 3600.0),
        60.0,
        "how often everything is read again without an event",
    ),
    Setting(
        "timing.holders",
        scalars.duration(0.1, 600.0),
        2.0,
        "how often holders are asked for while something waits for a release",
    ),
    Setting(
        "log.format",
        scalars.choice("auto", "journald", "json", "text"),
        "auto",
        "auto takes journald below systemd, text on a terminal, else JSON lines",
    ),
    Setting(
        "log.level",
        scalars.choice("debug", "info", "warning", "error"),
        "info",
        "least level that is logged",
    ),
    Setting(
        "status.socket", scalars.SOCKET, "/run/nodeagent/status.sock", "socket of 'status'", at_start=True
    ),
    Setting(
        "http.listen",
        scalars.LISTEN,
        "127.0.0.1:9481",
        'address of metrics and health by HTTP; "" serves none, 0.0.0.0 or [::] as host take any interface',
    ),
    Setting(
        "http.page",
        scalars.choice("false", "true", "everywhere"),
        "false",
        "serve the status page there, too: true to clients on this node, everywhere to whoever gets through",
    ),
    Setting(
        "cdi.specDir", scalars.DIRECTORY, "/var/run/cdi", "directory of CDI specifications", at_start=True
    ),
)

BY_KEY: Mapping[str, Setting] = {setting.key: setting for setting in SETTINGS}


def sections() -> dict[str, dict[str, Setting]]:
    """Section → name → setting, in table order; the section "" is the top of the file."""
    by_section: dict[str, dict[str, Setting]] = {"": {}}
    for setting in SETTINGS:
        by_section.setdefault(setting.section, {})[setting.name] = setting
    return by_section


def top_keys() -> tuple[str, ...]:
    """The keys that may stand at the top of a file, in table order."""
    return tuple(dict.fromkeys(setting.key.partition(".")[0] for setting in SETTINGS))


def shown(shape: Shape, value: Any) -> Any:
    """A value as a person would write it, made of plain lists, maps and words."""
    if isinstance(shape, Word):
        return shape.show(value)
    if isinstance(shape, ListOf):
        return [shown(shape.of, item) for item in value]
    if isinstance(shape, Either):
        return shown(shape.record if isinstance(value, dict) else shape.word, value)
    if isinstance(shape, Record):
        known = {key.name: key.shape for key in shape.keys}
        return {name: shown(known[name], item) for name, item in value.items() if name in known}
    return dict(value)


def note(setting: Setting, before: str, after: str) -> str:
    """What a person should know of a setting that the daemon does not use at once; else ""."""
    if setting.at_start:
        return f"{before}read at the start only{after}"
    return ""


def schema() -> shapes.Schema:
    """The JSON schema (draft 2020-12) of a configuration file."""
    properties: dict[str, shapes.Schema] = {}
    for section, settings in sections().items():
        table = {name: _setting_schema(setting) for name, setting in settings.items()}
        if section:
            properties[section] = shapes.table_schema(table) | {"type": ["object", "null"]}
        else:
            properties |= table
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Configuration of nodeagent",
    }
    return head | shapes.table_schema({key: properties[key] for key in top_keys()})


def _setting_schema(setting: Setting) -> shapes.Schema:
    text = f"{setting.help}{note(setting, ' (', ')')}"
    default = shown(setting.shape, setting.default)
    return shapes.described(shapes.schema(setting.shape), text, default)
