# SPDX-License-Identifier: Apache-2.0
"""ResourceSlices and claims: published, prepared for real containers, unprepared; restarts in between."""

from __future__ import annotations

import os
import signal
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from nodeagent.base.timeouts import Timeouts
from nodeagent.sim.host import SimulatedHost
from tests.e2e import boards, waiting
from tests.e2e.cluster import NODE, Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.dra import mdevs, reading, slices
from tests.e2e.dra.objects import DRIVER, Objects, by_name, devices_of, event, from_template, pod, request
from tests.e2e.dra.settings import by_dra, launch, settings
from tests.e2e.dra.slices import KubeletLog, await_devices, name_of, watching
from tests.e2e.pods import Pods
from tests.e2e.resources import FIRST, FOURTH, GROUPS, SECOND, THIRD
from tests.storing import SystemdStore

pytestmark = pytest.mark.timeout(300)

GPU, VGPU = "example.com/gpu", "example.com/vgpu"
ADDRESSES = (FIRST, SECOND, THIRD, FOURTH)
NVME = "0000:02:00.0"
MDEV = f"mdev-{mdevs.UUID}"
RESTARTS = 20
STALE = 35.0  # seconds; the kubelet shows Unknown for a device without a report for 30 s


def start(running: Cluster, driver: Daemon, *addresses: str) -> None:
    """Publish these functions."""
    launch(running, driver, map(name_of, addresses), by_dra(GPU, *addresses))


def await_unprepared(log: KubeletLog, count: int = 1) -> None:
    """Wait until the kubelet has called NodeUnprepareResources that often."""
    waiting.until(lambda: len(log.calls("unprepare")) >= count, "the claim is unprepared")


def left_files(running: Cluster) -> list[Path]:
    """Files for containers of claims: CDI files, and metadata files of the driver."""
    cdi = running.host / "var/run/cdi"
    metadata = running.kubelet.directory / "plugins" / DRIVER
    return [path for top in (cdi, metadata) for path in top.rglob("*") if path.is_file()]


def test_slices_are_published_after_the_registration_of_the_driver(
    running: Cluster, driver: Daemon, host: SimulatedHost
) -> None:
    mdevs.add(host)
    host.bind(NVME, "vfio-pci")
    addresses = (*ADDRESSES, NVME)
    driver.configure(settings(by_dra(GPU, *addresses), mdevs.rule(VGPU)))
    log = KubeletLog(running.kubelet.log)
    with watching(running.api) as watch:
        driver.launch()
        found = await_devices(running.api, [*map(name_of, addresses), MDEV])
        registered = waiting.until(log.registered_at, "the kubelet has registered the driver")
        waiting.until(lambda: bool(watch.since(registered)), "the watch has seen it")
        published = watch.since(0)
    assert min(event.at for event in published) >= registered
    print(f"\nregistered to published: {(published[-1].at - registered) * 1000:.0f} ms")
    assert published[-1].at - registered < 1.5
    node = running.api.get(NODE)
    for each in slices.slices(running.api):
        (owner,) = each["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("Node", node["metadata"]["uid"], True)
        assert each["spec"]["pool"]["name"] == slices.POOL
    first = found[name_of(FIRST)]["attributes"]
    assert first["resource.kubernetes.io/pciBusID"] == {"string": FIRST}
    assert first["resource.kubernetes.io/numaNode"] == {"int": 0}
    assert first["resource"] == {"string": GPU}
    assert found[MDEV]["attributes"]["mdevUUID"] == {"string": mdevs.UUID}


def test_one_pod_gets_a_function_by_template_and_an_mdev_by_name(
    running: Cluster, driver: Daemon, pods: Pods, objects: Objects, host: SimulatedHost
) -> None:
    group = mdevs.add(host)
    launch(running, driver, [name_of(FIRST), MDEV], by_dra(GPU, FIRST), mdevs.rule(VGPU))
    objects.template("gpu", request("gpu", objects.device_class("gpu", GPU)))
    objects.claim("shared-vgpu", request("vgpu", objects.device_class("vgpu", VGPU)))
    log = KubeletLog(running.kubelet.log)
    pods.create(
        pod(
            "both",
            reading.OWNERS,
            "/bin/launcher claims one/gpu two=shared-vgpu/vgpu",
            user=107,
            one=from_template("gpu"),
            two=by_name("shared-vgpu"),
        )
    )
    given = pods.given("both")
    nodes = {"/dev/vfio/vfio", f"/dev/vfio/{GROUPS[FIRST]}", f"/dev/vfio/{group}"}
    assert given.nodes == nodes
    assert reading.owners(given) == dict.fromkeys(nodes, "107")
    assert reading.host_devices(given) == [FIRST, mdevs.UUID]
    assert len(log.calls("prepare")) == 1
    assert log.calls("prepare")[0].count("shared-vgpu") == 1
    assert left_files(running)
    pods.delete("both")
    await_unprepared(log)
    assert len(log.calls("unprepare")) == 1
    waiting.until(lambda: not left_files(running), "the files of the claims are removed")


def test_a_restart_of_the_daemon_changes_no_slice(
    running: Cluster, driver: Daemon, pods: Pods, objects: Objects
) -> None:
    start(running, driver, *ADDRESSES)
    objects.template("gpu", request("gpu", objects.device_class("gpu", GPU)))
    pods.create(pod("stays", gpu=from_template("gpu")))
    pods.given("stays")
    before, log = pods.started_at("stays"), KubeletLog(running.kubelet.log)
    with watching(running.api) as watch:
        for number in (signal.SIGTERM, signal.SIGKILL):
            driver.stop(number)
            waiting.pause(1)
            seen = KubeletLog(running.kubelet.log)
            driver.launch()
            waiting.until(seen.registered_at, "the driver is registered again")
            waiting.pause(3)  # in which a needless write would come
        assert watch.events == []
    assert log.calls("prepare") == []
    assert pods.started_at("stays") == before
    pods.create(pod("next", "/bin/launcher claims gpu/gpu", gpu=from_template("gpu")))
    (second,) = reading.host_devices(pods.given("next"))
    assert name_of(second) not in devices_of(running.api, "stays")


def test_a_pod_that_starts_during_a_restart_by_systemd_waits_for_the_daemon_only(
    running: Cluster, driver: Daemon, pods: Pods, objects: Objects, tmp_path: Path
) -> None:
    store = SystemdStore(tmp_path)
    driver.environ = store.environ
    start(running, driver, *ADDRESSES)
    store.receive()
    objects.template("gpu", request("gpu", objects.device_class("gpu", GPU)))
    log = KubeletLog(running.kubelet.log)
    for number in (signal.SIGTERM, signal.SIGKILL):
        driver.stop(number)
        name = number.name.lower()
        pods.create(pod(name, gpu=from_template("gpu")))
        waiting.pause(3)  # in which a Prepare without a listening socket would fail
        driver.under = store.under
        driver.launch()
        store.serve()
        began = time.monotonic()
        pods.given(name)
        print(f"\n{number.name}: {time.monotonic() - began:.1f} s from the start of the daemon to the pod's")
        assert time.monotonic() - began < 15  # else 60 s and more
    assert len(log.calls("prepare")) == 2
    store.close()


@pytest.mark.long
@pytest.mark.timeout(400)
def test_slices_are_back_after_each_restart_of_the_kubelet(
    running: Cluster, driver: Daemon, pods: Pods, objects: Objects
) -> None:
    start(running, driver, *ADDRESSES)
    objects.template("gpu", request("gpu", objects.device_class("gpu", GPU)))
    pods.create(pod("stays", gpu=from_template("gpu")))
    pods.given("stays")
    before, log = pods.started_at("stays"), KubeletLog(running.kubelet.log)
    took = [restart(running, number) for number in range(RESTARTS)]
    print(f"\nslices back: median {statistics.median(took) * 1000:.0f} ms, worst {max(took) * 1000:.0f} ms")
    assert statistics.median(took) < 0.2
    assert pods.started_at("stays") == before
    # The kubelet forgets that a claim is prepared, and prepares it again for a new sandbox only.
    assert log.calls("prepare") == []
    pods.create(pod("after", "/bin/launcher claims gpu/gpu", gpu=from_template("gpu")))
    assert len(reading.host_devices(pods.given("after"))) == 1


def restart(running: Cluster, number: int) -> float:
    """Restart the kubelet; return the seconds from its deletion of the slices until all are back."""
    generation = max(each["spec"]["pool"]["generation"] for each in slices.slices(running.api))
    waiting.pause(Timeouts().slice_write_spacing)
    with watching(running.api) as watch:
        running.kubelet.stop(signal.SIGTERM if number % 2 else signal.SIGKILL)
        running.kubelet.start()
        waiting.until(lambda: deleted(watch), "the kubelet has deleted the slices", 30.0)
        await_devices(running.api, map(name_of, ADDRESSES), 30.0)
        back = waiting.until(lambda: max((e.at for e in created(watch)), default=0), "the watch has seen it")
    assert min(event.slice["spec"]["pool"]["generation"] for event in created(watch)) >= generation
    running.kubelet.await_ready()
    return back - deleted(watch)


def deleted(watch: slices.Watch) -> float:
    """When the last slice was deleted; 0 if none was."""
    return max((event.at for event in watch.since(0) if event.type == "DELETED"), default=0.0)


def created(watch: slices.Watch) -> list[slices.Event]:
    """The changes after the last deletion."""
    return [event for event in watch.since(deleted(watch)) if event.type != "DELETED"]


def test_administrative_access_is_refused(
    running: Cluster, driver: Daemon, pods: Pods, objects: Objects
) -> None:
    start(running, driver, FIRST)
    running.api.patch(
        "/api/v1/namespaces/default",
        {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}},
    )
    objects.device_class("gpu", GPU)
    objects.template("gpu", request("gpu", "gpu"))
    objects.template("admin", request("gpu", "gpu", adminAccess=True))
    pods.create(pod("holder", gpu=from_template("gpu")))
    pods.given("holder")
    pods.create(pod("admin", gpu=from_template("admin")))
    message = waiting.until(
        lambda: event(running.api, "admin", "FailedPrepareDynamicResources"), "it is refused"
    )
    assert "adminAccess" in message
    pods.delete("holder")
    await_devices(running.api, [name_of(FIRST)])


def health(found: Any) -> dict[str, tuple[str, str]]:
    """Claim and request → health and message, from the status of a pod."""
    entries = found["status"]["containerStatuses"][0].get("allocatedResourcesStatus", ())
    return {
        entry["name"]: (each["health"], each.get("message", ""))
        for entry in entries
        for each in entry["resources"]
    }


def test_the_health_of_a_claimed_device_is_in_the_pods_status_and_a_taint(
    running: Cluster, driver: Daemon, pods: Pods, objects: Objects, host: SimulatedHost
) -> None:
    start(running, driver, FIRST)
    objects.template("gpu", request("gpu", objects.device_class("gpu", GPU)))
    pods.create(pod("patient", gpu=from_template("gpu")))
    pods.given("patient")
    entry = "claim:gpu"
    waiting.until(lambda: health(pods.get("patient")).get(entry, ("", ""))[0] == "Healthy", "it is Healthy")
    waiting.pause(STALE)
    assert health(pods.get("patient"))[entry][0] == "Healthy"
    host.bind(FIRST, "nvidia")
    waiting.until(lambda: health(pods.get("patient"))[entry][0] == "Unhealthy", "it is Unhealthy")
    waiting.until(lambda: "nvidia" in health(pods.get("patient"))[entry][1], "the message names the driver")
    (taint,) = waiting.until(lambda: taints(running), "the device is tainted")
    assert (taint["key"], taint["effect"]) == (f"{DRIVER}/unusable", "NoSchedule")
    assert pods.get("patient")["status"]["phase"] == "Running"
    host.bind(FIRST, "vfio-pci")
    waiting.until(lambda: health(pods.get("patient"))[entry][0] == "Healthy", "it is Healthy again")
    waiting.until(lambda: taints(running) == [] or None, "the taint is removed")


def taints(running: Cluster) -> Any:
    """The taints of the first GPU."""
    return slices.devices(running.api)[name_of(FIRST)].get("taints", [])


@pytest.mark.long
@pytest.mark.timeout(900)
def test_three_hundred_claims_in_a_row_leave_nothing_behind(
    running: Cluster, driver: Daemon, pods: Pods, objects: Objects
) -> None:
    count = int(os.environ.get("NODEAGENT_E2E_CLAIMS", "300"))
    start(running, driver, *ADDRESSES)
    objects.template("gpu", request("gpu", objects.device_class("gpu", GPU)))
    log = KubeletLog(running.kubelet.log)
    for number in range(count):
        pods.create(pod(f"row-{number}", gpu=from_template("gpu")))
        pods.given(f"row-{number}")
        pods.delete(f"row-{number}")
    await_unprepared(log, count)
    took = sorted(log.prepare_durations())
    print(f"\nPrepare: p50 {took[count // 2] * 1000:.1f} ms, p99 {took[count * 99 // 100] * 1000:.1f} ms")
    assert len(took) == count
    waiting.until(lambda: not left_files(running), "the files of the claims are removed")


def test_the_metadata_of_a_choice_names_the_request_also_without_the_subrequest(
    running: Cluster, driver: Daemon, pods: Pods, objects: Objects
) -> None:
    start(running, driver, FIRST)
    choice = [{"name": "absent", "deviceClassName": objects.device_class("absent", "example.com/absent")}]
    choice.append({"name": "good", "deviceClassName": objects.device_class("gpu", GPU)})
    objects.template("choice", {"name": "gpu", "firstAvailable": choice})
    directory = "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/vm/gpu"
    commands = ("/bin/launcher claims vm/gpu", f"cat {directory}/*; echo")
    pods.create(pod("choice", *commands, vm=from_template("choice")))
    given = pods.given("choice")
    assert reading.host_devices(given) == [FIRST]
    assert '"gpu/good"' in given.text.replace('"name": ', '"name":')


def test_a_container_starts_again_after_a_daemon_that_found_no_files(
    running: Cluster, driver: Daemon, pods: Pods, objects: Objects
) -> None:
    start(running, driver, FIRST)
    objects.template("gpu", request("gpu", objects.device_class("gpu", GPU)))
    made = pod("crashes", gpu=from_template("gpu"))
    made["spec"]["restartPolicy"] = "Always"
    pods.create(made)
    before = pods.given("crashes")
    log = KubeletLog(running.kubelet.log)
    driver.stop()
    for path in left_files(running):
        path.unlink()
    driver.launch()
    waiting.until(log.registered_at, "the driver is registered again")
    assert left_files(running)
    for life in boards.lives():
        if life.pod == "crashes":
            os.kill(life.pid, signal.SIGKILL)
    after = pods.given("crashes", start=1)
    assert after.nodes == before.nodes
    assert log.calls("prepare") == []


@pytest.mark.long
def test_slices_are_back_after_an_api_server_that_was_away_at_the_start_of_the_kubelet(
    running: Cluster, driver: Daemon
) -> None:
    start(running, driver, *ADDRESSES)
    with watching(running.api) as watch:
        running.kubelet.stop()
        with running.control.away():
            running.kubelet.start()
            waiting.pause(12)
        waiting.until(lambda: deleted(watch), "the kubelet has deleted the slices", 60.0)
        await_devices(running.api, map(name_of, ADDRESSES), 30.0)
        back = waiting.until(lambda: max((e.at for e in created(watch)), default=0), "the watch has seen it")
        print(f"\nslices back: {(back - deleted(watch)) * 1000:.0f} ms")
    running.kubelet.await_ready()
