# SPDX-License-Identifier: Apache-2.0
"""Virtual machines of KubeVirt: the object as the API server sends it → ``VirtualMachine``. Knows no policy.

Of a VirtualMachine its template counts: the VirtualMachineInstance that would be made of it. Only devices are
read. An entry with a claim is KubeVirt's for DRA; it asks no device plugin.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nodeagent.cluster import fields
from nodeagent.cluster.fields import Notes, Text
from nodeagent.model.kubevirt import DeviceList, VirtualMachine, VmDevice

_INSTANCE, _MACHINE = VirtualMachine.KINDS
_LISTS = ((DeviceList.GPUS, "gpus"), (DeviceList.HOST_DEVICES, "hostDevices"))
_RESOURCE = Text("the resourceName of an entry of permittedHostDevices")
_NAME = Text("a name")


def machine(document: Any) -> VirtualMachine | None:
    """What the machine asks for; None if the document is none. Never raises."""
    top = fields.table(document)
    kind = top.get("kind")
    if kind not in VirtualMachine.KINDS:
        return None
    notes = Notes()
    spec, place = fields.table(top.get("spec")), "spec"
    named = fields.table(spec.get("instancetype")) if kind == _MACHINE else {}
    if kind == _MACHINE:
        spec, place = fields.table(fields.table(spec.get("template")).get("spec")), "spec.template.spec"
    devices = fields.table(fields.table(spec.get("domain")).get("devices"))
    metadata = fields.table(top.get("metadata"))
    return VirtualMachine(
        kind,
        _quiet(metadata, "namespace"),
        _quiet(metadata, "name"),
        tuple(_devices(devices, f"{place}.domain.devices", notes)),
        tuple(notes.findings),
        _quiet(named, "name"),
    )


def _devices(devices: dict[Any, Any], place: str, notes: Notes) -> Iterator[VmDevice]:
    for listed, key in _LISTS:
        for where, entry in fields.tables(devices, key, place, notes):
            name = _quiet(entry, "name")
            if entry.get("claimName") is not None:
                yield VmDevice(listed, name)
                continue
            resource = fields.text(entry, "deviceName", _RESOURCE, where, notes)
            if resource is not None:
                yield VmDevice(listed, name, resource)


def _quiet(entry: dict[Any, Any], key: str) -> str:
    """A name that is shown only; "" for one that cannot be."""
    return fields.text(entry, key, _NAME, "", Notes()) or ""
