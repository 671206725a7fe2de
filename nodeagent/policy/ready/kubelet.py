# SPDX-License-Identifier: Apache-2.0
"""Readiness of what is around the daemon: the kubelet's two sockets, KubeVirt as this node shows it. Pure.

The directory of device plugins is the same for every kubelet; PodResources is below its ``--root-dir``. What
virt-handler serves by itself tells that it runs here, and every virtual machine asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.model.readiness import ReadinessLine
from nodeagent.model.surroundings import KubeletSight, Platform
from nodeagent.policy.ready.lines import Evidence, Section

_HERE, _KUBEVIRT = Section("kubelet"), Section("KubeVirt")
_PLUGINS, _PODS, _HANDLER = "device plugins", "PodResources", "virt-handler"
_START = "see why: systemctl status kubelet (or k3s, rke2-agent, k0sworker, snap.microk8s.daemon-kubelite)"
_AS_ROOT = "ask again as root"
_NESTED = "this is a virtual machine: have its hypervisor give it nested virtualization"
_MODULES = {"/dev/net/tun": "tun", "/dev/vhost-net": "vhost_net"}


def lines(evidence: Evidence) -> Iterator[ReadinessLine]:
    """Whether devices can be offered, and who has them."""
    kubelet = evidence.around.kubelet
    if isinstance(kubelet, str):
        yield _HERE.unseen(_PLUGINS, kubelet)
        yield _HERE.unseen(_PODS, kubelet)
        return
    yield _plugins(kubelet)
    yield _pod_resources(kubelet)


def _plugins(kubelet: KubeletSight) -> ReadinessLine:
    socket = f"{kubelet.plugins}/kubelet.sock"
    if kubelet.served:
        return _HERE.ok(_PLUGINS, f"somebody listens at {socket}")
    if not kubelet.plugins_there:
        return _HERE.wrong(_PLUGINS, f"no kubelet has been here: no {kubelet.plugins}", _START)
    if kubelet.served is None:
        return _HERE.unseen(_PLUGINS, f"only root may ask at {socket}", _AS_ROOT)
    return _HERE.wrong(_PLUGINS, f"nobody listens at {socket}", _START)


def _pod_resources(kubelet: KubeletSight) -> ReadinessLine:
    if not kubelet.answer:
        pods = "1 pod" if kubelet.pods == 1 else f"{kubelet.pods} pods"
        return _HERE.ok(_PODS, f"answers with {pods} at {kubelet.pod_resources}")
    if kubelet.elsewhere:
        seen = f"{kubelet.answer}; there is one at {kubelet.elsewhere}"
        return _HERE.wrong(_PODS, seen, f"set kubelet.podResources: {kubelet.elsewhere}")
    if not kubelet.permitted:
        return _HERE.unseen(_PODS, f"only root may ask at {kubelet.pod_resources}", _AS_ROOT)
    return _HERE.wrong(_PODS, kubelet.answer, _START)


def kubevirt(evidence: Evidence) -> Iterator[ReadinessLine]:
    """What virtual machines need of the node besides devices."""
    platform, kubelet = evidence.around.platform, evidence.around.kubelet
    yield _kvm(platform)
    yield from (_network(path, module, platform) for path, module in _MODULES.items())
    if isinstance(kubelet, str):
        yield _KUBEVIRT.unseen(_HANDLER, kubelet)
    elif kubelet.virt_handler:
        yield _KUBEVIRT.ok(_HANDLER, f"its sockets are in {kubelet.plugins}")
    else:
        yield _KUBEVIRT.note(_HANDLER, f"none of its sockets is in {kubelet.plugins}: it does not run here")


def _looked_for(path: str, platform: Platform | str) -> ReadinessLine | None:
    """The line of a device node that is there, or that nobody can tell of; None if it is not there."""
    if isinstance(platform, str):
        return _KUBEVIRT.unseen(path, platform)
    if platform.nodes is None:
        return _KUBEVIRT.unseen(path, "neither it nor /sys/class/misc can be seen")
    return _KUBEVIRT.ok(path, "there") if path in platform.nodes else None


def _network(path: str, module: str, platform: Platform | str) -> ReadinessLine:
    missing = _KUBEVIRT.note(path, "not there", f"for the network of machines: modprobe {module}")
    return _looked_for(path, platform) or missing


def _kvm(platform: Platform | str) -> ReadinessLine:
    check = "/dev/kvm"
    told = _looked_for(check, platform)
    if told is not None or isinstance(platform, str):
        return told or _KUBEVIRT.unseen(check, str(platform))
    flags = platform.cpu_flags
    if flags is None:
        return _KUBEVIRT.wrong(check, "not there", "see why: dmesg | grep -i kvm")
    if flags.isdisjoint({"vmx", "svm"}):
        seen = "not there: neither vmx nor svm in /proc/cpuinfo"
        on = "switch VT-x (Intel) or SVM (AMD) on in the firmware's setup"
        return _KUBEVIRT.wrong(check, seen, _NESTED if "hypervisor" in flags else on)
    module = "kvm_intel" if "vmx" in flags else "kvm_amd"
    return _KUBEVIRT.wrong(check, "not there", f"load it with: modprobe {module}")
