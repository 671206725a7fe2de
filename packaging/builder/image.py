# SPDX-License-Identifier: Apache-2.0
"""``make image``: the container image, built by buildah from the Dockerfile, and its archive in ``dist/``.

``BUILD_IMAGE`` and ``RUNTIME_IMAGE`` name the bases. Without them they are made of Debian's packages, so that
no registry is needed: a root without a shell, and one with pip. They stay in buildah's storage; remove them
there to renew them. Two builds of one source on one base are the same image.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from builder import debian, source, vendoring

SUITE = "bookworm"  # the release with Python 3.11
# What no program in the image reads. Licences stay.
_UNREAD = (
    *("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*", "/usr/lib/*/gconv/*"),
    *("/usr/bin/dpkg*", "/usr/share/perl5/*"),
)
_LICENCES = "--dpkgopt=path-include=/usr/share/doc/*/copyright"
_TRIM = (*(f"--dpkgopt=path-exclude={path}" for path in _UNREAD), _LICENCES)
BASES = {
    "RUNTIME_IMAGE": ("--include=base-files,python3.11", *_TRIM),
    "BUILD_IMAGE": ("--include=base-files,python3.11,python3-pip,python3-setuptools,python3-wheel",),
}
WHEELS = "/var/cache/nodeagent/packages"  # NODEAGENT_CACHE of the Dockerfile: nothing is fetched there
NEEDED = {"buildah": "buildah", "mmdebstrap": "mmdebstrap"}


class Unable(Exception):
    """Raised when the image cannot be built; the text says what to do."""


def main(arguments: list[str]) -> int:
    """Build; the exit code."""
    parser = argparse.ArgumentParser(prog="builder.image", description="Builds the container image.")
    parser.add_argument("--to", type=Path, default=source.ROOT / "dist", help="directory; default: dist")
    parser.add_argument("--name", default=f"nodeagent:{source.version()}", help="default: nodeagent:VERSION")
    options = parser.parse_args(arguments)
    try:
        archive = build(options.to.resolve(), options.name)
    except (Unable, debian.NoTree) as error:
        print(f"make image: {error}", file=sys.stderr)
        return 1
    print(f"{archive.stat().st_size:>9,}  {archive}")
    return 0


def build(target: Path, name: str) -> Path:
    """Build the image; its archive. :raises Unable: if a program is missing or fails."""
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
    return archive


def _base(kind: str, time: int) -> str:
    """The name of a base in buildah's storage; made if it is not there."""
    name = f"localhost/nodeagent-{kind.partition('_')[0].lower()}-base:{SUITE}"
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
