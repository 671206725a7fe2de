# SPDX-License-Identifier: Apache-2.0
"""What this process may do, as it is and in a namespace where it may do less."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.kernel import platform
from nodeagent.kernel.root import Root
from tests.namespaces import ALONE, namespaces

ASK = """
from nodeagent.kernel import platform
from nodeagent.kernel.root import Root
print(platform.read_privileges(Root(), ("/mnt/absent", "/tmp")))
"""
_READ_ONLY = 'mount -t tmpfs -o ro none /mnt && exec "$@"'


def test_this_process_is_who_it_is(tmp_path: Path) -> None:
    found = platform.read_privileges(Root(tmp_path), ("/run/nodeagent", "/"))
    assert found.root == (os.geteuid() == 0)
    assert (found.read_only, found.inotify) == ((), None)


def test_what_is_tried_is_given_back() -> None:
    before = len(os.listdir("/proc/self/fd"))
    platform.read_privileges(Root(), ())
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(not namespaces(), reason="no user namespaces here")
def test_a_file_system_that_takes_no_writes_is_named() -> None:
    command = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        _READ_ONLY,
        "sh",
        sys.executable,
    ]
    told = subprocess.run([*command, "-c", ASK], capture_output=True, text=True, check=True).stdout
    assert "read_only=('/mnt/absent',)" in told


@pytest.mark.skipif(not namespaces(), reason="no user namespaces here")
def test_a_namespace_of_its_own_is_not_the_machines_and_may_have_no_inotify() -> None:
    script = 'echo 0 >/proc/sys/user/max_inotify_instances && exec "$@"'
    command = [*ALONE, "sh", "-c", script, "sh", sys.executable, "-c", ASK]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "whole_users=False" in told
    assert "inotify='Too many open files'" in told
