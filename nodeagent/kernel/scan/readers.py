# SPDX-License-Identifier: Apache-2.0
"""What a scan has to know of one kind of thing: a Reader. A new kind is one more row in ``scanner.READERS``.

A Reader fills one table of the Host. It lists what there is, reads one thing, says what stands for one that
does not answer, and which others are touched when one was read: room and neighbours have no event of their
own. Readers do not know each other: what else is to be read is named by table and key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nodeagent.kernel.root import Root
from nodeagent.model.host import Host

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison

NOT_READABLE = "not readable: being removed?"


class Item(NamedTuple):
    """One thing to read: the table of the Host that it stands in, and its key there, as text."""

    table: str
    key: str


class Reading(NamedTuple):
    """One thing that was read: its key, its value (None: not there), and what was known before."""

    key: str
    value: Any
    previous: Host


class Reader(NamedTuple):
    """How one table of the Host is filled. What reads may hang; what takes a Host only is pure.

    ``list``: the keys of all things that are there.
    ``named``: the keys that a Wake's key names, () if none has it now; None: that key is another reader's.
    ``read``: the value of one key; None: it is not there.
    ``unanswered``: what stands for a thing that does not answer in time.
    ``follow``: what else is to be read after this one, where not everything is.
    ``recheck``: True if one still reads as known; for devices quicker than to read it.
    ``key``, ``order``: the table's key of a text, and its sort key.
    ``again``: one that is named again after it was read is read again.
    ``only``: the directory of nodes that has to be asked for; None: always read.
    """

    table: str
    list: Callable[[Root], Iterable[str]]
    named: Callable[[str, Host], Sequence[str] | None]
    read: Callable[[Root, str], Any]
    unanswered: Callable[[str, Host], Any]
    follow: Callable[[Reading], Iterable[Item]]
    key: Callable[[str], Any]
    order: Callable[[Any], SupportsRichComparison]
    recheck: Callable[[Root, Any], bool] | None = None
    again: bool = False
    only: str | None = None


def group_of(number: int | None) -> tuple[Item, ...]:
    """The IOMMU group of that number, as something to read."""
    return () if number is None else (Item("groups", str(number)),)
