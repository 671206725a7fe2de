# SPDX-License-Identifier: Apache-2.0
"""Reads Kubernetes objects from a YAML or JSON file as plain data, and writes plain data as YAML.

These files are parsed as by kubectl: scalars have types, and unknown keys are ignored. Numbers that are not
plain decimal stay text: 0403 is a device id, not an octal number.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from nodeagent.base import files, hints
from nodeagent.base.errors import ConfigError

MAX_BYTES = 4 * 1024 * 1024
_WIDTH = 110  # line width: a longer text continues on the next line
_MAKE = "create the file with kubectl get -o yaml"
_HINT = "name a file that kubectl get -o yaml (or -o json) has printed"


class _Loader(yaml.SafeLoader):
    """A YAML loader that reads decimal numbers only."""


_INTEGER = "tag:yaml.org,2002:int"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _INTEGER]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_INTEGER, re.compile(r"-?(?:0|[1-9][0-9]*)$"), list("-0123456789"))


def read(path: str) -> list[Any]:
    """Return all objects in the file ("-": standard input), including the items of a List. Blocks.

    :raises ConfigError: if the file cannot be read, or is neither YAML nor JSON.
    """
    try:
        text = _content(path).decode()
    except ValueError as error:
        raise ConfigError(f"{path}: this is neither YAML nor JSON: {error}", _HINT) from error
    return parsed(text, path)


def parsed(text: str, place: str) -> list[Any]:
    """Return all objects in a text, including the items of a List.

    :raises ConfigError: with the place, if the text is neither YAML nor JSON.
    """
    try:
        found = _parsed(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"{place}: this is neither YAML nor JSON: {why[:200]}", _HINT) from error
    return [item for document in found if document is not None for item in _items(document)]


def written(document: Any) -> str:
    """Return plain data as YAML without the final line end."""
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=_WIDTH)
    return text.rstrip()


def _content(path: str) -> bytes:
    try:
        content = files.read_input(path, MAX_BYTES)
    except OSError as error:
        more = _MAKE if isinstance(error, FileNotFoundError) else ""
        raise ConfigError(f"{path}: {hints.strerror(error)}", hints.for_errno(error, "read", more)) from error
    if len(content) > MAX_BYTES:
        what = f"{path}: it is larger than {MAX_BYTES // 1024 // 1024} MiB"
        raise ConfigError(what, "name a file that contains only the required object")
    return content


def _parsed(text: str) -> list[Any]:
    """Parse JSON first: that is faster, and YAML rejects some valid JSON (tabs)."""
    try:
        return [json.loads(text)]
    except ValueError:
        return list(yaml.load_all(text, _Loader))


def _items(document: Any) -> list[Any]:
    items = document.get("items") if isinstance(document, dict) else None
    return items if isinstance(items, list) else [document]
