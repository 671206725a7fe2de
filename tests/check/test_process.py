# SPDX-License-Identifier: Apache-2.0
"""What this process may do, as it is and in a namespace where it may do less; what a daemon answers."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from nodeagent.base import threads
from nodeagent.check import process
from nodeagent.check.findings import Finding, Node, Verdict
from nodeagent.kernel.root import Root
from nodeagent.model.problem import ProblemCode, wrong
from nodeagent.model.spec import Spec, UsbRule
from nodeagent.model.status import ProcessStatus
from tests.check.trees import DAEMON, SOCKET, UNIT, make_node, short
from tests.http.serving import serve_document
from tests.namespaces import ALONE, namespaces

ASK = """
import sys
from pathlib import Path
from nodeagent.check import process
from nodeagent.kernel.root import Root
from tests.check.trees import make_node
node = make_node(Path(sys.argv[1]), root=Root(), plugin_dir="/mnt/absent")
print(process.check_capabilities(node), process.check_directories(node))
print(process.check_user_namespace(node), process.check_inotify(node))
"""
_READ_ONLY = 'mount -t tmpfs -o ro none /mnt && exec "$@"'
NEEDS_NAMESPACES = pytest.mark.skipif(not namespaces(), reason="no user namespaces here")
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root is judged")
USB, CHOWN = Spec(rules=(UsbRule("a.b/c"),)), 1
NO_CHOWN = DAEMON._replace(process=ProcessStatus(capabilities=0))


def ask(root: Path, *command: str) -> str:
    """Return what the checks find in a process that is started so."""
    done = subprocess.run(
        [*command, sys.executable, "-c", ASK, str(root)], capture_output=True, text=True, check=True
    )
    return done.stdout


def usb(node: Node) -> Finding:
    """Return the finding on USB nodes where a rule is for USB devices."""
    found = process.check_usb_nodes(node._replace(snapshot=replace(node.snapshot, spec=USB)))
    assert found is not None
    assert short(found[2])
    return found


@NEEDS_ROOT
def test_this_process_is_judged_on_its_own_host_alone(tmp_path: Path) -> None:
    node = make_node(tmp_path)
    assert process.check_user(node)[0] is Verdict.UNSEEN
    assert process.check_directories(node) is None
    here = node._replace(root=Root(), plugin_dir="/")
    assert process.check_user(here)[0] is Verdict.OK
    found = process.check_directories(here)
    assert found is not None
    assert found[0] is Verdict.OK


def test_a_user_who_is_not_root_is_told_so(tmp_path: Path) -> None:
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        verdict, _, to_do = process.check_user(make_node(tmp_path / "x", only={}, root=Root()))
    finally:
        os.seteuid(before)
    assert verdict is Verdict.UNSEEN
    assert "root" in to_do


def test_the_instance_of_inotify_that_is_tried_is_closed(tmp_path: Path) -> None:
    node = make_node(tmp_path, root=Root())
    before = len(os.listdir("/proc/self/fd"))
    process.check_inotify(node)
    assert len(os.listdir("/proc/self/fd")) == before


@NEEDS_NAMESPACES
def test_a_read_only_file_system_is_named(tmp_path: Path) -> None:
    shown = ask(tmp_path, "unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _READ_ONLY, "sh")
    assert "on a read-only file system: /mnt/absent" in shown


@NEEDS_ROOT
def test_a_capability_that_is_missing_is_named(tmp_path: Path) -> None:
    shown = ask(tmp_path, "setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace")
    assert "no CAP_SYS_PTRACE: open mdevs cannot be seen" in shown


@NEEDS_NAMESPACES
def test_a_user_namespace_is_a_note_and_may_have_no_inotify(tmp_path: Path) -> None:
    script = 'echo 0 >/proc/sys/user/max_inotify_instances && exec "$@"'
    shown = ask(tmp_path, *ALONE, "sh", "-c", script, "sh")
    assert "hostUsers" in shown
    assert "refuses an inotify instance: Too many open files" in shown


@pytest.mark.parametrize("document", [[], {"version": 1}, {"problems": 3}])
async def test_a_daemon_of_another_version_answers_and_cannot_be_read(
    tmp_path: Path, document: object
) -> None:
    path = tmp_path / SOCKET.removeprefix("/")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve_document, str(path), lambda: document)
        await anyio.wait_all_tasks_blocked()
        answer = await threads.call(process.ask_daemon, Root(tmp_path), SOCKET, 2.0)
        tasks.cancel_scope.cancel()
    assert isinstance(answer, ValueError)
    verdict, seen, _ = process.check_daemon(make_node(tmp_path, daemon=answer))
    assert verdict is Verdict.WRONG
    assert SOCKET not in seen, "a daemon answers"


def test_a_daemon_that_answers_is_compared_with_this_command(tmp_path: Path) -> None:
    node = make_node(tmp_path)
    assert process.check_daemon(node)[0] is Verdict.OK
    other = process.check_daemon(node._replace(daemon=DAEMON._replace(version="0")))
    assert other[0] is Verdict.NOTE
    assert "restart" in other[2]


def test_problems_and_open_files_are_those_of_the_daemon(tmp_path: Path) -> None:
    node = make_node(tmp_path)
    assert list(process.check_problems(node)) == []
    daemon = DAEMON.with_findings([wrong(ProblemCode.NO_VFIO, "", "none", "load it")])
    assert list(process.check_problems(node._replace(daemon=daemon))) == [(Verdict.WRONG, "none", "load it")]
    assert process.check_open_files(node)[0] is Verdict.OK
    many = DAEMON._replace(process=ProcessStatus(open_files=600, most_files=1024))
    verdict, _, to_do = process.check_open_files(node._replace(daemon=many))
    assert (verdict, "LimitNOFILE" in to_do) == (Verdict.NOTE, True)
    unknown = node._replace(daemon=DAEMON._replace(process=ProcessStatus()))
    assert process.check_open_files(unknown)[0] is Verdict.UNSEEN


def test_usb_nodes_need_a_capability_where_a_rule_is_for_usb_devices(tmp_path: Path) -> None:
    node = make_node(tmp_path, daemon=NO_CHOWN)
    assert process.check_usb_nodes(node) is None
    verdict, _, to_do = usb(node)
    assert (verdict, "SystemCallFilter=@chown" in to_do) == (Verdict.WRONG, True)
    (tmp_path / UNIT.removeprefix("/")).unlink()
    assert "in a pod" in usb(node)[2]
    may = DAEMON._replace(process=ProcessStatus(capabilities=CHOWN))
    assert usb(node._replace(daemon=may))[0] is Verdict.OK
    assert usb(node._replace(daemon=ConnectionRefusedError()))[0] is Verdict.UNSEEN
