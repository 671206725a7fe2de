# SPDX-License-Identifier: Apache-2.0
"""Loads the settings: parses every source, merges the values by precedence, and builds the records.

Maps (aliases, labels) are merged key by key; every other value, also a list, is replaced. An error in a
source is reported even if a stronger source overrides the value. ``policy.merge`` checks for settings that
contradict each other. A reload is a complete new load: this module keeps no state. All functions read files
and block, so callers run them in a thread.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from nodeagent.base import files
from nodeagent.base.errors import ConfigError
from nodeagent.config import codec, sources
from nodeagent.config.codec import MapOf, Read, Table
from nodeagent.config.problems import Problems
from nodeagent.config.settings import BY_KEY, SETTINGS, Cluster, Settings, Value
from nodeagent.model import plain
from nodeagent.model.configuration import Alias, Configuration, Imported, MdevctlDefinitions, VgpuFile
from nodeagent.model.problem import misconfigured
from nodeagent.model.spec import ClusterMode
from nodeagent.policy import merge

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from nodeagent.config.settings import Setting
    from nodeagent.config.sources import Assignment, Sources

R = TypeVar("R")


class Effective:
    """The values that have the highest precedence so far, each with its source."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self._values: dict[str, Read] = {}
        self._origins: dict[str, tuple[str, ...]] = {}
        self._members: dict[tuple[str, str], str] = {}

    def read(self, assignments: Iterable[Assignment]) -> Effective:
        """Read sources in rising precedence; an invalid value does not override an earlier one."""
        for setting, entry, place in assignments:
            key = setting.key
            read = codec.read(setting.shape, entry, key, self.problems)
            if read is None:
                continue
            if isinstance(setting.shape, MapOf):
                merged = dict(self.value(key)) | read.plain
                read = Read(merged, tuple(merged.items()))
                self._origins[key] = (*self._origins.get(key, ()), place)
                if isinstance(entry, Table):
                    self._members |= {(key, member.key): member.place for member in entry.members}
            else:
                self._origins[key] = (place,)
            self._values[key] = read
        return self

    def value(self, key: str) -> Any:
        """Return the value of a setting in the form that the records use."""
        return self._values[key].value if key in self._values else BY_KEY[key].default

    def fill(self, record: type[R], section: str = "", **known: Any) -> R:
        """Return a record with the settings of a section, or of the whole file; ``known`` fields are passed
        through.
        """
        keys = {setting.field: setting.key for setting in SETTINGS if setting.section == section}
        for field in plain.fields_of(record):
            if field.name in known:
                continue
            if field.name in keys:
                known[field.name] = self.value(keys[field.name])
            elif not section and plain.is_record(field.type):
                known[field.name] = self.fill(field.type, field.key)
        return record(**known)

    def place(self, key: str) -> str | None:
        """Return the place of a setting's value; None if the value is a default, or the key unknown."""
        return self._origins[key][-1] if key in self._origins else None

    def aliases(self) -> tuple[Alias, ...]:
        """Return the aliases in the order of the files, each with its place."""
        return tuple(
            Alias(name, target, self._members["aliases", name]) for name, target in self.value("aliases")
        )

    def list_set_values(self, home: str) -> tuple[Value, ...]:
        """Return the values set so far for display; their places omit the configuration directory."""
        return tuple(value for value in self.list_values(home) if value.key in self._origins)

    def list_values(self, home: str) -> tuple[Value, ...]:
        """Return all values in the order of the settings, with places as in ``list_set_values``."""
        return tuple(self._show(setting, home) for setting in SETTINGS)

    def _show(self, setting: Setting, home: str) -> Value:
        read = self._values.get(setting.key)
        if read is None:
            return Value(setting.key, codec.written(setting.shape, setting.default), "default")
        places = (place.removeprefix(home) for place in self._origins[setting.key])
        return Value(setting.key, read.plain, ", ".join(places))


def load(origin: Sources) -> Settings:
    """Return the settings in force: flag > env > conf.d > config.yaml > default.

    :raises ConfigError: or its subclass ConfigErrors, with all errors of the sources.
    """
    problems, warnings = Problems(), list[str]()
    home = sources.below(origin.prefix, sources.DIRECTORY)
    files = Effective(problems).read(sources.read_files(home, problems, warnings))
    return _build_in_full(origin.prefix, files, _read_shell(origin, problems, warnings), None, warnings)


def load_cached(
    origin: Sources, values: Iterable[Value], place: str, imported: Imported, warnings: list[str]
) -> Settings:
    """Return settings as ``load`` does, but with these values and imports instead of those in the files.

    ``place`` is shown as the source of these values. The configuration directory is watched as usual. :raises
    ConfigError: as ``load`` does.
    """
    problems = Problems()
    files = Effective(problems).read(sources.read_values(values, place))
    return _build_in_full(origin.prefix, files, _read_shell(origin, problems, warnings), imported, warnings)


def load_candidate(path: str, prefix: str, present: Iterable[Value]) -> Settings:
    """Return the settings that a process would have with this file as its config.yaml; "-" is standard input.

    ``present`` has the current values of the process; its values from environment variables and flags still
    apply. ``conf.d`` is read from the host below the prefix.

    :raises ConfigError: or its subclass ConfigErrors, with all errors.
    """
    problems, warnings = Problems(), list[str]()
    home = sources.below(prefix, sources.DIRECTORY)
    assignments = (*_read_named(path, problems), *sources.read_parts(home, problems, warnings))
    outside = sources.read_values_of_shell(present, warnings)
    return _build_in_full(prefix, Effective(problems).read(assignments), outside, None, warnings)


def check_file(path: str) -> Settings:
    """Return the settings of one file and the defaults; "-" is standard input.

    Files of other tools are not read, even if this file names them.

    :raises ConfigError: or its subclass ConfigErrors, with all errors.
    """
    problems = Problems()
    directory, slash, _ = path.rpartition("/")
    return _build_alone(Effective(problems).read(_read_named(path, problems)), f"{directory}{slash}")


def from_values(values: Iterable[Value], flags: Mapping[str, str]) -> Settings:
    """Return settings from the values that another process reports, overridden by these flags.

    Files of other tools are not read.

    :raises ConfigError: or its subclass ConfigErrors, with all errors.
    """
    problems = Problems()
    assignments = (*sources.read_values(values), *sources.read_flags(flags, problems))
    return _build_alone(Effective(problems).read(assignments), "")


def load_one(key: str, origin: Sources) -> Any:
    """Return the value of one setting, such as the socket of the running daemon, ignoring errors in other
    settings.

    Files that cannot be read are ignored. The setting must not be a map, because maps are merged from several
    sources.

    :raises ConfigError: if the flag of this setting is invalid.
    """
    ignored, problems = Problems(), Problems()
    home = sources.below(origin.prefix, sources.DIRECTORY)
    weaker = (*sources.read_files(home, ignored, []), *sources.read_environment(origin.environ, ignored, []))
    own = {name: text for name, text in origin.flags.items() if name == key}
    flag = Effective(problems).read(sources.read_flags(own, problems))
    problems.raise_any()
    if flag.place(key) is not None:
        return flag.value(key)
    return Effective(ignored).read(each for each in weaker if each.setting.key == key).value(key)


def _read_shell(origin: Sources, problems: Problems, warnings: list[str]) -> Iterator[Assignment]:
    """Yield the settings of environment variables, then those of flags."""
    yield from sources.read_environment(origin.environ, problems, warnings)
    yield from sources.read_flags(origin.flags, problems)


def _read_named(path: str, problems: Problems) -> list[Assignment]:
    """Return the settings in a file named on the command line. :raises ConfigError: if it does not exist."""
    assignments = sources.read_file(path, problems)
    if not assignments and not problems.errors:
        from nodeagent.config import yaml_lines

        if yaml_lines.read(path) is None:  # an empty file is valid
            raise ConfigError(f"{path}: no such file", "give the path of a configuration file")
    return assignments


def _build_alone(effective: Effective, home: str) -> Settings:
    """Return settings without importing files of other tools and without directories to watch."""
    configuration = _build_configuration(effective, home)
    _check(configuration, effective)
    return _build_settings(effective, configuration, merge.warnings(configuration), ())


def _build_in_full(
    prefix: str,
    effective: Effective,
    outside: Iterable[Assignment],
    imported: Imported | None,
    warnings: list[str],
) -> Settings:
    """Return the settings of files plus the settings from ``outside`` the files, in rising precedence.

    If ``imported`` is None, the files of other tools are read.
    """
    home = sources.below(prefix, sources.DIRECTORY)
    filed = effective.list_set_values(f"{home}/")
    effective.read(outside)
    configuration, watched = _with_other_tools(
        _build_configuration(effective, f"{home}/", prefix), prefix, warnings
    )
    if imported is None:
        _check_pci_ids(configuration.discovery.pci_ids, prefix, effective)
    else:
        configuration = replace(configuration, imported=imported)
    _check(configuration, effective)
    watched = (*sources.list_watched(home), *watched)
    warnings += merge.warnings(configuration)
    settings = _build_settings(effective, configuration, warnings, tuple(dict.fromkeys(watched)))
    return replace(settings, filed=filed)


def _with_other_tools(
    written: Configuration, prefix: str, warnings: list[str]
) -> tuple[Configuration, tuple[str, ...]]:
    """Return the configuration with the vGPUs that files of other tools define, and the directories of
    these files.

    An invalid mdevctl file is a warning, because mdevctl keeps one file for each device. An error in a
    vgpu-device-manager file matters only if ``policy.merge`` selects the invalid configuration.
    """
    definitions, vgpu, watched = MdevctlDefinitions(), None, list[str]()
    if written.mdevs.mdevctl:
        from nodeagent.config import mdevctl  # imported here because few nodes use mdevctl

        directory = sources.below(prefix, mdevctl.DIRECTORY)
        definitions = mdevctl.read(directory, warnings)
        watched += mdevctl.directories(directory)
    if written.mdevs.vgpu_config_file:
        path = sources.below(prefix, written.mdevs.vgpu_config_file)
        vgpu = _read_vgpu_file(path)
        watched += [os.path.dirname(file) for file in (path, os.path.realpath(path))]  # noqa: PTH120
    return replace(written, imported=Imported(definitions, vgpu)), tuple(watched)


def _read_vgpu_file(path: str) -> VgpuFile:
    from nodeagent.config import vgpu_device_manager  # imported here because few nodes use such a file

    try:
        return VgpuFile(path, vgpu_device_manager.read(path))
    except ConfigError as error:
        return VgpuFile(path, fault=misconfigured("", error.what, error.hint))


def _check_pci_ids(path: str, prefix: str, effective: Effective) -> None:
    """Report an error if the configured pci.ids file does not exist, because resource names would change."""
    if path and not os.path.isfile(sources.below(prefix, path)):  # noqa: PTH113  text in, answer out
        place = effective.place("discovery.pciIds") or ""
        hint = "give the path of a pci.ids file, or remove the setting to use the bundled copy"
        effective.problems.add(place, "discovery.pciIds", f"{path}: no such file", hint)


def _check(configuration: Configuration, effective: Effective) -> None:
    """Report contradictions between settings.

    :raises ConfigError: if any error was reported so far.
    """
    for finding in merge.findings(configuration):
        place = effective.place(finding.subject)
        if place is None:
            effective.problems.add(finding.subject, "", finding.message, finding.hint)
        else:  # a source has set this key
            effective.problems.add(place, finding.subject, finding.message, finding.hint)
    effective.problems.raise_any()


def _build_configuration(effective: Effective, home: str, prefix: str = "") -> Configuration:
    """Return the configuration without files of other tools; ``home`` is the configuration directory."""
    found = effective.fill(Configuration, aliases=effective.aliases(), home=home)
    if found.node.name:
        return found
    return replace(found, node=found.node._replace(name=_default_node_name(prefix)))


def _default_node_name(prefix: str) -> str:
    """Return the kubelet's default node name: the host name, or with a root prefix that in /etc/hostname."""
    name = os.uname().nodename
    if prefix not in ("", "/"):
        with contextlib.suppress(OSError):
            text = files.read_regular(sources.below(prefix, "/etc/hostname"), 256).decode("ascii", "ignore")
            lines = (line.strip() for line in text.splitlines())  # hostname(5) allows comments
            name = next((line for line in lines if line and not line.startswith("#")), name)
    return name.strip().lower()


def _build_settings(
    effective: Effective, configuration: Configuration, warnings: Sequence[str], watched: Sequence[str]
) -> Settings:
    """Return the Settings: the configuration, and the sections that concern the daemon itself."""
    values = effective.list_values(configuration.home)
    found = effective.fill(Settings, configuration=configuration, values=values, watched=tuple(watched))
    return replace(found, warnings=(*warnings, *_warn_unfollowed(found.cluster, configuration)))


def _warn_unfollowed(cluster: Cluster, configuration: Configuration) -> tuple[str, ...]:
    """Return a warning for each setting that writes to the cluster although the cluster is not watched."""
    wanted = {
        "cluster.condition is true": cluster.condition,
        "cluster.staleResources is remove": cluster.stale_resources == "remove",
    }
    return tuple(
        f"{setting}, but the daemon does not watch the cluster; set kubevirt.enabled: auto"
        for setting, on in wanted.items()
        if on and configuration.following is ClusterMode.NO
    )
