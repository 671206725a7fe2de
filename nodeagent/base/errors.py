# SPDX-License-Identifier: Apache-2.0
"""Errors by fault: configuration, kernel, kubelet, cluster, internal.

Every error that leaves a layer is one of these. Users see two lines: what happened and what to do.
Errors of foreign libraries are wrapped at the door of the layer that talks to them (``raise … from e``).
"""

from __future__ import annotations

LONGEST = 1000  # characters of a text that quotes others


_END = 200  # of them, what they end with: often that says what is wrong


def bounded(text: str) -> str:
    """The text, cut in its middle where it is longer than any person reads."""
    more = len(text) - LONGEST
    return text if more <= 0 else f"{text[: LONGEST - _END]}... ({more} more characters) ...{text[-_END:]}"


def on_one_line(text: str) -> str:
    """The text, with what cannot be printed written as Python does it."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


class NodeagentError(Exception):
    """Base of all errors of this program: ``what`` happened, and what to do (``hint``)."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def lines(self) -> str:
        """The two lines that users see."""
        return f"{self.what}\n{self.hint}" if self.hint else self.what


class ConfigError(NodeagentError):
    """Raised for a mistake of the operator: a wrong key, type, selector, name or path.

    The text of the file may be of any length and have line ends in it; it is quoted in both lines.
    """

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(on_one_line(bounded(what)), on_one_line(bounded(hint)))


class KernelRefused(NodeagentError):
    """Raised when the kernel refused or did not finish a read or a write of a host path.

    ``interrupting``: the attempt took a working driver away, and restored it.
    """

    def __init__(
        self, what: str, hint: str = "", *, errno: int = 0, path: str = "", interrupting: bool = False
    ) -> None:
        super().__init__(what, hint)
        self.errno = errno
        self.path = path
        self.interrupting = interrupting


class KubeletUnavailable(NodeagentError):
    """Raised when the kubelet is absent, refuses or does not answer. Always means: try again."""


class ClusterUnavailable(NodeagentError):
    """Raised when the API server is absent, refuses, does not answer, or its answer cannot be read.

    ``status``: of HTTP, 0 if there was none. ``after``: seconds until the next request that it allows, or 0.
    """

    def __init__(self, what: str, hint: str = "", *, status: int = 0, after: float = 0.0) -> None:
        super().__init__(what, hint)
        self.status = status
        self.after = after


class AllocationRefused(NodeagentError):
    """Raised when an Allocate cannot be granted; the text reaches the user in the pod's status."""


class FatalError(NodeagentError):
    """Raised when this process must end: no component is restarted."""


class AlreadyRunning(FatalError):
    """Raised when another nodeagent serves this node already."""


class CodeReplaced(FatalError):
    """Raised when the code of this process was removed, and a part of it is needed."""


class InternalError(NodeagentError):
    """Raised when nodeagent itself is wrong."""
