# SPDX-License-Identifier: Apache-2.0
"""Reads settings from files, environment variables and flags, as (setting, entry, place).

In rising precedence: ``config.yaml``, ``conf.d/*.yaml`` in lexical order, ``NODEAGENT_*`` variables, flags;
the flag of ``timing.settle`` is ``--timing-settle``. An empty variable counts as unset, because systemd
units and pods cannot unset an inherited variable in any other way.
"""

from __future__ import annotations

import argparse
import os
import textwrap
from typing import TYPE_CHECKING, NamedTuple

from nodeagent.base import hints, timeouts
from nodeagent.base.errors import ConfigError
from nodeagent.base.files import STDIN
from nodeagent.config.codec import Entry, Table, entry_of, from_text, is_null
from nodeagent.config.problems import Invalid, Problems, hint_for_unknown
from nodeagent.config.settings import BY_KEY, SETTINGS, Setting, sections, top_keys
from nodeagent.policy import naming

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nodeagent.config.settings import Value

DIRECTORY = "/etc/nodeagent"
_MISNAMED = ("config.yml", "config.json")
ENV_PREFIX = "NODEAGENT_"
_WIDTH = 79
_USAGE = len("usage: ")
_ANY = "[--SETTING VALUE ...]"
_NO_BREAK = "\xa0"


class Sources(NamedTuple):
    """The sources of settings besides defaults; ``flags`` are texts by key ("timing.settle": "2s")."""

    prefix: str
    flags: Mapping[str, str]
    environ: Mapping[str, str]


class Assignment(NamedTuple):
    """One setting in one source; ``place`` is the place of its key."""

    setting: Setting
    entry: Entry
    place: str


def below(root_prefix: str, path: str) -> str:
    """Return a host path below the prefix; "" and "/" mean the host itself."""
    return f"{root_prefix.rstrip('/')}{path}"


def list_watched(home: str) -> tuple[str, ...]:
    """Return the directories whose changes reload the settings, including the targets of symbolic links."""
    parts = f"{home}/conf.d"
    files = [f"{home}/config.yaml", *_list_parts(parts, Problems(), [])]
    targets = [os.path.dirname(os.path.realpath(path)) for path in files]  # noqa: PTH120  text in, text out
    return tuple(dict.fromkeys([home, parts, *targets]))


def read_files(home: str, problems: Problems, warnings: list[str]) -> Iterator[Assignment]:
    """Yield the settings in the files of the host below the directory ``home``."""
    yield from read_file(f"{home}/config.yaml", problems)
    warnings += [
        f"{home}/{name} is not read: the file must be named config.yaml"
        for name in _MISNAMED
        if os.path.lexists(f"{home}/{name}")
    ]
    yield from read_parts(home, problems, warnings)


def read_parts(home: str, problems: Problems, warnings: list[str]) -> Iterator[Assignment]:
    """Yield the settings in the files of ``conf.d``."""
    for path in _list_parts(f"{home}/conf.d", problems, warnings):
        yield from read_file(path, problems)


def read_file(path: str, problems: Problems) -> list[Assignment]:
    """Return the settings in one file; [] if it does not exist, or after reporting that it cannot be read."""
    if path != STDIN and not os.path.lexists(path):
        return []
    # imported here because PyYAML takes 1 MiB, and a node may have no configuration file
    from nodeagent.config import yaml_lines

    try:
        tables = yaml_lines.read(path)
    except ConfigError as error:
        problems.errors.append(error)
        return []
    return [] if tables is None else list(_split(tables, problems))


def read_values(shown: Iterable[Value], place: str = "the daemon") -> Iterator[Assignment]:
    """Yield the settings that another process reports as its values; ``place`` is shown as their source.

    Keys that no longer exist are skipped.
    """
    for value in shown:
        setting = BY_KEY.get(value.key)
        if setting is not None:
            yield Assignment(setting, entry_of(value.value, place), place)


def read_values_of_shell(shown: Iterable[Value], warnings: list[str]) -> Iterator[Assignment]:
    """Yield the reported values that come from environment or flags instead of files."""
    found = [(value, [_is_of_shell(place) for place in value.source.split(", ")]) for value in shown]
    for value, places in found:
        if any(places) and not all(places):
            warnings.append(f"{value.key} is from {value.source}: only settings from files are used here")
    return read_values(value for value, places in found if all(places))


def _is_of_shell(place: str) -> bool:
    return place.startswith(("env ", "flag "))


def _list_parts(directory: str, problems: Problems, warnings: list[str]) -> list[str]:
    """Return the files of ``conf.d``; names with a leading dot belong to ConfigMap volumes and editors."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    except OSError as error:
        what = f"cannot be listed: {hints.strerror(error)}"
        problems.add(directory, "", what, hints.for_errno(error, "list"))
        return []
    shown = [name for name in names if not name.startswith(".")]
    warnings += [
        f"{directory}/{name} is not read: its name does not end in .yaml"
        for name in shown
        if name.endswith((".yml", ".json", ".conf"))
    ]
    return [f"{directory}/{name}" for name in shown if name.endswith(".yaml")]


def _split(top: Table, problems: Problems) -> Iterator[Assignment]:
    known = sections()
    for member in top.members:
        setting = known[""].get(member.key)
        if setting is not None:
            yield Assignment(setting, member.entry, member.place)
        elif member.key and member.key in known:
            yield from _section(known[member.key], member.key, member.entry, problems)
        else:
            hint = hint_for_unknown(member.key, top_keys())
            problems.add(member.place, member.key or '""', "unknown key", hint)


def _section(
    settings: Mapping[str, Setting], name: str, entry: Entry, problems: Problems
) -> Iterator[Assignment]:
    if is_null(entry):
        return
    if not isinstance(entry, Table):
        hint = f"keys of {name}: {', '.join(settings)}"
        problems.add(entry.place, name, "expected a table of keys", hint)
        return
    for member in entry.members:
        setting = settings.get(member.key)
        if setting is None:
            hint = hint_for_unknown(member.key, settings)
            problems.add(member.place, f"{name}.{member.key}", "unknown key", hint)
        else:
            yield Assignment(setting, member.entry, member.place)


def read_environment(
    environ: Mapping[str, str], problems: Problems, warnings: list[str]
) -> Iterator[Assignment]:
    """Yield the settings in ``NODEAGENT_*`` variables."""
    by_name = {setting.env: setting for setting in SETTINGS if setting.env}
    for name, setting in by_name.items():
        text = environ.get(name, "")
        if text:
            place = f"env {name}"
            yield from _read_text(setting, text, place, problems)
    warnings += _unknown_variables(environ, tuple(by_name))


def _unknown_variables(environ: Mapping[str, str], known: tuple[str, ...]) -> list[str]:
    """Return a warning for each unknown variable; those that Kubernetes sets for a Service are ignored."""
    kubernetes = (f"{ENV_PREFIX}SERVICE_", f"{ENV_PREFIX}PORT")
    return [
        f"env {name} is not a setting: {naming.suggest(name, known)}"
        for name in sorted(environ)
        if name.startswith(ENV_PREFIX) and name not in (*known, timeouts.SCALE)
        if not name.startswith(kubernetes)
    ]


def read_flags(flags: Mapping[str, str], problems: Problems) -> Iterator[Assignment]:
    """Yield the settings of flags; the keys are those of the settings ("timing.settle")."""
    for key, text in flags.items():
        setting = BY_KEY.get(key)
        if setting is None or setting.flag is None:
            problems.add("flag", key, "unknown key", naming.suggest(key, BY_KEY))
        else:
            place = f"flag {setting.flag}"
            yield from _read_text(setting, text, place, problems)


def _read_text(setting: Setting, text: str, place: str, problems: Problems) -> Iterator[Assignment]:
    try:
        yield Assignment(setting, from_text(setting.shape, text, place), place)
    except Invalid as invalid:
        problems.add(place, setting.key, invalid.what, invalid.hint)


def add_flags(parser: argparse.ArgumentParser, note: str = "") -> None:
    """Add a flag for each setting that can have one; the values stay text until ``load``.

    The usage line shows one placeholder for these dozens of flags. The help lists them only if ``note`` is
    set.
    """
    usage = " ".join([*parser.format_usage().removeprefix("usage:").split(), _ANY.replace(" ", _NO_BREAK)])
    filled = textwrap.fill(usage, _WIDTH - _USAGE, subsequent_indent=" " * _USAGE)
    parser.usage = filled.replace(_NO_BREAK, " ")
    group = parser.add_argument_group("settings", note) if note else parser
    for setting in SETTINGS:
        if setting.flag is not None:
            group.add_argument(
                setting.flag,
                dest=setting.key,
                metavar=setting.name.upper(),
                help=_describe(setting) if note else argparse.SUPPRESS,
            )


def _describe(setting: Setting) -> str:
    return f"{setting.help} ({setting.shape.words})".replace("%", "%%")


def flags_from(namespace: argparse.Namespace) -> dict[str, str]:
    """Return the values of the flags that were used, by the key of the setting."""
    arguments = vars(namespace)
    return {
        setting.key: arguments[setting.key] for setting in SETTINGS if arguments.get(setting.key) is not None
    }
