# SPDX-License-Identifier: Apache-2.0
"""A small model of a node: a kernel that counts opens, a kubelet that admits pods, and our usage core on top.

``python -m tests.agent.modelled 100000`` runs that many random sequences, with seeds from 0 on and in virtual
time, and stops at the first broken promise (R2 to R8 of docs/architecture.md); ``tests/agent/test_model.py``
runs a few of them.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import anyio

from nodeagent.agent.allocate import Allocator
from nodeagent.agent.cdi_files import CdiFiles
from nodeagent.agent.offering import Offering
from nodeagent.agent.releases import Releases
from nodeagent.agent.reservations import ReservationBook
from nodeagent.agent.snapshot import Snapshots
from nodeagent.agent.usage import Usage
from nodeagent.base.errors import AllocationRefused
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.root import Root
from nodeagent.model.allocation import ResourceDevice
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import PciAddress, ResourceName
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import Discovery, PciRule, PciSelector, Spec
from tests import virtual
from tests.agent.kubelets import Kubelet
from tests.agent.parts import settings
from tests.policy.samples import function, host

GPU, USB = ResourceName("example.com/gpu"), ResourceName("example.com/usb")
WISH = Spec(
    Discovery(enabled=False),
    (),
    (
        PciRule(GPU, (PciSelector(devices=("1eb8",)),)),
        PciRule(USB, (PciSelector(devices=("1ad8",)),)),
    ),
)
QUICK = Timeouts()._replace(
    former_holder_close=0.0,  # what is open is refused at once
    pod_resources_in_allocate=0.2,
    pod_resources_after_allocate=0.0,
    release_check_spacing=0.0,
    pod_resources_at_start=0.2,
    pod_resources_spacing=0.1,
    pod_resources_repeat=0.1,
    checkpoint_write=1.0,
    checkpoint_write_before_change=1.0,
    checkpoint_rewrite=0.0,  # else an entry may stay for 3 s
    checkpoint_poll=0.0,
)


BATCH = 500  # sequences of one event loop
MOMENT = 0.001  # seconds: no two events come at the same time


class Broken(AssertionError):
    """A promise was broken."""


@dataclass
class Pod:
    """A pod: what each container wants, whether it is a plain init container, and what the pod got."""

    name: str
    uid: str
    containers: tuple[tuple[bool, tuple[ResourceName, ...]], ...]
    got: dict[ResourceDevice, bool] = field(default_factory=dict)  # and whether PodResources lists it
    opened: set[str] = field(default_factory=set)

    @property
    def ids(self) -> set[str]:
        """The devices that it has."""
        return {each for _, each in self.got}


class Machine:
    """Kernel and kubelet. Boards: groups with one or two GPUs, with or without a USB function."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.functions: dict[str, PciFunction] = {}
        for number in range(dice.randint(1, 3)):
            gpus, usb = dice.randint(1, 2), dice.random() < 0.5
            for index in range(gpus + usb):
                address = f"0000:{20 + number}:00.{index}"
                device = "1eb8" if index < gpus else "1ad8"
                self.functions[address] = function(address, 20 + number, device=device)
        self.unplugged: set[str] = set()
        self.pods: dict[str, Pod] = {}
        self.dying: list[Pod] = []  # deleted by force: their containers live on
        self.kubelet = Kubelet()
        groups = {address: each.group for address, each in self.functions.items()}
        self.kubelet.groups = {
            each: frozenset({group}) for each, group in groups.items() if group is not None
        }
        self.lists: dict[ResourceName, dict[str, bool]] = {}  # as the kubelet has read them
        self.uncounted: set[ResourceDevice] = set()  # allocated, and free by the kubelet's count
        self._numbers = count(1)

    def seen(self) -> Host:
        """The host as a scan shows it."""
        opened = {each for pod in (*self.pods.values(), *self.dying) for each in pod.opened}
        there = (each for address, each in self.functions.items() if address not in self.unplugged)
        return host(*(each._replace(enable=int(each.id in opened), idle=0) for each in there))

    def group(self, device_id: str) -> int | None:
        """The IOMMU group of a device."""
        return self.functions[device_id].group

    def show(self) -> None:
        """What PodResources lists, and what the kubelet has in memory."""
        kubelet = self.kubelet
        kubelet.listed = {
            pod.name: {each for each, listed in pod.got.items() if listed} for pod in self.pods.values()
        }
        kubelet.entries = {(pod.uid, each) for pod in self.pods.values() for each in pod.got}

    def free(self, resource: ResourceName) -> list[str]:
        """The devices that the kubelet may allocate; ``uncounted`` ones only while it lists its pods."""
        taken = {each for pod in self.pods.values() for each in pod.got}
        taken -= set() if self.kubelet.silent else self.uncounted
        known = self.lists.get(resource, {})
        return [each for each, healthy in known.items() if healthy and (resource, each) not in taken]

    def new_pod(self) -> Pod:
        """One that wants something."""
        dice = self.dice
        wishes = [(GPU,), (USB,), (GPU, USB), (USB, GPU)]
        containers = [(dice.random() < 0.3, dice.choice(wishes)) for _ in range(dice.randint(1, 2))]
        containers.sort(key=lambda each: not each[0])  # plain init containers come first
        return Pod(f"ns/pod{next(self._numbers)}", f"uid{next(self._numbers)}", tuple(containers))

    def started(self, pod: Pod) -> None:
        """Its admission is over, and it opens some of what it has: all of one group, or nothing."""
        if self.dice.random() < 0.5:
            pod.opened = set(pod.ids)


class Daemon:
    """The usage core on a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.snapshots = Snapshots(Snapshot(machine.seen(), WISH))
        self.book = ReservationBook(self.snapshots, QUICK)
        common = settings()
        releases = Releases(common)
        self.offering = Offering(self.snapshots, releases, Timeouts())
        self.usage = Usage(machine.kubelet, self.snapshots, self.book, self, releases, common, QUICK)
        root, cdi = Root("/nonexistent"), CdiFiles("/nonexistent", self.snapshots, self.offering)
        self.allocator = Allocator(
            root, self.recheck, self.offering, self.usage, self.book, cdi, Latest(None), QUICK
        )

    async def recheck(self, ids: Sequence[str], functions: Sequence[PciAddress] = ()) -> None:
        """Read the host again."""
        self.scan()

    async def refresh(self, ids: Collection[str]) -> None:
        """Read the host again."""
        self.scan()

    def scan(self) -> None:
        """Publish the host as it is now."""
        seen = self.machine.seen()
        if seen != self.snapshots.now.host:
            self.snapshots.publish(replace(self.snapshots.now, host=seen))

    def listed(self, resource: ResourceName) -> dict[str, bool]:
        """The ids that the kubelet has of a resource, and whether they are Healthy."""
        self.offering.one_turn()
        found = self.offering.decision.resources.get(resource)
        return {} if found is None else {each.id: each.healthy for each in found.devices}


class Run:
    """One random sequence of events; checks the promises after each."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.machine = Machine(self.dice)
        self.daemon = Daemon(self.machine)
        self.events: list[str] = []
        self.slow = False  # the admission takes seconds: what the checkpoint has is known by its end
        self.at_once = False  # it takes milliseconds: no event is handled, no list is read

    async def run(self, steps: int) -> None:
        """Run it. :raises Broken: with the events so far."""
        await self.daemon.usage.first()
        actions = (
            self.admit,
            self.admit,
            self.admit_two_at_once,
            self.end,
            self.end_by_force,
            self.containers_end,
            self.restart_daemon,
            self.restart_kubelet,
            self.silence,
            self.ask,
            self.remove,
            self.unplug,
        )
        for _ in range(steps):
            action = self.dice.choice(actions)
            self.events.append(action.__name__)
            await anyio.sleep(MOMENT)
            await action()
            self.check()
        await self.rest()

    async def admit(self) -> None:
        """The kubelet admits one pod."""
        machine, pod = self.machine, self.machine.new_pod()
        self.slow = False
        machine.pods[pod.name] = pod
        machine.show()
        try:
            for init, wishes in pod.containers:
                got = [await self.allocate(pod, resource, init=init) for resource in wishes]
                machine.show()
                machine.kubelet.write()
                self.events.append(f"{pod.name}: {got}")
                if self.slow or not (self.at_once or self.dice.random() < 0.5):
                    await self.daemon.usage.request()  # inotify tells that the checkpoint has other entries
        except AllocationRefused as refusal:
            self.events.append(f"{pod.name} refused: {refusal.what}")
            del machine.pods[pod.name]
            machine.show()
            return
        machine.started(pod)

    async def admit_two_at_once(self) -> None:
        """The kubelet admits two pods within milliseconds."""
        self.machine.lists = {each: self.daemon.listed(each) for each in (GPU, USB)}
        self.at_once = True
        await self.admit()
        await self.admit()
        self.at_once = False

    async def allocate(self, pod: Pod, resource: ResourceName, *, init: bool) -> str:
        """One Allocate. :raises AllocationRefused: by us, or by the kubelet."""
        machine = self.machine
        again = [each for name, each in pod.got if name == resource and not pod.got[name, each]]
        if again:  # what a plain init container had is allocated again
            choice = [again[0]]
        else:
            self.read_list(resource)
            free = machine.free(resource)
            if not free:
                raise AllocationRefused(f"{resource}: none is free", "")
            choice = list(await self.daemon.allocator.prefer(resource, free, (), 1))
            if self.dice.random() < 0.3:
                choice = [self.dice.choice(free)]
        possession = resource, choice[0]
        await self.daemon.allocator.allocate(resource, choice)
        pod.got[possession] = not init
        machine.uncounted.clear()
        if not init and self.dice.random() < 0.3:  # nothing tells a second Allocate of an init container
            machine.uncounted.add(possession)
        machine.show()
        if choice[0] not in self.daemon.listed(resource):
            raise Broken(f"R8: {choice[0]} left the list in its Allocate")
        await anyio.sleep(MOMENT)
        await self.meanwhile()
        return choice[0]

    def read_list(self, resource: ResourceName) -> None:
        """The kubelet reads the last list, or has not come to it yet."""
        if resource not in self.machine.lists or not (self.at_once or self.dice.random() < 0.5):
            self.machine.lists[resource] = self.daemon.listed(resource)

    async def meanwhile(self) -> None:
        """What may come between two Allocates."""
        if self.at_once:
            return
        if self.dice.random() < 0.2:
            self.machine.kubelet.write()  # a list of another plugin
        if self.dice.random() < 0.3:
            self.slow = True
            await self.daemon.usage.request()

    async def end(self) -> None:
        """A pod ends, and its containers before it."""
        if self.machine.pods:
            self.machine.pods.pop(self.dice.choice(sorted(self.machine.pods)))
            self.machine.show()

    async def end_by_force(self) -> None:
        """A pod is deleted by force."""
        if self.machine.pods:
            pod = self.machine.pods.pop(self.dice.choice(sorted(self.machine.pods)))
            self.machine.dying.append(pod)
            self.machine.show()

    async def containers_end(self) -> None:
        """The containers of pods that were deleted by force end."""
        self.machine.dying.clear()

    async def restart_daemon(self) -> None:
        """Another daemon."""
        self.daemon = Daemon(self.machine)
        await self.daemon.usage.first()

    async def restart_kubelet(self) -> None:
        """Another kubelet, which names its pods a moment later; its memory is what was written."""
        machine = self.machine
        machine.kubelet.write()
        machine.kubelet.listed = {}
        self.daemon.usage.kubelet_changed()
        await self.daemon.usage.request()
        self.check()
        machine.show()

    async def silence(self) -> None:
        """PodResources does not answer, or answers again."""
        self.machine.kubelet.silent = not self.machine.kubelet.silent

    async def ask(self) -> None:
        """The component asks."""
        await self.daemon.usage.request()

    async def remove(self) -> None:
        """Something is to be taken away: withdrawn, asked for, looked at, written (R7)."""
        machine, daemon = self.machine, self.daemon
        device_id = self.dice.choice(sorted(machine.functions))
        if not daemon.book.withdraw({device_id}, {device_id}):
            return
        await daemon.usage.request_before_change()
        daemon.scan()
        now = daemon.snapshots.now
        known = now.host.functions.get(self.machine.functions[device_id].address)
        held = now.holder(device_id) is not None or now.allocations.knowledge.value == "silent"
        if not held and known is not None and not known.enable:
            for pod in machine.pods.values():
                if device_id in pod.ids:
                    raise Broken(f"R7: {device_id} of {pod.name} is taken away")
        daemon.book.restore({device_id}, {device_id})

    async def unplug(self) -> None:
        """A device leaves the host, or comes back; the kernel keeps one that is open.

        The last one of a group stays: with it the group is gone, and its number is another group's.
        """
        machine = self.machine
        opened = {each for pod in (*machine.pods.values(), *machine.dying) for each in pod.opened}
        device_id = self.dice.choice(sorted(machine.functions))
        there = [each for each in machine.functions if each not in machine.unplugged]
        last = [machine.group(each) for each in there].count(machine.group(device_id)) == 1
        if device_id in machine.unplugged or not (last or device_id in opened):
            machine.unplugged ^= {device_id}
        self.daemon.scan()

    def check(self) -> None:
        """No two pods have parts of one group (R4), no pod what was open (R3); all is listed (R8)."""
        machine = self.machine
        owners: dict[int | None, str] = {}
        for pod in machine.pods.values():
            for resource, each in pod.got:
                if owners.setdefault(machine.group(each), pod.name) != pod.name:
                    raise Broken(f"R4: {owners[machine.group(each)]} and {pod.name} have parts of one group")
                if each not in self.daemon.listed(resource):
                    raise Broken(f"R8: {each} of {pod.name} is not listed")
        opened = {machine.group(each): pod for pod in machine.dying for each in pod.opened}
        for pod in machine.pods.values():
            for each in pod.opened:
                if machine.group(each) in opened and each not in machine.unplugged:
                    raise Broken(f"R3: {each} of {pod.name} was open")

    async def rest(self) -> None:
        """At rest (R2, R5, R6) what is in use keeps its group Unhealthy, and all the rest is Healthy."""
        machine, daemon = self.machine, self.daemon
        machine.kubelet.silent = False
        machine.dying.clear()
        machine.unplugged.clear()
        machine.pods["ns/last"] = Pod("ns/last", "last", ())  # no earlier pod is under admission any more
        machine.show()
        for _ in range(3):
            await daemon.usage.request()
        daemon.scan()
        held = {machine.group(each): pod for pod in machine.pods.values() for each in pod.ids}
        for resource in (GPU, USB):
            for each, healthy in daemon.listed(resource).items():
                pod = held.get(machine.group(each))
                beside = pod is not None and (resource, each) not in pod.got
                if healthy is beside:
                    raise Broken(f"R2, R6: at rest {each} is {'Healthy' if healthy else 'Unhealthy'}")


async def sequences(seeds: Iterable[int], steps: int = 25) -> int:
    """How many were run. :raises Broken: with the seed."""
    total = 0
    for seed in seeds:
        run = Run(seed)
        try:
            await run.run(steps)
        except Broken as broken:
            raise Broken(f"seed {seed}: {broken}\n" + "\n".join(run.events)) from broken
        total += 1
    return total


def main(total: int, first: int = 0) -> int:
    """How many were run. :raises Broken: with the seed."""
    done = 0
    for begin in range(first, first + total, BATCH):
        with asyncio.Runner(loop_factory=virtual.new_event_loop) as runner:
            done += runner.run(sequences(range(begin, min(begin + BATCH, first + total))))
    return done


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    print(main(*map(int, sys.argv[1:])), "sequences")
