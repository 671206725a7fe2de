# SPDX-License-Identifier: Apache-2.0
"""Reader: all that a scan has to know of one kind of thing. A new kind is one more row in
``scanner.READERS``.

A Reader fills one table of the Host. It lists what there is, reads one thing, says what stands for one that
does not answer, and which others are touched when one was read: room and neighbours have no event of their
own. Readers do not know each other: what else is to be read is named by table and key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from nodeagent.kernel.root import Root
from nodeagent.model.host import Host

NOT_READABLE = "not readable: being removed?"


class Item(NamedTuple):
    """One thing to read: the table of the Host that it stands in, and its key there."""

    table: str
    key: Any


class Reader(NamedTuple):
    """How one table of the Host is filled. The functions that read may hang; those with a Host are pure.

    ``list``: the keys of all things that exist.
    ``read``: the value of one key; None: it does not exist.
    ``unanswered``: stands for a thing that does not answer in time.
    ``named``: the keys that an event's key names, () if none has it now; None: that key is another reader's.
    ``follow``: what else is to be read after a value of a key, with the Host before, where not everything is.
    ``recheck``: True if one still reads as known; for devices quicker than to read it.
    """

    table: str
    list: Callable[[Root], Iterable[Any]]
    read: Callable[[Root, Any], Any]
    unanswered: Callable[[Any, Host], Any]
    named: Callable[[str, Host], Sequence[Any] | None] = lambda *_: None
    follow: Callable[[Any, Any, Host], Iterable[Item]] = lambda *_: ()
    recheck: Callable[[Root, Any], bool] | None = None


def group_of(number: int | None) -> tuple[Item, ...]:
    """The IOMMU group of that number, as something to read."""
    return () if number is None else (Item("groups", number),)
