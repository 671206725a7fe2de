# SPDX-License-Identifier: Apache-2.0
"""Loads settings: every source is read and checked in full, the strongest wins, then all is built.

Loading again is how one reloads: no state is kept, and blocking reads make a thread the right place for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nodeagent.base.errors import ConfigError
from nodeagent.config import building
from nodeagent.config.problems import Problems
from nodeagent.config.reader import sources
from nodeagent.config.reader.effective import Effective
from nodeagent.policy import merge

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.config.reader.sources import Given, Sources
    from nodeagent.config.records import Settings
    from nodeagent.model.configuration import Configuration


def load(origin: Sources) -> Settings:
    """The settings in force: flag > env > conf.d > config.yaml > default. Blocks on files.

    :raises ConfigError: or ConfigErrors (which is one), if anything is wrong, with all of it.
    """
    problems, warnings = Problems(), list[str]()
    home = sources.below(origin.prefix, sources.DIRECTORY)
    effective = _effective(
        (
            *sources.files(home, problems, warnings),
            *sources.environment(origin.environ, problems, warnings),
            *sources.flags(origin.flags, problems),
        ),
        problems,
    )
    written = building.configuration(effective, f"{home}/")
    configuration, watched = _with_imported(written, origin.prefix, warnings)
    _check(configuration, effective, problems)
    watched = (*sources.watched_paths(home), *watched)
    warnings += merge.warnings(configuration)
    return building.settings(effective, configuration, warnings, tuple(dict.fromkeys(watched)))


def check_file(path: str) -> Settings:
    """The settings of one file over the defaults. Files of other tools, which it may name, are not read.

    :raises ConfigError: or ConfigErrors (which is one), if anything is wrong, with all of it.
    """
    problems = Problems()
    directory, slash, name = path.rpartition("/")
    given = sources.file(path, name, problems)
    if not given and not problems.errors:
        _must_exist(path)
    effective = _effective(given, problems)
    configuration = building.configuration(effective, f"{directory}{slash}")
    _check(configuration, effective, problems)
    return building.settings(effective, configuration, merge.warnings(configuration), ())


def _with_imported(
    written: Configuration, prefix: str, warnings: list[str]
) -> tuple[Configuration, tuple[str, ...]]:
    """The configuration with what files of other tools say, and the directories of these."""
    if not written.mdevs.mdevctl and not written.mdevs.vgpu_config_file:
        return written, ()
    from nodeagent.config.imports import imported  # here: few nodes name such files

    read = imported.read(prefix, written.mdevs, warnings)
    return replace(written, imported=read), imported.watched_paths(prefix, written.mdevs)


def _must_exist(path: str) -> None:
    """Do nothing if the file can be opened: an empty one is fine.

    :raises ConfigError: if it is absent.
    """
    from nodeagent.config.reader import document

    if document.read(path, path) is None:
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
        place = effective.place(finding.place)
        if place is None:
            problems.add(finding.place, "", finding.what, finding.hint)
        else:  # a key that was given somewhere
            problems.add(place, finding.place, finding.what, finding.hint)
    problems.raise_any()
