# SPDX-License-Identifier: Apache-2.0
"""``nodeagent status`` as text, of the document that a daemon gives."""

from __future__ import annotations

from typing import Any

from nodeagent.render import status

RESOURCE = {
    "name": "nvidia.com/gpu",
    "healthy": 1,
    "registered": True,
    "devices": [{"id": "0000:65:00.0"}, {"id": "0000:66:00.0"}],
}
DOCUMENT: dict[str, Any] = {
    "version": "0.1.0",
    "pid": 7,
    "uptimeSeconds": 61.4,
    "kubelet": {"present": True, "socket": "/k.sock", "podResources": "answering"},
    "host": {"functions": 3, "groups": 2, "events": {"source": "netlink"}},
    "resources": [RESOURCE],
    "holders": {"0000:65:00.0": {"pod": "ns/vm", "resource": "nvidia.com/gpu"}},
    "changes": {"waiting": []},
    "problems": [],
}


def lines(**other: Any) -> list[str]:
    return status.text({**DOCUMENT, **other}).splitlines()


def test_a_daemon_that_is_well_says_so_in_the_end() -> None:
    found = lines()
    assert found[0] == "nodeagent 0.1.0, pid 7, up 61 s"
    assert found[1] == "kubelet present at /k.sock"
    assert found[5].split() == ["RESOURCE", "DEVICES", "HEALTHY", "REGISTERED", "HELD"]
    assert found[6].split() == ["nvidia.com/gpu", "2", "1", "yes", "1"]
    assert found[-3:] == ["0000:65:00.0 held by ns/vm", "", "all is well"]


def test_problems_are_listed_last() -> None:
    assert lines(problems=["one", "two"])[-3:] == ["to look at:", "  one", "  two"]


def test_changes_that_wait_are_told_with_what_they_wait_for() -> None:
    waiting = {"card": "0000:3b:00.0", "action": "remove mdev x", "why": "held by ns/vm"}
    found = lines(changes={"waiting": [waiting]})
    assert found[-3:] == ["waiting on 0000:3b:00.0: remove mdev x: held by ns/vm", "", "all is well"]


def test_a_node_without_resources_or_kubelet_is_told_plainly() -> None:
    away = {**DOCUMENT["kubelet"], "present": False}
    found = lines(resources=[], holders={}, kubelet=away)
    assert "no resources" in found
    assert found[1] == "kubelet away at /k.sock"


def test_a_device_that_is_held_under_another_name_does_not_count_here() -> None:
    holders = {"0000:65:00.0": {"pod": "ns/vm", "resource": "example.com/old"}}
    assert lines(holders=holders)[6].split()[-1] == "0"
