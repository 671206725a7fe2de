# SPDX-License-Identifier: Apache-2.0
"""What an operator writes: names and selectors, changes while it runs, and mistakes, which cost two lines."""

from __future__ import annotations

import signal

import pytest
from asyncinotify import Inotify, Mask

from nodeagent.base import threads
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.sim.kubelet.server import FakeKubelet
from tests.blackbox.harness import (
    PATIENCE,
    T4,
    Node,
    allocate,
    client_of,
    health,
    run,
    socket_of,
    until_health,
    within,
)
from tests.people import as_nobody, needs_root

LONG = "x" * 64
MISTAKES = {
    "an unknown key": ("discovry: {enabled: true}", "discovry", 'did you mean "discovery"?'),
    "an unknown key in a rule": (
        "resources: [{name: a.example/x, pci: [{vendor: ['10de']}]}]",
        "vendor",
        "vendors",
    ),
    "a key that is for other devices": (
        "resources: [{name: a.example/x, pci: [{acpiIndexes: ['1']}]}]",
        "acpiIndexes",
        "docs/migrating.md",
    ),
    "a wrong type": ("resources: 5", "resources", "write [a, b]"),
    "a text for a switch": ("discovery: {enabled: maybe}", "maybe", "true or false"),
    "a number without a unit": ("timing: {settle: 5}", "settle", "250ms"),
    "a vendor that is none": ("resources: [{name: a.example/x, pci: [{vendors: ['xyz']}]}]", "xyz", ""),
    "a selector that picks all": ("resources: [{name: a.example/x, pci: [{}]}]", "empty selector", ""),
    "an address that cannot be": (
        "resources: [{name: a.example/x, pci: [{addresses: ['3b#0-2']}]}]",
        "3b#0-2",
        "",
    ),
    "one name for two kinds": (
        "resources: [{name: a.b/x, pci: [{vendors: ['10de']}]}, {name: a.b/x, node: {path: /dev/kvm}}]",
        "of different kinds",
        "another name",
    ),
    "a name in a reserved domain": ("resources: [{name: my.kubernetes.io/x}]", "kubernetes.io", "domain"),
    "a domain in upper case": ("resources: [{name: Example.com/x}]", "lower case", "example.com"),
    "a name that is too long": (f"resources: [{{name: example.com/{LONG}}}]", "64 characters", "63"),
    "a name that ends badly": ("resources: [{name: example.com/x_}]", "x_", "both ends"),
    "a list above the kubelet's limit": (
        "resources: [{name: example.com/x, node: {path: /dev/kvm, count: 1000000}}]",
        "do not fit into one message",
        "at most",
    ),
    "a directory too long for sockets": (
        f"kubelet: {{devicePluginDir: /{'d' * 90}}}",
        "devicePluginDir",
        "",
    ),
    "another version of the file": ("apiVersion: nodeagent/v7", "nodeagent/v7", "nodeagent/v1"),
    "no YAML": ("resources: [", "config.yaml", ""),
}


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_mistake_in_the_file_is_two_lines_and_exit_code_two(node: Node, mistake: str) -> None:
    text, names, hints = MISTAKES[mistake]
    path = node.configure(text)
    done = await node.command("run")
    assert done.returncode == 2
    what, hint = done.stderr.splitlines()[:2]
    assert str(path) in what
    assert names in what
    assert hints in hint
    assert len(done.stderr.splitlines()) % 2 == 0
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


async def test_a_wrong_flag_and_a_wrong_variable_are_exit_code_two(node: Node) -> None:
    for arguments in (("run", "--timing-settle", "soon"), ("run", "--no-such-flag"), ("walk",)):
        assert (await node.command(*arguments)).returncode == 2
    async with node.daemon(environ={"NODEAGENT_TIMING_SETTLE": "soon"}, ready=False) as daemon:
        assert await within(PATIENCE, daemon.process.wait()) == 2


async def test_a_root_that_is_missing_is_two_lines_and_exit_code_two(node: Node) -> None:
    done = await run("--root", str(node.root / "nowhere"), "run")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 2
    assert "no such directory" in done.stderr


@needs_root
async def test_without_root_it_says_so_in_two_lines() -> None:
    done = await threads.call(as_nobody, "run")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 2
    assert "must be root" in done.stderr


async def test_a_rule_without_selectors_picks_nothing_and_says_so(node: Node) -> None:
    node.add_gpus(1)
    node.configure("resources: [{name: example.com/none}]")
    async with node.running(listed={T4: 1, "example.com/none": 0}) as (daemon, kubelet):
        assert kubelet.capacity("example.com/none") == (0, 0)
        assert "example.com/none" in (await daemon.logged("config-warning"))["text"]


async def test_foreign_environment_variables_are_not_settings(node: Node) -> None:
    node.add_gpus(1)
    environ = {"LISTEN": ":1", "DOMAIN": "evil.example", "DISCOVERY_NAMING": "id", "NODE_NAME": "x"}
    async with node.kubelet() as kubelet, node.daemon(environ=environ):
        await kubelet.until_listed(T4, 1, PATIENCE)
        assert set(kubelet.state.table.devices) == {T4}


async def test_a_resource_that_leaves_the_file_ends_alone_and_in_bounded_time(node: Node) -> None:
    node.host.node("/dev/kvm")
    rule_a, rule_b = (f"{{name: {name}.example/x, node: {{path: /dev/kvm}}}}" for name in "ab")
    node.configure(f"resources: [{rule_a}, {rule_b}]")
    async with node.running(listed={"a.example/x": 1, "b.example/x": 1}) as (daemon, kubelet):
        gone = socket_of(kubelet, "a.example/x")
        async with client_of(kubelet, "a.example/x") as old:
            node.configure(f"resources: [{rule_b}]")
            await daemon.logged("resource-removed", resource="a.example/x")
            await kubelet.until(lambda: kubelet.statistics.streams["a.example/x"] == 0, PATIENCE)
            with pytest.raises(Exception, match=r"stopp|Connection lost|GOAWAY|closed"):
                await v1beta1.DevicePluginStub(old).get_device_plugin_options(v1beta1.Empty(), timeout=5)
        assert not gone.exists()
        assert kubelet.statistics.streams["b.example/x"] == 1
        assert len(kubelet.statistics.accepted("b.example/x")) == 1
        node.configure(f"resources: [{rule_a}, {rule_b}]")
        await kubelet.until_listed("a.example/x", 1, PATIENCE)


async def test_a_new_file_is_taken_up_and_a_bad_one_leaves_the_old_settings_in_force(node: Node) -> None:
    (address,) = node.add_gpus(1)
    async with node.running(listed={T4: 1}) as (daemon, kubelet):
        node.configure("resources: [{name: a.example/x, pci: [{}]}]")
        await daemon.logged("config-refused")
        assert health(kubelet, T4) == {address: "Healthy"}
        assert any("configuration" in problem for problem in (await node.status())["problems"])
        node.configure(f"aliases: {{{T4}: nvidia.com/t4}}")
        await kubelet.until_listed("nvidia.com/t4", 1, PATIENCE)
        daemon.send(signal.SIGHUP)
        assert (await node.status())["problems"] == []


async def test_a_file_that_changes_while_the_daemon_starts_is_taken_up(node: Node) -> None:
    """It is read before the parts of the daemon are made, one of which watches it."""
    node.add_gpus(1)
    path = node.configure(f"aliases: {{{T4}: nvidia.com/old}}")
    with Inotify() as inotify:
        inotify.add_watch(path, Mask.CLOSE_NOWRITE)
        async with node.kubelet() as kubelet, node.daemon(ready=False):
            await within(PATIENCE, inotify.get())
            node.configure(f"aliases: {{{T4}: nvidia.com/new}}")
            await kubelet.until_listed("nvidia.com/new", 1, PATIENCE)


async def test_a_device_node_that_a_new_file_names_is_watched_from_then_on(node: Node) -> None:
    node.add_gpus(1)
    async with node.running(listed={T4: 1}) as (_, kubelet):
        node.configure("resources: [{name: example.com/tun, node: {path: /dev/net/tun}}]")
        await kubelet.until(lambda: kubelet.capacity("example.com/tun") == (1, 0), PATIENCE)
        for _ in range(2):  # the first time it may be seen by the look that the new settings ask for
            node.host.node("/dev/net/tun")
            await kubelet.until(lambda: kubelet.capacity("example.com/tun") == (1, 1), PATIENCE)
            node.host.remove_node("/dev/net/tun")
            await kubelet.until(lambda: kubelet.capacity("example.com/tun") == (1, 0), PATIENCE)


async def test_a_device_node_that_is_there_when_a_new_file_names_it_is_never_said_to_be_missing(
    node: Node,
) -> None:
    node.add_gpus(1)
    node.host.node("/dev/net/tun")
    async with node.running(listed={T4: 1}) as (daemon, kubelet):
        node.configure("resources: [{name: example.com/tun, node: {path: /dev/net/tun, count: 3}}]")
        await kubelet.until(lambda: kubelet.capacity("example.com/tun") == (3, 3), PATIENCE)
        assert daemon.lines("device-unhealthy") == []


async def test_all_shares_of_a_node_are_one_line_of_the_log(node: Node) -> None:
    node.configure("resources: [{name: example.com/tun, node: {path: /dev/net/tun, count: 110}}]")
    async with node.running(listed={"example.com/tun": 110}) as (daemon, kubelet):
        line = await daemon.logged("device-unhealthy")
        assert line["device"] == "each of 110 shares (net_tun-0 …)"
        node.host.node("/dev/net/tun")
        await kubelet.until(lambda: kubelet.capacity("example.com/tun") == (110, 110), PATIENCE)
        assert (await daemon.logged("device-healthy"))["device"] == line["device"]
        counts = [len(daemon.lines(f"device-{state}")) for state in ("unhealthy", "healthy")]
        assert counts == [1, 1]


async def test_other_times_count_at_once(node: Node) -> None:
    (address,) = node.add_gpus(1)
    node.configure("timing: {resync: 600s}")
    async with node.running(listed={T4: 1}) as (daemon, kubelet):
        node.configure("timing: {resync: 1s}")
        await daemon.logged("config-reloaded", changed="timing.resync")
        await node.until_told(lambda told: told["kubelet"]["holdersKnown"])
        for _ in range(2):  # the first may be found by the look that follows the new settings
            node.host.hold(address)  # which has no event
            await until_health(kubelet, T4, address, "Unhealthy")
            node.host.release(address)
            await until_health(kubelet, T4, address, "Healthy")


async def test_selectors_go_by_class_subsystem_address_and_driver(node: Node) -> None:
    node.host.add_function(
        "0000:86:00.0",
        vendor="15b3",
        device="101e",
        pci_class="020000",
        driver="mlx5_vfio_pci",
        group=1,
        subsystem=("15b3", "0083"),
    )
    (gpu,) = node.add_gpus(1)
    node.configure(
        "resources: [{name: example.com/vf, pci: [{classes: ['0200'], subsystems: ['15b3:0083'],"
        " addresses: ['0000:86:*'], drivers: [mlx5_vfio_pci]}]}]"
    )
    async with node.running(listed={"example.com/vf": 1, T4: 1}) as (_, kubelet):
        assert health(kubelet, "example.com/vf") == {"0000:86:00.0": "Healthy"}
        assert health(kubelet, T4) == {gpu: "Healthy"}


async def test_two_selectors_of_one_resource_and_two_rules_of_one_name_are_merged(node: Node) -> None:
    addresses = node.add_gpus(3)
    selectors = [f"{{addresses: ['{address}']}}" for address in addresses]
    node.configure(
        f"resources: [{{name: example.com/g, pci: [{selectors[0]}, {selectors[1]}]}},"
        f" {{name: example.com/g, pci: [{selectors[2]}]}}]"
    )
    async with node.running(listed={"example.com/g": 3}) as (_, kubelet):
        assert set(health(kubelet, "example.com/g")) == set(addresses)


async def test_names_that_differ_in_the_domain_only_and_very_long_ones_have_sockets_of_their_own(
    node: Node,
) -> None:
    node.host.node("/dev/kvm")
    long = f"{'d' * 60}.{'e' * 60}.{'f' * 60}.example.com/{'n' * 63}"
    names = ["intel.com/FOO", "nvidia.com/FOO", long]
    rules = ", ".join(f"{{name: {name}, node: {{path: /dev/kvm}}}}" for name in names)
    node.configure(f"resources: [{rules}]")
    async with node.running(listed=dict.fromkeys(names, 1)) as (_, kubelet):
        files = {socket_of(kubelet, name).name for name in names}
        assert len(files) == 3
        assert all(len(file) <= 75 for file in files)


async def test_two_device_ids_with_one_name_are_one_resource(node: Node) -> None:
    for number, device in enumerate(("20b1", "20f1")):
        node.add_gpu(f"0000:1{number}:00.0", number, device=device)
    name = "nvidia.com/GA100_A100_PCIE_40GB"
    async with node.running(listed={name: 2}) as (_, kubelet):
        assert set(kubelet.state.table.devices) == {name}
        assert set(health(kubelet, name)) == {"0000:10:00.0", "0000:11:00.0"}
        (answer,) = await allocate(kubelet, name, ["0000:11:00.0"])
        assert list(answer.envs.values()) == ["0000:11:00.0"]


async def test_the_hosts_own_pci_ids_name_what_the_bundled_copy_does_not_know(node: Node) -> None:
    node.host.write_file(
        "/usr/share/hwdata/pci.ids", "10de  NVIDIA Corporation\n\tfff0  Made Up [Next GPU ]\n"
    )
    node.add_gpu("0000:10:00.0", 1, device="fff0")
    async with node.running(listed={"nvidia.com/MADE_UP_NEXT_GPU": 1}) as (_, kubelet):
        await _healthy(kubelet, "nvidia.com/MADE_UP_NEXT_GPU")


async def _healthy(kubelet: FakeKubelet, resource: str) -> None:
    await until_health(kubelet, resource, "0000:10:00.0", "Healthy")
