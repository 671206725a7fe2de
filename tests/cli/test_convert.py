# SPDX-License-Identifier: Apache-2.0
"""``config --from FILE``: rules out of files of other tools; what has no counterpart is said."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from nodeagent import config
from nodeagent.cli import main
from tests.cluster import crs
from tests.facts import names

MDEVS = {
    "mediatedDeviceTypes": ["nvidia-222", "GRID T4-2B"],
    "nodeMediatedDeviceTypes": [
        {"nodeSelector": {"kubernetes.io/hostname": "node2"}, "mediatedDeviceTypes": ["nvidia-234"]}
    ],
}


class Told(NamedTuple):
    """What was printed: the configuration, and what is not in it."""

    code: int
    out: str
    err: str

    @property
    def resources(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = yaml.safe_load(self.out)["resources"]
        return found


Translate = Callable[[Any], Told]


@pytest.fixture
def translate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Translate:
    """Translates a document; what comes out passes the check of configurations."""

    def command(document: Any) -> Told:
        path = tmp_path / "theirs.yaml"
        path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
        code = main.main(["config", "--from", str(path)])
        told = Told(code, *capsys.readouterr())
        if code == 0:
            (tmp_path / "ours.yaml").write_text(told.out)
            config.check_file(str(tmp_path / "ours.yaml"))
        return told

    return command


VFIO = {"drivers": ["vfio-pci"]}
GUIDE_RULES = [
    {"name": "nvidia.com/TU104GL_Tesla_T4", "pci": [{"vendors": ["10de"], "devices": ["1eb8"], **VFIO}]},
    {"name": "intel.com/qat", "pci": [{"vendors": ["8086"], "devices": ["6f54"], **VFIO}]},
    {"name": "nvidia.com/GRID_T4-1Q", "mdev": [{"names": ["GRID T4-1Q"]}]},
]


@pytest.mark.parametrize(
    "document",
    [
        crs.document({"permittedHostDevices": crs.GUIDE}),
        {"spec": {"configuration": {"permittedHostDevices": crs.GUIDE}}},
        {"configuration": {"permittedHostDevices": crs.GUIDE}},
        {"permittedHostDevices": crs.GUIDE},
        crs.GUIDE,
        {"kind": "List", "items": [crs.document({"permittedHostDevices": crs.GUIDE})]},
    ],
    ids=["object", "patch", "configuration", "section", "lists", "List"],
)
def test_permitted_devices_become_rules_however_much_is_around_them(
    translate: Translate, document: Any
) -> None:
    told = translate(document)
    assert told.code == 0
    assert told.resources == GUIDE_RULES
    assert "intel.com/qat, nvidia.com/GRID_T4-1Q" in told.err, "whose entries are not external"


def test_selectors_of_one_name_are_one_rule(translate: Translate) -> None:
    same = [{"pciVendorSelector": f"10DE:{each}", "resourceName": "a.b/gpu"} for each in ("1EB8", "20B0")]
    assert translate({"pciHostDevices": same}).resources == [
        {"name": "a.b/gpu", "pci": [{"vendors": ["10de"], "devices": ["1eb8", "20b0"], **VFIO}]}
    ]


def test_what_of_the_cr_has_no_counterpart_is_said(translate: Translate) -> None:
    told = translate(
        {
            "pciHostDevices": [{"pciVendorSelector": "10DE:1F08", "resourceName": "nvidia.com/GeForce RTX"}],
        }
    )
    assert (told.code, told.resources) == (0, [])
    assert "pciHostDevices[0]" in told.err


def test_a_usb_entry_becomes_a_rule_for_sets(translate: Translate) -> None:
    pairs = [{"vendor": "46F4", "product": "0001"}, {"vendor": "1234", "product": "5678"}]
    told = translate({"usb": [{"resourceName": "a.b/set", "selectors": pairs}]})
    picked = [{"vendors": ["46f4"], "products": ["0001"]}, {"vendors": ["1234"], "products": ["5678"]}]
    assert told.resources == [{"name": "a.b/set", "usb": picked, "bundle": True}]
    names(told.err, "virt-handler", "a.b/set")


def test_wanted_mdevs_come_without_the_leave_to_make_them(translate: Translate) -> None:
    told = translate(crs.document({"mediatedDevicesConfiguration": MDEVS}))
    assert yaml.safe_load(told.out)["mdevs"] == {
        "types": ["nvidia-222", "GRID T4-2B"],
        "nodes": [{"nodeSelector": {"kubernetes.io/hostname": "node2"}, "types": ["nvidia-234"]}],
    }
    assert "mdevs.manage" in told.err


def pool(name: str = "vf", **more: Any) -> dict[str, Any]:
    return {"resourceName": name, "selectors": {"vendors": ["15b3"], "devices": ["1018"]}, **more}


def test_resources_of_the_sriov_device_plugin_become_rules(translate: Translate) -> None:
    accelerator = pool("fpga", deviceType="accelerator", resourcePrefix="example.com")
    accelerator["selectors"] = [
        {"pciAddresses": ["0000:3b:00.0"]},
        {"devices": ["09c4"], "drivers": ["vfio-pci"]},
    ]
    told = translate({"resourceList": [pool(resourcePrefix="intel.com"), accelerator]})
    assert told.resources == [
        {"name": "intel.com/vf", "pci": [{"classes": ["02"], "vendors": ["15b3"], "devices": ["1018"]}]},
        {
            "name": "example.com/fpga",
            "pci": [
                {"classes": ["12"], "addresses": ["0000:3b:00.0"]},
                {"classes": ["12"], "devices": ["09c4"], "drivers": ["vfio-pci"]},
            ],
        },
    ]
    assert told.err == ""


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (pool(selectors={"pfNames": ["eth0#0-3"], "rootDevices": ["0000:86:00.0#1"]}), "rootDevices"),
        (pool(selectors={"vendors": ["15b3"], "acpiIndexes": ["101"]}), "acpiIndexes"),
        (pool(selectors={"drivers": ["iavf"]}), "iavf"),
        (pool(selectors={}), "no selectors"),
        (pool(deviceType="auxNetDevice"), "auxNetDevice"),
        (pool(name="no name"), "not a valid name"),
        ({"selectors": {}}, "no resourceName"),
        ("text", "no resourceName"),
        (pool(selectors={"pciAddresses": ["nonsense"]}), "nonsense"),
    ],
)
def test_a_rule_that_would_take_more_or_mean_nothing_is_left_out(
    translate: Translate, entry: Any, said: str
) -> None:
    told = translate({"resourceList": [entry, pool("good")]})
    assert [rule["name"] for rule in told.resources] == ["intel.com/good"]
    assert said in told.err


def test_what_does_not_narrow_is_left_out_of_the_rule_and_said(translate: Translate) -> None:
    told = translate({"resourceList": [pool(additionalInfo={"*": {"a": "b"}})]})
    assert len(told.resources) == 1
    assert "additionalInfo" in told.err


def test_drivers_for_containers_are_left_out_of_a_selector_and_said(translate: Translate) -> None:
    told = translate({"resourceList": [pool(selectors={"drivers": ["iavf", "vfio-pci"]})]})
    assert told.resources[0]["pci"] == [{"classes": ["02"], "drivers": ["vfio-pci"]}]
    names(told.err, "intel.com/vf", "iavf")


def test_a_config_map_is_looked_into(translate: Translate) -> None:
    text = json.dumps({"resourceList": [pool()]})
    told = translate({"apiVersion": "v1", "kind": "ConfigMap", "data": {"config.json": text}})
    assert [rule["name"] for rule in told.resources] == ["intel.com/vf"]


@pytest.mark.parametrize("text", ["a: b", "[]", "", "{kind: ConfigMap}", "text"])
def test_a_file_of_neither_is_refused(translate: Translate, text: str) -> None:
    told = translate(text)
    assert (told.code, told.out) == (2, "")
    names(told.err, "KubeVirt", "device plugin")


def test_a_file_of_the_generic_device_plugin_becomes_rules_for_nodes(translate: Translate) -> None:
    told = translate(
        "devices: [{name: serial, groups: [{count: 2, paths: [{path: /dev/ttyUSB*}]}]}, "
        "{name: port, groups: [{usb: [{vendor: '1'}]}]}]"
    )
    assert told.code == 0
    (rule,) = yaml.safe_load(told.out)["resources"]
    assert rule == {
        "name": "squat.ai/serial",
        "node": {"paths": [{"path": "/dev/ttyUSB*", "permissions": "mrw"}], "count": 2, "perPath": True},
    }
    assert "USB devices" in told.err


def test_what_comes_out_goes_into_the_check_by_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "cr.yaml"
    path.write_text(yaml.safe_dump(crs.document({"permittedHostDevices": crs.GUIDE})))
    nodeagent = [sys.executable, "-m", "nodeagent", "config"]
    made = subprocess.run([*nodeagent, "--from", str(path)], capture_output=True, text=True, check=True)
    checked = subprocess.run(
        [*nodeagent, "--check", "-"], input=made.stdout, capture_output=True, text=True, check=True
    )
    assert checked.stdout == "-: fine\n"
