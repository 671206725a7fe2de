# SPDX-License-Identifier: Apache-2.0
"""Loads settings: every source is read and checked in full, the strongest wins, then all is built.

Tables of words (aliases, labels) are merged key by key; everything else, lists too, is replaced. A
mistake in a file counts even where another source overrides it. Loading again is how one reloads: no
state is kept, and blocking reads make a thread the right place for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodeagent.base.errors import ConfigError
from nodeagent.config import building, table
from nodeagent.config.imports import imported
from nodeagent.config.problems import Place, Problems
from nodeagent.config.reader import sources
from nodeagent.config.reader.entries import Table
from nodeagent.config.reader.reading import BROKEN, UNSUPPORTED, UNSUPPORTED_HINT, Reader
from nodeagent.config.records import Settings, Value
from nodeagent.config.shapes import MapOf
from nodeagent.policy import merge

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nodeagent.config.reader.sources import Given

DEFAULT = Place("default", "default")


def load(root_prefix: str, flags: Mapping[str, str], environ: Mapping[str, str]) -> Settings:
    """The settings in force: flag > env > conf.d > config.yaml > default.

    ``flags`` holds texts by key ("timing.settle": "2s").
    Raises ConfigError, or ConfigErrors (which is one) with everything that is wrong in all sources.
    Blocks on files.
    """
    problems, warnings = Problems(), list[str]()
    given = [
        *sources.files(root_prefix, problems, warnings),
        *sources.environment(environ, problems, warnings),
        *sources.flags(flags, problems),
    ]
    return _settings(given, _Merge(problems), warnings, root_prefix)


def check_file(path: str) -> Settings:
    """The settings of one file over the defaults; raises ConfigError as ``load`` does.

    Files of other tools, which it may name, are not read.
    """
    problems = Problems()
    given = sources.file(path, path.rpartition("/")[2], problems)
    if not given and not problems.errors:
        _must_exist(path)
    return _settings(given, _Merge(problems), [])


def _must_exist(path: str) -> None:
    """Raise ConfigError unless the file can be opened: an empty one is fine, an absent one is not."""
    from nodeagent.config.reader import document

    if document.read(path, path) is None:
        raise ConfigError(f"{path}: no such file", "give the path of a configuration file")


def _settings(
    given: Iterable[Given], merging: _Merge, warnings: list[str], root_prefix: str | None = None
) -> Settings:
    problems = merging.problems
    for item in given:
        merging.take(item)
    values = merging.values
    for finding in merge.findings(
        building.rules(values, full_places=True),
        building.aliases(values, merging.alias_places),
        building.mdevs(values, imported.Imported()),
    ):
        if finding.place in merging.origins:  # a key that was given somewhere
            problems.add(merging.origins[finding.place][-1], finding.place, finding.what, finding.hint)
        else:
            problems.add(finding.place, "", finding.what, finding.hint)
    found = (
        imported.read(root_prefix, values, problems, warnings)
        if root_prefix is not None
        else imported.Imported()
    )
    problems.raise_any()
    warnings += [*building.empty_rules(values), *imported.idle(values)]
    shown = [
        Value(
            setting.key,
            table.shown(setting.shape, values[setting.key]),
            ", ".join(place.short for place in merging.origins.get(setting.key, (DEFAULT,))),
        )
        for setting in table.SETTINGS
    ]
    return building.settings(values, shown, warnings, found, _watched(root_prefix, values))


def _watched(root_prefix: str | None, values: Mapping[str, Any]) -> tuple[str, ...]:
    if root_prefix is None:
        return ()
    found = (*sources.watched_paths(root_prefix), *imported.watched_paths(root_prefix, values))
    return tuple(dict.fromkeys(found))


class _Merge:
    """The values so far, and where each comes from."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self._reader = Reader(problems)
        self.values: dict[str, Any] = {item.key: item.default for item in table.SETTINGS}
        self.origins: dict[str, tuple[Place, ...]] = {}
        self.alias_places: dict[str, str] = {}

    def take(self, given: Given) -> None:
        """Read one setting of one source; what is broken leaves the weaker value."""
        setting, key = given.setting, given.setting.key
        value = self._reader.read(setting.shape, given.entry, key)
        if value is BROKEN:
            return
        if not setting.supported and value != setting.default:
            self.problems.add(given.place, key, UNSUPPORTED, UNSUPPORTED_HINT)
        if isinstance(setting.shape, MapOf):
            self.values[key] = self.values[key] | value
            self.origins[key] = (*self.origins.get(key, ()), given.place)
            self._note_aliases(given)
        else:
            self.values[key] = value
            self.origins[key] = (given.place,)

    def _note_aliases(self, given: Given) -> None:
        if given.setting.key == "aliases" and isinstance(given.entry, Table):
            self.alias_places |= {member.key: member.place.full for member in given.entry.members}
