# SPDX-License-Identifier: Apache-2.0
"""The last good settings on disk: with them a start goes on where a file is wrong.

What the files gave is kept, value by value, and what files of other tools said; flags and variables are
those of the new start. A key that this version does not know any more is left out, with a warning: an update
must not empty a node. A value that it refuses refuses all, for nobody knows what was meant instead. There
are no secrets among settings; the file is for root alone all the same.
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
    "without it a daemon does not start while a file is wrong",
)


def keep(prefix: str, settings: Settings) -> None:
    """Put settings that are in force on disk, if they are not there. Blocks.

    :raises KernelRefused: if they cannot be written.
    """
    content = _content(settings)
    try:
        if SECTION.read(prefix) == content:
            return
    except Damaged:
        pass  # it is replaced
    SECTION.save(prefix, content)


def at_start(origin: Sources, *, strict: bool = False) -> tuple[Settings, ConfigError | None]:
    """The settings to start with; if these are the last good ones, also what is wrong with the present.

    Blocks. ``strict``: never the last good ones. :raises ConfigError: if there are none that can be used.
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
        lost = ConfigError(f"{path}: is damaged, so the last good settings are lost", "mend the files")
        raise ConfigErrors((*_all(wrong), lost)) from wrong
    except ConfigError as error:
        said = {each.what for each in _all(wrong)}  # flags and variables count for both
        others = [each for each in _all(error) if each.what not in said]
        useless = (ConfigError(f"{path}: is of no use instead: {each.what}", each.hint) for each in others)
        raise ConfigErrors((*_all(wrong), *useless)) from wrong
    raise wrong


def _all(error: ConfigError) -> tuple[ConfigError, ...]:
    return error.errors if isinstance(error, ConfigErrors) else (error,)


def _settings(origin: Sources, content: dict[str, Any]) -> Settings:
    values = tuple(Value(key, value, PLACE) for key, value in content["values"].items())
    imported = plain.load(Imported, content["imported"] or {})
    warnings = [
        f"{value.key} is in {PLACE}, and this version does not know it: it counts for nothing"
        for value in values
        if value.key not in BY_KEY
    ]
    return loading.load_cached(origin, values, PLACE, imported, warnings)


def _content(settings: Settings) -> dict[str, Any]:
    values = {value.key: value.value for value in settings.filed}
    return {"values": values, "imported": plain.dump(settings.configuration.imported)}
