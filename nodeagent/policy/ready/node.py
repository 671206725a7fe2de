# SPDX-License-Identifier: Apache-2.0
"""Readiness of the program itself: what it may do, limits, versions, whether a daemon answers. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodeagent.model.desired import UsbRule
from nodeagent.model.readiness import ReadinessLine
from nodeagent.model.surroundings import DaemonSight, Platform, Standing
from nodeagent.policy.offer.nodes import CONTAINER_NODE
from nodeagent.policy.ready.lines import Evidence, Section

_MAY, _LIMITS, _VERSIONS, _DAEMON = map(Section, ("permissions", "limits", "versions", "daemon"))
_AS_ROOT = "ask again as root"
_FEW = 128  # the kernel's own limit of instances: root's programs on a node share it
_OLDEST = (6, 1)  # the oldest kernel that this was tried on
_VERSION = re.compile(r"(\d+)\.(\d+)")
_UNIT = (
    "systemctl edit nodeagent: CapabilityBoundingSet=CAP_CHOWN and SystemCallFilter=@chown in [Service]; "
    "then restart it"
)
_POD = "in a pod: usb: true in the chart's values, or the manifests' component usb"
_MORE = "sysctl fs.inotify.max_user_instances=8192, and a file in /etc/sysctl.d that says so"


def permissions(evidence: Evidence) -> Iterator[ReadinessLine]:
    """What who asks may do; the daemon needs the same."""
    standing = evidence.around.standing
    if isinstance(standing, str):
        yield _MAY.unseen("user", standing)
    else:
        yield from _process(standing)
    yield _nodes(evidence)
    if any(isinstance(rule, UsbRule) for rule in evidence.desired.rules):
        yield _owners(standing, evidence.around.daemon)


def _process(standing: Standing) -> Iterator[ReadinessLine]:
    if not standing.root:
        yield _MAY.unseen("user", "not root: what only root may read was not looked at", _AS_ROOT)
        return
    yield _MAY.ok("user", "root")
    if standing.missing_capabilities:
        missing = " and ".join(standing.missing_capabilities)
        seen = f"no {missing}: who has an mdev open cannot be seen, so none is removed"
        yield _MAY.note("capabilities", seen, "give them to the pod or the service that makes mdevs")
    if standing.whole_users is False:
        seen = "not the machine's own (/proc/self/uid_map): no event of the kernel arrives"
        yield _MAY.note(
            "user namespace", seen, "in a pod: leave hostUsers at true; else changes are polled for"
        )
    if standing.read_only:
        seen = f"on a read-only file system: {', '.join(standing.read_only)}"
        yield _MAY.wrong("directories", seen, "mount them so that they can be written to")
    else:
        yield _MAY.ok("directories", "/run/nodeagent and the kubelet's can be written to")


def _nodes(evidence: Evidence) -> ReadinessLine:
    if CONTAINER_NODE in evidence.host.nodes:
        return _MAY.ok("/dev/vfio", f"there: {CONTAINER_NODE}")
    if not evidence.host.vfio_loaded:
        return _MAY.unseen("/dev/vfio", "it comes with vfio-pci")
    to_do = "look for udev or container mounts that hide /dev/vfio"
    return _MAY.wrong("/dev/vfio", f"no {CONTAINER_NODE}, though vfio-pci is loaded", to_do)


def _owners(standing: Standing | str, daemon: DaemonSight | str) -> ReadinessLine:
    """Nodes of USB devices become QEMU's by the daemon; root's shell may more than its service."""
    check = "USB nodes"
    unit = not isinstance(daemon, str) and daemon.unit
    if not isinstance(daemon, str) and daemon.owners is not None:
        who, may = "the daemon", daemon.owners
    elif not isinstance(standing, str) and standing.root and not standing.owners:
        who, may = "this process", False
    else:
        return _MAY.unseen(check, "no daemon tells whether it may change their owner")
    if may:
        return _MAY.ok(check, f"{who} may change their owner")
    return _MAY.wrong(check, f"{who} has no CAP_CHOWN: no USB device can be given", _UNIT if unit else _POD)


def limits(evidence: Evidence) -> Iterator[ReadinessLine]:
    """inotify, and open files of the daemon."""
    platform, standing, daemon = evidence.around.platform, evidence.around.standing, evidence.around.daemon
    yield _inotify(platform, standing)
    if isinstance(daemon, str) or not daemon.most_files:
        why = daemon if isinstance(daemon, str) else "no daemon tells of them"
        yield _LIMITS.unseen("open files", why)
        return
    seen = f"the daemon has {daemon.open_files} of at most {daemon.most_files}"
    if daemon.open_files * 2 > daemon.most_files:
        yield _LIMITS.note("open files", seen, "raise LimitNOFILE of the service (systemctl edit nodeagent)")
    else:
        yield _LIMITS.ok("open files", seen)


def _inotify(platform: Platform | str, standing: Standing | str) -> ReadinessLine:
    check = "inotify"
    if not isinstance(standing, str) and standing.inotify is not None:
        return _LIMITS.wrong(check, f"the kernel gives no instance: {standing.inotify}", _MORE)
    if isinstance(platform, str):
        return _LIMITS.unseen(check, platform)
    instances = platform.inotify_instances
    if instances is None:
        return _LIMITS.unseen(check, "/proc/sys/fs/inotify cannot be seen")
    seen = f"{instances} instances and {platform.inotify_watches or 0} watches for each user"
    if not instances:
        return _LIMITS.wrong(check, seen, _MORE)
    if instances <= _FEW:
        return _LIMITS.note(check, f"{seen}; all of root's programs share them", _MORE)
    return _LIMITS.ok(check, seen)


def versions(evidence: Evidence) -> Iterator[ReadinessLine]:
    """Of the kernel, the kubelet, this program and its names."""
    release, around = evidence.host.release, evidence.around
    found = _VERSION.match(release or "")
    if release is None:
        yield _VERSIONS.unseen("kernel", "/proc/sys/kernel/osrelease cannot be seen")
    elif found is not None and (int(found[1]), int(found[2])) < _OLDEST:
        yield _VERSIONS.note("kernel", f"{release}: older than 6.1, the oldest that was tried")
    else:
        yield _VERSIONS.ok("kernel", release)
    yield _VERSIONS.unseen("kubelet", "its sockets do not tell", "kubectl get node -o wide")
    yield _VERSIONS.ok("this program", f"{around.version}, pci.ids of {around.pci_ids or 'no known date'}")


def daemon(evidence: Evidence) -> Iterator[ReadinessLine]:
    """Whether one serves this node, and will after a reboot."""
    seen = evidence.around.daemon
    if isinstance(seen, str):
        yield _DAEMON.unseen("nodeagent", seen)
        return
    yield from _answers(seen, evidence.around.version)
    if seen.unit and not seen.enabled:
        yield _DAEMON.note("at boot", "its service is not enabled", "systemctl enable nodeagent")


def _answers(seen: DaemonSight, own: str) -> Iterator[ReadinessLine]:
    check = "nodeagent"
    if not seen.permitted:
        yield _DAEMON.unseen(check, seen.answer, _AS_ROOT)
    elif seen.answer and seen.unit:
        yield _DAEMON.wrong(check, seen.answer, "systemctl start nodeagent; see journalctl -u nodeagent")
    elif seen.answer:
        yield _DAEMON.note(check, f"{seen.answer}, and there is no service of it")
    elif seen.version != own:
        to_do = "restart the daemon once an upgrade is through: systemctl restart nodeagent"
        yield _DAEMON.note(check, f"answers; it is version {seen.version}, this command {own}", to_do)
    else:
        yield _DAEMON.ok(check, f"answers, version {seen.version}")
    if seen.problems:
        count = "1 problem" if seen.problems == 1 else f"{seen.problems} problems"
        yield _DAEMON.wrong("problems", f"{count} in its status", "nodeagent status says what to do")
