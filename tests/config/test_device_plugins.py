# SPDX-License-Identifier: Apache-2.0
"""Configurations of squat's generic-device-plugin become rules for nodes."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent import config
from nodeagent.config import device_plugins

MRW = {"permissions": "mrw"}


def one(*groups: Any, **more: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """The nodes of the rules, and the notes."""
    found = device_plugins.translate({"devices": [{"name": "x", "groups": list(groups)}], **more})
    return [rule["node"] for rule in found.rules], list(found.notes)


@pytest.mark.parametrize(
    ("group", "node"),
    [
        ({"paths": [{"path": "/dev/fuse"}]}, {"paths": [{"path": "/dev/fuse", **MRW}]}),
        (
            {"count": 3, "paths": [{"path": "/dev/fuse", "limit": 5, "permissions": "r"}]},
            {"paths": [{"path": "/dev/fuse", "permissions": "r"}], "count": 3},
        ),
        (
            {"paths": [{"path": "/dev/snd/c*"}, {"path": "/dev/fuse", "limit": 10, "mountPath": "/dev/f"}]},
            {
                "paths": [
                    {"path": "/dev/snd/c*", **MRW},
                    {"path": "/dev/fuse", "mountPath": "/dev/f", "limit": 10, **MRW},
                ],
                "perPath": True,
            },
        ),
        (
            {"paths": [{"path": "/dev/kfd", "optional": True}, {"path": "/dev/dri/r*", "limit": 2}]},
            {
                "paths": [
                    {"path": "/dev/dri/r*", **MRW},
                    {"path": "/dev/kfd", "optional": True, "limit": 1, **MRW},
                ],
                "perPath": True,
            },
        ),
        (
            {"paths": [{"path": "/dev/video*", "limit": 4}, {"path": "/dev/snd/controlC*"}]},
            {
                "paths": [
                    {"path": "/dev/snd/controlC*", **MRW},
                    {"path": "/dev/video*", "limit": 4, **MRW},
                ],
                "perPath": True,
            },
        ),
    ],
)
def test_a_group_is_a_rule_that_the_daemon_takes(group: Any, node: Any) -> None:
    nodes, notes = one(group, domain="squat.ai")
    assert (nodes, notes) == ([node], [])
    rules = [{"name": "squat.ai/x", "node": each} for each in nodes]
    (rule,) = config.from_values([config.Value("resources", rules, "")], {}).configuration.rules
    assert rule.name == "squat.ai/x"


@pytest.mark.parametrize(
    ("group", "note"),
    [
        ({"usb": [{"vendor": "1"}]}, "USB"),
        ({"paths": [{"path": "/etc/x", "type": "Mount"}]}, "/etc/x"),
        ({"paths": [{}]}, "has no path"),
        ({"usb": {"vendor": "0bda", "product": "2838"}}, "without paths"),
        ({}, "without paths"),
        (7, "without paths"),
    ],
)
def test_what_has_no_counterpart_is_said(group: Any, note: str) -> None:
    nodes, notes = one(group)
    assert nodes == []
    assert note in notes[0]


def test_all_groups_of_a_name_are_rules_and_the_domain_is_kept() -> None:
    group = {"paths": [{"path": "/dev/fuse"}]}
    found = device_plugins.translate(
        {
            "Domain": "a.b",
            "devices": [{"name": "x", "groups": [group, group]}, {"name": "c.d/y", "groups": [group]}],
        }
    )
    assert [rule["name"] for rule in found.rules] == ["a.b/x", "a.b/x", "c.d/y"]
    assert found.notes == ()
