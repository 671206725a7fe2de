# SPDX-License-Identifier: Apache-2.0
"""The one container image of this tier: a static busybox and the virt-launcher reader, as an OCI archive.

The same image serves as the sandbox of pods: without a command it sleeps.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

NAME = "localhost/nodeagent-e2e:1"
BUSYBOX = Path("/bin/busybox")
_APPLETS = ("cat", "env", "ls", "sh", "sleep", "stat", "tr", "true")
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def write(path: Path, launcher: Path) -> None:
    """Write the archive for ``ctr images import``."""
    layer = _layer({"bin/busybox": BUSYBOX, "bin/launcher": launcher})
    packed = gzip.compress(layer, compresslevel=1, mtime=0)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Cmd": ["/bin/sleep", "1000000"]},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    blobs: dict[str, bytes] = {}
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _blob(blobs, "application/vnd.oci.image.config.v1+json", json.dumps(config).encode()),
        "layers": [_blob(blobs, "application/vnd.oci.image.layer.v1.tar+gzip", packed)],
    }
    entry = _blob(blobs, _MANIFEST, json.dumps(manifest).encode())
    entry["annotations"] = {"io.containerd.image.name": NAME}
    index = {"schemaVersion": 2, "manifests": [entry]}
    with tarfile.open(path, "w") as archive:
        _add(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(archive, "index.json", json.dumps(index).encode())
        for digest, content in blobs.items():
            _add(archive, f"blobs/sha256/{digest.removeprefix('sha256:')}", content)


def _layer(programs: Mapping[str, Path]) -> bytes:
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as archive:
        for directory in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            info = tarfile.TarInfo(directory)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(info)
        for name, program in programs.items():
            _add(archive, name, program.read_bytes(), 0o755)
        for applet in _APPLETS:
            info = tarfile.TarInfo(f"bin/{applet}")
            info.type, info.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(info)
    return memory.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    archive.addfile(info, io.BytesIO(content))


def _blob(blobs: dict[str, bytes], media_type: str, content: bytes) -> dict[str, object]:
    blobs[_digest(content)] = content
    return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
