# SPDX-License-Identifier: Apache-2.0
"""Defines Reader, which describes how a scan reads one kind of object.

A new kind of object needs one more row in ``scanner.READERS``.

A Reader fills one table of the Host. It lists the objects, reads one object, provides a value for an object
that does not answer, and names other objects to read again: free capacity and group membership change
without an event of their own. Readers do not call each other: they name further objects by table and key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from nodeagent.kernel.root import Root
from nodeagent.model.host import Host

NOT_READABLE = "not readable: being removed?"


class Item(NamedTuple):
    """One object to read: its table in the Host, and its key in this table."""

    table: str
    key: Any


class Reader(NamedTuple):
    """Describes how one table of the Host is filled.

    Functions with a Root parameter may hang; functions with a Host parameter do no I/O.

    ``list``: returns the keys of all objects that exist. ``read``: returns the value of one key; None: the
    object does not exist. ``unanswered``: returns the value for an object whose read does not end in time.
    ``named``: returns the keys of the objects that the key of an event names, () for none; None if the key
    belongs to another reader. ``follow``: returns further objects to read after this one, from the previous
    Host, unless everything is read. ``recheck``: returns True if an object is unchanged; for devices this is
    faster than reading.
    """

    table: str
    list: Callable[[Root], Iterable[Any]]
    read: Callable[[Root, Any], Any]
    unanswered: Callable[[Any, Host], Any]
    named: Callable[[str, Host], Sequence[Any] | None] = lambda *_: None
    follow: Callable[[Any, Any, Host], Iterable[Item]] = lambda *_: ()
    recheck: Callable[[Root, Any], bool] | None = None


def group_of(number: int | None) -> tuple[Item, ...]:
    """Return the IOMMU group with that number as an item to read."""
    return () if number is None else (Item("groups", number),)
