# SPDX-License-Identifier: Apache-2.0
"""All settings: their sections are records, each field of which carries type, default, help and check.

The sections that the daemon needs for itself stand here, those on the devices of the node in
``model.configuration`` and ``model.spec``. ``SETTINGS`` lists the keys of all of them: from it come flags,
environment variables, the reader of the files, the JSON schema and the reference in
``docs/configuration.md``.
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
    """Writes to the cluster, where it is followed."""

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
        Key("write Events about this node and its pods, where the cluster is followed (kubevirt.enabled)"),
    ] = True
    condition: Annotated[
        bool, Key("keep the condition DevicesUsable of the Node: False while there are problems")
    ] = False


class Kubelet(NamedTuple):
    """Where the kubelet is; paths without the root prefix."""

    registration: Annotated[
        str,
        Key(
            "how the kubelet learns of resources: by Register, or from sockets in pluginsRegistryDir",
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
            "directory for registration: plugins-registry; it follows the kubelet's --root-dir",
            "directory of sockets",
            at_start=True,
        ),
    ] = "/var/lib/kubelet/plugins_registry"
    pod_resources: Annotated[
        str,
        Key("socket of the PodResources API; it follows the kubelet's --root-dir", "socket", at_start=True),
    ] = "/var/lib/kubelet/pod-resources/kubelet.sock"


class Timing(NamedTuple):
    """Times in seconds."""

    settle: Annotated[
        float,
        Key("no effect any more; accepted for configurations of before", bounds=(0.0, 60.0), obsolete=True),
    ] = 1.0
    resync: Annotated[
        float, Key("how often everything is read again without an event", bounds=(1.0, 3600.0))
    ] = 60.0
    holders: Annotated[
        float,
        Key("how often holders are asked for while something waits for a release", bounds=(0.1, 600.0)),
    ] = 2.0


class Log(NamedTuple):
    """How the daemon logs."""

    format: Annotated[
        str,
        Key(
            "auto takes journald below systemd, text on a terminal, else JSON lines",
            choices=("auto", "journald", "json", "text"),
        ),
    ] = "auto"
    level: Annotated[
        str, Key("least level that is logged", choices=("debug", "info", "warning", "error"))
    ] = "info"


class Status(NamedTuple):
    """The socket of ``nodeagent status``; its path without the root prefix."""

    socket: Annotated[str, Key("socket of 'status'", "socket", at_start=True)] = "/run/nodeagent/status.sock"


class Http(NamedTuple):
    """Where HTTP is served ("" for nowhere), and which clients get the page."""

    listen: Annotated[
        str,
        Key(
            'address of metrics and health by HTTP; "" serves none, '
            "0.0.0.0 or [::] as host take any interface",
            "address to listen at",
        ),
    ] = "127.0.0.1:9481"
    page: Annotated[
        str,
        Key(
            "serve the status page there, too: true to clients on this node, everywhere to all clients",
            choices=("false", "true", "everywhere"),
        ),
    ] = "false"


class Cdi(NamedTuple):
    """The directory of CDI specifications, without the root prefix."""

    spec_dir: Annotated[str, Key("directory of CDI specifications", "directory", at_start=True)] = (
        "/var/run/cdi"
    )


class Value(NamedTuple):
    """One effective value for people: plain data as one would write it, and where it comes from."""

    key: str
    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. ``warnings`` are whole lines for people: odd, but no error.

    ``watched`` are the directories, with the root prefix, in which a change means "load again". ``filed`` are
    the values that files gave, without what flags and variables put over them.
    """

    configuration: Configuration
    cluster: Cluster
    kubelet: Kubelet
    timing: Timing
    log: Log
    status: Status
    http: Http
    cdi: Cdi
    values: tuple[Value, ...] = ()
    warnings: tuple[str, ...] = ()
    watched: tuple[str, ...] = field(default=(), compare=False)
    filed: tuple[Value, ...] = field(default=(), compare=False)


class Setting(Field):
    """One setting; its key has the section in front: "timing.settle"."""

    __slots__ = ()

    @property
    def section(self) -> str:
        """The key of the table that it stands in; "" at the top of the file."""
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        """Its key inside its section."""
        return self.key.rpartition(".")[2]

    @property
    def flag(self) -> str | None:
        """``--timing-settle``; None if it can be written in a file only: tables fit in no flag."""
        tables = isinstance(self.shape, ListOf) and isinstance(self.shape.of, Record)
        if tables or self.key == "apiVersion":
            return None
        return "--" + re.sub(r"(?<=[a-z])([A-Z])", r"-\1", self.key.replace(".", "-")).lower()

    @property
    def env(self) -> str | None:
        """``NODEAGENT_TIMING_SETTLE``; None if it can be written in a file only."""
        return self.flag and f"NODEAGENT_{self.flag[2:].replace('-', '_').upper()}"

    def note(self, before: str, after: str) -> str:
        """Return a note, between two texts, if the daemon does not use a new value at once; else ""."""
        return f"{before}read at the start only{after}" if self.at_start else ""


def _settings(record: type) -> Iterator[Field]:
    """Yield the keys of a file that fills this record: fields with a key, and sections."""
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
    """Return section → name → setting, in table order; the section "" is the top of the file."""
    by_section: dict[str, dict[str, Setting]] = {"": {}}
    for setting in SETTINGS:
        by_section.setdefault(setting.section, {})[setting.name] = setting
    return by_section


def top_keys() -> tuple[str, ...]:
    """Return the keys that may stand at the top of a file, in table order."""
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
