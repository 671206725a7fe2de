# SPDX-License-Identifier: Apache-2.0
"""Checks nodeagent itself: permissions, limits, versions, and whether a daemon answers.

The permissions of this process are checked if it runs on the node itself, because the daemon needs the same
ones. ``Node.daemon`` has the daemon's answer.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from pathlib import Path

from nodeagent import __version__
from nodeagent.base import process, sockets
from nodeagent.check.findings import AS_ROOT, Finding, Node, note, ok, unseen, wrong
from nodeagent.kernel import pci_ids
from nodeagent.kernel.root import Root
from nodeagent.model import plain
from nodeagent.model.spec import UsbRule
from nodeagent.model.status import Status
from nodeagent.policy import diagnose

_CAPABILITIES = {2: "CAP_DAC_READ_SEARCH", 19: "CAP_SYS_PTRACE"}  # include/uapi/linux/capability.h
_CHOWN = 0
_OWN_NAMESPACE = ["0", "0", "4294967295"]  # of /proc/self/uid_map, user_namespaces(7)
_RUNTIME = "/run/nodeagent"
_FEW_INSTANCES = 128  # the kernel's default for each user: all programs of root share it
_OLDEST = (6, 1)  # the oldest kernel that was tested
_VERSION = re.compile(r"(\d+)\.(\d+)")
_UNITS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
_WANTED = "/etc/systemd/system/multi-user.target.wants/nodeagent.service"
_CHOWN_IN_UNIT = (
    "systemctl edit nodeagent: CapabilityBoundingSet=CAP_CHOWN and SystemCallFilter=@chown in [Service]; "
    "then restart it"
)
_CHOWN_IN_POD = "in a pod: usb: true in the chart's values, or packaging/manifests/nodeagent-usb.yaml"


def ask_daemon(root: Root, socket: str, limit: float) -> Status | Exception:
    """Return the Status of the daemon at a socket, or the OSError or ValueError that prevented it."""
    try:
        return plain.load(Status, sockets.ask(root.path(socket), "/status", limit))
    except OSError as error:
        return error
    except (TypeError, ValueError) as error:  # a daemon of another version
        return ValueError(str(error))


def _has_unit(node: Node) -> bool:
    return any(node.root.exists(f"{directory}/nodeagent.service") for directory in _UNITS)


def _is_root_here(node: Node) -> bool:
    return node.root.is_host and os.geteuid() == 0


def check_user(node: Node) -> Finding:
    """Could this user read all files?"""
    if not node.root.is_host:
        return unseen("not this process's host")
    if os.geteuid() != 0:
        return unseen("not root: some files were not read", AS_ROOT)
    return ok("root")


def check_capabilities(node: Node) -> Finding | None:
    """Can this process see which processes have an mdev open?"""
    held = process.capabilities() or 0
    missing = [name for bit, name in _CAPABILITIES.items() if not held >> bit & 1]
    if not missing or not _is_root_here(node):
        return None
    seen = f"no {' and '.join(missing)}: open mdevs cannot be seen, so none is removed"
    return note(seen, "add them to the pod or the service that creates mdevs")


def check_user_namespace(node: Node) -> Finding | None:
    """Does this process receive the kernel's events?"""
    try:
        words = Path("/proc/self/uid_map").read_text().split()
    except OSError:
        words = []
    if words in ([], _OWN_NAMESPACE) or not _is_root_here(node):
        return None
    return note(
        "not the host's user namespace (/proc/self/uid_map): kernel events do not arrive",
        "in a pod: keep hostUsers: true; otherwise changes are found by polling",
    )


def check_directories(node: Node) -> Finding | None:
    """Can the daemon write its directories?"""
    if not _is_root_here(node):
        return None
    read_only = [path for path in (_RUNTIME, node.plugin_dir) if is_read_only(node.root.path(path))]
    if read_only:
        return wrong(f"on a read-only file system: {', '.join(read_only)}", "mount them read-write")
    return ok(f"{_RUNTIME} and {node.plugin_dir} are writable")


def is_read_only(path: str) -> bool:
    """Return True if the file system of the path, or of its nearest ancestor, is read-only."""
    while not Path(path).exists():
        path = str(Path(path).parent)
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def check_usb_nodes(node: Node) -> Finding | None:
    """Can the daemon change the owner of USB device nodes? (A root shell may have more permissions.)"""
    if not any(isinstance(rule, UsbRule) for rule in node.spec.rules):
        return None
    held = node.daemon.process.capabilities if isinstance(node.daemon, Status) else None
    if held is not None:
        who, may = "the daemon", bool(held >> _CHOWN & 1)
    elif _is_root_here(node) and not (process.capabilities() or 0) >> _CHOWN & 1:
        who, may = "this process", False
    else:
        return unseen("no daemon reports whether it may change the owner of USB device nodes")
    if may:
        return ok(f"{who} may change the owner of USB device nodes")
    to_do = _CHOWN_IN_UNIT if _has_unit(node) else _CHOWN_IN_POD
    return wrong(f"{who} has no CAP_CHOWN: no USB device can be assigned", to_do)


def check_inotify(node: Node) -> Finding:
    """Does the kernel allow the daemon another inotify instance?"""
    if node.root.is_host and (refusal := _inotify_refusal()):
        return wrong(f"the kernel refuses an inotify instance: {refusal}", diagnose.MORE_INSTANCES)
    instances = _read_limit("max_user_instances", node.root)
    if instances is None:
        return unseen("/proc/sys/fs/inotify cannot be seen")
    watches = _read_limit("max_user_watches", node.root) or 0
    seen = f"{instances} instances and {watches} watches for each user"
    if not instances:
        return wrong(seen, diagnose.MORE_INSTANCES)
    if instances <= _FEW_INSTANCES:
        return note(f"{seen}; all programs of root share them", diagnose.MORE_INSTANCES)
    return ok(seen)


def _read_limit(name: str, root: Root) -> int | None:
    text = root.text(f"/proc/sys/fs/inotify/{name}") or ""
    return int(text) if text.isdecimal() else None


def _inotify_refusal() -> str:
    """Return why this user gets no inotify instance, or ""."""
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = library.inotify_init1(os.O_CLOEXEC)
    if descriptor < 0:
        return os.strerror(ctypes.get_errno())
    os.close(descriptor)
    return ""


def check_open_files(node: Node) -> Finding:
    """Does the daemon have many free file descriptors?"""
    if not isinstance(node.daemon, Status):
        return unseen(_no_answer(node, node.daemon))
    numbers = node.daemon.process
    if not numbers.most_files:
        return unseen("the daemon does not report its open files")
    seen = f"the daemon has {numbers.open_files} of at most {numbers.most_files} files open"
    if numbers.open_files * 2 > numbers.most_files:
        return note(seen, "raise LimitNOFILE of the service (systemctl edit nodeagent)")
    return ok(seen)


def check_kernel_version(node: Node) -> Finding:
    """Was this kernel version tested?"""
    release = node.host.release
    if release is None:
        return unseen("/proc/sys/kernel/osrelease cannot be seen")
    found = _VERSION.match(release)
    if found is not None and (int(found[1]), int(found[2])) < _OLDEST:
        return note(f"{release}: older than 6.1, the oldest that was tested")
    return ok(release)


def check_kubelet_version(_: Node) -> Finding:
    """Report that the kubelet's version is unknown, because its sockets do not report it."""
    return unseen("the kubelet's sockets do not report its version", "kubectl get node -o wide")


def check_own_version(_: Node) -> Finding:
    """The version of this program, and the date of its device names."""
    return ok(f"{__version__}, pci.ids of {pci_ids.bundled_date() or 'no known date'}")


def check_daemon(node: Node) -> Finding:
    """Does a daemon answer?"""
    answer = node.daemon
    if isinstance(answer, PermissionError):
        return unseen(_no_answer(node, answer), AS_ROOT)
    if isinstance(answer, Exception):
        if _has_unit(node):
            return wrong(_no_answer(node, answer), "systemctl start nodeagent; see journalctl -u nodeagent")
        return note(f"{_no_answer(node, answer)}, and no service is installed")
    if answer.version != __version__:
        to_do = "restart the daemon when the upgrade is done: systemctl restart nodeagent"
        return note(f"answers; it is version {answer.version}, this command {__version__}", to_do)
    return ok(f"answers, version {answer.version}")


def _no_answer(node: Node, error: Exception) -> str:
    if isinstance(error, OSError):
        return f"no daemon answers at {node.status_socket}: {error.strerror or error}"
    return f"the daemon's answer cannot be read: {error}"


def check_problems(node: Node) -> Iterator[Finding]:
    """The problems that the daemon reports, with their fixes."""
    if isinstance(node.daemon, Status):
        for problem in diagnose.combine_devices(node.daemon):
            yield wrong(problem.message, problem.hint)


def check_start_at_boot(node: Node) -> Finding | None:
    """Is an installed service enabled?"""
    if not _has_unit(node) or node.root.target(_WANTED) is not None:
        return None
    return note("its service is not enabled", "systemctl enable nodeagent")
