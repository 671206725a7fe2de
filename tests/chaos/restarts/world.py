# SPDX-License-Identifier: Apache-2.0
"""The node of a run, the changes on it, and the devices that the kubelet must know afterwards.

Every device is alone in its IOMMU group, so it can be given exactly when it is on vfio-pci. What a pod holds
is left out of the comparison: it stays listed under the name by which it was given, whatever became of it.
So does, under another name, what a pod has let go of: a kubelet that is young proves no release.
Knows nothing of daemons or restarts.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox.harness import Node

KINDS = 6  # of devices, each a resource
EACH = 4
MOST_PODS = 8
SENSELESS = "resources: [{name: example.com/gpu-0, pci: 17}]\n"


class Broken(Exception):
    """Raised when an invariant does not hold; the text says which, and what was seen."""


class World:
    """A node with its hardware, its configuration and its pods; ``rng`` makes all choices."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.node = Node(root)
        self.rng = rng
        self.happened: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self._kinds: dict[str, int] = {}  # address → kind of device
        self._drivers: dict[str, str | None] = {}  # address → driver, of those that are there
        self._names = {kind: f"example.com/gpu-{kind}" for kind in range(KINDS)}
        self._pods: dict[str, Pod] = {}
        self._had: dict[str, str] = {}  # address → the name under which a pod that has ended was given it
        for number in range(KINDS * EACH):
            self._add(number)
        self.configure()

    def _add(self, number: int) -> None:
        address, kind = f"0000:{0x10 + number:02x}:00.0", number % KINDS
        self.node.add_gpu(address, number, device=f"1e{kind:02x}", numa=number % 2)
        self._kinds[address], self._drivers[address] = kind, "vfio-pci"

    def configure(self) -> None:
        """Write what is wanted now: a rule for each kind that has a name."""
        lines = [
            f'  - {{name: {name}, pci: [{{vendors: ["10de"], devices: ["1e{kind:02x}"]}}]}}'
            for kind, name in self._names.items()
        ]
        self.node.configure("discovery: {enabled: false}\nresources:\n" + "\n".join(lines) + "\n")

    def expected(self) -> dict[str, set[str]]:
        """Resource → ids that can be given if nobody has them."""
        wanted: dict[str, set[str]] = {name: set() for name in self._names.values()}
        for address, driver in self._drivers.items():
            name = self._name(address)
            if driver == "vfio-pci" and name is not None:
                wanted[name].add(address)
        return wanted

    def _name(self, address: str) -> str | None:
        return self._names.get(self._kinds[address])

    def _doubtful(self) -> set[str]:
        """What a pod has, or had under another name."""
        return {*self.held(), *(each for each, name in self._had.items() if name != self._name(each))}

    def all_is_known(self) -> None:
        """The kubelet has told long enough who holds what: nothing that was let go of is in doubt."""
        self._had = {}

    def held(self) -> dict[str, str]:
        """Id → the pod that was given it. :raises Broken: if two were."""
        owners: dict[str, str] = {}
        for pod in self._pods.values():
            for ids in pod.results["c0"].ids.values():
                for device in ids:
                    other = owners.setdefault(device, pod.key)
                    if other != pod.key:
                        raise Broken(f"{device} was given to {other} and to {pod.key}")
        return owners

    def missing(self, kubelet: FakeKubelet) -> list[str]:
        """What differs between what the kubelet was told and what it must have been told."""
        wanted, table, streams = self.expected(), kubelet.state.table, kubelet.statistics.streams
        doubtful = self._doubtful()
        found = [f"{name}: {streams.get(name, 0)} streams" for name in wanted if streams.get(name, 0) != 1]
        for name in sorted(wanted.keys() | table.healthy.keys()):
            given, due = table.healthy.get(name, set()) - doubtful, wanted.get(name, set()) - doubtful
            if given != due:
                found.append(f"{name}: {sorted(given)} for {sorted(due)}")
        return found

    def change_hardware(self) -> None:
        """One device goes, comes, or gets another driver, be it held or not."""
        host, well = (
            self.node.host,
            sorted(each for each, driver in self._drivers.items() if driver == "vfio-pci"),
        )
        ill = sorted(self._kinds.keys() - set(well))
        address = self.rng.choice(ill if ill and self.rng.random() < len(ill) / EACH else well)
        if address not in self._drivers:
            host.plug(address)
            host.bind(address, "vfio-pci")
            self._drivers[address] = "vfio-pci"
            self.happened["plugged"] += 1
        elif self.rng.random() < 0.4:
            host.unplug(address)
            del self._drivers[address]
            self.happened["unplugged"] += 1
        else:
            driver = self.rng.choice(["nvidia", None]) if self._drivers[address] == "vfio-pci" else "vfio-pci"
            host.bind(address, driver)
            self._drivers[address] = driver
            self.happened["bound anew"] += 1

    def change_configuration(self) -> None:
        """A resource gets another name, goes, comes back; or the file makes no sense and is mended soon."""
        if self.rng.random() < 0.2:
            self.node.configure(SENSELESS)
            self.happened["configured without sense"] += 1
            return
        kind = self.rng.randrange(KINDS)
        names = (f"example.com/gpu-{kind}", f"example.com/other-{kind}", None)
        name = self.rng.choice([each for each in names if each != self._names.get(kind)])
        self._names = {key: value for key, value in self._names.items() if key != kind}
        if name is not None:
            self._names[kind] = name
        self.configure()
        self.happened["configured"] += 1

    async def change_pods(self, kubelet: FakeKubelet) -> None:
        """A pod ends, or one comes. :raises Broken: if it was given what another has."""
        if self._pods and (len(self._pods) >= MOST_PODS or self.rng.random() < 0.3):
            self._end(kubelet, self.rng.choice(sorted(self._pods)))
            return
        doubtful = self._doubtful()
        free = sorted(name for name, ids in self.expected().items() if ids - doubtful)
        if not free:
            return
        name = self.rng.choice(free)
        number = self.happened["pods"]
        pod = await kubelet.admit(Pod("ns", f"pod{number}", [{name: self.rng.choice((1, 1, 2))}]))
        self.happened["pods"] += 1
        if pod.phase == "Running":
            self.given(pod)
            self.held()
        else:
            kubelet.delete(pod)
            self.refusals[pod.message] += 1

    def given(self, pod: Pod) -> None:
        """This pod has what its results say."""
        self._pods[pod.key] = pod

    def _end(self, kubelet: FakeKubelet, key: str) -> None:
        pod = self._pods.pop(key)
        self._had |= {each: name for name, ids in pod.results["c0"].ids.items() for each in ids}
        kubelet.delete(pod)

    def evict(self, kubelet: FakeKubelet) -> None:
        """All pods end."""
        for key in tuple(self._pods):
            self._end(kubelet, key)

    def all_well(self) -> None:
        """All devices are there and on vfio-pci, and all resources have their first names."""
        for address in self._kinds:
            if address not in self._drivers:
                self.node.host.plug(address)
            if self._drivers.get(address) != "vfio-pci":
                self.node.host.bind(address, "vfio-pci")
            self._drivers[address] = "vfio-pci"
        self._names = {kind: f"example.com/gpu-{kind}" for kind in range(KINDS)}
        self.configure()
