# SPDX-License-Identifier: Apache-2.0
"""Captured hosts: builds a tree of files from one JSON document.

The document has ``meta`` and ``tree``: absolute path → one entry, which is ``text`` (with an optional
``mode``), ``link`` (relative), ``dir``, ``char`` (major, minor) or ``error``. The error "HANGS" becomes a
FIFO, whose reader waits; any other error becomes a directory: reading it fails, too. Character devices become
empty files, so that no root is needed. The document may come from anywhere: paths stay inside.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Mapping
from typing import Any

from nodeagent.base.errors import ConfigError
from nodeagent.sim import files


def materialise(json_file: str | os.PathLike[str], directory: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Build the captured host below ``directory``; return its ``meta``.

    :raises ConfigError: if the document is none, or leads out of the directory.
    """
    name = os.fspath(json_file)
    try:
        document = json.loads(files.read(name))
        meta, tree = document["meta"], document["tree"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{name} is no captured host: {error}") from error
    for path, entry in tree.items():
        _check(name, path, entry)
        _make(os.fspath(directory) + path, entry)
    result: Mapping[str, Any] = meta
    return result


def _check(name: str, path: str, entry: Mapping[str, Any]) -> None:
    """Neither a path nor a link may lead out of the tree."""
    target = entry.get("link", "")
    reached = posixpath.normpath(posixpath.join("root" + posixpath.dirname(path), target))
    inside = posixpath.normpath(path) == path and path.startswith("/")
    if not inside or target.startswith("/") or reached.split("/")[0] != "root":
        raise ConfigError(f"{name}: {path} leads out of the captured host")


def _make(path: str, entry: Mapping[str, Any]) -> None:
    files.directory(posixpath.dirname(path))
    if "link" in entry:
        files.link(path, entry["link"])
    elif "text" in entry:
        files.write_new(path, entry["text"])
    elif "char" in entry:
        files.write_new(path, "")
    elif entry.get("error") == "HANGS":
        os.mkfifo(path)
    else:
        files.directory(path)
