# SPDX-License-Identifier: Apache-2.0
"""Our own files below /run and /var/lib, damaged: ownership is never lost without a word."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nodeagent.agent.changing import ledger
from nodeagent.agent.cluster import state
from nodeagent.base import files, log
from nodeagent.model.ledger import Ledger
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


class _Kept(logging.Handler):
    """Keeps what is logged."""

    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__()
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        """Note a record."""
        self._records.append(record)


@contextmanager
def _said() -> Iterator[list[logging.LogRecord]]:
    """What nodeagent logs meanwhile."""
    records: list[logging.LogRecord] = []
    handler = _Kept(records)
    logger = logging.getLogger(log.LOGGER)
    logger.addHandler(handler)
    try:
        yield records
    finally:
        logger.removeHandler(handler)


def _owned(content: bytes) -> None:
    with TemporaryDirectory(prefix="nodeagent-fuzz-") as directory, _said() as said:
        path = Path(directory, "vgpu-types.json")
        path.write_bytes(content)
        found = ledger.FILE.load(str(path))
    lost = _LEDGER.types.items() - found.types.items()
    assert not lost or said, f"ownership of {len(lost)} vGPUs is lost without a word"


def _read(content: bytes) -> None:
    """A cluster's record is read and its CR understood, or it is set aside as it is."""
    with TemporaryDirectory(prefix="nodeagent-fuzz-") as directory:
        path = Path(directory, "cluster.json")
        path.write_bytes(content)
        state.FILE.load(str(path))
        if not path.exists():
            assert Path(f"{path}{files.ASIDE}").read_bytes() == content, "it is not kept"


def _understood(document: Any) -> None:
    """Of another version, and whole."""
    try:
        _read(json.dumps(document).encode())
    except UnicodeEncodeError:
        return


def _ledger() -> bytes:
    with TemporaryDirectory(prefix="nodeagent-fuzz-") as directory:
        path = Path(directory, "vgpu-types.json")
        ledger.FILE.save(str(path), _LEDGER)
        return path.read_bytes()


def targets() -> list[Target]:
    """All of this module."""
    size = lambda document: len(json.dumps(document))  # noqa: E731
    return [
        Target("ledger", mutations.damaged([_ledger()], _TOKENS), _owned),
        Target("cluster-record", mutations.damaged([json.dumps(_RECORD).encode()], _TOKENS), _read),
        Target("older-record", mutations.misshapen(_RECORD), _understood, size),
    ]
