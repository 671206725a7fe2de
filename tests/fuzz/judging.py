# SPDX-License-Identifier: Apache-2.0
"""What is asked of all that is decided from an input that was believed: it can be decided, and shown."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from nodeagent.base.errors import NodeagentError
from nodeagent.cli import explain as explaining
from nodeagent.cli import plan as planning
from nodeagent.cli import scan as scanning
from nodeagent.config import loading
from nodeagent.kernel.root import Root
from nodeagent.model import host_json
from nodeagent.model.host import Host
from nodeagent.model.snapshot import Names, Snapshot
from nodeagent.model.spec import Spec
from nodeagent.policy import merge
from nodeagent.policy.change import plan
from nodeagent.policy.explain import devices, groups
from nodeagent.policy.offer import turn
from nodeagent.sim import nodes
from nodeagent.sim.kubelet.plugins import is_extended_resource_name
from tests.looking import Looks

_WISHES = """
resources:
  - {name: example.com/board, pci: [{vendors: ["10de"], devices: ["1f08"]}], isolation: bundle}
  - {name: example.com/kvm, node: {path: /dev/kvm, count: 3}}
  - {name: example.com/vgpu, mdev: [{types: [nvidia-222]}]}
mdevs: {manage: true, types: [nvidia-222, {type: nvidia-223, count: 1}]}
"""


@cache
def demo_host() -> Host:
    """The host of the demo's node, as the daemon sees it."""
    with TemporaryDirectory(prefix="nodeagent-fuzz-") as directory:
        nodes.demo_node(directory)
        return Looks(Root(directory)).full(nodes=("/dev/kvm",))


@cache
def wishes() -> Spec:
    """Rules, aliases and wishes for vGPUs, beside discovery."""
    with TemporaryDirectory(prefix="nodeagent-fuzz-") as directory:
        path = Path(directory, "config.yaml")
        path.write_text(_WISHES)
        return merge.merge(loading.check_file(str(path)).configuration)


def two_lines(error: NodeagentError) -> None:
    """An error for people says what happened and what to do, each on one line."""
    assert error.what.strip(), "it does not say what happened"
    assert error.hint.strip(), f"it does not say what to do: {error.what!r}"
    for line in (error.what, error.hint):
        assert "\n" not in line and len(line) < 2000, f"no line for people: {line[:200]!r}"


def decided(host: Host, spec: Spec | None = None, names: Names | None = None) -> None:
    """A host can be decided on, shown, saved and read again; no two Devices of a Resource have one id."""
    wanted = spec if spec is not None else wishes()
    snapshot = Snapshot(host, wanted, names if names is not None else {})
    decision = turn.decide_first(snapshot)
    for name, resource in decision.resources.items():
        assert is_extended_resource_name(name), f"the kubelet refuses {name!r}"
        ids = Counter(device.id for device in resource.devices)
        assert max(ids.values(), default=1) == 1, f"{name} has one id twice"
        for device in resource.devices:
            assert device.id.isascii() and 0 < len(device.id) <= 63, f"no id: {device.id!r}"
    scanning.text(host, tuple(devices.rows(decision)), wide=True)
    groups.overview(decision)
    for device_id in (*host.functions, *host.mdevs):
        told = devices.explain(device_id, decision)
        if told is not None:
            explaining.text(told)
    planning.text(plan.plan(snapshot), managed=True)
    assert host_json.load(json.loads(json.dumps(host_json.dump(host)))) == host, "it is read as another"
