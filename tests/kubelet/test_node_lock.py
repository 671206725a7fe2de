# SPDX-License-Identifier: Apache-2.0
"""The lock of a directory: whose it is, and what the second one is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeagent.base.errors import AlreadyRunning
from nodeagent.kubelet import node_lock
from nodeagent.kubelet.node_lock import NodeLock
from tests.facts import names

HERE = os.uname().nodename
IN_A_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
HYBRID = "8:pids:/system.slice/other.scope\n1:name=systemd:/system.slice/nodeagent.service\n0::/\n"
UNIFIED = "0::/system.slice/nodeagent@blue.service\n"
IN_A_SESSION = "0::/user.slice/user-0.slice/session-4.scope\n"
BELOW_A_SERVICE = "0::/system.slice/containerd.service/kubepods-burstable.slice/cri-containerd-1.scope\n"


@pytest.mark.parametrize(
    ("environ", "groups", "host_pids", "name"),
    [
        pytest.param(IN_A_POD, "0::/\n", False, f"pod {HERE}", id="pod"),
        pytest.param(IN_A_POD, UNIFIED, True, f"pod {HERE}", id="pod of a kubelet in a service"),
        pytest.param({}, HYBRID, True, "systemd unit nodeagent.service", id="two hierarchies"),
        pytest.param({}, UNIFIED, True, "systemd unit nodeagent@blue.service", id="version two"),
        pytest.param({}, IN_A_SESSION, True, f"process {os.getpid()}", id="by hand"),
        pytest.param({}, BELOW_A_SERVICE, False, f"container {HERE}", id="a container that is no pod"),
        pytest.param({"KUBERNETES_SERVICE_HOST": ""}, "", False, f"container {HERE}", id="nothing is known"),
    ],
)
def test_people_know_the_owner_by_its_name(
    environ: dict[str, str], groups: str, host_pids: bool, name: str
) -> None:
    assert node_lock.owner(environ, groups, host_pids) == name


@pytest.mark.parametrize(
    ("told", "who", "advice"),
    [
        ("pod nodeagent-x7k2f", ("pod nodeagent-x7k2f",), ("DaemonSet",)),
        (
            "systemd unit nodeagent.service",
            ("systemd unit nodeagent.service",),
            ("systemctl disable --now nodeagent.service",),
        ),
        ("container blue", ("container blue",), ("container",)),
        ("process 4711", ("process 4711",), ("process",)),
        ("", (), ("service", "DaemonSet")),
        ("pod $(reboot)", (), ("service", "DaemonSet")),
        ("pod a\nb", (), ("service", "DaemonSet")),
    ],
)
def test_the_second_is_told_who_serves_and_what_to_do(
    told: str, who: tuple[str, ...], advice: tuple[str, ...]
) -> None:
    what, hint = node_lock.refusal("/plugins", told)
    names(what, "/plugins", *who)
    assert who or not told or told not in what
    names(hint, *advice)
    assert "\n" not in what + hint


def test_the_file_names_the_owner_while_it_is_locked(tmp_path: Path) -> None:
    first, second = NodeLock(str(tmp_path)), NodeLock(str(tmp_path))
    first.take()
    with pytest.raises(AlreadyRunning, match=rf"\bprocess {os.getpid()}\b"):
        second.take()
    first.release()
    assert (tmp_path / node_lock.LOCK).read_text() == ""
    second.take()
    assert (tmp_path / node_lock.LOCK).read_text() == f"process {os.getpid()}\n"
    second.release()


def test_what_an_older_version_left_in_the_file_does_not_stay(tmp_path: Path) -> None:
    (tmp_path / node_lock.LOCK).write_text("pod of-a-much-longer-name-than-any-other\n")
    taken = NodeLock(str(tmp_path))
    taken.take()
    assert (tmp_path / node_lock.LOCK).read_text() == f"process {os.getpid()}\n"
    taken.release()
