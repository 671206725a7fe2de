# SPDX-License-Identifier: Apache-2.0
"""The files of a simulated host: paths below one directory, links as the kernel makes them, device nodes.

Device nodes are empty files, or real ones that lead to no driver (major 240, for local use) where ``mknod``
is asked for. Knows no devices.
"""

from __future__ import annotations

import os
import stat

from nodeagent.sim import files

LOCAL_MAJOR = 240
_ASIDE = "/.announced"


class Tree:
    """A host's file system below ``directory``; host paths begin with a slash."""

    def __init__(self, directory: str, mknod: bool) -> None:
        self.directory = directory
        self._mknod = mknod
        self._minor = 0

    def path(self, path: str) -> str:
        """The path in this process of a host path."""
        return self.directory + path

    def real(self, path: str) -> str:
        """The host path to which links lead from a host path."""
        return os.path.realpath(self.path(path)).removeprefix(os.path.realpath(self.directory))

    def link(self, path: str, to: str) -> None:
        """A relative link between two host paths, as the kernel makes them."""
        files.link(self.path(path), os.path.relpath(to, path.rpartition("/")[0]))

    def node(self, path: str) -> None:
        """Make a device node, e.g. /dev/kvm."""
        files.directory(self.path(path.rpartition("/")[0]))
        if not self._mknod:
            files.write_new(self.path(path), "")
            return
        self._minor += 1
        os.mknod(self.path(path), stat.S_IFCHR | 0o600, os.makedev(LOCAL_MAJOR, self._minor))

    def ensure_node(self, path: str) -> None:
        """Make a device node unless it is there."""
        if not os.path.lexists(self.path(path)):
            self.node(path)

    def announce(self, link: str) -> None:
        """Renew the link by which a bus lists a device: inotify reports it, as the kernel sends a uevent."""
        if os.path.lexists(self.path(link)):
            files.renew_link(self.path(link), self.path(_ASIDE))

    def remove(self, path: str) -> None:
        """Remove a file, link or node if it is there."""
        files.remove(self.path(path))
