# SPDX-License-Identifier: Apache-2.0
"""The strict YAML parser: returns the entries of a file with their lines. Only this module and ``manifests``
use PyYAML.

PyYAML implements YAML 1.1, in which an unquoted ``0000:03:00.0`` is the number 180.0, and later duplicate
keys override earlier ones silently. In this parser all scalars stay text, and duplicate keys, tags, several
documents, invalid UTF-8 and files over 1 MiB are errors. Aliases are expanded up to ``MAX_ENTRIES`` values.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import yaml
from yaml.composer import Composer
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from nodeagent.base import files, hints
from nodeagent.base.errors import ConfigError
from nodeagent.config.codec import Items, Member, Scalar, Table

if TYPE_CHECKING:
    from nodeagent.config.codec import Entry

MAX_BYTES = 1024 * 1024
MAX_ENTRIES = 50_000
MAX_DEPTH = 32
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_PLAIN_TAGS = frozenset({f"tag:yaml.org,2002:{name}" for name in ("str", "seq", "map")})
_SYNTAX_HINT = "indent with blanks, quote texts that contain ': ' or ' #', and close brackets"


class _Loader(Reader, Scanner, Parser, Composer, BaseResolver):
    """A YAML loader that only composes nodes; BaseResolver keeps every plain scalar as text."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        BaseResolver.__init__(self)


def read(path: str) -> Table | None:
    """Return the table in the file ``path`` ("-": standard input); None if the file does not exist.

    :raises ConfigError: with file and line, if the file cannot be read or is invalid.
    """
    content = _content(path)
    return None if content is None else parse(content, path)


def parse(content: bytes, path: str) -> Table:
    """Return the table in ``content``.

    :raises ConfigError: with file and line, if the content is invalid.
    """
    try:
        node = _composed(_text(content, path), path)
        if node is None:
            return Table((), _Walk(path).place(0))
        return _top(_Walk(path).entry(node, 0), path)
    except RecursionError as error:
        raise ConfigError(f"{path}: too many nested brackets", _SYNTAX_HINT) from error


def _composed(text: str, path: str) -> yaml.Node | None:
    """Return the root node of a YAML stream; None if the stream is empty.

    :raises ConfigError: with the line, if PyYAML rejects the text.
    """
    loader = None
    try:
        loader = _Loader(text)
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise _indented(error, text, path) or _syntax(error, path) from error
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"{path}:{line}: a character that YAML does not allow"
        raise ConfigError(what, "keep to printable characters") from error
    except (
        ValueError
    ) as error:  # PyYAML 6 does not catch errors of chr() and int(): "\U00110000", %YAML 1.<many>
        line = loader.line + 1 if loader is not None else 1
        raise ConfigError(f"{path}:{line}: not valid YAML: {error}", _SYNTAX_HINT) from error


def _content(path: str) -> bytes | None:
    read = files.read_input if path == files.STDIN else files.read_regular
    try:
        content = read(path, MAX_BYTES)
    except FileNotFoundError:
        _no_link(path)
        return None
    except files.NotRegular as error:
        raise ConfigError(f"{path}: is not a regular file", "write the settings in a file") from error
    except OSError as error:
        what = f"{path}: cannot be read: {hints.strerror(error)}"
        raise ConfigError(what, hints.for_errno(error, "read")) from error
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path}: is larger than 1 MiB", "no configuration needs that: shorten it")
    return content


def _no_link(path: str) -> None:
    """Return without an error if the path does not exist.

    :raises ConfigError: if the path is a broken link: the operator expects its settings, not the defaults.
    """
    try:
        target = os.readlink(path)  # noqa: PTH115  text in, text out
    except OSError:
        return
    what = f"{path}: the symbolic link leads to {target}, which does not exist"
    raise ConfigError(what, "create the target of the link, or remove the link")


def _text(content: bytes, path: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not valid UTF-8", "save the file as UTF-8") from error


def _indented(error: yaml.MarkedYAMLError, text: str, path: str) -> ConfigError | None:
    """Return the error for an indented first key, where PyYAML names a later line; None for other errors."""
    if "'<document start>'" not in (error.problem or ""):
        return None
    lines = enumerate(text.splitlines(), 1)
    first = next((each for each in lines if each[1].strip() and not each[1].lstrip().startswith("#")), None)
    if first is None or not first[1].startswith(" "):
        return None
    return ConfigError(
        f"{path}:{first[0]}: is indented, but a line below it is not",
        "write all keys of one level in the same column",
    )


def _syntax(error: yaml.MarkedYAMLError, path: str) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    line = f":{mark.line + 1}" if mark else ""
    problem = " ".join(part for part in (error.problem, error.context) if part)
    if "single document" in problem:
        return ConfigError(f"{path}{line}: a second document begins", "keep one document per file")
    return ConfigError(f"{path}{line}: not valid YAML: {problem}", _SYNTAX_HINT)


def _top(entry: Entry, path: str) -> Table:
    if isinstance(entry, Table):
        return entry
    if isinstance(entry, Scalar) and entry.null:
        return Table((), entry.place)
    hint = "begin with a line such as 'apiVersion: nodeagent/v1'"
    raise ConfigError(f"{entry.place}: the file must be a table of keys", hint)


class _Walk:
    """Converts composed nodes into entries, and limits their number, since aliases can repeat a node many
    times.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._left = MAX_ENTRIES

    def place(self, line: int) -> str:
        """Return the place of a line that is counted from 0."""
        return f"{self._path}:{line + 1}"

    def entry(self, node: yaml.Node, depth: int) -> Entry:
        """Return the entry of a node.

        :raises ConfigError: if a configuration must not contain this node.
        """
        place = self.place(node.start_mark.line)
        self._bounds(place, depth)
        if node.tag not in _PLAIN_TAGS:
            raise ConfigError(f"{place}: the tag {node.tag} is not supported", "remove the tag")
        if isinstance(node, yaml.SequenceNode):
            return Items(tuple(self.entry(item, depth + 1) for item in node.value), place)
        if isinstance(node, yaml.MappingNode):
            return self._table(node, place, depth)
        plain = isinstance(node, yaml.ScalarNode) and node.style is None
        return Scalar(node.value, place, plain, plain and node.value in _NULLS)

    def _table(self, node: yaml.MappingNode, place: str, depth: int) -> Table:
        members: dict[str, Member] = {}
        for key_node, value_node in node.value:
            member = self._member(key_node, value_node, depth)
            first = members.setdefault(member.key, member)
            if first is not member:
                what = f'{member.place}: the key "{member.key}" is written twice'
                raise ConfigError(
                    what, f"keep only one: this line, or the line at {first.place.rpartition('/')[2]}"
                )
        return Table(tuple(members.values()), place)

    def _member(self, key_node: yaml.Node, value_node: yaml.Node, depth: int) -> Member:
        place = self.place(key_node.start_mark.line)
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(f"{place}: a key must be a word", "write 'key: value'")
        if key_node.value == "<<" and key_node.style is None:
            raise ConfigError(f"{place}: merge keys are not supported", "write the keys out")
        return Member(key_node.value, place, self.entry(value_node, depth + 1))

    def _bounds(self, place: str, depth: int) -> None:
        self._left -= 1
        if self._left < 0 or depth > MAX_DEPTH:
            what = f"{place}: too many values, or values nested too deeply"
            raise ConfigError(what, "replace aliases with their values; an alias must not contain itself")
