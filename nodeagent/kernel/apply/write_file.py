# SPDX-License-Identifier: Apache-2.0
"""Writes one value to one file; also the program that ``write.py`` runs for each write that may block.

It runs as ``python -I -S write_file.py PATH VALUE``. It loads only the interpreter and no other module of
nodeagent, so it starts in 7 ms. It prints the errno of the write, 0 after success.
"""

from __future__ import annotations

import os
import sys

NAME = "write-file"  # selects this program in the executable of ``make binary``, which has no script to run


def write_file(path: str, value: str) -> int:
    """Write the value and a newline in one call, as sysfs requires; return the errno, 0 after success."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(file, f"{value}\n".encode())
        finally:
            os.close(file)
    except OSError as error:
        return error.errno or 5  # EIO
    return 0


def main() -> None:
    """Write the last argument to the path before it."""
    path, value = sys.argv[-2:]
    sys.stdout.write(str(write_file(path, value)))


if __name__ == "__main__":
    main()
