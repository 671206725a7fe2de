# SPDX-License-Identifier: Apache-2.0
"""``make image``: the container image, built by buildah from the Dockerfile, and its archive in ``dist/``.

``BUILD_IMAGE`` and ``RUNTIME_IMAGE`` name the bases. Without them they are made of Debian's packages, so that
no registry is needed: a root without a shell, and one with pip. They stay in buildah's storage; remove them
there to renew them. Two builds of one source on one base are the same image.

Its bill of materials names Debian's packages as the image's own root lists them; of a base that is given by
name and is not of Debian, the bill has the name.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cyclonedx.model.component import Component, ComponentType

from builder import debian, installed, release, sbom, source, vendored, vendoring
from builder.sbom import Part

SUITE = "bookworm"  # the release with Python 3.11
# What no program in the image reads. Licences stay.
_UNREAD = (
    *("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*", "/usr/lib/*/gconv/*"),
    *("/usr/bin/dpkg*", "/usr/share/perl5/*"),
)
_LICENCES = "--dpkgopt=path-include=/usr/share/doc/*/copyright"
_TRIM = (*(f"--dpkgopt=path-exclude={path}" for path in _UNREAD), _LICENCES)
# Nothing is installed there, only unpacked, so dpkg has no list. Scanners know this one.
_LISTED = f"""--extract-hook=
mkdir -p "$1/{installed.EACH}"
for deb in "$1"/var/cache/apt/archives/*.deb; do
    file="$1/{installed.EACH}/$(dpkg-deb --field "$deb" Package)"
    dpkg-deb --field "$deb" > "$file"
    echo "SHA256: $(sha256sum "$deb" | cut -d ' ' -f 1)" >> "$file"
done
"""
BASES = {
    "RUNTIME_IMAGE": ("--include=base-files,python3.11", *_TRIM, _LISTED),
    "BUILD_IMAGE": ("--include=base-files,python3.11,python3-pip,python3-setuptools,python3-wheel",),
}
WHEELS = "/var/cache/nodeagent/packages"  # NODEAGENT_CACHE of the Dockerfile: nothing is fetched there
NEEDED = {"buildah": "buildah", "mmdebstrap": "mmdebstrap"}


class Unable(Exception):
    """Raised when the image cannot be built; the text says what to do."""


def main(arguments: list[str]) -> int:
    """Build; the exit code."""
    parser = argparse.ArgumentParser(prog="builder.image", description="Builds the container image.")
    release.options(parser)
    parser.add_argument("--name", default=f"nodeagent:{source.version()}", help="default: nodeagent:VERSION")
    options = parser.parse_args(arguments)
    target = options.to.resolve()
    try:
        made = build(target, options.name)
        release.finish(target, made, options.key and options.key.resolve())
    except (Unable, debian.NoTree, sbom.NoLicence, release.NoSignature) as error:
        print(f"make image: {error}", file=sys.stderr)
        return 1
    return 0


def build(target: Path, name: str) -> list[Path]:
    """Build the image; its archive and its bill. :raises Unable: if a program is missing or fails."""
    if absent := [package for program, package in NEEDED.items() if shutil.which(program) is None]:
        raise Unable(f"not on this machine: {', '.join(absent)}. Install it (Debian's name)")
    time = source.time()
    arguments = {kind: os.environ.get(kind) or _base(kind, time) for kind in BASES}
    arguments |= {"VERSION": source.version(), "REVISION": source.revision()}
    wheels = vendoring.wheels().parent
    buildah(
        *("build", "--quiet", "--isolation", "chroot", "--layers=false", "--timestamp", str(time)),
        *("--volume", f"{wheels}:{WHEELS}:ro", "--tag", name),
        *(f"--build-arg={key}={value}" for key, value in arguments.items()),
        str(source.ROOT),
    )
    target.mkdir(parents=True, exist_ok=True)
    archive = target / f"nodeagent-{source.version()}.image.tar"
    archive.unlink(missing_ok=True)  # there is no adding to an archive
    buildah("push", "--quiet", name, f"docker-archive:{archive}:{name}")
    parts = (*vendored.parts(), *_of_the_base(name))
    beside = target / f"nodeagent-{source.version()}.image.cdx.json"
    return [archive, sbom.write(beside, parts, ComponentType.CONTAINER)]


def _of_the_base(name: str) -> list[Part]:
    """What the image has from its base: the packages that it lists, and the base itself if it was given."""
    container = buildah("from", "--pull-never", name)
    try:
        found = installed.parts(Path(buildah("mount", container)))
    finally:
        buildah("rm", container)
    given = os.environ.get("RUNTIME_IMAGE")
    return [*found, _given(given)] if given else found


def _given(base: str) -> Part:
    licences = sbom.licences(["those of what is in it"])
    return Part(
        Component(name=base, type=ComponentType.CONTAINER, licenses=licences, bom_ref=base), direct=True
    )


def _base(kind: str, time: int) -> str:
    """The name of a base in buildah's storage; made if it is not there."""
    recipe = hashlib.sha256("\n".join(BASES[kind]).encode()).hexdigest()[:8]
    name = f"localhost/nodeagent-{kind.partition('_')[0].lower()}-base:{SUITE}-{recipe}"
    if buildah("images", "--quiet", "--filter", f"reference={name}"):
        return name
    print(f"making {name} ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree.tar")
        debian.make(SUITE, tree, "--variant=extract", *BASES[kind])
        container = buildah("from", "scratch")
        buildah("add", "--quiet", container, str(tree), "/")
        buildah("commit", "--quiet", "--rm", "--timestamp", str(time), container, name)
    return name


def buildah(*arguments: str) -> str:
    """What it prints. :raises Unable: if it fails, with its last words."""
    done = subprocess.run(["buildah", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unable(f"buildah {arguments[0]} failed:\n{done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
