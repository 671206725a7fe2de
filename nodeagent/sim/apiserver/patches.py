# SPDX-License-Identifier: Apache-2.0
"""JSON Patch (RFC 6902), JSON Merge Patch (RFC 7396) and the strategic one, as far as clients use them here.

Of JSON Patch: add, remove, replace and test on objects, which is what status patches of nodes need. Of
strategic merge patches: lists of conditions, which are merged by type.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from nodeagent.sim.apiserver.store import Object

Lists = Mapping[str, Callable[[list[Object], list[Object]], list[Object]]]


class Unpatchable(Exception):
    """Raised when a patch does not fit the object, or is none."""


def merge(target: Any, patch: Any, lists: Lists | None = None) -> Any:
    """The target with the patch in it; null removes. Of ``lists``, by key, the elements are merged, too."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif lists is not None and name in lists:
            merged[name] = lists[name](merged.get(name) or [], value)
        else:
            merged[name] = merge(merged.get(name), value, lists)
    return merged


def strategic(target: Any, patch: Any) -> Any:
    """The target with the patch in it; of a list of conditions only those of the patch are others."""
    return merge(target, patch, {"conditions": _conditions})


def _conditions(before: list[Object], patch: list[Object]) -> list[Object]:
    made = {each["type"]: each for each in before}
    for each in patch:
        if each.get("$patch") == "delete":
            made.pop(each["type"], None)
        else:
            made[each["type"]] = merge(made.get(each["type"]), each)
    return list(made.values())


def operate(target: Object, operations: Any) -> Object:
    """The target after all operations. :raises Unpatchable: if one fails; all have failed then."""
    made = copy.deepcopy(target)
    for operation in operations if isinstance(operations, list) else [operations]:
        try:
            _operate(made, operation)
        except (KeyError, TypeError) as error:
            raise Unpatchable(f"the operation {operation!r} does not fit: {error!r}") from error
    return made


def _operate(made: Any, operation: Any) -> None:
    *way, last = [_word(each) for each in operation["path"].split("/")[1:]]
    parent = made
    for word in way:
        parent = parent[word]
    match operation["op"]:
        case "add":
            parent[last] = operation["value"]
        case "replace":
            _ = parent[last]
            parent[last] = operation["value"]
        case "remove":
            del parent[last]
        case "test" if parent[last] == operation["value"]:
            pass
        case other:
            raise Unpatchable(f"the operation {other} failed, or is not known here")


def _word(text: str) -> str:
    """RFC 6901, section 4."""
    return text.replace("~1", "/").replace("~0", "~")
