# SPDX-License-Identifier: Apache-2.0
"""``nodeagent cluster check`` against a real API server and its RBAC."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tests.e2e import kubevirt
from tests.e2e.cluster import NODE, Cluster
from tests.e2e.daemon import SOURCE, Daemon
from tests.e2e.test_cluster import RBAC, RULES, SERVED, follower, permitted

__all__ = ["follower"]  # a fixture

ROLE = f"{RBAC}/clusterroles/nodeagent"
MACHINES = "get virtualmachineinstances.kubevirt.io"


def check(running: Cluster, *flags: str) -> subprocess.CompletedProcess[str]:
    """``nodeagent cluster check`` on the node; no daemon runs."""
    command = [sys.executable, "-P", "-m", "nodeagent", "--root", str(running.host), "cluster", "check"]
    environ = os.environ | {"PYTHONPATH": str(SOURCE.parent)}
    return subprocess.run(
        [*command, *flags], env=environ, capture_output=True, text=True, timeout=30, check=False
    )


def checked(running: Cluster, code: int) -> dict[str, Any]:
    """The answer, by what was looked at."""
    done = check(running, "-o", "json")
    assert done.returncode == code, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told | {"by": {each["subject"]: each for each in told["checks"]}}


def test_a_right_that_rbac_does_not_give_is_named_with_its_rule(running: Cluster, follower: Daemon) -> None:
    kubevirt.create(running.api, permitted(SERVED))
    told = checked(running, 0)
    assert told["user"] == "nodeagent"
    assert not told["by"][MACHINES]["ok"], "nobody has given it to the daemon"
    assert told["by"][f"the Node {NODE.rpartition('/')[2]}"]["ok"]
    assert told["by"]["the KubeVirt CR kubevirt/kubevirt"]["ok"]
    running.api.patch(ROLE, {"rules": [RULES[0], {**RULES[1], "verbs": ["list"]}, RULES[2]]})
    try:
        told = checked(running, 3)
    finally:
        running.api.patch(ROLE, {"rules": RULES})
    missing = {what for what, each in told["by"].items() if not each["ok"] and each.get("required", True)}
    assert missing == {"watch nodes"}
    assert '{apiGroups: [""], resources: ["nodes"], verbs: ["watch"]}' in told["by"]["watch nodes"]["hint"]
    kubevirt.delete(running.api)
    assert not checked(running, 3)["by"]["a KubeVirt CR"]["ok"]
