# SPDX-License-Identifier: Apache-2.0
"""Checks the kubelet's two sockets, and what KubeVirt needs on the node besides devices.

Every kubelet has the same directory of device plugins; PodResources is below the kubelet's ``--root-dir``.
"""

from __future__ import annotations

import os
from pathlib import Path

import anyio

from nodeagent.base import sockets
from nodeagent.base.errors import KubeletUnavailable
from nodeagent.check.findings import AS_ROOT, Finding, Node, note, ok, unseen, wrong
from nodeagent.kernel.prerequisites import cpu_flags
from nodeagent.kernel.root import Root
from nodeagent.kubelet.pod_resources import PodReader, VirtHandler
from nodeagent.policy import diagnose

_KUBELETS = (  # root directories of kubelets of other distributions: see docs/getting-started.md
    "/var/lib/kubelet",
    "/var/lib/k0s/kubelet",
    "/var/snap/microk8s/common/var/lib/kubelet",
)
_NESTED = "this node is a virtual machine: enable nested virtualization in its hypervisor"
_MISC = "/sys/class/misc"


def check_device_plugins(node: Node) -> Finding:
    """Does the kubelet listen for device plugins?"""
    socket = f"{node.plugin_dir}/kubelet.sock"
    if sockets.is_served(node.root.path(socket)):
        return ok(f"the kubelet listens at {socket}")
    if not _may_be_directory(node.root.path(node.plugin_dir)):
        return wrong(f"no kubelet was ever started here: no {node.plugin_dir}", diagnose.START_KUBELET)
    if not _may_ask(node.root.path(socket)):
        return unseen(f"only root may connect to {socket}", AS_ROOT)
    return wrong(f"no listener on {socket}", diagnose.START_KUBELET)


def _may_be_directory(path: str) -> bool:
    """Return True if the path is a directory, or if this user has no permission to check that."""
    try:
        return Path(path).is_dir()
    except PermissionError:
        return True


def _may_ask(path: str) -> bool:
    """Return False if this user has no permission to see the socket or to connect to it."""
    try:
        os.stat(path)  # noqa: PTH116 - an error is the answer
    except PermissionError:
        return False
    except OSError:
        return True
    return os.access(path, os.W_OK)


def check_pod_resources(node: Node) -> Finding:
    """Does the PodResources API answer?"""
    try:
        count = anyio.run(_count_pods, node)  # this thread has no event loop
    except KubeletUnavailable as error:
        seen = node.root.host_path(error.what)
    else:
        return ok(f"answers with {count} pod{'' if count == 1 else 's'} at {node.pod_resources}")
    if elsewhere := _find_other_kubelet(node):
        return wrong(
            f"{seen}; a kubelet socket exists at {elsewhere}", f"set kubelet.podResources: {elsewhere}"
        )
    if not _may_ask(node.root.path(node.pod_resources)):
        return unseen(f"only root may connect to {node.pod_resources}", AS_ROOT)
    return wrong(seen, diagnose.START_KUBELET)


async def _count_pods(node: Node) -> int:
    directory, path = node.root.path(node.plugin_dir), node.root.path(node.pod_resources)
    reader = PodReader(path, VirtHandler(directory), node.timeouts.pod_resources_rpc)
    try:
        return len((await reader.pods()).pods)
    finally:
        reader.close()


def _find_other_kubelet(node: Node) -> str:
    """Return the PodResources socket of a kubelet with another root directory; "" if there is none."""
    if node.root.exists(node.pod_resources):
        return ""
    paths = (f"{directory}/pod-resources/kubelet.sock" for directory in _KUBELETS)
    return next((path for path in paths if node.root.exists(path)), "")


def check_kvm(node: Node) -> Finding:
    """Can this node run VMs with hardware virtualization?"""
    if (found := _find_node("/dev/kvm", "kvm", node.root)) is not None:
        return found
    flags = cpu_flags(node.root)
    if flags is None:
        return wrong("not there", "see why: dmesg | grep -i kvm")
    if flags.isdisjoint({"vmx", "svm"}):
        on = "enable VT-x (Intel) or SVM (AMD) in the firmware's setup"
        seen = "not there: neither vmx nor svm in /proc/cpuinfo"
        return wrong(seen, _NESTED if "hypervisor" in flags else on)
    module = "kvm_intel" if "vmx" in flags else "kvm_amd"
    return wrong("not there", f"load it with: modprobe {module}")


def check_tun(node: Node) -> Finding:
    """Does /dev/net/tun exist? Networks of VMs need /dev/net/tun."""
    missing = note("not there", "for the network of VMs: modprobe tun")
    return _find_node("/dev/net/tun", "tun", node.root) or missing


def check_vhost_net(node: Node) -> Finding:
    """Does /dev/vhost-net exist? Fast networks of VMs need /dev/vhost-net."""
    missing = note("not there", "for the network of VMs: modprobe vhost_net")
    return _find_node("/dev/vhost-net", "vhost-net", node.root) or missing


def _find_node(path: str, misc: str, root: Root) -> Finding | None:
    """Return a finding if a device node exists or cannot be seen; None if it does not exist.

    A container sees /sys/class/misc, even if its /dev lacks the node.
    """
    if root.exists(path) or root.exists(f"{_MISC}/{misc}"):
        return ok("there")
    return None if root.names(_MISC) else unseen(f"neither {path} nor {_MISC} can be seen")


def check_virt_handler(node: Node) -> Finding:
    """Does virt-handler run here? virt-handler advertises /dev/kvm on each of its nodes."""
    if node.root.exists(f"{node.plugin_dir}/kubevirt-kvm.sock"):
        return ok(f"its sockets are in {node.plugin_dir}")
    return note(f"none of its sockets is in {node.plugin_dir}: it does not run here")
