# SPDX-License-Identifier: Apache-2.0
"""A mount namespace in which the fixed paths of a node lead into one temporary directory.

The kubelet's device-plugins directory is a constant, containerd's shims put sockets below /run/containerd,
and containers take their device nodes from /dev: in here these are our own, and the host keeps no trace.
The sysctls that a kubelet writes (pkg/kubelet/cm/container_manager_linux.go) are machine-wide: they are
saved, and written back at the end; so are the cgroups that runc made.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from tests.e2e import processes, waiting
from tests.e2e.processes import Process

_SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
_NODES = ("null", "zero", "full", "random", "urandom", "tty", "kmsg")
_CGROUPS = ("k8s.io", "kubepods")
_SCRIPT = """
set -eu
mount --make-rshared /
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
mkdir /run/containerd /var/lib/kubelet
mount --rbind {base}/host/var/lib/kubelet /var/lib/kubelet
mount --make-rshared /var/lib/kubelet
mount --rbind {base}/log /var/log
mount -t tmpfs -o mode=755 tmpfs {base}/dev
for node in {nodes}; do touch {base}/dev/$node; mount --bind /dev/$node {base}/dev/$node; done
mkdir -p {base}/dev/pts {base}/dev/shm {base}/dev/vfio {base}/dev/bus/usb
mount --rbind /dev/pts {base}/dev/pts
mount --rbind {base}/host/dev/vfio {base}/dev/vfio
mount --rbind {base}/host/dev/bus/usb {base}/dev/bus/usb
mount --rbind {base}/dev /dev
touch {base}/namespace-ready
exec sleep 1000000
"""


class Namespace:
    """The namespace, held by a process that sleeps."""

    def __init__(self, base: Path) -> None:
        for name in ("host/var/lib/kubelet", "host/dev/vfio", "host/dev/bus/usb", "log", "dev"):
            (base / name).mkdir(parents=True)
        script = _SCRIPT.format(base=shlex.quote(str(base)), nodes=" ".join(_NODES))
        self.base = base
        self._holder = Process(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script], base / "namespace.log"
        )
        ready = base / "namespace-ready"
        waiting.until(lambda: ready.exists() or not self._holder.running, "the mount namespace is made")
        if not self._holder.running:
            raise RuntimeError(f"no mount namespace: {self._holder.tail()}")

    def command(self, *argv: str) -> list[str]:
        """The arguments that run a program inside; it keeps the pid."""
        return ["nsenter", "--mount", "--target", str(self._holder.pid), "--", *argv]

    def start(self, name: str, *argv: str, env: dict[str, str] | None = None) -> Process:
        """Start a program inside; its log is ``<base>/<name>.log``."""
        return Process(self.command(*argv), self.base / f"{name}.log", env)

    def close(self) -> None:
        """End the holder; the mounts go with the last process inside."""
        self._holder.stop()


@contextlib.contextmanager
def host_unchanged() -> Iterator[None]:
    """Write the sysctls back at the end, and remove the cgroups that came meanwhile."""
    sysctls = {path: path.read_text() for path in map(Path("/proc/sys").joinpath, _SYSCTLS) if path.exists()}
    cgroups = set(_cgroups())
    try:
        yield
    finally:
        for path, text in sysctls.items():
            if path.read_text() != text:
                path.write_text(text)
        for path in _cgroups():
            if path not in cgroups:
                _remove_cgroup(path)


def traces(base: Path) -> list[str]:
    """What is left of a node below ``base``: processes that name it, mounts, and the directory itself."""
    found = [f"directory {base}"] if base.exists() else []
    found += [f"mount {line}" for line in Path("/proc/mounts").read_text().splitlines() if str(base) in line]
    return [*found, *(f"process {pid} {command}" for pid, command in processes.naming(str(base)))]


def _cgroups() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    return [path for name in _CGROUPS for pattern in (name, f"*/{name}") for path in root.glob(pattern)]


def _remove_cgroup(path: Path) -> None:
    for directory, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):  # EBUSY: somebody else put a process there
            Path(directory).rmdir()
