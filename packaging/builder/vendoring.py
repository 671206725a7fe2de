# SPDX-License-Identifier: Apache-2.0
"""The libraries that the packages carry: exactly those of ``requirements/runtime.lock``, in pure Python.

Wheels are fetched once, checked against the hashes of the lock, and kept in ``$NODEAGENT_CACHE``. PyYAML has
no pure wheel, so one is built from its source, which the lock knows as well. Of each library only its modules
stay, and its licence goes into the notices. Knows nothing of nodeagent.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from builder import cache
from builder.source import ROOT

LOCK = ROOT / "requirements/runtime.lock"
BUILT = "pyyaml"
LEFT_OUT = frozenset({"certifi", "tzdata"})  # named by libraries, and imported by nothing of what is used
# 24 MB of generated classes and tests, which nodeagent/cluster/kube_client.py leaves alone
PARTS_LEFT_OUT = (
    *(f"kubernetes_asyncio/client/{part}" for part in ("api", "models", "test_*.py")),
    *(f"kubernetes_asyncio/{part}" for part in ("dynamic", "leaderelection", "stream", "utils", "watch")),
    *("kubernetes_asyncio/config/*_test.py", "kubernetes_asyncio/README.md", "aiohttp/*.pxi"),
)
READ_AT_RUN_TIME = "betterproto2-*.dist-info"  # the version that generated code asks for
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
_PURE = ("--only-binary", ":all:", "--platform", "any", "--implementation", "py", "--abi", "none")
_ANY = (*_PURE, "--python-version", "3.11")
_FOR_COMPILERS = frozenset({".h", ".pxd", ".pyi", ".typed"})  # and for checkers of types
_LICENCE = re.compile(r"(licen[cs]e|notice|copying)", re.IGNORECASE)


def requirements() -> dict[str, str]:
    """Library → its lines of the lock, hashes among them."""
    blocks = re.findall(r"^(?:[a-z0-9._-]+)==.+?(?=^[a-z0-9._-]+==|\Z)", LOCK.read_text(), re.S | re.M)
    named = {block.partition("==")[0]: block for block in blocks}
    return {name: block for name, block in named.items() if name not in LEFT_OUT}


def vendor(target: Path) -> str:
    """Install all libraries into an empty directory; the notices that their licences ask for."""
    found = sorted(str(wheel) for wheel in wheels().glob("*.whl"))
    _run("install", "--target", str(target), "--no-compile", "--no-deps", "--no-index", *_ANY, *found)
    notices = _notices(target)
    _clean(target)
    return notices


def wheels() -> Path:
    """The directory of all wheels; made if it is not there."""
    blocks = requirements()
    known = hashlib.sha256("".join(blocks.values()).encode()).hexdigest()[:16]
    return cache.made(cache.place("packages") / f"wheels-{known}", lambda making: _fetch(making, blocks))


def _fetch(wheels: Path, blocks: dict[str, str]) -> None:
    pure, built = wheels / "pure.txt", wheels / "built.txt"
    pure.write_text("".join(block for name, block in blocks.items() if name != BUILT))
    built.write_text(blocks[BUILT])
    common = ("--no-deps", "--require-hashes", "-r")
    _run("download", "--dest", str(wheels), *_ANY, *common, str(pure))
    from_source = ("--no-build-isolation", "--no-binary", BUILT)
    _run("wheel", "--wheel-dir", str(wheels), *from_source, *common, str(built))


def _run(*arguments: str) -> None:
    pure = {"PYYAML_FORCE_LIBYAML": "0", "PYYAML_FORCE_CYTHON": "0"}
    subprocess.run([*_PIP, *arguments], check=True, env=os.environ | pure)


def _notices(target: Path) -> str:
    """All licence texts, each below the name, version and licence of its library."""
    parts = []
    for info in sorted(target.glob("*.dist-info")):
        fields = dict(re.findall(r"^(Name|Version|License|License-Expression): (.+)$", _metadata(info), re.M))
        licence = fields.get("License-Expression") or fields.get("License", "see below")
        title = f"{fields['Name']} {fields['Version']} ({licence})"
        texts = [path.read_text().strip() for path in _licences(info)]
        parts.append("\n\n".join([f"{title}\n{'=' * len(title)}", *texts]))
    return "\n\n\n".join(parts) + "\n"


def _metadata(info: Path) -> str:
    return (info / "METADATA").read_text().partition("\n\n")[0]


def _licences(info: Path) -> list[Path]:
    return sorted(path for path in info.rglob("*") if path.is_file() and _LICENCE.search(path.name))


def _clean(target: Path) -> None:
    """Leave nothing but modules and their data."""
    kept = set(target.glob(READ_AT_RUN_TIME))
    for path in target.iterdir():
        if path.name == "bin" or (path.suffix == ".dist-info" and path not in kept):
            shutil.rmtree(path)
        elif path.is_file() and path.suffix != ".py":
            path.unlink()
    for path in [path for part in PARTS_LEFT_OUT for path in target.glob(part)]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in [path for path in target.rglob("*") if path.suffix in _FOR_COMPILERS]:
        path.unlink()
    for info in kept:
        for path in [path for path in info.rglob("*") if path.is_file() and path.name != "METADATA"]:
            path.unlink()
    for path in target.rglob("*.py"):
        lines = path.read_bytes().splitlines(keepends=True)
        if lines and lines[0].startswith(b"#!"):
            path.write_bytes(b"".join(lines[1:]))
