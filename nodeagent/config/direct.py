# SPDX-License-Identifier: Apache-2.0
"""The shapes of rules whose devices are no HostDevices: nodes below /dev, and CDI kinds.

A pattern stands in the last part of a path alone: so one directory is watched for it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nodeagent.config import scalars
from nodeagent.config.problems import Wrong
from nodeagent.config.shapes import Either, Key, ListOf, Record, Word
from nodeagent.model.nodes import is_pattern
from nodeagent.model.spec import NodePath

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodeagent.config.reading import Scalar

MOST = 1_000_000  # shares
_PART = r"[A-Za-z0-9_.:@+-]+"
_PATTERN = re.compile(rf"/dev(/{_PART})*/(?:[A-Za-z0-9_.:@+*?-]|\[[A-Za-z0-9_.:@+!-]+\])+")
_KIND = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
OWN = "nodeagent.local/"  # the kinds of CDI files that are written for cdi: true
_INSIDE = re.compile(rf"/dev(/{_PART})+/?|/dev/")


def _node_pattern(scalar: Scalar) -> str:
    text = scalar.text
    if _PATTERN.fullmatch(text) and not {".", ".."} & set(text.split("/")):
        return scalars.of_no_group(text)
    hint = "write the path, such as /dev/kvm; *, ? and [...] may stand in its last part: /dev/video*"
    raise Wrong(f'"{text}" is no path or pattern below /dev', hint)


def _mount_path(scalar: Scalar) -> str:
    text = scalar.text
    if _INSIDE.fullmatch(text) and not {".", ".."} & set(text.split("/")):
        return text
    hint = "write such as /dev/video0, or a directory with a slash at its end: /dev/cameras/"
    raise Wrong(f'"{text}" is no path below /dev', hint)


NODE_PATTERN = Word("path or pattern below /dev", _node_pattern)
MOUNT_PATH = Word("path below /dev", _mount_path)


PATH = Record(
    "node path",
    (
        Key(
            "path",
            NODE_PATTERN,
            "the node; with *, ? and [...] in its last part all that fit",
            required=True,
        ),
        Key(
            "mountPath",
            MOUNT_PATH,
            "where a container finds it; a directory ends with /; without it the same path",
        ),
        Key("permissions", scalars.PERMISSIONS, "of r, w and m; without them those of the rule"),
        Key("optional", scalars.FLAG, "a Device is Healthy without it, too"),
        Key(
            "limit",
            scalars.integer(1, MOST),
            "with perPath, of how many Devices a node may be a part: 1 for a pattern, any for a path",
        ),
    ),
    NodePath,
)


def _unlike(values: Mapping[str, object]) -> None:
    """:raises Wrong: if keys of a node do not go together."""
    paths = _entries(values.get("paths", ()))
    if ("path" in values) == bool(paths):
        raise Wrong("it needs either path or paths", "write path for one node, paths for patterns or several")
    per_path = values.get("perPath") is True
    if per_path and "path" in values:
        raise Wrong("perPath means nothing for one path", "write paths, with a pattern as the first")
    if per_path and not is_pattern(str(paths[0]["path"])):
        raise Wrong(
            f"with perPath the first path leads, and {paths[0]['path']} is no pattern",
            "begin with the pattern that gives a device for each node",
        )
    _one_place(paths, per_path)


def _entries(paths: object) -> list[dict[str, object]]:
    listed: Sequence[object] = paths if isinstance(paths, tuple) else ()
    return [each if isinstance(each, dict) else {"path": each} for each in listed]


def _one_place(paths: Sequence[Mapping[str, object]], per_path: bool) -> None:
    for number, each in enumerate(paths):
        path, inside = str(each["path"]), str(each.get("mountPath", "/"))
        leads = per_path and number == 0
        if is_pattern(path) and not inside.endswith("/") and not leads:
            raise Wrong(
                f"all that {path} means would be {inside} in a container",
                f"let mountPath end with a slash: {inside}/",
            )
        if "limit" in each and (leads or not per_path):
            raise Wrong(
                f"limit means nothing for {path}",
                "it is for what goes with the first path under perPath; count says how many share that",
            )


def _spec_kind(scalar: Scalar) -> str:
    text = scalar.text
    if _KIND.fullmatch(text) is None:
        raise Wrong(f'"{text}" is no kind of CDI devices', "write vendor/class, such as nvidia.com/gpu")
    if text.startswith(OWN):
        raise Wrong(f'"{text}" is what nodeagent itself writes', "use pci or mdev with cdi: true")
    return text


CDI = Record(
    "CDI kind",
    (
        Key(
            "kind",
            Word("CDI kind", _spec_kind),
            "vendor and class, such as nvidia.com/gpu",
            required=True,
            field="spec_kind",
        ),
        Key("names", ListOf(scalars.TEXT), "names of devices; * and ? match"),
        Key("exclude", ListOf(scalars.TEXT), "names that are not taken; without it those that stand for all"),
    ),
    dict,
)

NODE = Record(
    "device node",
    (
        Key("path", scalars.NODE_PATH, "one node below /dev"),
        Key("paths", ListOf(Either(NODE_PATTERN, PATH)), "nodes that go together; patterns, too"),
        Key("count", scalars.integer(1, MOST), "how many containers may share it"),
        Key("permissions", scalars.PERMISSIONS, "of r, w and m"),
        Key("perPath", scalars.FLAG, "a device for each node that the first of the paths means"),
    ),
    dict,
    _unlike,
)
