# SPDX-License-Identifier: Apache-2.0
"""containerd with a configuration, root, state and socket of its own, and our image in it.

The installed one, or one from a directory; the configuration is of version 2, which containerd 2 converts.

Settings that a test machine needs: without CAP_SYS_RESOURCE runc cannot lower an OOM score, and ends with
"can't get final child's PID from pipe: EOF".
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from tests.e2e import image, processes, waiting
from tests.e2e.namespace import Namespace
from tests.e2e.processes import Process

_CRI = 'plugins."io.containerd.grpc.v1.cri"'
_CONFIG = """
version = 2
root = "{base}/containerd-root"
state = "/run/containerd"
[grpc]
  address = "{base}/containerd.sock"
[{cri}]
  sandbox_image = "{image}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  enable_cdi = true
  cdi_spec_dirs = ["{base}/host/var/run/cdi"]
  [{cri}.cni]
    bin_dir = "{base}/cni"
    conf_dir = "{base}/cni"
  [{cri}.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [{cri}.containerd.runtimes.runc.options]
      SystemdCgroup = false
"""
# Pods use the host's network; without any CNI configuration the Node would not become Ready.
_CNI = '{"cniVersion": "0.4.0", "name": "none", "plugins": [{"type": "none"}]}'


class Containerd:
    """The container runtime of the node."""

    def __init__(self, namespace: Namespace, launcher: Path, programs: Path | None) -> None:
        base = namespace.base
        (base / "cni").mkdir()
        (base / "cni" / "10-none.conflist").write_text(_CNI)
        (base / "containerd.toml").write_text(_CONFIG.format(base=base, cri=_CRI, image=image.NAME))
        image.write(base / "image.tar", launcher)
        # containerd looks for its shim, and the shim for runc, along PATH.
        self._path = os.environ["PATH"] if programs is None else f"{programs}:{os.environ['PATH']}"
        self._namespace = namespace
        self.socket = base / "containerd.sock"
        self._process: Process | None = None

    def start(self) -> None:
        """Start it; returns when it has our image."""
        base = self._namespace.base
        self._process = self._namespace.start(
            "containerd",
            *("env", f"PATH={self._path}", "containerd", "--config", str(base / "containerd.toml")),
        )
        waiting.until(lambda: self._ctr("version"), "containerd answers")
        self.load(base / "image.tar")

    def load(self, archive: Path) -> None:
        """Take the images of an archive."""
        self._ctr("images", "import", str(archive))

    def _ctr(self, *argv: str) -> str:
        command = self._namespace.command(
            "env", f"PATH={self._path}", "ctr", "--address", str(self.socket), "--namespace", "k8s.io"
        )
        try:
            return processes.run([*command, *argv])
        except RuntimeError as error:
            raise OSError(str(error)) from error

    def close(self) -> None:
        """End all containers (their shims end with them), then containerd.

        What was being made when its kubelet was killed is no task, and its shim outlives containerd.
        """
        if self._process is None:
            return
        with contextlib.suppress(OSError):
            for name in self._ctr("tasks", "list", "--quiet").split():
                with contextlib.suppress(OSError):  # the sandbox's shim may have taken it along
                    self._ctr("tasks", "delete", "--force", name)
            for name in self._ctr("containers", "list", "--quiet").split():
                with contextlib.suppress(OSError):
                    self._ctr("containers", "delete", name)
        self._process.stop()
        for pid in self._shims():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        waiting.until(lambda: not self._shims(), "the shims have ended", 10.0)

    def _shims(self) -> list[int]:
        """The pids of what runs containers for this containerd."""
        return [pid for pid, command in processes.naming(str(self.socket)) if "containerd-shim" in command]
