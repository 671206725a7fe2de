# SPDX-License-Identifier: Apache-2.0
"""One setting, as far as it can be read, whatever is wrong with the others: to find a daemon that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodeagent.config import table
from nodeagent.config.problems import Problems
from nodeagent.config.reader import sources
from nodeagent.config.reader.reading import BROKEN, Reader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.config.reader.sources import Given, Sources


def value(key: str, given: Sources) -> Any:
    """Its value by flag > env > conf.d > config.yaml > default; a source that is broken does not count.

    No table of words, which would be merged. Blocks on files.

    :raises ConfigError: if its own flag is wrong.
    """
    problems = Problems()
    result = table.BY_KEY[key].default
    home = sources.below(given.prefix, sources.DIRECTORY)
    weaker = (*sources.files(home, problems, []), *sources.environment(given.environ, problems, []))
    for read in _read(key, weaker, problems):
        result = read
    own = Problems()
    flag = {name: text for name, text in given.flags.items() if name == key}
    for read in _read(key, sources.flags(flag, own), own):
        result = read
    own.raise_any()
    return result


def _read(key: str, given: Iterable[Given], problems: Problems) -> list[Any]:
    reader = Reader(problems)
    mine = (each for each in given if each.setting.key == key)
    values = [reader.read(each.setting.shape, each.entry, key) for each in mine]
    return [each for each in values if each is not BROKEN]
