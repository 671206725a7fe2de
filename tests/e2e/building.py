# SPDX-License-Identifier: Apache-2.0
"""Builds Kubernetes, etcd, containerd 2 and the virt-launcher reader with Go, once, into a cache.

Versions are pinned by the go.mod and go.sum of each module here. ``k8s.io/kubernetes`` cannot be built
by ``go install``, because it names its staging modules as v0.0.0; hence modules of our own with ``replace``.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.e2e import processes

HERE = Path(__file__).parent
KUBERNETES = "1.36"  # the default; NODEAGENT_E2E_KUBERNETES chooses another kubernetes-* directory

_COMMANDS = {
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "etcd": "go.etcd.io/etcd/server/v3",
}


class Missing(Exception):
    """Raised when the machine lacks something that this tier needs; the text says what to install."""


def chosen(environ: Mapping[str, str]) -> str:
    """The Kubernetes minor version to test with; raises Missing if it is not pinned here."""
    wanted = environ.get("NODEAGENT_E2E_KUBERNETES") or KUBERNETES
    known = sorted(path.name.removeprefix("kubernetes-") for path in HERE.glob("kubernetes-*"))
    if wanted not in known:
        raise Missing(f"NODEAGENT_E2E_KUBERNETES={wanted}: choose one of {', '.join(known)}")
    return wanted


def kubernetes(version: str) -> dict[str, Path]:
    """Program name → path of the built program, for kubelet, the control plane and etcd."""
    module = HERE / f"kubernetes-{version}"
    return {name: _built(module, name, package, _flags(module)) for name, package in _COMMANDS.items()}


def containerd() -> Path:
    """The directory with a containerd that honours CDI names, which Debian 12's does not."""
    module, base = HERE / "containerd-2.2", "github.com/containerd/containerd/v2/cmd"
    names = ("containerd", "containerd-shim-runc-v2", "ctr")
    built = [_built(module, name, f"{base}/{name}", "-s -w") for name in names]
    return built[0].parent


def launcher() -> Path:
    """The program that shows what virt-launcher would attach."""
    return _built(HERE / "launcher", "launcher", ".", "-s -w")


def kubevirt_source() -> Path:
    """The directory of the KubeVirt module in Go's module cache."""
    command = [go(), "list", "-m", "-f", "{{.Dir}}", "kubevirt.io/kubevirt"]
    return Path(processes.run(command, cwd=HERE / "launcher").strip())


def go() -> str:
    """The path of the go command; raises Missing without one."""
    found = shutil.which("go")
    if found is None:
        raise Missing(
            "there is no Go toolchain to build Kubernetes with: install Go 1.26 or newer, and put it on PATH"
        )
    return found


def _built(module: Path, name: str, package: str, linker_flags: str) -> Path:
    target = _cache(module) / name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"building {name} from {module.name}, once", file=sys.stderr, flush=True)
    unfinished = target.with_suffix(f".{os.getpid()}")
    command = ["nice", "-n", "19", go(), "build", "-trimpath", "-ldflags", linker_flags]
    processes.run([*command, "-o", str(unfinished), package], cwd=module, env={"CGO_ENABLED": "0"})
    unfinished.rename(target)
    return target


def _cache(module: Path) -> Path:
    base = os.environ.get("NODEAGENT_CACHE") or Path.home() / ".cache" / "nodeagent"
    digest = hashlib.sha256()
    for path in sorted(path for path in module.rglob("*") if path.is_file()):
        digest.update(path.relative_to(module).as_posix().encode() + b"\0" + path.read_bytes())
    return Path(base) / "e2e" / f"{module.name}-{digest.hexdigest()[:16]}"


def _flags(module: Path) -> str:
    """Without these the programs say that they are v0.0.0, and clients believe it."""
    found = re.search(r"k8s\.io/kubernetes v(\d+)\.(\d+)\.(\d+)", (module / "go.mod").read_text())
    if found is None:
        raise Missing(f"{module.name}/go.mod names no version of k8s.io/kubernetes")
    major, minor, patch = found.groups()
    variables = {"gitVersion": f"v{major}.{minor}.{patch}", "gitMajor": major, "gitMinor": minor}
    given = (f"-X k8s.io/component-base/version.{name}={value}" for name, value in variables.items())
    return " ".join(("-s", "-w", *given))
