# SPDX-License-Identifier: Apache-2.0
"""Our own files below /run and /var/lib, damaged: read, or set aside as they are."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nodeagent.agent.changing import ledger
from nodeagent.agent.cluster import state
from nodeagent.base.state import ASIDE, BOOT, LASTING, Section, StateFile
from nodeagent.model.change import Ledger
from tests.fuzz import mutations
from tests.fuzz.running import Target

_TOKENS = (*mutations.JSON_TOKENS, b"\\u", b"0000:3b:00.4")
_LEDGER = Ledger(
    {"0000:3b:00.4": "1147", "0000:3b:00.5": "1148"}, {"1147": "NVIDIA A16-1B"}, {"0000:3b:00.4": ("1147",)}
)
_CR = {
    "metadata": {"name": "kubevirt", "namespace": "kubevirt", "uid": "7"},
    "spec": {
        "configuration": {
            "permittedHostDevices": {
                "pciHostDevices": [{"pciVendorSelector": "10DE:1F08", "resourceName": "example.com/gpu"}],
                "mediatedDevices": [
                    {"mdevNameSelector": "GRID T4-1Q", "resourceName": "nvidia.com/GRID_T4-1Q"}
                ],
            },
            "mediatedDevicesConfiguration": {"mediatedDeviceTypes": ["nvidia-222"]},
        }
    },
    "status": {"phase": "Deployed"},
}
_RECORD = {"kubevirt": _CR, "labels": {"kubernetes.io/hostname": "node1"}, "at": 1.0}


def _read(section: Section[Any], state_file: StateFile, content: bytes) -> None:
    """A file is read, or it is set aside as it is. It has no checksum: anything that can be read counts."""
    with TemporaryDirectory(prefix="nodeagent-fuzz-") as directory:
        path = Path(f"{directory}{state_file.path}")
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        section.load(directory)
        if not path.exists():
            assert Path(f"{path}{ASIDE}").read_bytes() == content, "it is not kept"


def _understood(document: Any) -> None:
    """Of another version, and whole."""
    try:
        _read(state.SECTION, LASTING, json.dumps({"cluster": document}).encode())
    except UnicodeEncodeError:
        return


def _ledger() -> bytes:
    with TemporaryDirectory(prefix="nodeagent-fuzz-") as directory:
        ledger.SECTION.save(directory, _LEDGER)
        return Path(f"{directory}{BOOT.path}").read_bytes()


def targets() -> list[Target]:
    """All of this module."""
    size = lambda document: len(json.dumps(document))  # noqa: E731
    return [
        Target("ledger", mutations.damaged([_ledger()], _TOKENS), partial(_read, ledger.SECTION, BOOT)),
        Target(
            "cluster-record",
            mutations.damaged([json.dumps({"cluster": _RECORD}).encode()], _TOKENS),
            partial(_read, state.SECTION, LASTING),
        ),
        Target("older-record", mutations.misshapen(_RECORD), _understood, size),
    ]
