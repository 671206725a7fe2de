# SPDX-License-Identifier: Apache-2.0
"""Where settings come from: the files, the environment, the flags, each as (setting, entry, place).

Weakest first: ``config.yaml``, then ``conf.d/*.yaml`` in lexical order, then ``NODEAGENT_*``, then flags:
``timing.settle`` becomes ``--timing-settle``. An empty variable counts as not set: systemd and pods have
no other way to take one back.
"""

from __future__ import annotations

import argparse
import json
import os
import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple

from nodeagent.base import hints, timeouts
from nodeagent.base.errors import ConfigError
from nodeagent.base.files import STDIN
from nodeagent.config.codec import Entry, Table, from_text, is_null
from nodeagent.config.problems import Place, Problems, Wrong, hint_for_unknown
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
_DAEMON = "the daemon"  # in place of a file


class Sources(NamedTuple):
    """Where settings come from besides their defaults; ``flags`` are texts by key ("timing.settle": "2s")."""

    prefix: str
    flags: Mapping[str, str]
    environ: Mapping[str, str]


class Given(NamedTuple):
    """One setting as one source gives it; ``place`` is where its key stands."""

    setting: Setting
    entry: Entry
    place: Place


def below(root_prefix: str, path: str) -> str:
    """A host path below the prefix ("" and "/" are the host itself)."""
    return f"{root_prefix.rstrip('/')}{path}"


def watched_paths(home: str) -> tuple[str, ...]:
    """The directories in which a change means "load again": also those that links lead to."""
    parts = f"{home}/conf.d"
    files = [f"{home}/config.yaml", *(path for path, _ in _parts(parts, Problems(), []))]
    targets = [os.path.dirname(os.path.realpath(path)) for path in files]  # noqa: PTH120  text in, text out
    return tuple(dict.fromkeys([home, parts, *targets]))


def files(home: str, problems: Problems, warnings: list[str]) -> Iterator[Given]:
    """What the files of the host give; ``home`` is their directory."""
    yield from file(f"{home}/config.yaml", "config.yaml", problems)
    warnings += [
        f"{home}/{name} is not read: the file must be named config.yaml"
        for name in _MISNAMED
        if os.path.lexists(f"{home}/{name}")
    ]
    yield from parts(home, problems, warnings)


def parts(home: str, problems: Problems, warnings: list[str]) -> Iterator[Given]:
    """What the files of ``conf.d`` give."""
    for path, short in _parts(f"{home}/conf.d", problems, warnings):
        yield from file(path, short, problems)


def file(path: str, short: str, problems: Problems) -> list[Given]:
    """What one file gives; [] if it is absent or cannot be read (then with a problem)."""
    if path != STDIN and not os.path.lexists(path):
        return []
    from nodeagent.config import yaml_lines  # here: without a file, PyYAML is 1 MiB for nothing

    try:
        tables = yaml_lines.read(path, short)
    except ConfigError as error:
        problems.add_error(error)
        return []
    return [] if tables is None else list(_split(tables, problems))


def values(shown: Iterable[Value], problems: Problems, place: str = _DAEMON) -> Iterator[Given]:
    """The settings of another process, from the values that it shows: these are as one would write them.

    ``place`` stands for the file. A key that there is no more is passed over.
    """
    tables: dict[str, dict[str, Any]] = {"": {}}
    for value in shown:
        setting = BY_KEY.get(value.key)
        if setting is not None:
            tables.setdefault(setting.section, {})[setting.name] = value.value
    document = tables.pop("") | tables
    from nodeagent.config import yaml_lines  # here: as above

    text = json.dumps(document, ensure_ascii=False)  # all JSON is YAML, but for escapes of surrogates
    yield from _split(yaml_lines.parse(text.encode(), place, place), problems)


def outside(shown: Iterable[Value], problems: Problems, warnings: list[str]) -> Iterator[Given]:
    """As ``values``, of those that environment and flags alone have set, not files."""
    given = [(value, [_outside(place) for place in value.source.split(", ")]) for value in shown]
    for value, places in given:
        if any(places) and not all(places):
            warnings.append(f"{value.key} is from {value.source}: of these only files count in this answer")
    return values((value for value, places in given if all(places)), problems)


def _outside(place: str) -> bool:
    return place.startswith(("env ", "flag "))


def _parts(directory: str, problems: Problems, warnings: list[str]) -> list[tuple[str, str]]:
    """The files of ``conf.d``; names with a leading dot belong to ConfigMap volumes and editors."""
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
    return [(f"{directory}/{name}", f"conf.d/{name}") for name in shown if name.endswith(".yaml")]


def _split(top: Table, problems: Problems) -> Iterator[Given]:
    known = sections()
    for member in top.members:
        setting = known[""].get(member.key)
        if setting is not None:
            yield Given(setting, member.entry, member.place)
        elif member.key and member.key in known:
            yield from _section(known[member.key], member.key, member.entry, problems)
        else:
            hint = hint_for_unknown(member.key, top_keys())
            problems.add(member.place, member.key or '""', "unknown key", hint)


def _section(settings: Mapping[str, Setting], name: str, entry: Entry, problems: Problems) -> Iterator[Given]:
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
            yield Given(setting, member.entry, member.place)


def environment(environ: Mapping[str, str], problems: Problems, warnings: list[str]) -> Iterator[Given]:
    """What ``NODEAGENT_*`` gives."""
    by_name = {setting.env: setting for setting in SETTINGS if setting.env}
    for name, setting in by_name.items():
        text = environ.get(name, "")
        if text:
            place = Place(f"env {name}", f"env {name}")
            yield from _given(setting, text, place, problems)
    warnings += _unknown_variables(environ, tuple(by_name))


def _unknown_variables(environ: Mapping[str, str], known: tuple[str, ...]) -> list[str]:
    """Warnings only: Kubernetes puts NODEAGENT_PORT and such into pods beside a Service."""
    kubernetes = (f"{ENV_PREFIX}SERVICE_", f"{ENV_PREFIX}PORT")
    return [
        f"env {name} is not a setting: {naming.nearest(name, known)}"
        for name in sorted(environ)
        if name.startswith(ENV_PREFIX) and name not in (*known, timeouts.SCALE)
        if not name.startswith(kubernetes)
    ]


def flags(given: Mapping[str, str], problems: Problems) -> Iterator[Given]:
    """What flags give; the keys are those of the table ("timing.settle")."""
    for key, text in given.items():
        setting = BY_KEY.get(key)
        if setting is None or setting.flag is None:
            problems.add("flag", key, "unknown key", naming.nearest(key, BY_KEY))
        else:
            place = Place(f"flag {setting.flag}", f"flag {setting.flag}")
            yield from _given(setting, text, place, problems)


def _given(setting: Setting, text: str, place: Place, problems: Problems) -> Iterator[Given]:
    try:
        yield Given(setting, from_text(setting.shape, text, place), place)
    except Wrong as wrong:
        problems.add(place, setting.key, wrong.what, wrong.hint)


def add_flags(parser: argparse.ArgumentParser, note: str = "") -> None:
    """Add a flag for every setting that can be one; values stay text until ``load``.

    There are dozens: the usage has one word for all of them, and the help shows them only below a ``note``.
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
                help=_shown(setting) if note else argparse.SUPPRESS,
            )


def _shown(setting: Setting) -> str:
    return f"{setting.help} ({setting.shape.words})".replace("%", "%%")


def flags_from(namespace: argparse.Namespace) -> dict[str, str]:
    """The settings given as flags, as texts by key; what was not given is left out."""
    given = vars(namespace)
    return {setting.key: given[setting.key] for setting in SETTINGS if given.get(setting.key) is not None}
