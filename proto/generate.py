# SPDX-License-Identifier: Apache-2.0
"""Writes the Python messages and stubs of the .proto files beside it; run by ``make proto``.

Each API goes into a directory of its own: betterproto2 merges files of one proto package, and
Kubernetes uses the package ``v1`` for several APIs. Needs the development dependencies; packages
are built from the committed output and need none of this.

Usage: ``python proto/generate.py [DIRECTORY]`` (default: nodeagent/kubelet/api)
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SPDX = "# SPDX-License-Identifier: Apache-2.0\n"
SOURCES = {
    "deviceplugin": "v1beta1/api.proto",
    "podresources": "v1/api.proto",
    "pluginregistration": "v1/api.proto",
    "dra": "v1/api.proto",
    "drahealth": "v1/api.proto",
}


def generate(target: Path) -> None:
    """Fill ``target`` with one package per API; raises CalledProcessError if protoc fails."""
    target = target.resolve()
    target.mkdir(parents=True, exist_ok=True)
    (target / "__init__.py").write_text(SPDX)
    for api, source in SOURCES.items():
        out = target / api
        out.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory() as elsewhere:  # out of reach of our settings for ruff
            command = _command(HERE / api, source, out)
            subprocess.run(command, check=True, env=_environment(), cwd=elsewhere)
        _add_licence_line(out)


def _command(include: Path, source: str, out: Path) -> list[str]:
    """The protoc call: asyncio stubs and servers (the default is synchronous stubs only)."""
    return [
        *(sys.executable, "-m", "grpc_tools.protoc", "-I", str(include)),
        f"--python_betterproto2_out={out}",
        "--python_betterproto2_opt=client_generation=async,server_generation=async",
        source,
    ]


def _environment() -> dict[str, str]:
    """The environment in which protoc finds its plugin, and the plugin finds ruff."""
    scripts = sysconfig.get_path("scripts")
    return os.environ | {"PATH": os.pathsep.join((scripts, os.environ.get("PATH", "")))}


def _add_licence_line(out: Path) -> None:
    for path in sorted(out.rglob("*.py")):
        path.write_text(SPDX + path.read_text())


if __name__ == "__main__":
    default = HERE.parent / "nodeagent" / "kubelet" / "api"
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else default)
