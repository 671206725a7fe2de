# SPDX-License-Identifier: Apache-2.0
"""Makes typed records of the values that were read: the one conversion, led by the table and its shapes.

A section fills the record of its own: a setting goes to the field that is named as its key is (``field``),
so a key that its record lacks, or the other way round, fails each and every load. What a table of keys
inside a value makes is said by its shape. Whether all of it goes together is ``policy.merge``'s to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from nodeagent.config import records, table
from nodeagent.config.reader.reading import PLACE
from nodeagent.config.shapes import Either, ListOf, MapOf, Record, Shape, snake
from nodeagent.model.configuration import Alias, Configuration, Mdevs, Node
from nodeagent.model.desired import Discovery

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodeagent.config.reader.effective import Effective

R = TypeVar("R")


def configuration(effective: Effective, home: str) -> Configuration:
    """What the operator wrote, without what files of other tools say; ``home`` as in Configuration."""
    return Configuration(
        discovery=_section(effective, "discovery", Discovery),
        aliases=_aliases(effective),
        rules=_setting(effective, "resources"),
        mdevs=_section(effective, "mdevs", Mdevs),
        sriov=_setting(effective, "sriov"),
        node=_section(effective, "node", Node),
        home=home,
    )


def settings(
    effective: Effective, built: Configuration, warnings: Sequence[str], watched: Sequence[str]
) -> records.Settings:
    """The Settings: the configuration, and what the daemon needs besides it."""
    return records.Settings(
        configuration=built,
        kubelet=_section(effective, "kubelet", records.Kubelet),
        timing=_section(effective, "timing", records.Timing),
        log=_section(effective, "log", records.Log),
        status=_section(effective, "status", records.Status),
        cdi=_section(effective, "cdi", records.Cdi),
        values=effective.shown(),
        warnings=tuple(warnings),
        watched=tuple(watched),
    )


def _section(effective: Effective, name: str, record: type[R]) -> R:
    """The record of a section, from all of its settings that are supported."""
    section = table.sections()[name].values()
    return record(
        **{
            setting.field: typed(setting.shape, effective.value(setting))
            for setting in section
            if setting.supported
        }
    )


def _setting(effective: Effective, key: str) -> Any:
    setting = table.BY_KEY[key]
    return typed(setting.shape, effective.value(setting))


def _aliases(effective: Effective) -> tuple[Alias, ...]:
    """The aliases in the order written, each with its place."""
    return tuple(
        Alias(name, target, effective.member_place("aliases", name).full)
        for name, target in _setting(effective, "aliases")
    )


def typed(shape: Shape, value: Any) -> Any:
    """What a value that was read by its shape stands for: words, tuples, pairs and records of the model."""
    if isinstance(shape, ListOf):
        return tuple(typed(shape.of, item) for item in value)
    if isinstance(shape, MapOf):
        return tuple(value.items())
    if isinstance(shape, Either):
        given = value if isinstance(value, dict) else {shape.record.keys[0].name: value}
        return _record(shape.record, given)
    if isinstance(shape, Record):
        return _record(shape, value)
    return value


def _record(shape: Record, value: dict[str, Any]) -> object:
    given = {
        key.field or snake(key.name): typed(key.shape, value[key.name])
        for key in shape.keys
        if key.name in value
    }
    return shape.make(**given, place=value[PLACE].full) if shape.placed else shape.make(**given)
