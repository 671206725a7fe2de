# SPDX-License-Identifier: Apache-2.0
"""``make packages``: .deb and .rpm packages of nodeagent and its demo, and their bill, into ``dist/``.

Lays out what is installed, fills in the templates of ``packaging/``, and has nfpm pack it. Each file has a
mode and a time of our own, so neither the umask nor the day nor the machine shows in the packages.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from builder import payload, release, sbom, source, texts, vendored
from builder.payload import Payload

BYTE_CODE = {
    "deb": "PYTHONDONTWRITEBYTECODE=1",  # it is made at the installation
    "rpm": "PYTHONPYCACHEPREFIX=/var/cache/nodeagent/pycache",  # it is made when it is first needed
}
NFPM = Path(sys.executable).parent / "nfpm"


def main(arguments: list[str]) -> int:
    """Build; the exit code."""
    parser = argparse.ArgumentParser(prog="builder", description="Builds the packages.")
    release.options(parser)
    options = parser.parse_args(arguments)
    target, key = options.to.resolve(), options.key and options.key.resolve()
    target.mkdir(parents=True, exist_ok=True)
    os.umask(0o022)
    try:
        with tempfile.TemporaryDirectory(prefix="nodeagent-packages-") as folder:
            made = build(Path(folder), target, key)
        release.finish(target, made, key)
    except (sbom.NoLicence, release.NoSignature) as error:
        print(f"builder: {error}", file=sys.stderr)
        return 1
    return 0


def build(stage: Path, target: Path, key: Path | None = None) -> list[Path]:
    """Build all packages; ``stage`` is an empty directory. ``key`` is a file with the key that signs them."""
    laid_out = payload.lay_out(stage)
    texts.write(stage / "texts")
    documents = (stage / "texts" / texts.DOCUMENTATION).rename(stage / "documents")
    shutil.rmtree(documents / "schemas")
    (documents / "third-party-notices.gz").write_bytes(texts.compressed(laid_out.notices))
    shutil.copyfile(source.PACKAGING / "copyright", documents / "copyright")
    bill = sbom.write(documents / sbom.SHIPPED_AS, vendored.parts())
    _fill_in(laid_out, stage)
    _settle(stage)
    made = [Path(shutil.copyfile(bill, target / f"nodeagent-{source.version()}.packages.cdx.json"))]
    for name in ("nodeagent", "nodeagent-demo"):
        recipe = _read_recipe(name, stage)
        if key:
            recipe["deb"]["signature"] = {"method": "debsign", "type": "origin", "key_file": str(key)}
            recipe["rpm"]["signature"] = {"key_file": str(key)}
        written = stage / f"{name}.yaml"
        written.write_text(yaml.safe_dump(recipe, sort_keys=False))
        made += [_pack(written, kind, target / _named(recipe, kind)) for kind in ("deb", "rpm")]
    return made


def _read_recipe(name: str, stage: Path) -> dict[str, Any]:
    """The recipe of a package for nfpm, with the version, the time and the places of this build."""
    now = datetime.fromtimestamp(source.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    template = (source.PACKAGING / f"{name}.yaml").read_text()
    places = {"stage": str(stage), "packaging": str(source.PACKAGING)}
    recipe: dict[str, Any] = yaml.safe_load(_filled(template, version=source.version(), time=now, **places))
    recipe["contents"] = [each for entry in recipe["contents"] for each in _expand(entry)]
    return recipe


def _expand(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """An entry for each file of a pattern: nfpm knows no patterns for files of type doc."""
    folder, pattern = os.path.split(entry.get("src", ""))
    if pattern != "*":
        yield entry
        return
    for path in sorted(Path(folder).iterdir()):
        yield entry | {"src": str(path), "dst": f"{entry['dst']}/{path.name}"}


def _fill_in(laid_out: Payload, stage: Path) -> None:
    """Write the launchers and scripts with the names that only this build knows."""
    launcher = (source.PACKAGING / "nodeagent.sh").read_text()
    for kind, byte_code in BYTE_CODE.items():
        (stage / f"nodeagent.{kind}").write_text(_filled(launcher, code=laid_out.code, bytecode=byte_code))
        (stage / kind).mkdir()
        for script in (source.PACKAGING / kind).iterdir():
            (stage / kind / script.name).write_text(_filled(script.read_text(), code=laid_out.code))
    hook = (source.PACKAGING / "deb/rtupdate").read_text()
    for package in ("nodeagent", "nodeagent-demo"):
        (stage / f"deb/{package}.rtupdate").write_text(_filled(hook, package=package))


def _filled(template: str, **values: str) -> str:
    for name, value in values.items():
        template = template.replace(f"@{name.upper()}@", value)
    return template


def _settle(stage: Path) -> None:
    """Give everything the one time, and modes that no umask has touched."""
    now = source.time()
    for path in stage.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
        os.utime(path, (now, now))


def _named(recipe: dict[str, Any], kind: str) -> str:
    name, version, release = recipe["name"], recipe["version"], recipe["release"]
    if kind == "deb":
        return f"{name}_{version}-{release}_all.deb"
    return f"{name}-{version}-{release}.noarch.rpm"


def _pack(recipe: Path, kind: str, package: Path) -> Path:
    command = [str(NFPM), "package", "--config", str(recipe), "--packager", kind, "--target", str(package)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return package


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
