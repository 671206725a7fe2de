# SPDX-License-Identifier: Apache-2.0
"""``nodeagent bug-report``: one document with all that a report of a fault needs."""

from __future__ import annotations

import json
from typing import Any

from nodeagent import __version__
from tests.blackbox.harness import Node

CARD = "0000:3b:00.0"
RULE = """apiVersion: nodeagent/v1
resources: [{name: example.com/gpu, pci: [{vendors: ["10de"]}]}]
"""


async def reported(node: Node) -> dict[str, Any]:
    done = await node.command("bug-report")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


async def test_a_report_has_versions_settings_checks_and_the_status(node: Node) -> None:
    node.host.add_function(CARD, vendor="10de", device="1eb8", pci_class="030200", driver="vfio-pci", group=8)
    node.configure(RULE)
    (node.root / "etc/os-release").write_text('ID=debian\nPRETTY_NAME="Debian GNU/Linux 13"\n')
    async with node.running(listed={"example.com/gpu": 1}):
        report = (await reported(node))["report"]
    assert (report["version"], report["os"]) == (__version__, "Debian GNU/Linux 13")
    assert report["status"]["resources"][0]["name"] == "example.com/gpu"
    assert report["noStatus"] == ""
    assert report["settings"]["settings"]["timing.resync"]["value"] == "60s"
    assert {line["section"] for line in report["readiness"]["lines"]}


async def test_without_a_daemon_the_report_says_why_it_has_no_status(node: Node) -> None:
    node.configure(RULE)
    report = (await reported(node))["report"]
    assert report["status"] is None
    assert "no daemon answers" in report["noStatus"]


async def test_other_commands_read_the_host_of_a_report(node: Node) -> None:
    node.host.add_function(CARD, vendor="10de", device="1eb8", pci_class="030200", driver="nouveau", group=8)
    node.configure(RULE)
    saved = node.root / "report.json"
    saved.write_text(json.dumps(await reported(node)))
    done = await node.command("explain", CARD, "--host", str(saved))
    assert "nouveau" in done.stdout


async def test_with_an_invalid_configuration_the_report_has_the_host_and_the_error(node: Node) -> None:
    node.host.add_function(CARD, vendor="10de", device="1eb8", pci_class="030200", driver="nouveau", group=8)
    node.configure("apiVersion: nodeagent/v1\nunknownKey: []\n")
    document = await reported(node)
    assert [each["address"] for each in document["functions"]] == [CARD]
    assert document["report"]["readiness"] is None
    (error,) = document["report"]["settings"]["warnings"]
    assert "unknownKey" in error
