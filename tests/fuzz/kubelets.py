# SPDX-License-Identifier: Apache-2.0
"""The kubelet's checkpoint."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nodeagent.kubelet import checkpoint
from nodeagent.kubelet.api.deviceplugin import v1beta1
from tests.fuzz import mutations
from tests.fuzz.running import Target


def _checkpoint() -> Any:
    granted = v1beta1.ContainerAllocateResponse(
        envs={"PCI_RESOURCE_EXAMPLE_COM_GPU": "0000:3b:00.0"},
        devices=[v1beta1.DeviceSpec("/dev/vfio/10", "/dev/vfio/10", "mrw")],
    )
    entry = {
        "PodUID": "11111111-2222-3333-4444-555555555555",
        "ContainerName": "compute",
        "ResourceName": "example.com/gpu",
        "DeviceIDs": {"0": ["0000:3b:00.0"], "-1": ["10"]},
        "AllocResp": base64.b64encode(bytes(granted)).decode(),
    }
    registered = {"example.com/gpu": ["0000:3b:00.0"], "example.com/empty": None}
    return {
        "Data": {"PodDeviceEntries": [entry, entry | {"PodUID": "2"}], "RegisteredDevices": registered},
        "Checksum": 7,
    }


def _read(content: bytes) -> None:
    with TemporaryDirectory(prefix="nodeagent-fuzz-") as directory:
        path, aside = Path(directory, "kubelet_internal_checkpoint"), Path(directory, ".1")
        path.write_text(json.dumps(_checkpoint()))
        file = checkpoint.CheckpointFile(str(path))
        before = file.read()
        assert before.entries
        aside.write_bytes(content)
        aside.rename(path)
        after, resources = file.read(), checkpoint.known_resources(str(path))
        assert after.listed_devices == {(each.resource, each.device_id) for each in after.entries}
        try:
            json.loads(content)
        except (ValueError, RecursionError):
            assert not after.readable, "what cannot be read has said something"
            assert resources is None


def _dumped(document: Any) -> bytes:
    return json.dumps(document).encode()


def targets() -> list[Target]:
    """All of this module."""
    words = (*mutations.JSON_TOKENS, b"-1", b"9" * 5000, b"\\ud800")
    documents = mutations.misshapen(_checkpoint()).map(_dumped)
    return [
        Target("checkpoint", documents | mutations.damaged([_dumped(_checkpoint())], words), _read),
    ]
