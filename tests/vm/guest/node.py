# SPDX-License-Identifier: Apache-2.0
"""The guest as a node: its devices, the fake kubelet, the daemon, and the waits of the scenarios.

The daemon runs on the real root. ``HOST`` and ``POD`` switch its slow timer off (an hour), so that what the
kubelet learns within seconds it learns from events; ``POLL`` has a timer of one second, for what the kernel
tells nobody. ``POD`` is a network namespace and a sysfs mount of its own, without CAP_NET_ADMIN; ``USERS``
is a user namespace of its own, where the kernel sends no uevent at all.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anyio
import anyio.to_thread

from nodeagent.base import sockets
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import DeviceList
from tests.vm.guest import mdev, pci
from tests.vm.guest.monitor import Monitor

PATIENCE = 20.0  # seconds until a wait fails; the machine may be slow
PROMISED = 1.0  # seconds from a change to the list at the kubelet
MDEV_TYPES = {"single": "mtty-1", "dual": "mtty-2", "xga": "mdpy-xga", "hd": "mdpy-hd"}
USB_VENDORS = {"stick": "46f4", "keys": "0627"}
_RESOURCES = 6 + len(MDEV_TYPES) + len(USB_VENDORS)  # in the configuration below
_CONFIGURATION = Path("/etc/nodeagent/config.yaml")
_TOLD = 12  # of the lists and log lines that a failed test shows
LOOK = 0.02  # seconds between two looks at what gives no event

HEALTHY, UNHEALTHY, ABSENT = "Healthy", "Unhealthy", None

_AS_POD = 'mount -t sysfs sysfs /sys && exec setpriv --inh-caps=-net_admin --bounding-set=-net_admin "$@"'


class Mode(Enum):
    """How the daemon is started: the words before its command, and its slow timer."""

    HOST = ((), "3600s")
    POD = (("unshare", "-n", "-m", "sh", "-c", _AS_POD, "sh"), "3600s")
    POLL = ((), "1s")
    USERS = (("unshare", "--user", "--map-root-user", "--net"), "1s")


class Node:
    """One node for all scenarios."""

    def __init__(self, kubelet: FakeKubelet, monitor: Monitor, log: Path) -> None:
        self.kubelet = kubelet
        self.monitor = monitor
        self.mode: Mode | None = None
        self.alone = pci.below(0x10)[0]
        self.plugged = pci.below(0x11)[0]
        self.physical = pci.below(0x14)[0]
        self.below_port = pci.below(0x15)[0]
        self.faulty = pci.below(0x16)[0]
        self.leaving = pci.below(0x17)[0]
        self.first, self.second, self.third = pci.below(0x18)
        self.disk, self.beside_disk = pci.below(0x19)
        self._log = log
        self._daemon: subprocess.Popen[bytes] | None = None

    @property
    def offered(self) -> tuple[str, ...]:
        """What is on vfio-pci at the start of each scenario."""
        trio = (self.first, self.second, self.third)
        return (self.alone, self.plugged, self.below_port, self.faulty, *trio)

    def configure(
        self,
        types: Sequence[str] | None = None,
        vfs: Mapping[str, int] = MappingProxyType({}),
        passthrough: Sequence[str] = (),
    ) -> bool:
        """Write the configuration (JSON is YAML); False if it is the same as before.

        ``types``: the mdevs to make; None leaves them alone. ``vfs``: PF → how many VFs it is to have.
        ``passthrough``: the functions that are to be bound, with their groups.
        """
        selectors: dict[str, dict[str, list[str]]] = {
            "pair": {"addresses": [self.first, self.second]},
            "hot": {"addresses": [self.plugged]},
            "nic": {"devices": ["10d3"]},
            "test": {"devices": ["0005"], "vendors": ["1b36"]},
            "net": {"addresses": [self.faulty]},
            "disk": {"devices": ["0010"], "drivers": [pci.VFIO]},
        }
        resources = [
            *({"name": f"example.com/{key}", "pci": [pick]} for key, pick in selectors.items()),
            *(
                {"name": f"example.com/{key}", "mdev": [{"types": [kind]}]}
                for key, kind in MDEV_TYPES.items()
            ),
            *(
                {"name": f"example.com/{key}", "usb": [{"vendors": [vendor]}]}
                for key, vendor in USB_VENDORS.items()
            ),
        ]
        settings = {
            "apiVersion": "nodeagent/v1",
            "discovery": {"enabled": False},
            "resources": resources,
            "mdevs": {"manage": types is not None, "types": list(types or ())},
            "sriov": [{"match": [{"addresses": [pf]}], "numVFs": count} for pf, count in vfs.items()],
            "passthrough": [{"match": [{"addresses": [each]}]} for each in passthrough],
            "timing": {"settle": "300ms", "holders": "200ms"},
            "log": {"format": "json"},
        }
        return _renew(_CONFIGURATION, json.dumps(settings))

    async def wish(
        self,
        types: Sequence[str] | None,
        vfs: Mapping[str, int] = MappingProxyType({}),
        passthrough: Sequence[str] = (),
    ) -> None:
        """Have these wanted from now on, and nothing else; returns when the daemon says that it knows."""
        before = self.logged("config-reloaded")
        if await anyio.to_thread.run_sync(self.configure, types, vfs, passthrough):
            wanted = f"{types} {vfs} {passthrough}"
            await until(lambda: self.logged("config-reloaded") > before, f"{wanted} are in force")

    async def run_daemon(self, mode: Mode) -> None:
        """Have the daemon run in that mode; returns when its lists are at the kubelet.

        One that is started finds everything where a scenario starts, also after one that failed.
        """
        if self.mode is mode and self._daemon is not None and self._daemon.poll() is None:
            return
        await self.stop_daemon()
        self.configure()
        await self._mend()
        await self.start_daemon(mode)

    async def start_daemon(self, mode: Mode) -> None:
        """One that finds all as it is; returns when its lists are at the kubelet."""
        prefix, resync = mode.value
        command = [*prefix, sys.executable, "-m", "nodeagent", "run", "--timing-resync", resync]
        registered = len(self.kubelet.statistics.registrations)
        self._daemon = self._start(command)
        await until(lambda: self._registrations_since(registered) >= _RESOURCES, "registered", 60.0)
        self.mode = mode

    def _registrations_since(self, before: int) -> int:
        assert self._daemon is not None
        assert self._daemon.poll() is None, "the daemon has ended: see its log"
        return len(self.kubelet.statistics.registrations) - before

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as output:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    async def stop_daemon(self) -> None:
        """End it, if it runs."""
        if self._daemon is not None:
            self._daemon.send_signal(signal.SIGTERM)
            await anyio.to_thread.run_sync(self._daemon.wait, 30)
        self._daemon = self.mode = None

    async def kill_daemon(self) -> None:
        """End it by SIGKILL; returns when its process is gone. :raises TimeoutExpired: if that takes long."""
        assert self._daemon is not None
        self._daemon.kill()
        await anyio.to_thread.run_sync(self._daemon.wait, PATIENCE)
        self._daemon = self.mode = None

    def pause_daemon(self, paused: bool) -> None:
        """Stop it where it stands, or let it go on."""
        assert self._daemon is not None
        self._daemon.send_signal(signal.SIGSTOP if paused else signal.SIGCONT)

    async def reset(self) -> None:
        """Bring everything back to where a scenario starts, and wait for the kubelet to see it."""
        for pod in tuple(self.kubelet.state.pods.values()):
            self.kubelet.delete(pod)
        await self.wish(None)
        await self._mend()
        for address in self.offered:
            await self.until(address, HEALTHY)

    async def _mend(self) -> None:
        await anyio.to_thread.run_sync(self._take_away)
        if not pci.exists(self.plugged):
            await self.plug()
        if not self._complete():
            await anyio.to_thread.run_sync(pci.rescan)
            await until(self._complete, "all devices are there")
        for address in self.offered:
            await anyio.to_thread.run_sync(pci.bind, address, pci.VFIO)

    def _take_away(self) -> None:
        """What a scenario has made."""
        mdev.unload_all()
        virtual = pci.path(self.physical, "sriov_numvfs")
        if virtual.read_text().strip() != "0":
            virtual.write_text("0")

    def _complete(self) -> bool:
        return all(map(pci.exists, self.offered))

    async def plug(self) -> None:
        """Plug the card in that scenarios unplug; QEMU refuses it if it is there already."""
        await self.ask_monitor("device_add e1000e,id=plugged,bus=rp11")

    def health(self, address: str) -> str | None:
        """What the kubelet was told last of a device; None: it is not listed."""
        found = (lists[-1].health.get(address) for lists in self.kubelet.statistics.lists.values() if lists)
        return next((health for health in found if health is not None), None)

    async def until(self, address: str, wanted: str | None, seconds: float = PATIENCE) -> None:
        """Wait until the kubelet was told so of a device. Raises AssertionError."""
        try:
            await self.kubelet.until(lambda: self.health(address) == wanted, seconds)
        except TimeoutError:
            seen = await self.seen_of(address)
            raise AssertionError(f"{address} is {self.health(address)}, not {wanted}\n{seen}") from None

    async def promised(self, address: str, wanted: str | None, since: float) -> None:
        """Wait for it, and check that it came within the promised second."""
        await self.until(address, wanted)
        took = self._known_since(address, wanted) - since
        print(f"    {address} {wanted} after {took:.2f} s", flush=True)
        assert took <= PROMISED, f"{address} was {wanted} at the kubelet only after {took:.2f} s"

    def _known_since(self, address: str, wanted: str | None) -> float:
        """When the first list came of those that say so without a break until now."""
        for lists in self.kubelet.statistics.lists.values():
            if any(address in seen.health for seen in lists):
                return _start_of_run([*lists], address, wanted)
        raise AssertionError(f"{address} was never listed")

    async def events(self) -> Any:
        """The daemon's statistics of events: source, events, lost."""
        return (await self.status())["host"]["events"]

    async def until_events(self, count: int) -> None:
        """Wait until the daemon has read so many events since its start."""
        deadline = time.monotonic() + PATIENCE
        while (found := (await self.events())["events"]) < count:
            assert time.monotonic() < deadline, f"{found} events, not {count}"
            await anyio.sleep(LOOK)

    def logged(self, event: str) -> int:
        """How often the daemon has logged that event so far."""
        return self._log.read_text().count(f'"{event}"')

    async def status(self) -> Any:
        """What the daemon tells of itself."""
        return await anyio.to_thread.run_sync(sockets.ask, "/run/nodeagent/status.sock", "/status", 5.0)

    async def told(self, address: str) -> Any:
        """The daemon's own word on a device: id, health, reason; None if it does not list it."""
        document = await self.status()
        devices = (device for resource in document["resources"] for device in resource["devices"])
        return next((device for device in devices if device["id"] == address), None)

    async def seen_of(self, address: str) -> str:
        """All that is known of a device, for the message of a test that fails."""
        now = time.monotonic()
        parts = [f"the daemon: {await self.told(address)}"]
        for resource, lists in self.kubelet.statistics.lists.items():
            known = [seen for seen in lists if address in seen.health]
            ages = [f"{seen.health[address]} {now - seen.when:.1f} s ago" for seen in known]
            parts += [f"the kubelet of {resource}: {', '.join(ages[-_TOLD:])}"] if ages else []
        return "\n".join((*parts, *self._log.read_text().splitlines()[-_TOLD:]))

    async def until_reason(self, address: str, code: str, text: str = "") -> None:
        """Wait until the device is Unhealthy for that reason, and the reason says that text."""
        deadline = time.monotonic() + PATIENCE
        while True:
            told = await self.told(address)
            if told is not None and told.get("reason") == code and text in told["message"]:
                return
            assert time.monotonic() < deadline, f"{address} is not {code} {text}: {told}"
            await anyio.sleep(LOOK)

    async def change(self, action: Callable[..., None], *arguments: Any) -> float:
        """Change something, in a thread; the moment at which it was done."""
        await anyio.to_thread.run_sync(action, *arguments)
        return time.monotonic()

    async def ask_monitor(self, command: str) -> str:
        """A command for QEMU."""
        return await anyio.to_thread.run_sync(self.monitor.command, command)


def _renew(path: Path, text: str) -> bool:
    """Replace a file in one step, so that nobody reads half of it; False if it says so already."""
    if path.exists() and path.read_text() == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)
    return True


def _start_of_run(lists: list[DeviceList], address: str, wanted: str | None) -> float:
    start = lists[-1].when
    for seen in reversed(lists):
        if seen.health.get(address) != wanted:
            break
        start = seen.when
    return start


async def until(look: Callable[[], bool], what: str, seconds: float = PATIENCE) -> float:
    """Wait for a state of the kernel that gives no event to us; the moment at which it was seen."""
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, f"after {seconds:.0f} s still not: {what}"
        await anyio.sleep(LOOK)
    return time.monotonic()


def release() -> tuple[int, ...]:
    """The kernel's version, as far as it is numbers: (6, 1)."""
    return tuple(int(part) for part in os.uname().release.split(".")[:2])
