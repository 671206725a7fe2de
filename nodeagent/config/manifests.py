# SPDX-License-Identifier: Apache-2.0
"""Reads Kubernetes objects from a YAML or JSON file as plain data, and writes plain data as YAML.

Unlike our own files these are read as kubectl reads them: words are resolved, unknown keys are fine. Only
digits that are no plain decimal number stay text: 0403 is an id to those who write it, not an octal number.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from nodeagent.base import files, hints
from nodeagent.base.errors import ConfigError

MAX_BYTES = 4 * 1024 * 1024
_WIDTH = 110  # characters, at which a long text goes on in the next line
_MAKE = "kubectl get -o yaml makes one"
_HINT = "give a file of kubectl get -o yaml, or -o json"


class _Loader(yaml.SafeLoader):
    """YAML's words, with decimal numbers alone."""


_INTEGER = "tag:yaml.org,2002:int"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _INTEGER]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_INTEGER, re.compile(r"-?(?:0|[1-9][0-9]*)$"), list("-0123456789"))


def read(path: str) -> list[Any]:
    """All objects of the file ("-": standard input), those inside a List too. Blocks on the file.

    :raises ConfigError: if it cannot be read, or is neither.
    """
    try:
        text = _content(path).decode()
    except ValueError as error:
        raise ConfigError(f"{path}: this is neither YAML nor JSON: {error}", _HINT) from error
    return parsed(text, path)


def parsed(text: str, place: str) -> list[Any]:
    """All objects of a text, as ``read`` gives those of a file.

    :raises ConfigError: if it is neither, with the place.
    """
    try:
        found = _parsed(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"{place}: this is neither YAML nor JSON: {why[:200]}", _HINT) from error
    return [item for document in found if document is not None for item in _items(document)]


def written(document: Any) -> str:
    """Plain data as YAML, without the last line's end."""
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
        raise ConfigError(what, "give the object alone that is meant")
    return content


def _parsed(text: str) -> list[Any]:
    """JSON first: it is quicker, and YAML does not take all of it (tabs)."""
    try:
        return [json.loads(text)]
    except ValueError:
        return list(yaml.load_all(text, _Loader))


def _items(document: Any) -> list[Any]:
    items = document.get("items") if isinstance(document, dict) else None
    return items if isinstance(items, list) else [document]
