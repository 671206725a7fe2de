# SPDX-License-Identifier: Apache-2.0
"""The image as a pod would run it: no capability, nothing writable but what is mounted.

The container's /sys and /dev/vfio are those of a simulated host, the kubelet is the stand-in. What is real:
the container, its namespaces, the mounts that both sides see, and the lock.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from anyio import to_thread

from tests import fetching
from tests.blackbox.harness import NOBODY, PATIENCE, T4, Node, eventually
from tests.facts import names
from tests.image import containers
from tests.image.containers import CLOSED, Container, Image

GPU = "0000:10:00.0"
AS_A_POD = ("--hostname=nodeagent-x7k2f", "--env=KUBERNETES_SERVICE_HOST=10.96.0.1")
SEEING = ("--pid=host", "--cap-add=SYS_PTRACE", "--cap-add=DAC_READ_SEARCH")
_LOOK = (
    "from nodeagent.kernel import open_files, root; "
    "print(open_files.find_openers(root.Root(), ['0000:10:00.0']).openers)"
)


def mounts(node: Node) -> tuple[str, ...]:
    """The host's directories that a pod gets."""
    kubelet = node.root / "var/lib/kubelet"
    needed = (kubelet / "device-plugins", kubelet / "pod-resources", node.root / "sys/fs/cgroup")
    for directory in needed:  # the last is mounted on by the runtime
        directory.mkdir(parents=True, exist_ok=True)
    return (
        f"--volume={kubelet}/device-plugins:/var/lib/kubelet/device-plugins",
        f"--volume={kubelet}/pod-resources:/var/lib/kubelet/pod-resources:ro",
        f"--volume={node.root}/sys:/sys:ro",
        f"--volume={node.root}/dev/vfio:/dev/vfio:ro",
        "--tmpfs=/run/nodeagent",
    )


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def daemon_options(node: Node, port: int) -> tuple[str, ...]:
    return (*CLOSED, *AS_A_POD, *mounts(node), f"--env=NODEAGENT_HTTP_LISTEN=127.0.0.1:{port}")


@pytest.fixture
def port() -> int:
    return free_port()


@contextmanager
def serving(image: Image, node: Node, port: int) -> Iterator[Container]:
    with containers.running(image, daemon_options(node, port)) as container:
        yield container


def ask(port: int, path: str) -> str:
    return fetching.body(f"http://127.0.0.1:{port}{path}", 5.0)


def process(container: Container) -> dict[str, str]:
    """What /proc says of the daemon's process."""
    lines = Path("/proc", str(container.state["Pid"]), "status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines)


async def test_it_offers_devices_without_a_capability(image: Image, node: Node, port: int) -> None:
    async with node.kubelet() as kubelet:
        with serving(image, node, port) as container:
            await kubelet.until_listed(T4, 1, PATIENCE)
            metrics = await to_thread.run_sync(ask, port, "/metrics")
            assert f'nodeagent_devices{{resource="{T4}",health="healthy",reason=""}} 1' in metrics
            assert await to_thread.run_sync(ask, port, "/healthz") == "alive\n"
            assert await to_thread.run_sync(ask, port, "/readyz") == "ready\n"
            told = process(container)
    sets = {name: int(told[name], 16) for name in ("CapEff", "CapPrm", "CapBnd")}
    assert sets == {"CapEff": 0, "CapPrm": 0, "CapBnd": 0}
    assert told["NoNewPrivs"] == "1"
    assert told["Uid"].split() == ["0"] * 4


async def test_it_sees_all_of_the_hosts_dev_where_drivers_are_changed(
    image: Image, node: Node, port: int
) -> None:
    """The host's /dev takes the place of the container's own."""
    seen = [each for each in daemon_options(node, port) if not each.endswith("/dev/vfio:ro")]
    async with node.kubelet() as kubelet:
        with containers.running(image, (*seen, "--volume=/dev:/dev:ro")) as container:
            await kubelet.until_listed(T4, 1, PATIENCE)
            metrics = await to_thread.run_sync(ask, port, "/metrics")
            missing = 'health="unhealthy",reason="node-missing"'
            assert f'nodeagent_devices{{resource="{T4}",{missing}}} 1' in metrics
            assert await to_thread.run_sync(ask, port, "/healthz") == "alive\n"
            inside = ("exec", container.name, "python3.11", "-c", "import os; print(os.listdir('/dev'))")
            assert str(os.listdir("/dev")) == (await to_thread.run_sync(containers.podman, *inside)).strip()


async def test_it_stops_within_a_second_with_exit_code_zero(image: Image, node: Node, port: int) -> None:
    async with node.kubelet() as kubelet:
        with serving(image, node, port) as container:
            await kubelet.until_listed(T4, 1, PATIENCE)
            sent = time.time()
            os.kill(container.state["Pid"], signal.SIGTERM)
            await eventually(lambda: container.state["Status"] == "exited")
            assert container.state["ExitCode"] == 0
            assert container.ended - sent < 1
            assert node.sockets() == []


def test_its_root_cannot_be_written_to(image: Image, node: Node, port: int) -> None:
    with serving(image, node, port) as container:
        pid = container.state["Pid"]
        lines = Path(f"/proc/{pid}/mounts").read_text().splitlines()
    flags = {line.split()[1]: line.split()[3].split(",") for line in lines}
    assert "ro" in flags["/"]
    assert "ro" in flags["/sys"]
    assert "rw" in flags["/var/lib/kubelet/device-plugins"]


async def test_the_verbs_work_inside(image: Image, node: Node, port: int) -> None:
    async with node.kubelet() as kubelet:
        with serving(image, node, port) as container:
            await kubelet.until_listed(T4, 1, PATIENCE)
            verbs = ("exec", container.name, "python3.11", "-m", "nodeagent")
            assert T4 in await to_thread.run_sync(containers.podman, *verbs, "status")
            assert GPU in await to_thread.run_sync(containers.podman, *verbs, "scan")


async def test_a_package_on_the_node_is_told_which_pod_serves_it(image: Image, node: Node, port: int) -> None:
    async with node.kubelet() as kubelet:
        with serving(image, node, port) as container:
            await kubelet.until_listed(T4, 1, PATIENCE)
            second = await node.command("run", "--http-listen", "")
            told = [line for line in second.stderr.splitlines() if not line.startswith("{")]
            assert second.returncode == 1
            names(told[0], "pod nodeagent-x7k2f")
            names(told[1], "DaemonSet")
            assert container.state["Running"]
            assert kubelet.statistics.streams == {T4: 1}


async def test_a_pod_is_told_that_the_node_is_served_from_outside(
    image: Image, node: Node, port: int
) -> None:
    async with node.running(listed={T4: 1}) as (daemon, kubelet):
        with serving(image, node, port) as container:
            await eventually(lambda: container.state["Status"] == "exited")
            told = [line for line in container.log() if not line.startswith("{")]
            assert container.state["ExitCode"] == 1
            names(told[0], f"process {daemon.pid}")
            assert len(told) == 2
        assert daemon.alive
        assert kubelet.statistics.streams == {T4: 1}


async def test_the_pod_can_serve_as_soon_as_the_package_has_ended(
    image: Image, node: Node, port: int
) -> None:
    async with node.running(listed={T4: 1}) as (daemon, kubelet):
        assert await daemon.end() == 0
        with serving(image, node, port):
            await kubelet.until(lambda: kubelet.statistics.streams == {T4: 1}, PATIENCE)


@contextmanager
def held(node: Node) -> Iterator[int]:
    """A process of another user that has the GPU's group open, as a virtual machine would; its pid."""
    path = next((node.root / "dev/vfio").glob("1*"))
    command = ["setpriv", f"--reuid={NOBODY}", "--clear-groups", "sh", "-c", "echo open; read wait"]
    with path.open("rb") as file:
        started = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(file.fileno(),)
        )
    with started as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"open\n"
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        pytest.param(SEEING, True, id="with hostPID and both capabilities"),
        pytest.param(SEEING[1:], False, id="without hostPID"),
        pytest.param((SEEING[0], SEEING[2]), False, id="without SYS_PTRACE"),
        pytest.param(SEEING[:2], False, id="without DAC_READ_SEARCH"),
    ],
)
def test_removals_need_all_of_this_to_see_who_has_a_device_open(
    image: Image, node: Node, options: tuple[str, ...], *, seen: bool
) -> None:
    with held(node) as pid:
        program = ("--entrypoint=python3.11", *mounts(node))
        told = containers.podman("run", "--rm", *CLOSED, *options, *program, image.name, "-c", _LOOK)
    assert (f"process {pid} " in told) is seen
