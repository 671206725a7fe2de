# SPDX-License-Identifier: Apache-2.0
"""Loads settings: every source is read and checked in full, the strongest wins, then all is built.

A section fills the record of its own: a setting goes to the field that is named as its key is (``field``),
so a key that its record lacks, or the other way round, fails each and every load. What a table of keys
inside a value makes is said by its shape. Whether all of it goes together is ``policy.merge``'s to say.
Loading again is how one reloads: no state is kept, and blocking reads make a thread the right place for it.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from nodeagent.base.errors import ConfigError
from nodeagent.config import records, sources, table
from nodeagent.config.problems import Place, Problems
from nodeagent.config.reading import BROKEN, PLACE, Reader, Table
from nodeagent.config.shapes import Either, ListOf, MapOf, Record, Shape, snake
from nodeagent.model.configuration import (
    Alias,
    Configuration,
    Imported,
    KubeVirt,
    MdevctlDefinitions,
    Mdevs,
    Node,
    VgpuFile,
)
from nodeagent.model.problem import misconfigured
from nodeagent.model.spec import Discovery, Following
from nodeagent.policy import merge

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from nodeagent.config.records import Settings, Value
    from nodeagent.config.sources import Given, Sources


R = TypeVar("R")

DEFAULT = Place("default", "default")


class Effective:
    """The values so far; sources are taken weakest first."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self._reader = Reader(problems)
        self._values: dict[str, Any] = {setting.key: setting.default for setting in table.SETTINGS}
        self._origins: dict[str, tuple[Place, ...]] = {}
        self._members: dict[tuple[str, str], Place] = {}

    def take(self, given: Given) -> None:
        """Read one setting of one source; what is broken leaves the weaker value."""
        setting, key = given.setting, given.setting.key
        value = self._reader.read(setting.shape, given.entry, key)
        if value is BROKEN:
            return
        if isinstance(setting.shape, MapOf):
            self._values[key] = self._values[key] | value
            self._origins[key] = (*self._origins.get(key, ()), given.place)
            if isinstance(given.entry, Table):
                self._members |= {(key, member.key): member.place for member in given.entry.members}
        else:
            self._values[key] = value
            self._origins[key] = (given.place,)

    def value(self, setting: table.Setting) -> Any:
        """The strongest value of a setting, as read."""
        return self._values[setting.key]

    def place(self, key: str) -> Place | None:
        """Where the strongest value of a setting was written; None for a default, or no key of a setting."""
        return self._origins[key][-1] if key in self._origins else None

    def member_place(self, key: str, member: str) -> Place:
        """Where one key of a table of words was written."""
        return self._members[key, member]

    def given(self) -> tuple[Value, ...]:
        """The values that some source has given until now, in table order."""
        return tuple(value for value in self.shown() if value.key in self._origins)

    def shown(self) -> tuple[Value, ...]:
        """All values for people, in table order."""
        return tuple(
            records.Value(
                setting.key,
                table.shown(setting.shape, self._values[setting.key]),
                ", ".join(place.short for place in self._origins.get(setting.key, (DEFAULT,))),
            )
            for setting in table.SETTINGS
        )


def load(origin: Sources) -> Settings:
    """The settings in force: flag > env > conf.d > config.yaml > default. Blocks on files.

    :raises ConfigError: or ConfigErrors (which is one), if anything is wrong, with all of it.
    """
    problems, warnings = Problems(), list[str]()
    home = sources.below(origin.prefix, sources.DIRECTORY)
    effective = _effective(sources.files(home, problems, warnings), problems)
    return _in_full(origin.prefix, effective, _shell(origin, problems, warnings), None, warnings)


def recall(
    origin: Sources, values: Iterable[Value], place: str, imported: Imported, warnings: list[str]
) -> Settings:
    """As ``load``, with these values in place of the files, and with what files of other tools said.

    ``place`` stands for the files; they are watched all the same. :raises ConfigError: as ``load``.
    """
    problems = Problems()
    effective = _effective(sources.told(values, problems, place), problems)
    return _in_full(origin.prefix, effective, _shell(origin, problems, warnings), imported, warnings)


def instead(path: str, prefix: str, told: Iterable[Value]) -> Settings:
    """The settings that a process would have if this file were its config.yaml; "-" is standard input.

    ``told`` are its values now: what it has from environment and flags counts further. ``conf.d`` is that of
    the host below the prefix.

    :raises ConfigError: or ConfigErrors (which is one), if anything is wrong, with all of it.
    """
    problems, warnings = Problems(), list[str]()
    home = sources.below(prefix, sources.DIRECTORY)
    given = (*_named(path, problems), *sources.parts(home, problems, warnings))
    outside = sources.outside(told, problems, warnings)
    return _in_full(prefix, _effective(given, problems), outside, None, warnings)


def load_one(key: str, origin: Sources) -> Any:
    """Return the value of one setting, to find a daemon that runs: mistakes in other settings do not count.

    A source that is broken does not count either. Not for maps, whose sources are merged. Blocks on files.

    :raises ConfigError: if its own flag is wrong.
    """
    setting, ignored, problems = table.BY_KEY[key], Problems(), Problems()
    home = sources.below(origin.prefix, sources.DIRECTORY)
    weaker = (*sources.files(home, ignored, []), *sources.environment(origin.environ, ignored, []))
    own = {name: text for name, text in origin.flags.items() if name == key}
    flag = _effective(sources.flags(own, problems), problems)
    problems.raise_any()
    if flag.place(key) is not None:
        return flag.value(setting)
    return _effective((each for each in weaker if each.setting is setting), ignored).value(setting)


def _in_full(
    prefix: str,
    effective: Effective,
    outside: Iterable[Given],
    imported: Imported | None,
    warnings: list[str],
) -> Settings:
    """The settings of files, with all that is given ``outside`` of them, weakest first.

    ``imported`` None: files of other tools are read.
    """
    home, filed, problems = sources.below(prefix, sources.DIRECTORY), effective.given(), effective.problems
    for item in outside:
        effective.take(item)
    configuration, watched = _with_imported(_written(effective, f"{home}/"), prefix, warnings)
    if imported is None:
        _look_for_names(configuration.discovery.pci_ids, prefix, effective, problems)
    else:
        configuration = replace(configuration, imported=imported)
    _check(configuration, effective, problems)
    watched = (*sources.watched_paths(home), *watched)
    warnings += merge.warnings(configuration)
    settings = _settings(effective, configuration, warnings, tuple(dict.fromkeys(watched)))
    return replace(settings, filed=filed)


def _shell(origin: Sources, problems: Problems, warnings: list[str]) -> Iterator[Given]:
    """What is given beside the files, weakest first."""
    yield from sources.environment(origin.environ, problems, warnings)
    yield from sources.flags(origin.flags, problems)


def check_file(path: str) -> Settings:
    """The settings of one file over the defaults; "-" is standard input.

    Files of other tools, which it may name, are not read.

    :raises ConfigError: or ConfigErrors (which is one), if anything is wrong, with all of it.
    """
    problems = Problems()
    directory, slash, _ = path.rpartition("/")
    effective = _effective(_named(path, problems), problems)
    configuration = _written(effective, f"{directory}{slash}")
    _check(configuration, effective, problems)
    return _settings(effective, configuration, merge.warnings(configuration), ())


def again(values: Iterable[Value], flags: Mapping[str, str]) -> Settings:
    """The settings whose values these are, as another process has told them, with these flags over them.

    Files of other tools are not read.

    :raises ConfigError: or ConfigErrors (which is one), if anything is wrong, with all of it.
    """
    problems = Problems()
    given = (*sources.told(values, problems), *sources.flags(flags, problems))
    effective = _effective(given, problems)
    configuration = _written(effective, "")
    _check(configuration, effective, problems)
    return _settings(effective, configuration, merge.warnings(configuration), ())


def _with_imported(
    written: Configuration, prefix: str, warnings: list[str]
) -> tuple[Configuration, tuple[str, ...]]:
    """The configuration with the mdevs that files of other tools define, and the directories of these.

    A broken definition of mdevctl is a warning, since it keeps one file for each device. Whether a fault of
    a vgpu-device-manager file is an error depends on the configuration that ``policy.merge`` chooses in it.
    """
    definitions, vgpu, watched = MdevctlDefinitions(), None, list[str]()
    if written.mdevs.mdevctl:
        from nodeagent.config import mdevctl  # here: few nodes have it

        directory = sources.below(prefix, mdevctl.DIRECTORY)
        definitions = mdevctl.read(directory, warnings)
        watched += mdevctl.directories(directory)
    if written.mdevs.vgpu_config_file:
        path = sources.below(prefix, written.mdevs.vgpu_config_file)
        vgpu = _vgpu_file(path)
        watched += [os.path.dirname(file) for file in (path, os.path.realpath(path))]  # noqa: PTH120
    return replace(written, imported=Imported(definitions, vgpu)), tuple(watched)


def _vgpu_file(path: str) -> VgpuFile:
    from nodeagent.config import vgpu_device_manager  # here: few nodes have such a file

    try:
        return VgpuFile(path, vgpu_device_manager.read(path))
    except ConfigError as error:
        return VgpuFile(path, fault=misconfigured("", error.what, error.hint))


def _look_for_names(path: str, prefix: str, effective: Effective, problems: Problems) -> None:
    """Note it if the operator's own pci.ids is no file: without it devices would get other names."""
    if path and not os.path.isfile(sources.below(prefix, path)):  # noqa: PTH113  text in, answer out
        place = effective.place("discovery.pciIds") or ""
        hint = "give the path of a pci.ids file, or remove it: then the bundled copy counts"
        problems.add(place, "discovery.pciIds", f"{path}: no such file", hint)


def _named(path: str, problems: Problems) -> list[Given]:
    """What a file gives that a person has named. :raises ConfigError: if it is absent."""
    given = sources.file(path, path.rpartition("/")[2], problems)
    if not given and not problems.errors:
        _must_exist(path)
    return given


def _must_exist(path: str) -> None:
    """Do nothing if the file can be opened: an empty one is fine.

    :raises ConfigError: if it is absent.
    """
    from nodeagent.config import yaml_lines

    if yaml_lines.read(path, path) is None:
        raise ConfigError(f"{path}: no such file", "give the path of a configuration file")


def _effective(given: Iterable[Given], problems: Problems) -> Effective:
    effective = Effective(problems)
    for item in given:
        effective.take(item)
    return effective


def _check(configuration: Configuration, effective: Effective, problems: Problems) -> None:
    """Note what does not go together.

    :raises ConfigError: if there is any problem by now.
    """
    for finding in merge.findings(configuration):
        place = effective.place(finding.about)
        if place is None:
            problems.add(finding.about, "", finding.what, finding.hint)
        else:  # a key that was given somewhere
            problems.add(place, finding.about, finding.what, finding.hint)
    problems.raise_any()


def _written(effective: Effective, home: str) -> Configuration:
    """What the operator wrote, without what files of other tools say; ``home`` as in Configuration."""
    return Configuration(
        discovery=_section(effective, "discovery", Discovery),
        aliases=_aliases(effective),
        rules=_setting(effective, "resources"),
        mdevs=_section(effective, "mdevs", Mdevs),
        sriov=_setting(effective, "sriov"),
        passthrough=_setting(effective, "passthrough"),
        kubevirt=_section(effective, "kubevirt", KubeVirt),
        kubeconfig=_setting(effective, "kubeconfig"),
        node=_with_name(_section(effective, "node", Node)),
        home=home,
    )


def _with_name(node: Node) -> Node:
    """The node with the name that the kubelet gives it by default, if it was given none: the host's."""
    return node if node.name else node._replace(name=os.uname().nodename.strip().lower())


def _settings(
    effective: Effective, built: Configuration, warnings: Sequence[str], watched: Sequence[str]
) -> records.Settings:
    """The Settings: the configuration, and what the daemon needs besides it."""
    cluster = _section(effective, "cluster", records.Cluster)
    return records.Settings(
        configuration=built,
        kubelet=_section(effective, "kubelet", records.Kubelet),
        timing=_section(effective, "timing", records.Timing),
        log=_section(effective, "log", records.Log),
        status=_section(effective, "status", records.Status),
        http=_section(effective, "http", records.Http),
        cdi=_section(effective, "cdi", records.Cdi),
        cluster=cluster,
        values=effective.shown(),
        warnings=(*warnings, *_unfollowed(cluster, built)),
        watched=tuple(watched),
    )


def _unfollowed(cluster: records.Cluster, built: Configuration) -> tuple[str, ...]:
    """A warning for each thing that is to be written to a cluster that nobody follows."""
    wanted = {
        "cluster.condition is true": cluster.condition,
        "cluster.staleResources is remove": cluster.stale_resources == "remove",
    }
    return tuple(
        f"{what}, but the cluster is not followed; set kubevirt.enabled: auto"
        for what, on in wanted.items()
        if on and built.following is Following.NO
    )


def _section(effective: Effective, name: str, record: type[R]) -> R:
    """The record of a section, from all of its settings."""
    section = table.sections()[name].values()
    return record(**{setting.field: typed(setting.shape, effective.value(setting)) for setting in section})


def _setting(effective: Effective, key: str) -> Any:
    setting = table.BY_KEY[key]
    return typed(setting.shape, effective.value(setting))


def _aliases(effective: Effective) -> tuple[Alias, ...]:
    """The aliases in the order written, each with its place."""
    return tuple(
        Alias(name, target, effective.member_place("aliases", name).full)
        for name, target in _setting(effective, "aliases")
    )


def typed(shape: Shape, value: Any) -> Any:
    """What a value that was read by its shape stands for: words, tuples, pairs and records of the model."""
    if isinstance(shape, ListOf):
        return tuple(typed(shape.of, item) for item in value)
    if isinstance(shape, MapOf):
        return tuple(value.items())
    if isinstance(shape, Either):
        given = value if isinstance(value, dict) else {shape.record.keys[0].name: value}
        return _record(shape.record, given)
    if isinstance(shape, Record):
        return _record(shape, value)
    return value


def _record(shape: Record, value: dict[str, Any]) -> object:
    given = {
        key.field or snake(key.name): typed(key.shape, value[key.name])
        for key in shape.keys
        if key.name in value
    }
    return shape.make(**given, place=value[PLACE].full) if shape.placed else shape.make(**given)
