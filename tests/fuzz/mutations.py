# SPDX-License-Identifier: Apache-2.0
"""Damage: valid bytes and plain data with parts cut off, left out, repeated, or replaced."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

JSON_TOKENS = (b"{", b"}", b"[", b"]", b'"', b":", b",", b"null", b"\xff", b"1e999")
LARGEST = 1 << 18  # bytes that damage may make of a small input
_REPEATS = (2, 3, 17, 300, 5000)

Edit = Callable[[bytes, int, int, bytes], bytes]


def _cut_off(data: bytes, at: int, size: int, token: bytes) -> bytes:
    return data[:at]


def _left_out(data: bytes, at: int, size: int, token: bytes) -> bytes:
    return data[:at] + data[at + size :]


def _put_in(data: bytes, at: int, size: int, token: bytes) -> bytes:
    return data[:at] + token + data[at:]


def _put_over(data: bytes, at: int, size: int, token: bytes) -> bytes:
    return data[:at] + token + data[at + len(token) :]


def _repeated(data: bytes, at: int, size: int, token: bytes) -> bytes:
    piece = token or data[at : at + size]
    return data[:at] + piece * _REPEATS[size % len(_REPEATS)] + data[at:]


def _copied(data: bytes, at: int, size: int, token: bytes) -> bytes:
    return data + data[at : at + size]


_EDITS: tuple[Edit, ...] = (_cut_off, _left_out, _put_in, _put_over, _repeated, _copied)


def damaged(corpus: Sequence[bytes], tokens: Sequence[bytes], edits: int = 5) -> st.SearchStrategy[bytes]:
    """One of the inputs with up to so many edits; ``tokens`` are what the format knows."""
    token = st.sampled_from(tokens) | st.binary(max_size=6)
    edit = st.tuples(st.sampled_from(_EDITS), st.integers(0, 1 << 20), st.integers(0, 64), token)
    return st.builds(_edited, st.sampled_from(corpus), st.lists(edit, max_size=edits))


def _edited(data: bytes, edits: Sequence[tuple[Edit, int, int, bytes]]) -> bytes:
    for edit, at, size, token in edits:
        data = edit(data, at % (len(data) + 1), size, token)[:LARGEST]
    return data


JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["", "*" * 3000, "[" * 3000, "0000:65:00.0", "../../..", "\ud800", "٣", "9" * 5000]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)


def misshapen(document: Any, edits: int = 4) -> st.SearchStrategy[Any]:
    """A document of plain data, with up to so many of its values replaced, left out or doubled."""
    edit = st.tuples(st.integers(0, 1 << 30), st.sampled_from(["replace", "leave out", "double"]), JUNK)
    return st.lists(edit, max_size=edits).map(lambda several: _reshaped(document, several))


def _reshaped(document: Any, edits: Sequence[tuple[int, str, Any]]) -> Any:
    document = copy.deepcopy(document)
    for number, how, junk in edits:
        places = list(_places(document))
        if places:
            container, key = places[number % len(places)]
            _change(container, key, how, junk)
    return document


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each container with each of its keys."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _change(container: Any, key: Any, how: str, junk: Any) -> None:
    if how == "replace":
        container[key] = junk
    elif how == "leave out":
        del container[key]
    elif isinstance(container, list):
        container.append(container[key])
    else:
        container[f"{key}x"] = container[key]
