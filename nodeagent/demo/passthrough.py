# SPDX-License-Identifier: Apache-2.0
"""The first node of the demo: whole GPUs, which are given away, blocked, rebound and unplugged."""

from __future__ import annotations

from nodeagent.demo.acting import Act, Step
from nodeagent.demo.stage import CONFIG, CONFIG_PATH, GPU, TESLA, USB
from nodeagent.sim.kubelet.state import Pod, health_of

REBOUND = "0000:86:00.0"
_BLOCKED, _BLOCKER = "0000:d8:00.0", "0000:d8:01.0"


async def _start(act: Act) -> None:
    act.screen.do(f"start nodeagent; its {CONFIG_PATH} says")
    act.screen.show(CONFIG)
    await act.daemon.start()
    numbers = {GPU: (4, 4), USB: (4, 4), TESLA: (1, 0)}
    await act.expect("three resources are registered with the kubelet", lambda: act.stage.serves(numbers))
    act.show_capacity(GPU, USB, TESLA)
    if act.daemon.page:
        act.screen.show(f"open {await act.stage.page()} in a browser")


async def _two_gpus(act: Act) -> None:
    pod = await act.admit("virt-launcher-red", GPU, 2)
    act.show_container(pod)
    await act.expect(
        "after its admission the USB controllers beside them are Unhealthy",
        lambda: act.kubelet.capacity(USB) == (4, 2),
    )
    for gpu in sorted(pod.result.ids[GPU]):
        await act.show_reason(f"{gpu[:-1]}2", "group-held")
    act.show_capacity(GPU, USB, TESLA)
    act.delete(pod)
    await act.expect("they come back", lambda: act.kubelet.capacity(USB) == (4, 4))


async def _not_viable(act: Act) -> None:
    act.screen.do(f"nodeagent explain {_BLOCKED}")
    act.screen.expect("the function that blocks the group is named")
    text = await act.daemon.verb("explain", _BLOCKED)
    act.verdict("NOT viable" in text and f"without {_BLOCKER}" in text, text)
    act.screen.show(text)
    act.bind(_BLOCKER, "vfio-pci")
    await act.expect("it turns Healthy", lambda: act.kubelet.capacity(TESLA) == (1, 1))


async def _rebound(act: Act) -> None:
    act.bind(REBOUND, "nvidia")
    await act.expect(f"{REBOUND} turns Unhealthy", lambda: not _healthy(act, REBOUND))
    await act.show_reason(REBOUND, "driver-changed")
    act.screen.do("ask for it all the same")
    act.screen.expect("Allocate is refused")
    text = await act.stage.refusal(GPU, REBOUND)
    act.verdict(bool(text), f"{REBOUND} was given away")
    act.screen.show(text)
    act.bind(REBOUND, "vfio-pci")
    await act.expect("it turns Healthy", lambda: _healthy(act, REBOUND))


def _healthy(act: Act, gpu: str) -> bool:
    table = act.kubelet.state.table
    return gpu in table.healthy[GPU]


async def _named(act: Act, gpu: str, pod: Pod) -> None:
    """Wait until the daemon knows from the kubelet that this pod has it."""
    await act.stage.said(
        lambda document: [each for each in (document["holders"].get(gpu, {}),) if each.get("pod") == pod.key],
        f"{pod.key} is not said to have {gpu}",
    )


async def _off_the_bus(act: Act) -> None:
    pod = await act.admit("virt-launcher-blue", GPU, 1)
    (gpu,) = pod.result.ids[GPU]
    await _named(act, gpu, pod)
    act.screen.do(f"the whole card of {gpu} leaves the machine")
    for number in range(4):
        act.host.unplug(f"{gpu[:-1]}{number}")
    listed, table = act.kubelet.capacity, act.kubelet.state.table
    await act.expect(
        "the GPU stays listed as Unhealthy, and the pod's status says so",
        lambda: listed(GPU) == (4, 3) and health_of(table, pod.uid)[gpu] == "Unhealthy",
    )
    await act.show_reason(gpu, "fallen-off-the-bus")
    await act.expect("its USB controller, which nobody has, leaves the list", lambda: listed(USB)[0] == 3)
    act.delete(pod)
    await act.expect("the GPU leaves the list", lambda: listed(GPU)[0] == 3)


async def _kubelet_restart(act: Act) -> None:
    registrations = act.kubelet.statistics.registrations
    before = len(registrations)
    numbers = {GPU: (3, 3), USB: (3, 3), TESLA: (1, 1)}
    await act.kubelet.stop()
    act.screen.do("a new kubelet starts: it removes all plugin sockets and knows no plugin")
    await act.kubelet.start()
    await act.expect(
        "all three resources are registered again, once each",
        lambda: act.stage.serves(numbers) and len(registrations) - before == len(numbers),
    )
    act.show_capacity(GPU, USB, TESLA)


STEPS: tuple[Step[Act], ...] = (
    Step("The daemon starts on a node with four GeForce RTX 2060", _start),
    Step("A pod is given two GPUs, and the rest of their IOMMU groups waits", _two_gpus),
    Step("A Tesla T4 cannot be given: its IOMMU group is not viable", _not_viable),
    Step("A driver is rebound by hand", _rebound),
    Step("A GPU falls off the bus while a pod has it", _off_the_bus),
    Step("The kubelet restarts", _kubelet_restart),
)
