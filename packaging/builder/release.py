# SPDX-License-Identifier: Apache-2.0
"""What lies beside the artefacts of a release: the checksums of all of them, signed if a key is given.

Each target that makes artefacts into a directory renews the one list in it. Signatures that are part of a
package are not made here.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from builder import source

SUMS = "SHA256SUMS"
SIGNATURE = "SHA256SUMS.asc"


class NoSignature(Exception):
    """Raised when the checksums cannot be signed; the text, in two lines, says why and what to do."""


def options(parser: argparse.ArgumentParser) -> None:
    """Add what all targets are told: where to, and the key."""
    parser.add_argument("--to", type=Path, default=source.ROOT / "dist", help="directory; default: dist")
    parser.add_argument("--key", type=Path, help="file of a secret OpenPGP key that signs (NFPM_PASSPHRASE)")


def finish(target: Path, made: Iterable[Path], key: Path | None = None) -> None:
    """Say what was made, and renew the checksums. :raises NoSignature: if ``key`` does not sign."""
    own = sorted(made)
    for path in own:
        print(f"{path.stat().st_size:>13,}  {path}")
    sums = target / SUMS
    listed = (
        [target / line.split("  ", 1)[1] for line in sums.read_text().splitlines()] if sums.exists() else []
    )
    all_of_it = sorted({*own, *(path for path in listed if path.is_file())})
    sums.write_text("".join(f"{_digest(path)}  {path.name}\n" for path in all_of_it))
    (target / SIGNATURE).unlink(missing_ok=True)  # it was of the old list
    if key:
        _sign(sums, target / SIGNATURE, key)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sign(file: Path, signature: Path, key: Path) -> None:
    """Sign with a key ring that is there for this alone."""
    if shutil.which("gpg") is None:
        raise NoSignature(
            f"gpg, which signs {file.name}, is not on this machine\nInstall gnupg (Debian's name)"
        )
    with tempfile.TemporaryDirectory(prefix="nodeagent-key-") as home:
        try:
            _gpg(home, "--import", str(key))
            _gpg(home, "--armor", "--output", str(signature), "--detach-sign", str(file))
        finally:
            subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False)


def _gpg(home: str, *arguments: str) -> None:
    quiet = ("--homedir", home, "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase-fd", "0")
    passphrase = os.environ.get("NFPM_PASSPHRASE", "")
    done = subprocess.run(
        ["gpg", *quiet, *arguments], input=passphrase, capture_output=True, text=True, check=False
    )
    if done.returncode:
        why = done.stderr.strip().replace("\n", "; ")
        raise NoSignature(
            f"gpg cannot sign: {why}\nGive --key a secret key, and NFPM_PASSPHRASE its passphrase"
        )
