# SPDX-License-Identifier: Apache-2.0
"""Saves the last valid settings, so that the daemon can start with them when a configuration file is invalid.

The file contains the values from configuration files and from files of other tools; flags and variables are
always those of the current process. A key that this version does not know is ignored with a warning, so that
an update does not remove devices from a node. If this version rejects a value, the whole file is unusable,
because no safe replacement is known. Settings contain no secrets; only root can read the file nevertheless.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodeagent.base import state
from nodeagent.base.errors import ConfigError
from nodeagent.base.state import Damaged, Section
from nodeagent.config import loading
from nodeagent.config.problems import ConfigErrors
from nodeagent.config.settings import BY_KEY, Value
from nodeagent.model import plain
from nodeagent.model.configuration import Imported

if TYPE_CHECKING:
    from nodeagent.config.settings import Settings
    from nodeagent.config.sources import Sources

PLACE = "the last good settings"


def _checked(document: dict[str, Any]) -> dict[str, Any]:
    return {"values": dict(document["values"].items()), "imported": document["imported"]}


SECTION: Section[dict[str, Any]] = Section(
    state.SETTINGS,
    {},
    _checked,
    lambda content: content,
    "without it, no daemon can start while a configuration file is invalid",
)


def keep(prefix: str, settings: Settings) -> None:
    """Save the settings in force, unless the file already contains them. Blocks.

    :raises KernelRefused: if the file cannot be written.
    """
    content = _content(settings)
    try:
        if SECTION.read(prefix) == content:
            return
    except Damaged:
        pass  # the damaged file is replaced below
    SECTION.save(prefix, content)


def at_start(origin: Sources, *, strict: bool = False) -> tuple[Settings, ConfigError | None]:
    """Return the settings to start with; if they are the last valid ones, also the error in the current
    files.

    Blocks. ``strict``: do not use the last valid settings. :raises ConfigError: if no settings can be used.
    """
    try:
        return loading.load(origin), None
    except ConfigError as error:
        if strict:
            raise
        return _recalled(origin, error), error


def _recalled(origin: Sources, wrong: ConfigError) -> Settings:
    path = state.SETTINGS.path(origin.prefix)
    try:
        content = SECTION.read(origin.prefix)
        if content:
            return _settings(origin, content)
    except (Damaged, TypeError, ValueError, LookupError, AttributeError, RecursionError):
        lost = ConfigError(f"{path}: is damaged, so the last good settings are lost", "fix the files")
        raise ConfigErrors((*_all(wrong), lost)) from wrong
    except ConfigError as error:
        # both attempts report the errors of flags and variables; list them once
        said = {each.what for each in _all(wrong)}
        others = [each for each in _all(error) if each.what not in said]
        useless = (
            ConfigError(f"{path}: the last valid settings cannot be used: {each.what}", each.hint)
            for each in others
        )
        raise ConfigErrors((*_all(wrong), *useless)) from wrong
    raise wrong


def _all(error: ConfigError) -> tuple[ConfigError, ...]:
    return error.errors if isinstance(error, ConfigErrors) else (error,)


def _settings(origin: Sources, content: dict[str, Any]) -> Settings:
    values = tuple(Value(key, value, PLACE) for key, value in content["values"].items())
    imported = plain.load(Imported, content["imported"] or {})
    warnings = [
        f"{value.key} is in {PLACE}, and this version does not know it: it is ignored"
        for value in values
        if value.key not in BY_KEY
    ]
    return loading.load_cached(origin, values, PLACE, imported, warnings)


def _content(settings: Settings) -> dict[str, Any]:
    values = {value.key: value.value for value in settings.filed}
    return {"values": values, "imported": plain.dump(settings.configuration.imported)}
