# SPDX-License-Identifier: Apache-2.0
"""What is seen around a node: a kubelet and a daemon that answer, refuse, hang, or are elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from nodeagent.agent import surroundings
from nodeagent.agent.surroundings import Places
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.root import Root
from nodeagent.model.host import Host
from nodeagent.model.surroundings import DaemonSight, KubeletSight, Surroundings
from nodeagent.sim.kubelet.standin import Kubelet
from tests.facts import names
from tests.http.serving import serve_document
from tests.people import open_directory

PLUGINS, PODS = "/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources/kubelet.sock"
PLACES = Places(PLUGINS, PODS, "/run/nodeagent/status.sock")


async def around(root: Path) -> Surroundings:
    return await surroundings.look(Root(root), Host(), PLACES, Timeouts())


async def kubelet_of(root: Path) -> KubeletSight:
    found = (await around(root)).kubelet
    assert isinstance(found, KubeletSight)
    return found


async def daemon_of(root: Path) -> DaemonSight:
    found = (await around(root)).daemon
    assert isinstance(found, DaemonSight)
    return found


def put(root: Path, path: str) -> None:
    at = root / path.removeprefix("/")
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_text("")


def close(root: Path, *paths: str) -> None:
    """Make directories for root alone."""
    for path in paths:
        (root / path.removeprefix("/")).mkdir(parents=True, mode=0o700)


async def test_an_empty_tree_has_nobody(tmp_path: Path) -> None:
    found = await around(tmp_path)
    assert found.standing == surroundings.TREE
    kubelet = await kubelet_of(tmp_path)
    assert (kubelet.plugins_there, kubelet.served, kubelet.elsewhere) == (False, False, "")
    assert kubelet.answer == f"{PODS}: No such file or directory", "the host's path"
    daemon = await daemon_of(tmp_path)
    assert (daemon.unit, daemon.enabled, daemon.permitted) == (False, False, True)
    names(daemon.answer, "/run/nodeagent/status.sock")


async def test_a_kubelet_answers(tmp_path: Path, loop_may_block: None) -> None:
    async with Kubelet(tmp_path):
        put(tmp_path, f"{PLUGINS}/kubevirt-kvm.sock")
        found = await kubelet_of(tmp_path)
    assert found == KubeletSight(PLUGINS, True, True, PODS, "", virt_handler=True)


async def test_a_kubelet_with_another_root_directory_is_found(tmp_path: Path) -> None:
    other = "/var/lib/k0s/kubelet/pod-resources/kubelet.sock"
    put(tmp_path, other)
    assert (await kubelet_of(tmp_path)).elsewhere == other


async def test_a_service_is_known_by_its_files(tmp_path: Path) -> None:
    put(tmp_path, "/usr/lib/systemd/system/nodeagent.service")
    assert (await daemon_of(tmp_path)).unit
    link = tmp_path / "etc/systemd/system/multi-user.target.wants/nodeagent.service"
    link.parent.mkdir(parents=True)
    link.symlink_to("/usr/lib/systemd/system/nodeagent.service")
    assert (await daemon_of(tmp_path)).enabled


@pytest.mark.parametrize("document", [[], {"version": 1}, {"problems": 3}])
async def test_a_daemon_of_another_kind_is_told_as_such(tmp_path: Path, document: object) -> None:
    path = tmp_path / PLACES.status.removeprefix("/")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve_document, str(path), lambda: document)
        await anyio.wait_all_tasks_blocked()
        found = await daemon_of(tmp_path)
        tasks.cancel_scope.cancel()
    assert found.answer
    assert PLACES.status not in found.answer, "a daemon answers"
    assert found.version == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="root may look everywhere")
async def test_who_may_not_look_has_not_seen_that_nobody_is_there() -> None:
    with open_directory() as root:
        close(root, PLUGINS, str(Path(PODS).parent), "/run/nodeagent")
        os.seteuid(65534)
        try:
            kubelet, daemon = await kubelet_of(root), await daemon_of(root)
        finally:
            os.seteuid(0)
    assert (kubelet.served, kubelet.permitted, daemon.permitted) == (None, False, False)


def test_a_saved_host_has_no_surroundings() -> None:
    found = surroundings.saved()
    assert {found.platform, found.standing, found.kubelet, found.daemon} == {surroundings.SAVED}
