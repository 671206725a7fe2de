# SPDX-License-Identifier: Apache-2.0
"""``nodeagent explain vmi``: with and without a daemon, from files as kubectl writes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.blackbox.harness import T4, Node, pod
from tests.facts import contains, names

CR = """
apiVersion: kubevirt.io/v1
kind: KubeVirt
metadata: {name: kubevirt, namespace: kubevirt}
spec:
  configuration:
    permittedHostDevices:
      pciHostDevices:
        - {pciVendorSelector: "10DE:1EB8", resourceName: NAME, externalResourceProvider: true}
"""
MACHINE = """
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: red, namespace: demo}
spec:
  template:
    spec:
      domain:
        devices:
          gpus:
            - {name: gpu1, deviceName: NAME}
            - {name: gpu2, deviceName: NAME}
"""


def files(node: Node, name: str = T4, selector: str = "10DE:1EB8") -> tuple[str, str, str]:
    """The words behind ``explain vmi`` for a machine that asks for two, and a CR that permits them."""
    machine, cr = node.root / "vm.yaml", node.root / "cr.yaml"
    machine.write_text(MACHINE.replace("NAME", name))
    cr.write_text(CR.replace("NAME", name).replace("10DE:1EB8", selector))
    return str(machine), "--cr", str(cr)


async def answer(node: Node, *arguments: str) -> Any:
    done = await node.command("explain", "vmi", *arguments, "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def test_a_machine_is_judged_without_a_daemon_and_without_a_cluster(node: Node) -> None:
    first, second = node.add_gpus(2)
    done = await node.command("explain", "vmi", *files(node))
    assert done.returncode == 0
    names(done.stderr, "status.sock")
    lines = [line.strip() for line in done.stdout.splitlines()]
    names(lines[0], "VirtualMachine", "demo/red")
    told = json.loads((await node.command("explain", "vmi", *files(node), "-o", "json")).stdout)
    assert (told["availability"], bool(told["notes"])) == ("now", True)
    assert f"env     PCI_RESOURCE_NVIDIA_COM_TU104GL_TESLA_T4={first},{second}" in lines
    assert "nodes   /dev/vfio/vfio /dev/vfio/10 /dev/vfio/11" in lines
    assert [line for line in lines if line.startswith("note ")] == [
        f"note    {each}" for each in told["notes"]
    ]


async def test_the_cr_is_served_as_the_settings_of_the_shell_let_it(node: Node) -> None:
    node.add_gpus(2)
    words = files(node, "example.com/gpu")
    without = (await answer(node, *words, "--kubevirt-enabled", "false"))["resources"][0]
    assert without["availability"] == "never"
    names(without["messages"][1], "KubeVirt CR", T4, "Healthy")
    (served,) = (await answer(node, *words))["resources"]
    assert served["availability"] == "now"
    assert list(served["env"]) == ["PCI_RESOURCE_EXAMPLE_COM_GPU"]


async def test_a_running_daemon_tells_who_has_what_the_machine_waits_for(node: Node) -> None:
    first, _ = node.add_gpus(2)
    async with node.running(listed={T4: 2}) as (_, kubelet):
        await kubelet.admit(pod("blue", {T4: 1}))
        await node.until_told(lambda told: "ns/blue" in json.dumps(told))
        told = await answer(node, *files(node))
    (asked,) = told["resources"]
    assert (told["availability"], told["notes"]) == ("later", [])
    counts, held = asked["messages"]
    names(counts, "2", "1")
    names(held, first, "ns/blue")


async def test_an_sriov_interface_is_not_passed_over(node: Node) -> None:
    """Multus adds its resource to the pod: the VM itself does not name it."""
    machine = node.root / "fast.yaml"
    devices = "devices: {interfaces: [{name: lan, masquerade: {}}, {name: fast, sriov: {}}]}"
    machine.write_text(f"{{kind: VirtualMachineInstance, spec: {{domain: {{{devices}}}}}}}")
    done = await node.command("explain", "vmi", str(machine), *files(node)[1:])
    names(done.stdout, "fast", "NetworkAttachmentDefinition")
    assert not contains(done.stdout, "lan")


async def test_a_saved_host_is_enough(node: Node) -> None:
    node.add_gpus(2)
    saved = node.root / "host.json"
    saved.write_text((await node.command("scan", "-o", "json")).stdout)
    assert (await answer(node, *files(node), "--host", str(saved)))["availability"] == "now"


@pytest.mark.parametrize(
    ("arguments", "code", "what", "hint"),
    [
        (("vmi",), 2, "no VM is given", "explain vmi FILE"),
        (
            ("vmi", "demo/red", "--kubeconfig", "/none"),
            1,
            "/none cannot be used: No such file",
            "give the path of a file that is there",
        ),
        (("vmi", "demo/red.yaml"), 2, "demo/red.yaml: No such file", "kubectl"),
        (("vmi", "../red"), 2, "../red: No such file", "kubectl"),
        (("vmi", "/none.yaml"), 2, "/none.yaml: No such file", "kubectl"),
        (("vmi", "CR"), 2, "it contains no virtual machine", "VirtualMachineInstance"),
        (("vmi", "VM", "--cr", "VM"), 2, "this is no KubeVirt object", "kind: KubeVirt"),
        (("0000:10:00.0", "VM"), 2, "FILE and --cr are only for VMs", "explain vmi FILE --cr FILE"),
        (("0000:10:00.0", "--cr", "CR"), 2, "FILE and --cr are only for VMs", "explain vmi FILE --cr FILE"),
    ],
)
async def test_mistakes_are_two_lines(
    node: Node, arguments: tuple[str, ...], code: int, what: str, hint: str
) -> None:
    node.add_gpus(1)
    machine, _, cr = files(node)
    words = [{"VM": machine, "CR": cr}.get(each, each) for each in arguments]
    done = await node.command("explain", *words)
    first, second = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (code, "")
    assert what in first
    assert hint in second


async def test_a_resource_whose_entry_in_the_cr_is_refused_is_not_called_unlisted(node: Node) -> None:
    node.add_gpus(2)
    told = await answer(node, *files(node, "example.com/a100", "10DX:20B0"))
    (asked,) = told["resources"]
    assert asked["availability"] == "never"
    names(asked["messages"][0], "cannot be used", "permittedHostDevices.pciHostDevices[0]", "10DX:20B0")
    assert not any("list it there" in line for line in asked["messages"])
    (note,) = (line for line in told["notes"] if "pciHostDevices[0]" in line)
    names(note, "example.com/a100", "10DX:20B0")


async def test_a_card_that_the_cr_means_is_named_also_beside_another_one_that_is_offered(node: Node) -> None:
    (offered,) = node.add_gpus(1)
    other = "0000:86:00.0"
    node.host.add_function(other, vendor="10de", device="1eb8", pci_class="030200", driver="nvidia", group=99)
    (asked,) = (await answer(node, *files(node)))["resources"]
    (line,) = (line for line in asked["messages"] if other in line)
    names(line, "KubeVirt CR", "driver is nvidia")
    assert offered not in line


HYPER_CONVERGED = """
apiVersion: hco.kubevirt.io/v1beta1
kind: HyperConverged
metadata: {name: kubevirt-hyperconverged, namespace: openshift-cnv}
spec:
  mediatedDevicesConfiguration: {mediatedDeviceTypes: [nvidia-222]}
  permittedHostDevices:
    pciHostDevices:
      - {pciDeviceSelector: "10DE:1EB8", resourceName: NAME, externalResourceProvider: true}
      - {pciDeviceSelector: "10DE:1EB8", resourceName: example.com/disabled, disabled: true}
    usbHostDevices:
      - resourceName: example.com/stick
        externalResourceProvider: true
        selectors: [{vendor: "46f4", product: "0001"}]
"""


async def test_a_machine_is_judged_by_a_hyperconverged_cr(node: Node) -> None:
    node.add_gpus(2)
    cr = node.root / "hco.yaml"
    cr.write_text(HYPER_CONVERGED.replace("NAME", T4))
    machine = node.root / "vm.yaml"
    machine.write_text(MACHINE.replace("NAME", T4).replace("gpus:", "hostDevices:"))
    found = await answer(node, str(machine), "--cr", str(cr))
    assert found["availability"] == "now"
    assert found["cr"]["name"] == "openshift-cnv/kubevirt-hyperconverged"
    machine.write_text(MACHINE.replace("NAME", "example.com/disabled"))
    assert (await answer(node, str(machine), "--cr", str(cr)))["availability"] == "never"
