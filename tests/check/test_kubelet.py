# SPDX-License-Identifier: Apache-2.0
"""A kubelet that answers, and sockets that this user may not open."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeagent.base import threads
from nodeagent.check import kubelet, process
from nodeagent.check.findings import Verdict
from nodeagent.sim.kubelet.server import FakeKubelet
from tests.check.trees import PLUGINS, PODS, SOCKET, make_node
from tests.people import open_directory


async def test_a_kubelet_answers(tmp_path: Path) -> None:
    node = make_node(tmp_path)
    async with FakeKubelet(tmp_path):
        plugins = await threads.call(kubelet.check_device_plugins, node)
        pods = await threads.call(kubelet.check_pod_resources, node)
    assert plugins[0] is pods[0] is Verdict.OK
    assert pods[1] == f"answers with 0 pods at {PODS}"


def test_a_socket_is_named_by_its_path_on_the_host(tmp_path: Path) -> None:
    assert kubelet.check_pod_resources(make_node(tmp_path))[1] == f"{PODS}: No such file or directory"


@pytest.mark.skipif(os.geteuid() != 0, reason="root may look everywhere")
def test_a_user_who_may_not_look_is_not_told_that_nobody_listens() -> None:
    with open_directory() as root:
        for path in (PLUGINS, str(Path(PODS).parent), str(Path(SOCKET).parent)):
            (root / path.removeprefix("/")).mkdir(parents=True, mode=0o700)
        node = make_node(root, only={})
        os.seteuid(65534)
        try:
            plugins, pods = kubelet.check_device_plugins(node), kubelet.check_pod_resources(node)
            daemon = process.ask_daemon(node.root, SOCKET, 1.0)
        finally:
            os.seteuid(0)
    assert plugins[0] is pods[0] is Verdict.UNSEEN
    assert "root" in plugins[2]
    assert "root" in pods[2]
    assert process.check_daemon(node._replace(daemon=daemon))[0] is Verdict.UNSEEN
