# SPDX-License-Identifier: Apache-2.0
"""Keys of other tools are refused with a pointer to the page that has their counterparts."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent import config
from nodeagent.base.errors import ConfigError
from nodeagent.config import problems
from tests.facts import names

PAGE = Path(__file__).parents[2] / problems.PAGE


@pytest.mark.parametrize(
    ("text", "whose"),
    [
        ("permittedHostDevices: {}", "the KubeVirt CR"),
        ("pciHostDevices: []", "the KubeVirt CR"),
        ("mdevs: {mediatedDeviceTypes: []}", "the KubeVirt CR"),
        ("resources: [{resourceName: a.b/c}]", "the KubeVirt CR"),
        ("resourceList: []", "the sriov-network-device-plugin"),
        ("resources: [{name: a.b/c, pci: [{rootDevices: []}]}]", "the sriov-network-device-plugin"),
        ("sharing: {}", "NVIDIA's k8s-device-plugin"),
        ("vgpu-configs: {}", "NVIDIA's vgpu-device-manager"),
        ("vfioManager: {enabled: true}", "NVIDIA's GPU operator"),
        ("mdev_type: nvidia-222", "mdevctl"),
    ],
)
def test_the_owner_and_the_page_are_named(text: str, whose: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        config.check_file(str(path))
    assert whose in caught.value.hint
    names(caught.value.hint, "docs/migrating.md")
    assert ("config --from FILE" in caught.value.hint) == (whose.startswith("the "))


def test_the_page_is_there() -> None:
    assert PAGE.is_file()


@pytest.mark.parametrize("name", ["kvm", "tun", "vhost-net"])
def test_a_name_that_virt_handler_always_registers_is_a_warning(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"resources: [{{name: devices.kubevirt.io/{name}, node: {{path: /dev/kvm}}}}]")
    (warning,) = config.check_file(str(path)).warnings
    names(warning, "virt-handler", f"devices.kubevirt.io/{name}")
    path.write_text(f"aliases: {{nvidia.com/T4: devices.kubevirt.io/{name}}}")
    assert len(config.check_file(str(path)).warnings) == 1
    path.write_text(f"resources: [{{name: devices.example.com/{name}, node: {{path: /dev/kvm}}}}]")
    assert config.check_file(str(path)).warnings == ()
