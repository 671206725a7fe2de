# SPDX-License-Identifier: Apache-2.0
"""Parses VMs and VMIs of KubeVirt, as the API server sends them, into ``VirtualMachine``. Decides nothing.

For a VirtualMachine, the VMI template in its spec is parsed. Only devices are read. An entry with a resource
claim uses DRA in KubeVirt, and requests no device from a device plugin.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nodeagent.cluster import fields
from nodeagent.cluster.fields import Notes
from nodeagent.model.kubevirt import DeviceList, VirtualMachine, VmDevice

_, _VM = VirtualMachine.KINDS
_LISTS = ((DeviceList.GPUS, "gpus"), (DeviceList.HOST_DEVICES, "hostDevices"))
_RESOURCE = "the resourceName of an entry of permittedHostDevices"


def parse(document: Any) -> VirtualMachine | None:
    """Return the devices that the VM requests; None if the document is not a VM. Never raises."""
    top = fields.table(document)
    kind = top.get("kind")
    if kind not in VirtualMachine.KINDS:
        return None
    notes = Notes()
    spec, place = fields.table(top.get("spec")), "spec"
    named = fields.table(spec.get("instancetype")) if kind == _VM else {}
    if kind == _VM:
        spec, place = fields.table(fields.table(spec.get("template")).get("spec")), "spec.template.spec"
    devices = fields.table(fields.table(spec.get("domain")).get("devices"))
    metadata = fields.table(top.get("metadata"))
    return VirtualMachine(
        kind,
        _name(metadata, "namespace"),
        _name(metadata, "name"),
        tuple(_devices(devices, f"{place}.domain.devices", notes)),
        tuple(notes.findings),
        _name(named, "name"),
        tuple(
            _name(entry, "name")
            for _, entry in fields.tables(devices, "interfaces", place, Notes())
            if entry.get("sriov") is not None
        ),
    )


def _devices(devices: dict[Any, Any], place: str, notes: Notes) -> Iterator[VmDevice]:
    for listed, key in _LISTS:
        for where, entry in fields.tables(devices, key, place, notes):
            name = _name(entry, "name")
            if entry.get("claimName") is not None:
                yield VmDevice(listed, name)
                continue
            resource = fields.text(entry, "deviceName", _RESOURCE, where, notes)
            if resource is not None:
                yield VmDevice(listed, name, resource)


def _name(entry: dict[Any, Any], key: str) -> str:
    """Return a name for display; "" if it is not printable."""
    return fields.text(entry, key, "a name", "", Notes()) or ""
