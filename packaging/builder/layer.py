# SPDX-License-Identifier: Apache-2.0
"""The one layer of the container image: run by the Dockerfile, in its build stage.

The same modules and libraries as in the packages, without the demo, with byte code: the image's root is
read-only, and its Python is known.
"""

from __future__ import annotations

import compileall
import py_compile
import shutil
import sys
import tempfile
from pathlib import Path

from builder import payload, source


def main(target: Path) -> None:
    """Fill ``target``, which is not there yet; its path is the one in the image."""
    with tempfile.TemporaryDirectory() as stage:
        laid_out = payload.lay_out(Path(stage))
        shutil.copytree(laid_out.daemon / payload.PLACE / laid_out.code, target / "lib")
        (target / "NOTICES").write_text(laid_out.notices)
    shutil.copyfile(source.PACKAGING / "copyright", target / "copyright")
    never_stale = py_compile.PycInvalidationMode.UNCHECKED_HASH
    if not compileall.compile_dir(target / "lib", quiet=1, invalidation_mode=never_stale):
        raise SystemExit("some modules cannot be compiled")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
