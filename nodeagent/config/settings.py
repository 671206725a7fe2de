# SPDX-License-Identifier: Apache-2.0
"""Defines all settings: each section is a record, and each field has a type, a default, a help text, a check.

This module defines the sections that concern the daemon itself; ``model.configuration`` and ``model.spec``
define those for devices. ``SETTINGS`` lists every key: flags, environment variables, the file parser, the
JSON schema and the reference in ``docs/configuration.md`` are generated from it.
"""

# Annotations are not postponed here: plain.fields_of evaluates them at each start, and that takes time.
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from nodeagent.config import codec, rules, words
from nodeagent.config.codec import Field, ListOf, Record, Schema
from nodeagent.model import plain
from nodeagent.model.configuration import Configuration
from nodeagent.model.plain import Key
from nodeagent.model.spec import API_VERSION


class Cluster(NamedTuple):
    """Settings for writing to the cluster, if the daemon watches it."""

    stale_resources: Annotated[
        str,
        Key(
            "extended resources on the Node that no device plugin advertises any more: "
            "report them in status, remove them, or leave them alone",
            choices=("report", "remove", "off"),
        ),
    ] = "report"
    events: Annotated[
        bool,
        Key(
            "write Events about this node and its pods, if the daemon watches the cluster (kubevirt.enabled)"
        ),
    ] = True
    condition: Annotated[
        bool, Key("set the condition DevicesUsable of the Node: False while there are problems")
    ] = False


class Kubelet(NamedTuple):
    """Paths of the kubelet, without the root prefix."""

    registration: Annotated[
        str,
        Key(
            "how resources are registered: by a Register call, or by sockets in pluginsRegistryDir",
            choices=("classic", "plugins-registry"),
            at_start=True,
        ),
    ] = "classic"
    device_plugin_dir: Annotated[
        str,
        Key(
            "directory of kubelet.sock and of the sockets of all resources",
            "directory of sockets",
            at_start=True,
        ),
    ] = "/var/lib/kubelet/device-plugins"
    plugins_registry_dir: Annotated[
        str,
        Key(
            "directory for registration: plugins-registry, below the kubelet's --root-dir",
            "directory of sockets",
            at_start=True,
        ),
    ] = "/var/lib/kubelet/plugins_registry"
    pod_resources: Annotated[
        str,
        Key("socket of the PodResources API, below the kubelet's --root-dir", "socket", at_start=True),
    ] = "/var/lib/kubelet/pod-resources/kubelet.sock"


class Timing(NamedTuple):
    """Intervals and delays in seconds."""

    settle: Annotated[
        float,
        Key("no effect; accepted because older configurations have it", bounds=(0.0, 60.0), obsolete=True),
    ] = 1.0
    resync: Annotated[
        float,
        Key("interval of full scans of the host, in addition to scans after events", bounds=(1.0, 3600.0)),
    ] = 60.0
    holders: Annotated[
        float,
        Key(
            "interval of checks for released devices, while a change waits for the release of a device",
            bounds=(0.1, 600.0),
        ),
    ] = 2.0


class Log(NamedTuple):
    """Settings of the log."""

    format: Annotated[
        str,
        Key(
            "auto: journald under systemd, text on a terminal, otherwise JSON lines",
            choices=("auto", "journald", "json", "text"),
        ),
    ] = "auto"
    level: Annotated[
        str, Key("lowest level that is logged", choices=("debug", "info", "warning", "error"))
    ] = "info"


class Status(NamedTuple):
    """The socket that ``nodeagent status`` connects to, without the root prefix."""

    socket: Annotated[str, Key("socket of 'status'", "socket", at_start=True)] = "/run/nodeagent/status.sock"


class Http(NamedTuple):
    """The address of the HTTP server ("" for none), and the clients that may see the status page."""

    listen: Annotated[
        str,
        Key(
            'address of metrics and health by HTTP; "" serves none, '
            "0.0.0.0 or [::] listens on every interface",
            "address to listen at",
        ),
    ] = "127.0.0.1:9481"
    page: Annotated[
        str,
        Key(
            "serve the status page at http.listen: true for clients on this node, everywhere for all clients",
            choices=("false", "true", "everywhere"),
        ),
    ] = "false"


class Cdi(NamedTuple):
    """The directory for generated CDI specifications, without the root prefix."""

    spec_dir: Annotated[str, Key("directory of CDI specifications", "directory", at_start=True)] = (
        "/var/run/cdi"
    )


class Dra(NamedTuple):
    """Settings for resources that are offered by dynamic resource allocation (``via: dra``)."""

    driver: Annotated[
        str,
        Key(
            "name of the DRA driver; claims and DeviceClasses refer to it, so never change it",
            "DRA driver",
            at_start=True,
        ),
    ] = "nodeagent.local"


class Value(NamedTuple):
    """The value of one setting for display, as plain data, and its source."""

    key: str
    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings.

    ``warnings`` are complete lines for the user about settings that are valid but suspicious.

    A change in one of the ``watched`` directories (with the root prefix) reloads the settings. ``filed``
    are the values from files, without the effect of flags and variables.
    """

    configuration: Configuration
    cluster: Cluster
    kubelet: Kubelet
    timing: Timing
    log: Log
    status: Status
    http: Http
    cdi: Cdi
    dra: Dra
    values: tuple[Value, ...] = ()
    warnings: tuple[str, ...] = ()
    watched: tuple[str, ...] = field(default=(), compare=False)
    filed: tuple[Value, ...] = field(default=(), compare=False)


class Setting(Field):
    """One setting; its key includes the section: "timing.settle"."""

    __slots__ = ()

    @property
    def section(self) -> str:
        """Return the key of the table that contains the setting; "" for top-level keys."""
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        """Return the key inside the section."""
        return self.key.rpartition(".")[2]

    @property
    def flag(self) -> str | None:
        """Return the flag, such as ``--timing-settle``; None for tables, which only files can set."""
        tables = isinstance(self.shape, ListOf) and isinstance(self.shape.of, Record)
        if tables or self.key == "apiVersion":
            return None
        return "--" + re.sub(r"(?<=[a-z])([A-Z])", r"-\1", self.key.replace(".", "-")).lower()

    @property
    def env(self) -> str | None:
        """Return the variable, such as ``NODEAGENT_TIMING_SETTLE``; None for tables."""
        return self.flag and f"NODEAGENT_{self.flag[2:].replace('-', '_').upper()}"

    def note(self, before: str, after: str) -> str:
        """Return "read at the start only", between two texts, if that is true of this setting; else ""."""
        return f"{before}read at the start only{after}" if self.at_start else ""


def _settings(record: type) -> Iterator[Field]:
    """Yield the keys of a file that sets the fields of this record, including those of its sections."""
    keys = {field.field: field for field in rules.fields(record)}
    for each in plain.fields_of(record):
        if each.name in keys:
            yield keys[each.name]
        elif each.type is Configuration:
            yield from _settings(Configuration)
        elif plain.is_record(each.type):
            yield from rules.fields(each.type, section=each.key)


_VERSION = Setting("apiVersion", "", words.choice(API_VERSION), "version of the file format", API_VERSION)
SETTINGS: tuple[Setting, ...] = (_VERSION, *(Setting(*field) for field in _settings(Settings)))
BY_KEY: Mapping[str, Setting] = {setting.key: setting for setting in SETTINGS}


def sections() -> dict[str, dict[str, Setting]]:
    """Return the settings by section and name in table order; section "" holds the top-level keys."""
    by_section: dict[str, dict[str, Setting]] = {"": {}}
    for setting in SETTINGS:
        by_section.setdefault(setting.section, {})[setting.name] = setting
    return by_section


def top_keys() -> tuple[str, ...]:
    """Return the top-level keys of a file in table order."""
    return tuple(dict.fromkeys(setting.key.partition(".")[0] for setting in SETTINGS))


def schema() -> Schema:
    """Return the JSON schema (draft 2020-12) of a configuration file."""
    properties: dict[str, Schema] = {}
    for section, settings in sections().items():
        table = {name: _setting_schema(setting) for name, setting in settings.items()}
        if section:
            properties[section] = codec.table_schema(table) | {"type": ["object", "null"]}
        else:
            properties |= table
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Configuration of nodeagent",
    }
    return head | codec.table_schema({key: properties[key] for key in top_keys()})


def _setting_schema(setting: Setting) -> Schema:
    return codec.schema(setting.shape) | {
        "description": f"{setting.help}{setting.note(' (', ')')}",
        "default": codec.written(setting.shape, setting.default),
    }
