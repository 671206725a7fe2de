# SPDX-License-Identifier: Apache-2.0
"""A second daemon beside the service, as a pod would be: it is told which unit serves the node."""

from __future__ import annotations

from tests.facts import names
from tests.packaging.machine import Machine, until

PLUGINS = "/var/lib/kubelet/device-plugins"
SECOND = "timeout 20 nodeagent run --http-listen '' --status-socket /run/second.sock"


def test_a_second_daemon_is_told_which_unit_serves_the_node(installed: Machine) -> None:
    installed.run(f"mkdir -p {PLUGINS}")
    until(lambda: installed.says(f"cat {PLUGINS}/nodeagent.lock"), "the service has the lock")
    before = installed.show("MainPID")
    done = installed.run(f"KUBERNETES_SERVICE_HOST=10.96.0.1 {SECOND} 2>&1 || echo exit code $?")
    told = [line for line in done.stdout.splitlines() if not line.startswith("{")]
    names(done.stdout, "systemd unit nodeagent.service", "systemctl disable --now nodeagent.service")
    assert told[-1] == "exit code 1"
    assert installed.show("MainPID") == before
